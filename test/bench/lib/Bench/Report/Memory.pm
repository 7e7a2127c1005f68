# Memory of the relay's worker.
package Bench::Report::Memory;
use strict;
use warnings;
use Bench::Report;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

sub title
{
	my ($m) = @_;

	return thousands($m->{events}) . ($m->{what} eq 'one_transaction'
		? ' events in one transaction' : " events in transactions of $m->{per}");
}

# The rounds of each backlog, as lists.
sub backlogs
{
	my ($section) = @_;
	my %rounds;

	push @{ $rounds{ $_->{what} } }, $_ for @{ $section->{memory} // [] };
	return map { $rounds{$_} } reverse sort keys %rounds;
}

sub targets
{
	my ($report) = @_;

	$report->target(section => 'memory', what => 'memory of the worker\'s own, ' . title($_->[0]) . ', MB', reads => 'ours', relation => '≤', goal => 32,
		format => '%.1f', values => [ map { $_->{anon_kb} / 1024 } @$_ ])
	  for backlogs($report->section('memory') // {});
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('memory') or return;

	$report->head('Memory of the relay', $section);
	$report->say('The largest private resident size of the worker (RssAnon) seen while it drained; ',
		"beside it VmHWM, which counts the shared buffers it touched; medians (least – greatest round).\n");
	$report->table([ 'backlog', 'of its own, MB', 'VmHWM, MB', 'program, MB', 'seconds', 'CPU, s' ],
		map { my @rounds = @$_;
			[ title($rounds[0]), (map { my $f = $_; spread('%.1f', map { $_->{$f} / 1024 } @rounds) } qw(anon_kb hwm_kb sink_hwm_kb)),
				map { my $f = $_; spread('%.2f', map { $_->{$f} } @rounds) } qw(seconds cpu) ] } backlogs($section));
}

1;
