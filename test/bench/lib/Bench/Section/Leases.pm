# Section "leases": what leases and requests cost beside claims; calls that wait for an
# answer; heartbeats under each pin.
#
# Waiting: one call waits for the request that another session has, which commits the
# answer; the time is that from before the COMMIT to the end of the waiting call, by the
# server's clock.  Then many calls wait for one request, for some seconds, and the CPU of
# their processes is read before and after.
#
# Heartbeats: one lease is extended over and over while something holds the horizon
# (Bench::UnderPin).
package Bench::Section::Leases;
use strict;
use warnings;
use Time::HiRes qw(time sleep);
use Bench::Section::Arms;
use Bench::Section::Pin;
use Bench::Server;
use Bench::UnderPin;

sub ask_later
{
	my ($session, $query) = @_;

	print { $session->{in} } "$query;\n\\echo ---done---\n";
	$session->{in}->flush;
}

# The lines of the query that ask_later sent.
sub answer
{
	my ($session) = @_;
	my @lines;

	while (defined(my $line = readline $session->{out}))
	{
		chomp $line;
		return @lines if $line eq '---done---';
		push @lines, $line;
	}
	die "psql ended\n";
}

sub wait_query
{
	my ($key) = @_;

	return "SELECT result, extract(epoch FROM clock_timestamp()) FROM idempotency.claim_request('$key', 'bench', wait => '60 s')";
}

# Until so many sessions wait in claim_request.
sub until_waiting
{
	my ($server, $n) = @_;

	Bench::Server::until_true(60, "$n calls do not wait",
		sub { $server->sql("SELECT count(*) = $n FROM pg_stat_activity WHERE wait_event = 'Extension' AND query ~ '^SELECT result, extract'") eq 't' });
}

sub latencies
{
	my ($run, $mode) = @_;
	my $server = $run->{server};
	my ($owner, $waiter) = map { $server->session } 1, 2;

	Bench::Server::ask($owner, "SET synchronous_commit = $mode; SET idempotency.durable_complete = $mode");
	for my $round (1 .. $run->{flight_rounds})
	{
		my $key = "flight $mode $round";

		Bench::Server::ask($owner, "BEGIN; SELECT result FROM idempotency.claim_request('$key', 'bench')");
		ask_later($waiter, wait_query($key));
		until_waiting($server, 1);
		Bench::Server::ask($owner, "SELECT idempotency.complete_request('$key', 'bench', 200, body => 'done')");
		my $before = Bench::Server::ask($owner, "SELECT extract(epoch FROM clock_timestamp())");
		Bench::Server::ask($owner, 'COMMIT');
		my ($result, $after) = split /\t/, (answer($waiter))[0];
		die "the waiting call is told $result\n" if $result ne 'replay';
		$run->note('flight', sync => $mode, round => $round, us => 1e6 * ($after - $before));
	}
	Bench::Server::end_session($_) for $owner, $waiter;
}

sub cpu_of_waiters
{
	my ($run) = @_;
	my $server = $run->{server};
	my $n = $run->{flight_waiters};
	my $owner = $server->session;
	my @waiters = map { $server->session } 1 .. $n;
	my @pids = map { Bench::Server::ask($_, 'SELECT pg_backend_pid()') } @waiters;
	my $cpu = sub { my $sum = 0; $sum += Bench::Server::precise_cpu_seconds($_) for @pids; return $sum };

	Bench::Server::ask($owner, "BEGIN; SELECT result FROM idempotency.claim_request('crowd', 'bench')");
	ask_later($_, wait_query('crowd')) for @waiters;
	until_waiting($server, $n);
	my ($before, $begun) = ($cpu->(), time);
	sleep $run->{flight_seconds};
	my ($used, $seconds) = ($cpu->() - $before, time - $begun);
	Bench::Server::ask($owner, "SELECT idempotency.complete_request('crowd', 'bench', 200, body => 'done')");
	my $start = Bench::Server::ask($owner, "SELECT extract(epoch FROM clock_timestamp())");
	Bench::Server::ask($owner, 'COMMIT');
	my @answers = map { [ split /\t/, (answer($_))[0] ] } @waiters;
	die "a waiting call has no answer\n" if grep { $_->[0] ne 'replay' } @answers;
	my ($last) = sort { $b <=> $a } map { $_->[1] } @answers;
	$run->note('crowd', waiters => $n, cpu_us => 1e6 * $used / $n / $seconds, last_us => 1e6 * ($last - $start));
	Bench::Server::end_session($_) for $owner, @waiters;
}

# Heartbeats under one pin.
sub heartbeats
{
	my ($run, $pin, $round) = @_;
	my $server = $run->{server};
	my $token = $server->sql("SELECT token FROM idempotency.lease_event('pinned $pin', duration => '1 day')");

	Bench::UnderPin::calls($run, $pin, $round, kind => 'heartbeat', calls => $run->{pinned_extends},
		script => "SELECT idempotency.extend_lease('pinned $pin', $token);\n",
		log => 'idempotency_data.lease\_log\_%', table => 'idempotency_data.lease_log_0');
	$server->sql("SELECT idempotency.release_lease('pinned $pin', $token)");
}

sub run
{
	my ($run, $section) = @_;

	$run->{server}->sql("ALTER SYSTEM SET idempotency.max_waiters = 250");
	$run->{server}->sql('SELECT pg_reload_conf()');
	Bench::Section::Arms::run($run, $section);
	print "== leases, calls that wait\n";
	latencies($run, $_) for 'on', 'off';
	cpu_of_waiters($run);
	print "== leases, heartbeats\n";
	Bench::UnderPin::rounds($run, \&heartbeats);
}

1;
