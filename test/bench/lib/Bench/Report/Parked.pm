# Draining copies that waited behind parked events.
package Bench::Report::Parked;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

my %title = (null_sink => 'the null sink program', idle_sink => 'a function that does nothing');

# The rounds of each case, as lists.
sub cases
{
	my ($section) = @_;
	my %rounds;

	push @{ $rounds{"$_->{sink} $_->{keys}"} }, $_ for @{ $section->{parked} // [] };
	return map { $rounds{$_} } reverse sort keys %rounds;
}

sub title
{
	my ($m) = @_;

	return thousands($m->{events}) . " copies of $m->{keys} key" . ($m->{keys} == 1 ? '' : 's') . " to $title{ $m->{sink} }";
}

sub targets
{
	my ($report) = @_;

	$report->target(section => 'parked', what => 'parked ' . title($_->[0]) . ', events/s', reads => 'ours', relation => '≥', goal => 10_000,
		format => '%.0f', values => [ map { $_->{events} / $_->{parked_seconds} } @$_ ])
	  for cases($report->section('parked') // {});
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('parked') or return;

	$report->head('Copies behind parked events', $section);
	$report->say('The first event of each key was parked, and the others behind it; then it goes through. ',
		'Beside it as many plain events by the same relay, just before; medians (least – greatest round).');
	$report->table([ 'copies', 'plain, events/s', 'parked, events/s', 'parked / plain' ],
		map { my @r = @$_;
			[ title($r[0]), spread('%.0f', map { $_->{events} / $_->{plain_seconds} } @r),
				spread('%.0f', map { $_->{events} / $_->{parked_seconds} } @r),
				spread('%.2f', map { $_->{plain_seconds} / $_->{parked_seconds} } @r) ] } cases($section));
}

1;
