# Relays into NATS, Redis, RabbitMQ and MQTT beside the fastest producer of the client library.
package Bench::Report::Broker;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;
*rates = \&Bench::Report::rates;

# Of a section: its title, what the broker is, and its arms: [name, title, the producers
# that it is compared with, of each of which there must be at least 0.7].  An arm of
# floor's is shown beside that one, too; nothing has to come near to it.
my %sections = (
	nats => {
		title => 'Into NATS JetStream',
		about => 'a nats-server whose streams are in files, synced as often as it does by default, every two minutes. '
		  . "libnats' producer is js_PublishMsgAsync with Nats-Msg-Id, and 4,000 messages in flight; or it sends atomic batches of 1,000, one after the "
		  . 'other. The server makes a store of files for each atomic batch, and syncs them thrice: that is the floor of exactly once',
		arms => [
			[ 'producer', "libnats' own producer" ],
			[ 'producer_atomic', "libnats' own producer, in atomic batches" ],
			[ 'at_least_once', 'relay, at least once', 'producer' ],
			[ 'exactly_once', 'relay, exactly once', 'producer', 'producer_atomic' ] ] },
	redis => {
		title => 'Into Redis streams',
		about => 'a redis-server with appendfsync = always. '
		  . "hiredis' producer is XADD in a pipeline, with 1,000 to 2,000 commands in flight",
		arms => [
			[ 'producer', "hiredis' own producer" ],
			[ 'at_least_once', 'relay, at least once', 'producer' ],
			[ 'exactly_once', 'relay, exactly once', 'producer' ] ] },
	rabbitmq => {
		title => 'Into RabbitMQ',
		about => 'one node, quorum queues, streams as they are by default. '
		  . "librabbitmq's producer publishes with confirms, persistent and mandatory, with 4,000 messages in flight. "
		  . "For streams there is no library in C. The client is RabbitMQ's own in Go, whose BatchSend makes entries of 1,000 messages, "
		  . 'not compressed, ten entries in flight, and which was faster than the one in Java. The floor is a loop of our own '
		  . '(produce_stream.c), which sends such entries and does nothing else',
		arms => [
			[ 'producer', "librabbitmq's own producer" ],
			[ 'queue', 'relay into a queue', 'producer' ],
			[ 'stream_client', "RabbitMQ's own Go client into a stream" ],
			[ 'stream_floor', 'a loop of our own into a stream: the floor' ],
			[ 'stream_at_least_once', 'relay into a stream, at least once', 'stream_client' ],
			[ 'stream_exactly_once', 'relay into a stream, exactly once', 'stream_client' ] ],
		floor => { map { ($_ => 'stream_floor') } qw(stream_at_least_once stream_exactly_once) } },
	mqtt => {
		title => 'Into MQTT',
		about => "mosquitto, QoS 1, nobody subscribes. libmosquitto's producer has 100 messages in flight, as the sink has by default",
		arms => [
			[ 'producer', "libmosquitto's own producer" ],
			[ 'at_least_once', 'relay', 'producer' ] ] });
my @order = qw(nats redis rabbitmq mqtt);

sub rounds
{
	my ($section, $arm) = @_;

	return sort { $a->{round} <=> $b->{round} } grep { $_->{arm} eq $arm } @{ $section->{broker} // [] };
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

	for my $kind (@order)
	{
		my $section = $report->section($kind) // {};
		my %title = map { @$_[ 0, 1 ] } @{ $sections{$kind}{arms} };

		for my $arm (grep { $_->[2] } @{ $sections{$kind}{arms} })
		{
			my ($name, $title, @producers) = @$arm;

			$report->target(section => $kind, what => "$title vs $title{$_}, events/s", reads => 'ours / theirs', relation => '≥',
				goal => 0.7, format => '%.2f', part => $kind, values => [ ratios($section, $name, $_) ]) for @producers;
		}
	}
}

# The arm's rate over the producer's, and over its floor's.
sub compared
{
	my ($section, $kind, $arm, $producer) = @_;
	my $floor = $sections{$kind}{floor}{$arm};
	my @of_floor = $floor ? ratios($section, $arm, $floor) : ();

	return join '; ', ($producer ? spread('%.2f', ratios($section, $arm, $producer)) : ()),
	  (@of_floor ? 'of the floor ' . spread('%.2f', @of_floor) : ());
}

sub latency_row
{
	my ($section, $title, $load, $since, $since_title) = @_;
	my @which = (@$load{qw(who rate)}, $since);
	my @columns = Bench::Report::Latency::columns($section, @which) or return;

	return [ $title->{ $load->{who} }, $load->{rate}, $since_title, @columns ];
}

sub render_section
{
	my ($report, $kind) = @_;
	my $section = $report->section($kind) or return;
	my $size = $section->{size};
	my %title = map { @$_[ 0, 1 ] } @{ $sections{$kind}{arms} };

	$report->head($sections{$kind}{title}, $section);
	$report->say('A backlog of ', thousands($size->{broker_events}), ' events of 10,000 keys, with jsonb payloads of 200 bytes, committed by ',
		"100 before; ordering by key, batches of 1000. One broker on the same machine: $sections{$kind}{about}. ",
		'A producer sends as many messages of the same form from memory, in no order of keys. Rates are those between the first tenth and ',
		'the last event. CPU per event: the worker, the sink program or the producer, the broker, and all of them; they share the cores. ',
		"$size->{broker_rounds} rounds, in the order A B … B A; medians (least – greatest).\n");
	$report->table([ 'what', 'events/s', "of the producer's", 'worker, µs', 'program, µs', 'broker, µs', 'all, µs' ],
		map { my ($arm, $title, $producer) = @$_;
			my @r = rounds($section, $arm);
			my $us = sub { my @f = @_; spread('%.2f', map { my $r = $_; 1e6 * sum(map { $r->{$_} } @f) / $r->{events} } @r) };
			@r ? [ $title, rates(@r), compared($section, $kind, $arm, $producer),
				$producer ? $us->('worker_cpu') : '', $us->('client_cpu'), $us->('broker_cpu'),
				$us->(qw(worker_cpu client_cpu broker_cpu)) ] : () } @{ $sections{$kind}{arms} });
	$report->say("\nFrom COMMIT to the broker's acknowledgement, which is a little after the broker has the event; milliseconds, ",
		"$size->{broker_latency_seconds} s per line in $size->{broker_latency_rounds} rounds. Arrivals are those of [Latency](#latency). ",
		'"Enqueued" is the call of outbox_enqueue, just before COMMIT. Events that leave in one batch of commits carry the stamp of the ',
		"first, and \"counted\" is the share that carries one. Medians (least – greatest round).\n");
	$report->table([ 'relay', 'events/s', 'since', 'p50', 'p90', 'p99', 'max', 'events', 'counted' ],
		map { my $load = $_;
			map { latency_row($section, \%title, $load, @$_) } [ 'commit', 'the stamp of the commit' ], [ 'enqueue', 'enqueued' ],
			  [ 'due', 'the time it was due' ] } Bench::Report::Latency::loads($section));
}

sub render
{
	my ($report) = @_;

	render_section($report, $_) for @order;
}

1;
