
# Copyright (c) 2026, the idempotency developers

# A handler that takes the server down: its event is found and given up after
# at most three crashes, the others are handled once.  Crashes that others
# cause give up nothing, however many there are.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "log_min_messages = warning\n");

# COPY TO PROGRAM runs a shell whose parent is the worker.
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_type text, n int);
CREATE TABLE gate (open bool);
CREATE SEQUENCE refusals;
CREATE FUNCTION handle(event_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Kill' THEN
		COPY (SELECT 1) TO PROGRAM 'kill -SEGV $PPID; sleep 10';
	ELSIF event_type = 'KillLater' THEN
		IF nextval('public.refusals') = 1 THEN
			RAISE EXCEPTION 'not now';
		END IF;
		COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID; sleep 10';
	ELSIF event_type = 'Never' THEN
		RAISE EXCEPTION 'never';
	ELSIF event_type = 'Slow' THEN
		WHILE NOT EXISTS (SELECT FROM public.gate) LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
	END IF;
	INSERT INTO public.effects VALUES (event_type, (payload->>'n')::int);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
SELECT idempotency.relay_create('fn', 'fn', min_backoff => '10 ms', max_backoff => '50 ms', batch_events => 20);
END

sub crashes
{
	my $log = slurp_file($node->logfile);

	return scalar(() = $log =~ /terminating any other active server processes/g);
}

# A commit wakes the relay, whose crash may be there before psql has its answer.
sub run_until_crash
{
	my ($query) = @_;
	my ($status, undef, $error) = $node->psql('postgres', $query);

	die $error unless $status == 0 || $error =~ /because of crash of another server process|server closed the connection unexpectedly/;
	return;
}

# Enqueue in one transaction: event types, each with a key of its own.
my $n = 0;

sub enqueue
{
	run_until_crash('SELECT ' . join(', ', map { $n++; qq{idempotency.outbox_enqueue('t', 'k$n', '$_', '{"n": $n}')} } @_));
	return;
}

sub is_handled_once
{
	my ($type, $count, $what) = @_;

	IdemTest::wait_for($node, "SELECT count(*) >= $count FROM effects WHERE event_type = '$type'");
	is( $node->safe_psql('postgres',
			"SELECT count(*), count(DISTINCT n) FROM effects WHERE event_type = '$type'"),
		"$count|$count", $what);
	return;
}

sub records
{
	return $node->safe_psql('postgres', q{SELECT pg_stat_force_next_flush();
		SELECT n_tup_ins + n_tup_upd FROM pg_stat_all_tables WHERE relname = 'relay_attempts'}) =~ s/\n//r;
}

# In the middle of a batch, and of another's that is in flight.
enqueue(qw(Good Good Good Kill Good Good Good));
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters});
is_handled_once('Good', 6, 'the others have their effect, once');
is( $node->safe_psql('postgres', q{SELECT attempts, sqlstate, error FROM idempotency.dead_letters}),
	'2|ID006|the server went down while the handler had this event, and no other', 'the killer is dead');
is(crashes(), 3, 'after three crashes');

# Beside a parked event that fails each time: its outcome does not excuse the
# killer, nor does it keep the others waiting.
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_discard('fn');
	SELECT idempotency.relay_alter('fn', max_attempts => 1000000)});
enqueue('Never');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked});
enqueue(qw(Good Kill Good));
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters});
is_handled_once('Good', 8, 'the others have their effect, once');
is(crashes(), 6, 'after three crashes again');
$node->safe_psql('postgres', q{
	DELETE FROM idempotency_data.relay_parked WHERE event_type = 'Never';
	SELECT idempotency.relay_alter('fn', max_attempts => 10)});

# Without a crash, nothing is recorded.
IdemTest::wait_for($node, q{SELECT waiting_for = 'events' FROM idempotency.stat_relay});
my $records = records();
enqueue(('Good') x 100);
is_handled_once('Good', 108, 'a good batch');
is(records(), $records, 'no attempt is put on record in ordinary operation');
$node->restart;
enqueue(('Good') x 10);
is_handled_once('Good', 118, 'a batch after a clean restart');
is(records(), $records, 'nor after a clean restart');

# Given another chance, it has one.
run_until_crash(q{SELECT idempotency.relay_redrive('fn')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters});
is(crashes(), 7, 'redriven in vain: one crash more');
enqueue(('Good') x 4);
is_handled_once('Good', 122, 'the relay goes on');

# A parked event that does it when it is tried again, with a limit of attempts
# below that of crashes, and a relay that stops for it.
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_discard('fn');
	SELECT idempotency.relay_alter('fn', on_dead => 'stop', max_attempts => 2)});
enqueue(qw(Good KillLater Good));
IdemTest::wait_for($node, q{SELECT state = 'halted' FROM idempotency.stat_relay});
is($node->safe_psql('postgres', q{SELECT attempts, sqlstate FROM idempotency.dead_letters}),
	'2|ID006', 'a killer among the parked events');
is(crashes(), 9, 'two crashes: in a batch, and alone');
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_discard('fn');
	SELECT idempotency.relay_alter('fn', on_dead => 'skip', max_attempts => 10);
	SELECT idempotency.relay_resume('fn')});
is_handled_once('Good', 124, 'and on it goes');

# Others crash, each time in the middle of the same event's attempt.
enqueue(qw(Good Slow Good));
foreach my $round (1 .. 20)
{
	my $victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query_safe('SELECT pg_backend_pid()');

	$node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity
		WHERE backend_type = 'idempotency relay' AND wait_event = 'PgSleep'});
	IdemTest::kill9_backend($node, $pid);
	eval { $victim->{run}->finish; };
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency_data.relay_parked}),
	'0', 'twenty foreign crashes park nothing');
$node->safe_psql('postgres', 'INSERT INTO gate VALUES (true)');
is_handled_once('Slow', 1, 'the innocent has its effect');
is_handled_once('Good', 126, 'like the others');

# A worker that is told to end in the middle, and a server that is.
$node->safe_psql('postgres', 'DELETE FROM gate');
enqueue(qw(Slow));
foreach my $how ('terminate', 'immediate', 'fast', 'immediate', 'terminate')
{
	$node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity
		WHERE backend_type = 'idempotency relay' AND wait_event = 'PgSleep'});
	if ($how eq 'terminate')
	{
		$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
			WHERE backend_type = 'idempotency relay' AND wait_event = 'PgSleep'});
	}
	else
	{
		$node->stop($how);
		$node->start;
	}
}
$node->safe_psql('postgres', 'INSERT INTO gate VALUES (true)');
is_handled_once('Slow', 2, 'ended in the middle, it is tried again');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency_data.relay_parked}), '0', 'and is no suspect');

# Of a dropped relay nothing is left.
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('fn')});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_attempts'), '0', 'no record is left');

$node->stop;
done_testing();
