
# Copyright (c) 2026, the idempotency developers

# Two copies of one server under one name, and a witness that says yes to one of
# them.  Only that one publishes; when the lease changes hands, the one stops,
# the other goes on, and nothing is lost.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";
my $lease = "$dir/lease";
my $asked = "$dir/asked";

# The environment tells who asks.  Each question leaves a line.
# If there is a gate, the question waits for somebody who opens it.
append_to_file("$dir/witness", "#!/bin/sh\n" . <<'END');
[ -p "$1.gate" ] && cat "$1.gate"
echo "$IDEMPOTENCY_CLUSTER_NAME $IDEMPOTENCY_PUBLISH_AS $IDEMPOTENCY_SYSTEM_IDENTIFIER $PGDATA" >>"$2"
holder=$(cat "$1")
[ "$holder" = "$IDEMPOTENCY_CLUSTER_NAME" ] && exit 0
echo "the lease is $holder's"
echo "and this line is not shown"
exit 1
END
chmod 0755, "$dir/witness";

# The lease changes hands as a whole: nobody reads it half written.
sub give_lease
{
	my ($holder) = @_;

	append_to_file("$lease.new", $holder);
	rename "$lease.new", $lease or die "could not rename: $!";
	return;
}

# The server called $name has asked this many times more.
sub wait_asked
{
	my ($name, $times) = @_;
	my $count = sub { scalar grep { /^$name / } split /\n/, slurp_file($asked) };
	my $before = $count->();

	return IdemRelay::wait_until("$name asked", sub { $count->() >= $before + $times });
}

sub is_unwitnessed
{
	my ($node) = @_;

	IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.stat_relay
		WHERE state = 'unwitnessed' AND waiting_for = 'witness'});
	return;
}

sub of_type
{
	my ($type) = @_;

	return scalar grep { $_->{event_type} eq $type } IdemRelay::acked($file);
}

give_lease('a');
my $a = IdemTest::cluster('a', allows_streaming => 1, conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.publish_as = 'shop'
idempotency.publish_witness = '$dir/witness "$lease" $asked'
idempotency.publish_witness_interval = 100ms
idempotency.publish_witness_timeout = 60s
END
IdemRelay::pytest_server($a, 'srv', $file);
$a->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.effects VALUES (event_id) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('p', 'srv'), idempotency.relay_create('fn', 'fn');
END
IdemRelay::enqueue($a, 'a', 'Common', 3);
IdemRelay::wait_received($file, 3);
IdemTest::wait_for($a, 'SELECT count(*) = 3 FROM effects');
IdemTest::wait_for($a, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

my $data = $a->data_dir;
my $identifier = $a->safe_psql('postgres', 'SELECT system_identifier FROM pg_control_system()');
is((split /\n/, slurp_file($asked))[0], "a shop $identifier $data", 'the command is told who asks');

# A server that has started, or that has another witness, waits for the first answer; that is no error.
my $other = "$dir/other";
symlink "$dir/witness", $other or die "could not link: $!";
foreach my $after ('a restart', 'another witness')
{
	POSIX::mkfifo("$lease.gate", 0600) or die "could not make a gate: $!";
	if ($after eq 'a restart')
	{
		$a->restart;
	}
	else
	{
		$a->safe_psql('postgres', qq{ALTER SYSTEM SET idempotency.publish_witness = '$other "$lease" $asked'});
		$a->reload;
	}
	IdemTest::wait_for($a, q{SELECT count(*) = 2 FROM idempotency.stat_relay
		WHERE state = 'starting' AND waiting_for = 'witness' AND last_error IS NULL});
	open my $gate, '>', "$lease.gate" or die "could not open the gate: $!";
	unlink "$lease.gate" or die "could not remove the gate: $!";
	close $gate;
	IdemTest::wait_for($a, q{SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay});
	is($a->safe_psql('postgres', 'SELECT count(last_error) FROM idempotency.stat_relay'), '0', "no error after $after");
}

# The copy is the same to every local mark.
$a->backup('copy');
my $b = PostgreSQL::Test::Cluster->new('b');
$b->init_from_backup($a, 'copy');
$b->start;
is_unwitnessed($b);
IdemTest::wait_for($b, q{SELECT bool_and(last_error = 'the publish witness says no: the lease is a''s')
	FROM idempotency.stat_relay});
IdemRelay::enqueue($b, 'b', 'B', 5);
IdemRelay::enqueue($a, 'a', 'A', 5);
IdemTest::wait_for($a, 'SELECT count(*) = 8 FROM effects');
IdemRelay::wait_received($file, 8);
wait_asked('b', 3);
is_unwitnessed($b);
is(of_type('B'), 0, 'the copy sends nothing');
is(of_type('Common'), 3, 'nor again what its original sent');
is($b->safe_psql('postgres', 'SELECT count(*) FROM effects'), '3', 'nor does it call its function');
is($b->safe_psql('postgres', 'SELECT count(sink_pid) FROM idempotency.stat_relay'), '0', 'and has no program');
IdemRelay::worker_sleeps($b, 'p');
IdemRelay::worker_sleeps($b, 'fn');

# The lease changes hands, while the first has a program that runs.
give_lease('b');
is_unwitnessed($a);
is($a->safe_psql('postgres', 'SELECT count(sink_pid) FROM idempotency.stat_relay'), '0', 'its program went');
IdemRelay::enqueue($a, 'a', 'A2', 4);
IdemTest::wait_for($b, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state IN ('streaming', 'idle')});
IdemTest::wait_for($b, 'SELECT count(*) = 8 FROM effects');
IdemRelay::enqueue($b, 'b', 'B2', 4);
IdemRelay::wait_received($file, 17);
wait_asked('a', 3);
is_unwitnessed($a);
is(of_type('A2'), 0, 'the first has stopped');
is($a->safe_psql('postgres', 'SELECT count(*) FROM effects'), '8', 'its function as well');
like(slurp_file($a->logfile), qr/ID009|the publish witness says no: the lease is b's/, 'the log says so');

# And back, under load: nothing of either is lost.
my $script = $a->basedir . '/enqueue.sql';
append_to_file($script, "SELECT idempotency.outbox_enqueue('t', (random() * 8)::int::text, 'Load', '{}');\n");
foreach my $round (1 .. 6)
{
	my $holder = $round % 2 ? 'a' : 'b';

	give_lease($holder);
	$_->command_ok(
		[ 'pgbench', '-n', '-c', '2', '-t', '100', '-f', $script, '-h', $_->host, '-p', $_->port, 'postgres' ],
		"load on " . $_->name)
	  foreach $a, $b;
	IdemTest::wait_for($holder eq 'a' ? $a : $b, q{SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay});
}
give_lease('a');
IdemTest::wait_for($a, q{SELECT bool_and(state IN ('streaming', 'idle') AND lag_events = 0) FROM idempotency.stat_relay});
give_lease('b');
IdemTest::wait_for($b, q{SELECT bool_and(state IN ('streaming', 'idle') AND lag_events = 0) FROM idempotency.stat_relay});
IdemRelay::wait_received($file, 3 + 5 + 5 + 4 + 4 + 2 * 6 * 200);
is($a->safe_psql('postgres', 'SELECT count(*) = count(DISTINCT event_id) FROM effects'), 't', 'each effect once');
IdemTest::wait_for($a, 'SELECT count(*) = 3 + 5 + 4 + 6 * 200 FROM effects');
IdemTest::wait_for($b, 'SELECT count(*) = 3 + 5 + 4 + 6 * 200 FROM effects');

$b->stop;
$a->stop;
done_testing();
