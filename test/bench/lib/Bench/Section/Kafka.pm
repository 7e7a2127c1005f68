# Section "kafka": relays into a real Kafka broker, exactly once and at least once, beside
# librdkafka's own producer on the same broker.
#
# Rates: a backlog committed before is carried out, by a relay that starts then.  All
# relays of a size carry the same backlog, each into a topic of its own.  The producer
# (producer.c) sends as many records of the same form from memory.  A rate is that
# between the first tenth and the last event, so that no program's start counts.
#
# Latencies: the load of section "latency".  Between worker and sink program stands
# ack.c, which sees when the sink says that an event is acked.
package Bench::Section::Kafka;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Broker;
use Bench::Relay;
use Bench::Section::Latency;
use Bench::Server;

*until_true = \&Bench::Server::until_true;

my @arms = (
	{ name => 'producer', run => \&run_producer, mode => 'plain' },
	{ name => 'producer_transactions', run => \&run_producer, mode => 'transactions' },
	{ name => 'at_least_once', run => \&run_relay },
	{ name => 'exactly_once', run => \&run_relay });
my @deliveries = qw(at_least_once exactly_once);
my %size_of_backlog = (200 => 1, 2000 => 0.25);
my @rates = (100, 1000);
my $partitions = 4;

# JSON as jsonb prints it, of so many bytes.
sub payload
{
	my ($size) = @_;
	my ($head, $tail) = ('{"note": "', '", "order": 42, "customer": "c-0017"}');
	my @words = qw(left at the door neighbour knows call before noon second floor ring twice parcel fragile keep dry
	  return if absent signed by hand gate code garden behind shed invoice inside);
	my $room = $size - length("$head$tail");
	my $note = '';

	srand(7);
	$note .= $words[ rand @words ] . int(rand 1000) . ' ' while length($note) < $room;
	return $head . substr($note, 0, $room - 1) . '.' . $tail;
}

# A sink into the topic of new_topic($kafka, 'OrderCreated').
sub make_sink
{
	my ($run, $kafka, $n, $delivery) = @_;
	my $server = $run->{server};

	$server->sql("CREATE SERVER kafka_$n FOREIGN DATA WRAPPER idempotency_kafka"
		  . " OPTIONS (brokers '$kafka->{address}', topic 'bench.m$n.{event_type}', delivery '$delivery')");
	$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER kafka_$n");
	return "kafka_$n";
}

# Sinks of the latencies, into the topics of the event types.
sub make_ack_sinks
{
	my ($run, $kafka) = @_;
	my $server = $run->{server};

	for my $delivery (@deliveries)
	{
		$server->sql("CREATE SERVER ack_$delivery FOREIGN DATA WRAPPER idempotency_program"
			  . " OPTIONS (program 'ack', report '$run->{dir}/ack.report', brokers '$kafka->{address}',"
			  . " topic 'bench.{event_type}', delivery '$delivery')");
		$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER ack_$delivery");
	}
}

sub events_of
{
	my ($run, $size) = @_;

	return $run->{kafka_events} * $size_of_backlog{$size};
}

# Commit a backlog of events of this size, and nothing else.  A paused relay lets the
# worker note ticks meanwhile, as for any relay that is behind.
sub fill
{
	my ($run, $kafka, $size) = @_;
	my ($n) = new_topic($kafka, 'OrderCreated');
	my $payload = payload($size);

	Bench::Relay->new($run, 'kafka_paused', make_sink($run, $kafka, $n, 'at_least_once'))->create;
	$run->fill("SELECT count(idempotency.outbox_enqueue('order', (g % 1000)::text, 'OrderCreated', '$payload'))"
		  . ' FROM generate_series(1, 100) g;', events_of($run, $size) / 100);
	$run->{server}->sql('CHECKPOINT');
	return;
}

# Drop what fill has made.
sub empty
{
	my ($run) = @_;
	my $relay = Bench::Relay->new($run, 'kafka_paused');

	$relay->drop;
	$relay->empty_outbox;
	return;
}

# A number for a topic, and for what belongs to it, and the topic: bench.m$n, or for
# events of a type bench.m$n.TYPE.
sub new_topic
{
	my ($kafka, $type) = @_;
	my $n = $kafka->next_number;
	my $topic = join('.', "bench.m$n", $type // ());

	$kafka->ask('create', $topic, $partitions);
	return ($n, $topic);
}

sub new_relay
{
	my ($run, $kafka, $n, $sink, $start_at) = @_;

	$kafka->ask('position', "idempotency.position.kafka_$n");
	return Bench::Relay->new($run, "kafka_$n", $sink)->create($start_at);
}

sub run_producer
{
	my ($run, $kafka, $arm, $events, $payload) = @_;
	my ($n, $topic) = new_topic($kafka);
	my $broker_cpu = $kafka->cpu;

	open(my $p, '-|', "$run->{dir}/producer", $kafka->{address}, $topic, $events, $payload, $arm->{mode})
	  or die "producer: $!\n";
	my $line = <$p> // '';
	close($p) or die "the producer failed\n";
	my ($rate, $cpu) = split ' ', $line;
	$broker_cpu = $kafka->cpu - $broker_cpu;
	$kafka->has_messages($topic, $events);
	$kafka->ask('delete', $topic);
	return { rate => $rate, worker_cpu => 0, client_cpu => $cpu, broker_cpu => $broker_cpu };
}

# Let the paused relay send; the rate and the CPU.
sub drain
{
	my ($kafka, $relay, $events) = @_;
	my $before = $relay->status;
	my $worker_cpu = Bench::Server::precise_cpu_seconds($before->{pid});
	my $broker_cpu = $kafka->cpu;
	my $now;
	# of a quick run all may be sent at once: then the start counts
	my ($tenth, $begin) = (0, time);

	$relay->resume;
	until_true(
		300,
		"relay $relay->{name} has not sent $events events",
		sub {
			$now = $relay->status;
			$now->{sent} -= $before->{sent};
			($tenth, $begin) = ($now->{sent}, time) if !$tenth && $now->{sent} >= $events / 10 && $now->{sent} < $events;
			return $now->{sent} >= $events;
		});
	my $end = time;

	die "relay $relay->{name} sent $now->{sent} of $events events\n" if $now->{sent} != $events;
	die "relay $relay->{name} got another worker\n" if $now->{pid} != $before->{pid};
	return { rate => ($events - $tenth) / ($end - $begin),
		worker_cpu => Bench::Server::precise_cpu_seconds($now->{pid}) - $worker_cpu,
		client_cpu => Bench::Server::cpu_seconds($now->{sink}), broker_cpu => $kafka->cpu - $broker_cpu };
}

sub run_relay
{
	my ($run, $kafka, $arm, $events, $payload) = @_;
	my ($n, $topic) = new_topic($kafka, 'OrderCreated');
	my $relay = new_relay($run, $kafka, $n, make_sink($run, $kafka, $n, $arm->{name}), 'earliest');
	my $r = drain($kafka, $relay, $events);

	$relay->drop;
	$kafka->has_messages($topic, $events);
	$kafka->ask('delete', $topic);
	return $r;
}

sub run_arm
{
	my ($run, $kafka, $arm, $size, $round) = @_;
	my $events = events_of($run, $size);
	my $r = $arm->{run}->($run, $kafka, $arm, $events, payload($size));

	return unless $round;
	$run->note('kafka', arm => $arm->{name}, size => $size, round => $round, events => $events, %$r);
	printf "   %-22s %4d bytes %9.0f events/s  (worker %.2f us, client %.2f us, broker %.2f us)\n", $arm->{name}, $size,
	  $r->{rate}, map { 1e6 * $r->{$_} / $events } qw(worker_cpu client_cpu broker_cpu);
}

sub latency
{
	my ($run, $kafka, $delivery, $rate, $round) = @_;
	my $server = $run->{server};
	my ($n, $topic) = new_topic($kafka);
	my $relay = new_relay($run, $kafka, $n, "ack_$delivery");
	my $file = "$run->{dir}/ack.report";
	my @due = Bench::Section::Latency::schedule($run, $rate, $round);
	my @sessions = Bench::Section::Latency::producers($run, 8, "SELECT idempotency.outbox_enqueue('order', \$1, 'm$n', \$2::jsonb)");

	$relay->stream;
	# the first event of a topic waits for the brokers' metadata; it does not count
	$server->sql("SELECT idempotency.outbox_enqueue('order', 'first', 'm$n', '{}')");
	until_true(60, 'the first event is not sent', sub { $relay->status->{sent} == 1 });
	unlink $file;
	my $cpu = $server->cpu;
	Bench::Section::Latency::offer(\@sessions, undef, @due);
	until_true(60, 'not all was sent', sub { $relay->status->{sent} == 1 + @due });
	$run->note('latency', who => $delivery, rate => $rate, round => $round, events => scalar @due, tick => 0,
		cpu_us => 1e6 * ($server->cpu - $cpu) / @due);
	Bench::Section::Latency::end_producers(@sessions);
	until_true(30, 'the sink has not reported', sub { Bench::Section::Latency::counted($file) == @due });
	$relay->drop;
	Bench::Section::Latency::note_histogram($run, $delivery, $rate, $round, $file);
	$relay->empty_outbox;
	$kafka->ask('delete', $topic);
}

sub run
{
	my ($run) = @_;
	my $kafka = Bench::Broker->new($run->{dir}, 'kafka');

	for my $size (sort keys %size_of_backlog)
	{
		my $text = payload($size);
		my $same = $run->{server}->sql("SELECT '$text'::jsonb::text");

		die "payload of $size bytes: jsonb makes $same of $text\n" if $same ne $text || length($text) != $size;
	}
	make_ack_sinks($run, $kafka);
	for my $size (sort { $a <=> $b } keys %size_of_backlog)
	{
		fill($run, $kafka, $size);
		print "== kafka, $size bytes, unmeasured: Java compiles what is busy\n";
		run_arm($run, $kafka, $_, $size, 0) for @arms;
		for my $round (1 .. $run->{kafka_rounds})
		{
			print "== kafka, $size bytes, round $round of $run->{kafka_rounds}\n";
			run_arm($run, $kafka, $_, $size, $round) for $round % 2 ? @arms : reverse @arms;
		}
		empty($run);
	}
	my $quiet = $run->on_server($run->{server}, latency_seconds => $run->{kafka_latency_seconds},
		latency_rounds => $run->{kafka_latency_rounds});
	my @loads = map { my $rate = $_; map { [ $_, $rate ] } @deliveries } @rates;
	for my $round (1 .. $run->{kafka_latency_rounds})
	{
		latency($quiet, $kafka, @$_, $round) for $round % 2 ? @loads : reverse @loads;
	}
	$kafka->stop;
}

1;
