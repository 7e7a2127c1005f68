# Dead letters that are redriven at once.
package Bench::Report::Redrive;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*thousands = \&Bench::Report::thousands;
*spread = \&Bench::Report::spread;

sub targets
{
}

# Microseconds in each round; the greatest is the end of its bucket.
sub latencies
{
	my ($section, $who, $q) = @_;

	return map { Bench::Report::Latency::in_round($section, $q, $_, 'due') }
	  Bench::Report::Latency::runs_of($section, $who, 100);
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('redrive') or return;
	my @rows;

	for my $kind (qw(program function))
	{
		my @r = grep { $_->{kind} eq $kind } @{ $section->{redrive} };

		push @rows, [ "a $kind", thousands($r[0]{events}), spread('%.2f', map { $_->{call_seconds} } @r),
			spread('%.1f', map { $_->{seconds} } @r), spread('%.0f', map { $_->{events} / $_->{seconds} } @r),
			map { my $who = $_; map { spread('%.1f', map { $_ / 1000 } latencies($section, "$kind-$who", $_)) } 0.5, 0.99, 1 } qw(alone redrive) ];
	}
	$report->head('Redriving dead letters', $section);
	$report->say('All dead letters of a relay are redriven by one call, while 100 new events a second of other keys are enqueued. ',
		'Seconds from the call until none is parked; beside it the latency of the new events, in milliseconds from the time at which each ',
		'was due until the program has read it or the handler is called, by the same kind of relay alone and during the redrive ',
		"(begun a second before it). Medians (least – greatest round).\n");
	$report->table([ 'relay to', 'dead letters', 'the call, s', 'all delivered, s', 'events/s', 'alone: p50, ms', 'p99, ms', 'max, ms',
			'during: p50, ms', 'p99, ms', 'max, ms' ], @rows);
}

1;
