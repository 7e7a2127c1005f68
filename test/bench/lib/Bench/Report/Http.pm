# A relay of webhooks beside libcurl's own loop and a load generator.
package Bench::Report::Http;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;
*rates = \&Bench::Report::rates;

my @arms = (
	[ 'generator', 'a plain load generator' ],
	[ 'libcurl', "libcurl's own loop" ],
	[ 'relay', 'relay' ],
	[ 'relay_signed', 'relay, each message signed' ],
	[ 'relay_beside_slow', 'relay, beside one whose receiver takes 5 s' ]);
my %title = map { @$_ } @arms;

sub rounds
{
	my ($section, $arm) = @_;

	return sort { $a->{round} <=> $b->{round} } grep { $_->{arm} eq $arm } @{ $section->{http} // [] };
}

# Rate over rate, in each round.
sub ratios
{
	my ($section, $over, $under) = @_;
	my @over = rounds($section, $over);
	my @under = rounds($section, $under);

	return Bench::Report::ratios(\@over, \@under);
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('http') // {};

	for (
		[ "relay of webhooks to nginx vs libcurl's own loop, events/s", 'relay', 'libcurl', 0.7 ],
		[ 'relay of webhooks beside a relay whose receiver takes 5 s vs alone, events/s', 'relay_beside_slow', 'relay', 0.95 ])
	{
		my ($what, $over, $under, $goal) = @$_;

		$report->target(section => 'http', what => $what, reads => 'ours / theirs', relation => '≥', goal => $goal, format => '%.2f',
			part => 'http', values => [ ratios($section, $over, $under) ]);
	}
}

sub latency_row
{
	my ($section, $load, $since, $title) = @_;
	my @which = (@$load{qw(who rate)}, $since);
	my @columns = Bench::Report::Latency::columns($section, @which) or return;

	return [ $load->{rate}, $title, @columns ];
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('http') or return;
	my $size = $section->{size};

	$report->head('Webhooks', $section);
	$report->say('A backlog of ', thousands($size->{http_events}), ' events with jsonb payloads of 200 bytes, committed by 100 before, to nginx ',
		'with one worker process on the same machine; ordering by key, 64 requests at once, HTTP/1.1. ',
		"libcurl's own loop (post.c) and the load generator (generate.c) send as many requests of the same form from memory; the generator ",
		'tells what nginx takes. Rates are those between the first tenth and the last event. CPU per event: the worker, the sink program ',
		"or the sender, nginx, and all of them; they share the cores. $size->{http_rounds} rounds, in the order A B … B A; ",
		"medians (least – greatest).\n");
	$report->table([ 'what', 'events/s', "of libcurl's", 'worker, µs', 'program, µs', 'nginx, µs', 'all, µs' ],
		map { my ($arm) = @$_;
			my @r = rounds($section, $arm);
			my $us = sub { my @f = @_; spread('%.2f', map { my $r = $_; 1e6 * sum(map { $r->{$_} } @f) / $r->{events} } @r) };
			@r ? [ $title{$arm}, rates(@r), $arm eq 'libcurl' ? '' : spread('%.2f', ratios($section, $arm, 'libcurl')),
				$arm =~ /^relay/ ? $us->('worker_cpu') : '', $us->('client_cpu'), $us->('receiver_cpu'),
				$us->(qw(worker_cpu client_cpu receiver_cpu)) ] : () } @arms);
	$report->say("\nFrom COMMIT to the answer of nginx, which is a little after the request; milliseconds, ",
		"$size->{http_latency_seconds} s per line in $size->{http_latency_rounds} rounds. Arrivals are those of [Latency](#latency). ",
		'"Enqueued" is the call of outbox_enqueue, just before COMMIT. Events that leave in one batch of commits carry the stamp of the ',
		"first, and \"counted\" is the share that carries one. Medians (least – greatest round).\n");
	$report->table([ 'events/s', 'since', 'p50', 'p90', 'p99', 'max', 'events', 'counted' ],
		map { my $load = $_;
			map { latency_row($section, $load, @$_) } [ 'commit', 'the stamp of the commit' ], [ 'enqueue', 'enqueued' ],
			  [ 'due', 'the time it was due' ] } Bench::Report::Latency::loads($section));
}

1;
