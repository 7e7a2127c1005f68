
# Copyright (c) 2026, the idempotency developers

# Events that wait in the outbox behind a refused event: one row per key however many they
# are, other keys go on, the outbox keeps them, and they come in order and once, whatever
# is killed or asked for in between.  Days pass, by the clock of the server: a target that refuses all for a
# day, and one key that is refused for three, get everything by themselves.
# WAITING_EVENTS=1000000 is the long run: all checks held, in 2113 s on two cores that others used, too.

use strict;
use warnings FATAL => 'all';

use IdemClock;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $N = $ENV{WAITING_EVENTS} // 20_000;
my $dir = IdemRelay::sink_directory();
my $clock = IdemClock->new;
my $node = IdemTest::cluster('main', start => 0, conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 1s
idempotency.outbox_segment_size = 1MB
autovacuum = off
END
$clock->start($node);
IdemTest::create_extension($node);

sub sql { return $node->safe_psql('postgres', @_); }

my $handler = <<'END';
CREATE SCHEMA app;
CREATE TABLE app.got (n bigserial, relay text, key text, i int);
CREATE TABLE app.door (key text PRIMARY KEY);
CREATE FUNCTION app.on_event(aggregate_type text, aggregate_id text, payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF payload->>'i' = '0' AND EXISTS (SELECT FROM app.door d WHERE d.key = aggregate_id)
		OR EXISTS (SELECT FROM app.door d WHERE d.key = '*') THEN
		RAISE EXCEPTION 'the door is closed';
	END IF;
	INSERT INTO app.got (relay, key, i) VALUES (aggregate_type, aggregate_id, (payload->>'i')::int);
END $$;
END
sql('CREATE DATABASE target');
$node->safe_psql($_, $handler) foreach qw(postgres target);
sql("CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_event')");
IdemRelay::prepared_postgres_server($node, 'pg', $node, 'target', 'app.on_event');

my %db = (fn => 'postgres', pg => 'target');

sub door
{
	my ($db, $what, @keys) = @_;

	$node->safe_psql($db, $what eq 'close' ? "INSERT INTO app.door VALUES ('$_')" : "DELETE FROM app.door WHERE key = '$_'")
	  foreach @keys;
	return;
}

sub create
{
	my ($name, $kind, $more) = @_;

	sql("SELECT idempotency.relay_create('$name', '$kind', '{$name}', min_backoff => '50 ms', max_backoff => '200 ms'"
		  . ($more // '') . ')');
	return;
}

# So many events of the keys in turns, numbered from $from on.
sub enqueue
{
	my ($name, $from, $n, @keys) = @_;
	my $keys = join(',', map { "'$_'" } @keys);

	sql(<<"END");
SELECT count(idempotency.outbox_enqueue('$name', (ARRAY[$keys])[i % @{[ scalar @keys ]} + 1], 'E',
	jsonb_build_object('i', i / @{[ scalar @keys ]}))) FROM generate_series($from, @{[ $from + $n - 1 ]}) i
END
	return;
}

sub blocked
{
	my ($name) = @_;

	return sql("SELECT count(*) FROM idempotency_data.relay_blocked WHERE aggregate_type = '$name'");
}

sub read_all
{
	my ($name) = @_;

	IdemTest::wait_for($node, "SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$name'");
	return;
}

sub drained
{
	my ($name) = @_;

	IdemTest::wait_for($node, "SELECT count(*) = 0 FROM idempotency_data.relay_parked WHERE aggregate_type = '$name'");
	IdemTest::wait_for($node, "SELECT count(*) = 0 FROM idempotency_data.relay_blocked WHERE aggregate_type = '$name'");
	read_all($name);
	return;
}

sub is_complete
{
	my ($db, $name, $n, $what) = @_;

	is($node->safe_psql($db, "SELECT count(*) || ' ' || count(DISTINCT (key, i)) FROM app.got WHERE relay = '$name'"), "$n $n",
		"$what: each event comes once");
	is($node->safe_psql($db, <<"END"), '0', "$what: in the order of its key");
SELECT count(*) FROM (SELECT i <= lag(i) OVER (PARTITION BY key ORDER BY n) AS wrong
	FROM app.got WHERE relay = '$name') g WHERE wrong
END
	return;
}

foreach my $kind (qw(fn pg))
{
	my $db = $db{$kind};
	my $name = "one_$kind";

	# One key is refused; whatever comes behind it is one row, and the others pass.
	create($name, $kind);
	door($db, 'close', 'hot');
	enqueue($name, $_ * $N / 2, $N / 2, 'hot', 'cold') foreach 0 .. 3;
	read_all($name);
	is($node->safe_psql($db, "SELECT count(*) FROM app.got WHERE relay = '$name' AND key = 'cold'"), $N, "$name: the other key passes");
	is(sql("SELECT state || ' ' || count(*) FROM idempotency_data.relay_parked WHERE aggregate_type = '$name' AND state = 'waiting' GROUP BY state"),
		'waiting 100', "$name: a hundred copies wait");
	is(blocked($name), '1', "$name: all others are one row");

	# The outbox keeps them, and the view says for whom.
	sql('SELECT pg_sleep(1.5)');
	cmp_ok(sql("SELECT lag_bytes FROM idempotency.stat_relay WHERE relay = '$name'"), '>', 50 * $N, "$name: the view shows what is kept for it");
	is(sql("SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = '$name' AND aggregate_id = 'hot' AND (payload->>'i')::int > 101"),
		$N - 102, "$name: the outbox keeps all that wait");

	# A waiting event that an operator replays comes once.
	like(
		($node->psql('postgres', <<"END"))[2],
SELECT idempotency.relay_replay('$name', event_id => event_id) FROM idempotency.outbox_events
	WHERE aggregate_type = '$name' AND aggregate_id = 'hot' AND payload->>'i' = '@{[ $N - 1 ]}'
END
		qr/waits behind another of its aggregate already/, "$name: a replay of one of them changes nothing");

	# Restarts in between, and the key goes on being refused after some.
	$node->stop($kind eq 'fn' ? 'fast' : 'immediate');
	$clock->start($node);
	IdemTest::wait_for($node, "SELECT state = 'streaming' FROM idempotency.stat_relay WHERE relay = '$name'");
	is(blocked($name), '1', "$name: still blocked after a restart");
	door($db, 'open', 'hot');
	drained($name);
	is_complete($db, $name, 2 * $N, $name);

	# New events of the key are not blocked any more, and the outbox is emptied.
	enqueue($name, 2 * $N, 2, 'hot', 'cold');
	IdemTest::wait_for($node, "SELECT count(*) = @{[ 2 * $N + 2 ]} FROM app.got WHERE relay = '$name'", 't', $db);
	is(blocked($name), '0', "$name: the key is as before");
	IdemTest::wait_for($node, "SELECT lag_bytes = 0 FROM idempotency.stat_relay WHERE relay = '$name'");
}

# While as many copies wait as may, events of another key are passed over behind one that is
# dead at once, and blocks nothing: they come.
{
	my $file = "$dir/dead.log";

	IdemRelay::pytest_server($node, 'dead', $file, impossible_type => 'Odd');
	create('dead', 'dead', ", on_dead => 'skip'");
	sql("ALTER SYSTEM SET idempotency.max_parked = 1");
	$node->reload;

	# An operator's replay that is not due yet blocks its key.
	sql("SELECT idempotency.relay_pause('dead')");
	IdemRelay::wait_state($node, 'dead', 'paused');
	sql("SELECT idempotency.outbox_enqueue('dead', 'other', 'E', '{}')");
	my $old = $node->background_psql('postgres');
	$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	sql(<<"END");
SELECT idempotency.relay_replay('dead', event_id => event_id) FROM idempotency.outbox_events WHERE aggregate_type = 'dead';
UPDATE idempotency_data.relay_parked SET next_attempt_at = now() + interval '1 day', last_failed_at = NULL WHERE aggregate_type = 'dead';
SELECT idempotency.relay_resume('dead');
SELECT count(idempotency.outbox_enqueue('dead', 'other', 'E', '{}')) FROM generate_series(1, 3);
END
	read_all('dead');
	is(blocked('dead'), '1', 'dead: the other key is blocked');
	is($old->query("SELECT lag_bytes > 0 FROM idempotency.stat_relay WHERE relay = 'dead'"), 't',
		'dead: a session with an older snapshot does not see the positions without the key');
	$old->quit;
	sql(<<"END");
SELECT idempotency.outbox_enqueue('dead', 'hot', t, '{}') FROM unnest('{Odd, E, E, E}'::text[]) WITH ORDINALITY u (t, n) ORDER BY n
END
	IdemTest::wait_for($node, "SELECT sent = 3 AND dead = 1 FROM idempotency.stat_relay WHERE relay = 'dead'");
	is(blocked('dead'), '1', 'dead: only the other key is blocked');
	sql("SELECT idempotency.relay_drop('dead')");
	sql('ALTER SYSTEM RESET idempotency.max_parked');
	$node->reload;
	is(sql('SELECT count(*) FROM idempotency_data.relay_blocked'), '0', 'dead: no rows are left of a relay that was dropped');
}

# Events before one of their key that was tried already cannot wait in the outbox.  Of their
# copies there are not more than there is room for, they come in order, and to find that
# out for each of them takes no memory.
sub worker_memory
{
	my ($name) = @_;
	my $pid = sql("SELECT pid FROM idempotency.stat_relay WHERE relay = '$name'");
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^VmPeak:\s+(\d+) kB/m;

	return $kb / 1024;
}

{
	my $name = 'room_pg';
	my $most = 10_000;

	create($name, 'pg', ', batch_events => 1000');
	sql("ALTER SYSTEM SET idempotency.max_parked = @{[ $most / 100 ]}");
	$node->reload;
	sql("SELECT idempotency.relay_pause('$name')");
	IdemRelay::wait_state($node, $name, 'paused');
	enqueue($name, 0, $most + 3000, 'hot');
	door('target', 'close', 'hot');
	my $before = worker_memory($name);
	sql(<<"END");
SELECT idempotency.relay_replay('$name', event_id => event_id) FROM idempotency.outbox_events
	WHERE aggregate_type = '$name' AND payload->>'i' = '@{[ $most + 2999 ]}';
SELECT idempotency.relay_resume('$name');
END
	IdemTest::wait_for($node, "SELECT waiting_for = 'room for parked events' FROM idempotency.stat_relay WHERE relay = '$name'");
	cmp_ok(sql("SELECT count(*) FROM idempotency_data.relay_parked WHERE aggregate_type = '$name'"), '<', $most + 2000,
		"$name: copies have a bound");
	cmp_ok(worker_memory($name) - $before, '<', 50, "$name: the worker needs little memory");
	door('target', 'open', 'hot');
	drained($name);
	is_complete('target', $name, $most + 3000, $name);
	sql('ALTER SYSTEM RESET idempotency.max_parked');
	$node->reload;
}

# An hour passes.
my $hours = 0;

sub wait_an_hour
{
	$clock->set(3600 * ++$hours);
	return;
}

foreach my $kind (qw(fn pg))
{
	my $db = $db{$kind};
	my $name = "day_$kind";
	my $made = 0;

	# All is refused for a day, under load.
	sql("SELECT idempotency.relay_create('$name', '$kind', '{$name}')");
	door($db, 'close', '*');
	for (1 .. 24)
	{
		enqueue($name, $made, 300, 'a' .. 'c');
		$made += 300;
		wait_an_hour();
	}
	IdemRelay::wait_state($node, $name, 'outage');
	is(sql("SELECT dead FROM idempotency.stat_relay WHERE relay = '$name'"), '0', "$name: nothing is dead after a day");
	door($db, 'open', '*');
	drained($name);
	is_complete($db, $name, $made, $name);

	# One key is refused for most of three days, which is as long as an event is tried at most, and others pass.
	$name = "days_$kind";
	sql("SELECT idempotency.relay_create('$name', '$kind', '{$name}')");
	door($db, 'close', 'hot');
	enqueue($name, 0, $N, 'hot');
	read_all($name);
	for my $hour (1 .. 60)
	{
		wait_an_hour();
		enqueue($name, 2 * $hour, 1, 'cold');
		IdemTest::wait_for($node, "SELECT count(*) = @{[ 2 * $hour - 1 ]} FROM app.got WHERE relay = '$name'", 't', $db);
		IdemTest::wait_for($node, "SELECT attempts >= $hour FROM idempotency_data.relay_parked"
			  . " WHERE aggregate_type = '$name' AND state = 'retry'");

		# An event that is accepted after the refusal lets the next refusal count at once.
		enqueue($name, 2 * $hour + 1, 1, 'cold');
		IdemTest::wait_for($node, "SELECT count(*) = @{[ 2 * $hour ]} FROM app.got WHERE relay = '$name'", 't', $db);
	}
	# A refusal counts for twice the backoff at most: a function's is a minute.
	my $tried = $kind eq 'fn' ? '20 minutes' : '10 hours';
	is(sql("SELECT tried_for > '$tried' FROM idempotency_data.relay_parked WHERE aggregate_type = '$name' AND state = 'retry'"),
		't', "$name: it was tried for days");
	is(blocked($name), '1', "$name: what waits behind it is one row");
	door($db, 'open', 'hot');
	wait_an_hour();
	enqueue($name, 122, 1, 'cold');
	drained($name);
	is_complete($db, $name, $N + 121, $name);
}

$node->stop;
done_testing();
