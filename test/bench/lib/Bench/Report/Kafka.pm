# Relays into Kafka beside librdkafka's own producer.
package Bench::Report::Kafka;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;
*rates = \&Bench::Report::rates;

my @arms = (
	[ 'producer', "librdkafka's own producer" ],
	[ 'producer_transactions', "librdkafka's own producer, in transactions" ],
	[ 'at_least_once', 'relay, at least once' ],
	[ 'exactly_once', 'relay, exactly once' ]);
my %title = map { @$_ } @arms;

sub rounds
{
	my ($section, $arm, $size) = @_;

	return sort { $a->{round} <=> $b->{round} }
	  grep { $_->{arm} eq $arm && $_->{size} == $size } @{ $section->{kafka} // [] };
}

# Rate over rate, in each round.
sub ratios
{
	my ($section, $size, $over, $under) = @_;
	my @over = rounds($section, $over, $size);
	my @under = rounds($section, $under, $size);

	return Bench::Report::ratios(\@over, \@under);
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('kafka') // {};

	for my $size (200, 2000)
	{
		$report->target(section => 'kafka', what => "relay into Kafka, $_->[1], $size-byte payloads, vs $title{ $_->[2] }, events/s",
			reads => 'ours / theirs', relation => '≥', goal => 0.7, format => '%.2f', part => 'kafka',
			values => [ ratios($section, $size, $_->[0], $_->[2]) ])
		  for [ 'at_least_once', 'at least once', 'producer' ], [ 'exactly_once', 'exactly once', 'producer' ];
		$report->target(section => 'kafka', what => "relay into Kafka, $size-byte payloads, exactly once vs at least once, events/s",
			reads => 'exactly / at least once', relation => '≥', goal => 0.9, format => '%.2f', part => 'kafka',
			values => [ ratios($section, $size, 'exactly_once', 'at_least_once') ]);
	}
}

sub latency_row
{
	my ($section, $load, $since, $title) = @_;
	my @which = (@$load{qw(who rate)}, $since);
	my @columns = Bench::Report::Latency::columns($section, @which) or return;

	return [ $title{ $load->{who} }, $load->{rate}, $title, @columns ];
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('kafka') or return;
	my $size = $section->{size};

	$report->head('Into Kafka', $section);
	$report->say('A backlog of ', thousands($size->{kafka_events}), ' events with jsonb payloads of 200 bytes, and a quarter as many of 2,000, ',
		'committed by 100 before, into one broker on the same machine, four partitions; ordering by key, batches of 1000. ',
		"librdkafka's producer sends the same records from memory, with idempotence; in transactions of 50,000 in the second line. ",
		'Rates are those between the first tenth and the last event. CPU per event: the worker, the sink program or the producer, the ',
		'broker, and all of them. They share the cores, so the CPU of all is the floor of a rate: the floor of a relay is the ',
		"producer's, and of a relay that delivers exactly once that of the producer in transactions. ",
		"$size->{kafka_rounds} rounds, in the order A B … B A; medians (least – greatest).\n");
	$report->table([ 'payload', 'what', 'events/s', "of the producer's", 'worker, µs', 'program, µs', 'broker, µs', 'all, µs' ],
		map { my $bytes = $_; map { my ($arm) = @$_;
			my @r = rounds($section, $arm, $bytes);
			my $us = sub { my @f = @_; spread('%.2f', map { my $r = $_; 1e6 * sum(map { $r->{$_} } @f) / $r->{events} } @r) };
			@r ? [ "$bytes bytes", $title{$arm}, rates(@r),
				$arm eq 'producer' ? '' : spread('%.2f', ratios($section, $bytes, $arm, 'producer')),
				$arm =~ /^producer/ ? '' : $us->('worker_cpu'), $us->('client_cpu'), $us->('broker_cpu'),
				$us->(qw(worker_cpu client_cpu broker_cpu)) ] : () } @arms } 200, 2000);
	$report->say("\nFrom COMMIT to the acknowledgement of the brokers, ",
		'which exactly once is that of their transaction; milliseconds, ', "$size->{kafka_latency_seconds} s per line in ",
		"$size->{kafka_latency_rounds} rounds. Arrivals are those of [Latency](#latency). ",
		'"Enqueued" is the call of outbox_enqueue, just before COMMIT: an upper bound of the time from COMMIT. ',
		'Events that leave in one batch of commits carry the stamp of the first, and "counted" is the share that carries one. ',
		"A program between worker and sink, which reads the answers, adds its own time. Medians (least – greatest round).\n");
	$report->table([ 'relay', 'events/s', 'since', 'p50', 'p90', 'p99', 'max', 'events', 'counted' ],
		map { my $load = $_;
			map { latency_row($section, $load, @$_) } [ 'commit', 'the stamp of the commit' ], [ 'enqueue', 'enqueued' ],
			  [ 'due', 'the time it was due' ] } Bench::Report::Latency::loads($section));
}

1;
