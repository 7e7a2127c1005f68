# Section "http": a relay of webhooks to nginx, beside libcurl's own fastest loop and a
# plain load generator at the same nginx, and beside a relay whose receiver is slow.
#
# Rates: a backlog committed before is carried out, by a relay that starts then.  All
# relays carry the same backlog.  post.c and generate.c send as many requests of the same
# form from memory.  A rate is that between the first tenth and the last event, so that no
# program's start counts.
#
# Latencies: the load of section "latency".  Between worker and sink program stands
# ack.c, which sees when the sink says that an event is acked: a little after the
# receiver got the request.
package Bench::Section::Http;
use strict;
use warnings;
use Bench::Nginx;
use Bench::Relay;
use Bench::Section::Kafka;
use Bench::Section::Latency;
use Bench::Server;

*until_true = \&Bench::Server::until_true;

my $concurrency = 64;
my $size = 200;
my @arms = (
	{ name => 'generator', run => \&run_generator },
	{ name => 'libcurl', run => \&run_libcurl },
	{ name => 'relay', run => \&run_relay },
	{ name => 'relay_signed', run => \&run_relay, mapping => "signing_secrets 'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3'" },
	{ name => 'relay_beside_slow', run => \&run_relay, beside => 1 });
my @rates = (100, 1000);
my $n = 0;

# A sink to the URL; its name.
sub make_sink
{
	my ($run, $url, $mapping) = @_;
	my $server = $run->{server};

	$n++;
	$server->sql("CREATE SERVER http_$n FOREIGN DATA WRAPPER idempotency_http OPTIONS (url '$url/{aggregate_type}/{aggregate_id}',"
		  . " concurrency '$concurrency', allowed_addresses '127.0.0.1')");
	$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER http_$n" . ($mapping ? " OPTIONS ($mapping)" : ''));
	return "http_$n";
}

# Commit a backlog, and nothing else.  A paused relay lets the worker note ticks
# meanwhile, as for any relay that is behind.
sub fill
{
	my ($run, $nginx) = @_;
	my $payload = Bench::Section::Kafka::payload($size);

	Bench::Relay->new($run, 'http_paused', make_sink($run, $nginx->{url}))->create;
	$run->fill("SELECT count(idempotency.outbox_enqueue('order', (g % 1000)::text, 'OrderCreated', '$payload'))"
		  . ' FROM generate_series(1, 100) g;', $run->{http_events} / 100);
	$run->{server}->sql('CHECKPOINT');
}

sub empty
{
	my ($run) = @_;
	my $relay = Bench::Relay->new($run, 'http_paused');

	$relay->drop;
	$relay->empty_outbox;
}

# Run a program of our own that sends; the rate and the CPU.
sub run_program
{
	my ($nginx, @command) = @_;
	my $receiver_cpu = $nginx->cpu;

	open(my $p, '-|', @command) or die "$command[0]: $!\n";
	my $line = <$p> // '';
	close($p) or die "$command[0] failed\n";
	my ($rate, $cpu) = split ' ', $line;
	return { rate => $rate, worker_cpu => 0, client_cpu => $cpu, receiver_cpu => $nginx->cpu - $receiver_cpu };
}

sub run_generator
{
	my ($run, $nginx) = @_;

	return run_program($nginx, "$run->{dir}/generate", $nginx->{address}, $nginx->{port}, '/order/17', $run->{http_events}, $concurrency,
		Bench::Section::Kafka::payload($size));
}

sub run_libcurl
{
	my ($run, $nginx) = @_;

	return run_program($nginx, "$run->{dir}/post", $nginx->{url}, $run->{http_events}, $concurrency, Bench::Section::Kafka::payload($size));
}

sub run_relay
{
	my ($run, $nginx, $arm) = @_;
	my $slow = $arm->{beside} && Bench::Nginx->slow($run->{dir});
	my $other = $slow && Bench::Relay->new($run, 'http_slow', make_sink($run, $slow->{url}))->create('earliest');
	my $relay = Bench::Relay->new($run, "http_relay_$n", make_sink($run, $nginx->{url}, $arm->{mapping}))->create('earliest');

	$other->stream if $other;
	my $r = Bench::Section::Kafka::drain($nginx, $relay, $run->{http_events});
	$relay->drop;
	if ($other)
	{
		die "the slow relay was not slow\n" if $other->status->{sent} >= $run->{http_events};
		$other->drop;
		$slow->stop;
	}
	$r->{receiver_cpu} = delete $r->{broker_cpu};
	return $r;
}

sub run_arm
{
	my ($run, $nginx, $arm, $round) = @_;
	my $events = $run->{http_events};
	my $before = $nginx->requests;
	my $r = $arm->{run}->($run, $nginx, $arm);
	my $got = $nginx->requests - $before - 1;

	# the slow relay's requests go elsewhere, and nothing failed, so nothing came twice
	die "$arm->{name}: $events events, but $got requests\n" if $got != $events;
	return unless $round;
	$run->note('http', arm => $arm->{name}, round => $round, events => $events, %$r);
	printf "   %-22s %9.0f events/s  (worker %.2f us, client %.2f us, nginx %.2f us)\n", $arm->{name}, $r->{rate},
	  map { 1e6 * $r->{$_} / $events } qw(worker_cpu client_cpu receiver_cpu);
}

sub latency
{
	my ($run, $nginx, $rate, $round) = @_;
	my $server = $run->{server};
	my $file = "$run->{dir}/ack.report";
	my @due = Bench::Section::Latency::schedule($run, $rate, $round);
	my @sessions = Bench::Section::Latency::producers($run, 8, "SELECT idempotency.outbox_enqueue('order', \$1, 'Due', \$2::jsonb)");

	$n++;
	$server->sql("CREATE SERVER http_$n FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'ack', sink 'http',"
		  . " report '$file', url '$nginx->{url}/{aggregate_type}', concurrency '$concurrency', allowed_addresses '127.0.0.1')");
	$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER http_$n");
	my $relay = Bench::Relay->new($run, "http_latency_$n", "http_$n")->create;

	$relay->stream;
	# the first event connects; it does not count
	$server->sql("SELECT idempotency.outbox_enqueue('order', 'first', 'Due', '{}')");
	until_true(60, 'the first event is not sent', sub { $relay->status->{sent} == 1 });
	unlink $file;
	my $cpu = $server->cpu;
	Bench::Section::Latency::offer(\@sessions, undef, @due);
	until_true(60, 'not all was sent', sub { $relay->status->{sent} == 1 + @due });
	$run->note('latency', who => 'webhook', rate => $rate, round => $round, events => scalar @due, tick => 0,
		cpu_us => 1e6 * ($server->cpu - $cpu) / @due);
	Bench::Section::Latency::end_producers(@sessions);
	until_true(30, 'the sink has not reported', sub { Bench::Section::Latency::counted($file) == @due });
	$relay->drop;
	Bench::Section::Latency::note_histogram($run, 'webhook', $rate, $round, $file);
	$relay->empty_outbox;
}

sub run
{
	my ($run) = @_;
	my $nginx = Bench::Nginx->new($run->{dir});

	fill($run, $nginx);
	for my $round (1 .. $run->{http_rounds})
	{
		print "== http, round $round of $run->{http_rounds}\n";
		run_arm($run, $nginx, $_, $round) for $round % 2 ? @arms : reverse @arms;
	}
	empty($run);
	my $quiet = $run->on_server($run->{server}, latency_seconds => $run->{http_latency_seconds}, latency_rounds => $run->{http_latency_rounds});
	for my $round (1 .. $run->{http_latency_rounds})
	{
		latency($quiet, $nginx, $_, $round) for $round % 2 ? @rates : reverse @rates;
	}
	$nginx->stop;
}

1;
