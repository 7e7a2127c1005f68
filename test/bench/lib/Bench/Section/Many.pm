# Section "many": what a thousand idle relays cost a busy one, and stat_relay.
#
# In each round, for relays to programs and for relays to functions: the latency of a
# relay alone, and beside many that rest; in odd rounds the first comes first.  The busy
# relay is that of the section "latency", whose sink stamps its own time.  Beside it:
# the CPU of a server that has nothing to do, and how long a look at stat_relay takes.
package Bench::Section::Many;
use strict;
use warnings;
use Time::HiRes qw(time sleep);
use Bench::Section::Latency;
use Bench::Server;
use Bench::Stat;

my $rate = 100;
my %sink = (program => 'null_sink', function => 'idle_sink');

# All exist and rest, or none exists.  A new one starts its program once.
sub make
{
	my ($run, $kind) = @_;
	my $server = $run->{server};

	$server->sql("SELECT count(idempotency.relay_create('many' || i, '$sink{$kind}', aggregate_types => ARRAY['many' || i]))"
		  . " FROM generate_series(1, $run->{many_relays}) i");
	Bench::Server::until_true(120, 'the relays do not rest', sub {
		sleep 0.3;
		$server->sql("SELECT count(*) FROM idempotency_data.relay_status() WHERE state = 'idle'") == $run->{many_relays};
	});
}

sub remove
{
	my ($run) = @_;
	my $server = $run->{server};

	$server->sql("SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay");
	Bench::Server::until_true(60, 'the relays are still there',
		sub { !$server->sql('SELECT count(*) FROM idempotency_data.relay_status()') });
}

# Milliseconds of a look, the median of some.
sub look_ms
{
	my ($server) = @_;

	return median(map {
		my $begun = time;
		$server->sql('SELECT count(lag_events) FROM idempotency.stat_relay');
		1000 * (time - $begun)
	} 1 .. 11);
}

# Milliseconds of CPU a second of the processes that live all the time.
sub idle_ms
{
	my ($server, $seconds) = @_;
	my %cpu = map { $_ => Bench::Server::precise_cpu_seconds($_) } $server->children;
	my $begun = time;

	sleep $seconds;
	return 1000 * sum(map { Bench::Server::precise_cpu_seconds($_) - $cpu{$_} } grep { -e "/proc/$_" } keys %cpu) / (time - $begun);
}

sub measure
{
	my ($run, $kind, $relays, $round) = @_;
	my $server = $run->{server};

	sleep 1;
	my $ms = look_ms($server);
	my $idle = idle_ms($server, $run->{many_seconds});
	Bench::Section::Latency::ours($run, $rate, $round, "$kind-$relays");
	$run->note('many', kind => $kind, relays => $relays, round => $round, look_ms => $ms, idle_ms => $idle);
	printf "   %d %s relays idle: stat_relay %.2f ms, %.1f ms of CPU a second without load\n", $relays, $kind, $ms, $idle;
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};
	my $many = $run->{many_relays};
	my $sized = $run->on_server($server, latency_seconds => $run->{many_seconds}, latency_rounds => 1);

	Bench::Section::Latency::make_sink($run);
	$server->sql("ALTER SYSTEM SET idempotency.sink_idle_timeout = '2s'");
	$server->sql('ALTER SYSTEM SET idempotency.max_sink_starts = 1000');
	$server->sql('SELECT pg_reload_conf()');
	for my $round (1 .. $run->{many_rounds})
	{
		print "== many, round $round of $run->{many_rounds}\n";
		for my $kind (qw(program function))
		{
			measure($sized, $kind, 0, $round) if $round % 2;
			make($run, $kind);
			measure($sized, $kind, $many, $round);
			remove($run);
			measure($sized, $kind, 0, $round) unless $round % 2;
		}
	}
	$server->sql("ALTER SYSTEM RESET idempotency.$_") for qw(sink_idle_timeout max_sink_starts);
	$server->sql('SELECT pg_reload_conf()');
}

1;
