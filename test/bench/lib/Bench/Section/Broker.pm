# Sections "nats", "redis", "rabbitmq" and "mqtt": relays into a real broker, beside the
# fastest producer of the library that the sink links, on the same broker.
#
# Rates: a backlog committed before is carried out, by a relay that starts then.  All
# relays carry the same backlog, each into a target of its own.  A producer
# (produce_*.c) sends as many events of the same form from memory.  A rate is that
# between the first tenth and the last event, so that no program's start counts.
#
# Latencies: the load of section "latency".  Between worker and sink program stands
# ack.c, which sees when the sink says that an event is acked: a little after the broker
# has it.
package Bench::Section::Broker;
use strict;
use warnings;
use Bench::Broker;
use Bench::Relay;
use Bench::Section::Kafka;
use Bench::Section::Latency;
use Bench::Server;

*until_true = \&Bench::Server::until_true;

my $size = 200;
my @rates = (100, 1000);

# Of an arm: name; program and mode, for a producer; options of the sink, where TARGET and ADDRESS
# are filled in; target, how its name begins; address; extra, messages that are no events.
my %arms = (
	nats => [
		{ name => 'producer', program => 'produce_nats', suffix => '.OrderCreated' },
		{ name => 'producer_atomic', program => 'produce_nats', suffix => '.OrderCreated', mode => 'atomic' },
		{ name => 'at_least_once', options => "stream 'TARGET', subject 'TARGET.{event_type}', delivery 'at_least_once'" },
		{ name => 'exactly_once',
			options => "stream 'TARGET', subject 'TARGET.{event_type}', position_subject 'position.TARGET.{relay}'" } ],
	redis => [
		{ name => 'producer', program => 'produce_redis' },
		{ name => 'at_least_once', options => "stream 'TARGET', delivery 'at_least_once'" },
		{ name => 'exactly_once', options => "stream 'TARGET'" } ],
	rabbitmq => [
		{ name => 'producer', program => 'produce_rabbitmq', target => 'queue' },
		{ name => 'queue', target => 'queue', options => "exchange 'bench', routing_key 'TARGET'" },
		{ name => 'stream_client', program => 'produce_stream_go', target => 'stream', address => 'stream_address' },
		{ name => 'stream_floor', program => 'produce_stream', target => 'stream', address => 'stream_address' },
		{ name => 'stream_at_least_once', target => 'stream', address => 'stream_address',
			options => "stream 'TARGET', delivery 'at_least_once'" },
		# a start writes a fence
		{ name => 'stream_exactly_once', target => 'stream', address => 'stream_address', options => "stream 'TARGET'", extra => 1 } ],
	mqtt => [
		{ name => 'producer', program => 'produce_mqtt' },
		{ name => 'at_least_once', options => "topic 'TARGET', client_id 'bench-{relay}'" } ]);
my %mapping = (rabbitmq => " OPTIONS (user 'admin', password 'admin')");

# A new target of the arm; its name.
sub make_target
{
	my ($broker, $arm) = @_;
	my $target = ($arm->{target} // 'bench') . $broker->next_number;

	$broker->ask('make', $target);
	return $target;
}

# A sink of the arm into the target: its name, which is also a relay's.
sub make_sink
{
	my ($run, $broker, $arm, $target, $wrapper, $more) = @_;
	my $server = $run->{server};
	my $address = $broker->{ $arm->{address} // 'address' };
	my $name = "$broker->{kind}_$target";

	$server->sql("CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_$wrapper"
		  . " OPTIONS (servers '$address', " . ($arm->{options} =~ s/TARGET/$target/gr) . "$more)");
	$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER $name" . ($mapping{ $broker->{kind} } // ''));
	return $name;
}

# Commit a backlog, and nothing else.  A paused relay lets the worker note ticks
# meanwhile, as for any relay that is behind.  The keys are those of the producers, in a
# random order.
sub fill
{
	my ($run) = @_;
	my $payload = Bench::Section::Kafka::payload($size);

	Bench::Relay->new($run, 'broker_paused')->create;
	$run->fill("SELECT count(idempotency.outbox_enqueue('order', floor(10000 * random())::int::text, 'OrderCreated', '$payload'))"
		  . ' FROM generate_series(1, 100) g;', $run->{broker_events} / 100);
	$run->{server}->sql('CHECKPOINT');
}

sub empty
{
	my ($run) = @_;
	my $relay = Bench::Relay->new($run, 'broker_paused');

	$relay->drop;
	$relay->empty_outbox;
}

# Run the arm's program, which sends from memory; the rate and the CPU.
sub run_producer
{
	my ($run, $broker, $arm, $target) = @_;
	my $broker_cpu = $broker->cpu;

	open(my $p, '-|', "$run->{dir}/$arm->{program}", $broker->{ $arm->{address} // 'address' }, $target . ($arm->{suffix} // ''),
		$run->{broker_events}, Bench::Section::Kafka::payload($size), $arm->{mode} // ()) or die "$arm->{program}: $!\n";
	my $line = <$p> // '';
	close($p) or die "$arm->{program} failed\n";
	my ($rate, $cpu) = split ' ', $line;
	return { rate => $rate, worker_cpu => 0, client_cpu => $cpu, broker_cpu => $broker->cpu - $broker_cpu };
}

sub run_relay
{
	my ($run, $broker, $arm, $target) = @_;
	my $name = make_sink($run, $broker, $arm, $target, $broker->{kind}, '');
	my $relay = Bench::Relay->new($run, $name, $name)->create('earliest');
	my $r = Bench::Section::Kafka::drain($broker, $relay, $run->{broker_events});

	$relay->drop;
	return $r;
}

sub run_arm
{
	my ($run, $broker, $arm, $round) = @_;
	my $events = $run->{broker_events};
	my $target = make_target($broker, $arm);
	my $r = $arm->{program} ? run_producer($run, $broker, $arm, $target) : run_relay($run, $broker, $arm, $target);

	$broker->has_messages($target, $events + ($arm->{extra} // 0));
	$broker->ask('delete', $target);
	$run->note('broker', arm => $arm->{name}, round => $round, events => $events, %$r);
	printf "   %-22s %9.0f events/s  (worker %.2f us, client %.2f us, broker %.2f us)\n", $arm->{name}, $r->{rate},
	  map { 1e6 * $r->{$_} / $events } qw(worker_cpu client_cpu broker_cpu);
}

sub latency
{
	my ($run, $broker, $arm, $rate, $round) = @_;
	my $server = $run->{server};
	my $file = "$run->{dir}/ack.report";
	my $target = make_target($broker, $arm);
	my $name = make_sink($run, $broker, $arm, $target, 'program', ", program 'ack', sink '$broker->{kind}', report '$file'");
	my @due = Bench::Section::Latency::schedule($run, $rate, $round);
	my @sessions = Bench::Section::Latency::producers($run, 8, "SELECT idempotency.outbox_enqueue('order', \$1, 'Due', \$2::jsonb)");
	my $relay = Bench::Relay->new($run, $name, $name)->create;

	$relay->stream;
	# the first event connects; it does not count
	$server->sql("SELECT idempotency.outbox_enqueue('order', 'first', 'Due', '{}')");
	until_true(60, 'the first event is not sent', sub { $relay->status->{sent} == 1 });
	unlink $file;
	my $cpu = $server->cpu;
	Bench::Section::Latency::offer(\@sessions, undef, @due);
	until_true(60, 'not all was sent', sub { $relay->status->{sent} == 1 + @due });
	$run->note('latency', who => $arm->{name}, rate => $rate, round => $round, events => scalar @due, tick => 0,
		cpu_us => 1e6 * ($server->cpu - $cpu) / @due);
	Bench::Section::Latency::end_producers(@sessions);
	until_true(30, 'the sink has not reported', sub { Bench::Section::Latency::counted($file) == @due });
	$relay->drop;
	Bench::Section::Latency::note_histogram($run, $arm->{name}, $rate, $round, $file);
	$relay->empty_outbox;
	$broker->ask('delete', $target);
}

sub run
{
	my ($run, $kind) = @_;
	my $broker = Bench::Broker->new($run->{dir}, $kind);
	# run.sh says which program it cannot build
	my @arms = grep { !$_->{program} || -x "$run->{dir}/$_->{program}" } @{ $arms{$kind} };

	fill($run);
	for my $round (1 .. $run->{broker_rounds})
	{
		print "== $kind, round $round of $run->{broker_rounds}\n";
		run_arm($run, $broker, $_, $round) for $round % 2 ? @arms : reverse @arms;
	}
	empty($run);
	my $quiet = $run->on_server($run->{server}, latency_seconds => $run->{broker_latency_seconds},
		latency_rounds => $run->{broker_latency_rounds});
	my @loads = map { my $rate = $_; map { [ $_, $rate ] } grep { !$_->{program} } @arms } @rates;
	for my $round (1 .. $run->{broker_latency_rounds})
	{
		latency($quiet, $broker, @$_, $round) for $round % 2 ? @loads : reverse @loads;
	}
	$broker->stop;
}

1;
