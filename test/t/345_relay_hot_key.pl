
# Copyright (c) 2026, the idempotency developers

# Thousands of events that wait behind parked events of their keys, as copies and in the
# outbox: how many transactions and how many rows read it takes to drain them, counted and not timed.  New keys go
# on meanwhile, with or without dead rows in the way, whether copies are refused or not.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $N = 10_000;
my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
autovacuum = off
END
my $blocked = $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relname = 'relay_blocked'});
my $parked = $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relname = 'relay_parked'});

sub sql { return $node->safe_psql('postgres', @_); }

# Transactions of the server that wrote anything, and subtransactions; those that only
# look take no number.
sub xids { return sql('SELECT pg_snapshot_xmax(pg_current_snapshot())'); }

# The handler notes what came, in which transaction.
my $handler = <<'END';
CREATE SCHEMA app;
CREATE TABLE app.got (n bigserial, relay text, key text, i int, xid xid8);
CREATE FUNCTION app.on_event(aggregate_type text, aggregate_id text, payload jsonb) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO app.got (relay, key, i, xid)
		VALUES (aggregate_type, aggregate_id, (payload->>'i')::int, pg_current_xact_id())
$$;
END
sql("CREATE DATABASE target");
$node->safe_psql($_, $handler) foreach qw(postgres target);
sql(<<"END");
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_event');
CREATE SERVER plain FOREIGN DATA WRAPPER idempotency_null;
END
IdemRelay::prepared_postgres_server($node, 'pg', $node, 'target', 'app.on_event');

# Park the first event of each key for an hour, and let so many events wait behind them.
sub park
{
	my ($name, $keys, $n) = @_;

	sql(<<"END");
SELECT idempotency.relay_pause('$name');
END
	IdemRelay::wait_state($node, $name, 'paused');
	sql(<<"END");
SELECT count(idempotency.outbox_enqueue('$name', 'hot' || k, 'E', '{"i": 0}')) FROM generate_series(1, $keys) k;
SELECT count(idempotency.relay_replay('$name', event_id => event_id)) FROM idempotency.outbox_events
	WHERE aggregate_type = '$name' AND payload->>'i' = '0' AND enqueued_at > now() - interval '1 hour'
	AND seq > (SELECT COALESCE(max(seq), 0) FROM idempotency.outbox_events WHERE aggregate_type = 'mark_$name');
UPDATE $parked SET next_attempt_at = now() + interval '1 hour', last_failed_at = NULL WHERE aggregate_type = '$name';
SELECT idempotency.relay_resume('$name');
SELECT count(idempotency.outbox_enqueue('$name', 'hot' || (i % $keys + 1), 'E', jsonb_build_object('i', i)))
	FROM generate_series(1, $n) i;
END
	# Behind a hundred copies of a key its events stay in the outbox.
	my $copies = $n < 101 * $keys ? $n : 100 * $keys;
	IdemTest::wait_for($node, "SELECT count(*) = $copies FROM $parked WHERE aggregate_type = '$name' AND state = 'waiting'");
	IdemTest::wait_for($node, "SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$name'");
	return;
}

sub let_go
{
	my ($name) = @_;

	sql(<<"END");
BEGIN;
UPDATE $parked SET next_attempt_at = now() WHERE aggregate_type = '$name' AND state = 'retry';
SELECT idempotency.relay_resume('$name');
COMMIT;
END
	return;
}

sub drained
{
	my ($name) = @_;

	IdemTest::wait_for($node, "SELECT (SELECT count(*) FROM $parked WHERE aggregate_type = '$name') = 0"
		  . " AND (SELECT count(*) FROM $blocked WHERE aggregate_type = '$name') = 0");
	return;
}

# Of what came, the pairs that stand in the wrong order.
sub disorder
{
	my ($db, $name) = @_;

	return $node->safe_psql($db, <<"END");
SELECT count(*) FROM (SELECT i <= lag(i) OVER (PARTITION BY key ORDER BY n) AS wrong
	FROM app.got WHERE relay = '$name' AND key LIKE 'hot%') g WHERE wrong
END
}

my @relays = ([ 'one_fn', 'fn', 1, 'postgres' ], [ 'many_fn', 'fn', 100, 'postgres' ],
	[ 'one_pg', 'pg', 1, 'target' ], [ 'many_pg', 'pg', 100, 'target' ], [ 'one_null', 'plain', 1 ]);
foreach my $case (@relays)
{
	my ($name, $server, $keys, $db) = @$case;

	sql("SELECT idempotency.relay_create('$name', '$server', '{$name}')");
	park($name, $keys, $N);

	# However many wait, other keys pass; some more when the waiting ones can go.
	sql("SELECT count(idempotency.outbox_enqueue('$name', 'new' || i, 'E', '{}')) FROM generate_series(1, 500) i");
	IdemTest::wait_for($node, "SELECT sent >= 500 FROM idempotency.stat_relay WHERE relay = '$name'");
	my $before = xids();
	let_go($name);
	drained($name);
	my $took = $db ? $node->safe_psql($db, "SELECT count(DISTINCT xid) FROM app.got WHERE relay = '$name'") : xids() - $before;

	# Those of the server are counted for a null sink: refills, for a few milliseconds each, among them.
	cmp_ok($took, '<', $db ? 90 : 400, "$name: $N events take few transactions");
	next unless $db;
	is($node->safe_psql($db, "SELECT count(*) FROM app.got WHERE relay = '$name' AND key LIKE 'hot%'"),
		$N + $keys, "$name: each event comes once");
	is(disorder($db, $name), '0', "$name: in the order of its key");
	is($node->safe_psql($db, <<"END"), 't', "$name: other keys do not wait for them");
SELECT max(n) FILTER (WHERE key LIKE 'new%') < min(n) FILTER (WHERE key LIKE 'hot%') FROM app.got WHERE relay = '$name'
END
}

# Dead rows that a pinned xmin horizon keeps do not make it slower.
sub rows_read
{
	return sql(<<"END");
SELECT pg_stat_force_next_flush();
SELECT s.seq_tup_read + COALESCE(sum(i.idx_tup_read), 0) FROM pg_stat_all_tables s
	LEFT JOIN pg_stat_all_indexes i USING (relid) WHERE s.relid = '$parked'::regclass GROUP BY s.seq_tup_read
END
}

sql("BEGIN; CREATE TABLE pin (); PREPARE TRANSACTION 'pin'");
foreach my $name (qw(one_fn one_pg))
{
	my $db = $name eq 'one_fn' ? 'postgres' : 'target';

	sql("SELECT idempotency.outbox_enqueue('mark_$name', 'k', 'E', '{}')");
	$node->safe_psql($db, "DELETE FROM app.got WHERE relay = '$name'");
	park($name, 1, $N);
	my $deletes = sql("SELECT n_tup_del FROM pg_stat_all_tables WHERE relid = '$parked'::regclass");
	my $before = rows_read() =~ s/^\s*//r;
	let_go($name);
	IdemRelay::wait_until("$name: the copies are gone",
		sub { sql("SELECT count(*) FROM $parked WHERE aggregate_type = '$name'") eq '0'
				&& sql("SELECT count(*) FROM $blocked WHERE aggregate_type = '$name'") eq '0' });
	IdemTest::wait_for($node, "SELECT n_tup_del >= $deletes + $N FROM pg_stat_all_tables WHERE relid = '$parked'::regclass");
	cmp_ok(rows_read() - $before, '<', 100 * $N, "$name: rows read under a pinned horizon");
	is(disorder($db, $name), '0', "$name: in the order of its key under a pinned horizon");
}
sql("ROLLBACK PREPARED 'pin'");

# To find when a relay that rests has something to do, its parked events are read once each,
# not once for each key.
{
	my $keys = 2000;

	sql("SELECT idempotency.relay_create('rests', 'plain', '{rests}'); SELECT idempotency.relay_pause('rests')");
	IdemRelay::wait_state($node, 'rests', 'paused');
	sql(<<"END");
SELECT count(idempotency.outbox_enqueue('rests', 'k' || k, 'E', '{}')) FROM generate_series(1, $keys) k;
SELECT count(idempotency.relay_replay('rests', event_id => event_id)) FROM idempotency.outbox_events WHERE aggregate_type = 'rests';
UPDATE $parked SET next_attempt_at = now() + interval '1 hour', last_failed_at = NULL WHERE aggregate_type = 'rests';
SELECT idempotency.relay_resume('rests');
END
	IdemTest::wait_for($node, "SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'rests'");
	$node->restart;
	IdemTest::wait_for($node, "SELECT state = 'idle' FROM idempotency.stat_relay WHERE relay = 'rests'");
	my $before = rows_read() =~ s/^\s*//r;

	# A change of any relay lets the worker look.
	sql("SELECT idempotency.relay_alter('one_null', max_backoff => '1 min')");
	IdemRelay::wait_until('the worker has reported', sub { rows_read() >= $before + $keys });
	cmp_ok(rows_read() - $before, '<', 100 * $keys, 'rests: rows read');
	sql("SELECT idempotency.relay_drop('rests')");
}

# The server goes down.  Only what may have been under way then is tried one by one, and
# an attempt that is on record is the next, whatever else is due.
sql(q{SELECT idempotency.relay_create('crash', 'fn', '{crash}', batch_events => 100)});
park('crash', 2, 3000);
IdemTest::kill9_backend($node, IdemRelay::stat($node, 'crash', 'pid'));
let_go('crash');
drained('crash');
is(disorder('postgres', 'crash'), '0', 'in order after a crash');
cmp_ok(sql(q{SELECT count(DISTINCT xid) FROM app.got WHERE relay = 'crash'}), '<', 600,
	'after a crash only a batch of copies is tried one by one');

# A queue of which every event is refused: what is sent for nothing is no more than that.
my $file = "$dir/poison.log";
IdemRelay::pytest_server($node, 'poison', $file, reject_type => 'E');
sql(q{SELECT idempotency.relay_create('poison', 'poison', '{poison}', max_attempts => 1)});
park('poison', 1, 500);
let_go('poison');
IdemRelay::wait_dead($node, 'poison', 501, sub { sql(q{SELECT idempotency.outbox_enqueue('poison', 'others', 'Other', '{}')}) });
my @sent = grep { ($_->{event_type} // '') eq 'E' } IdemRelay::received($file);
cmp_ok(scalar(@sent), '<=', 2 * 501, 'refused copies are sent one by one, not all those behind them each time');

# Thousands of dead letters are tried again at once: in order, by the batch.
sql('ALTER SERVER poison OPTIONS (DROP reject_type)');
my $before = xids();
is(sql(q{SELECT idempotency.relay_redrive('poison')}), '501', 'all of them again');
drained('poison');
cmp_ok(xids() - $before, '<', 60, 'redriven in few transactions');
my @acked = grep { $_->{event_type} eq 'E' } IdemRelay::acked($file);
my @numbers = map { $_->{seq} // () } @acked;
is("@numbers", join(' ', sort { $a <=> $b } @numbers), 'in the order of their key') if @numbers;
is(IdemRelay::distinct(@acked), 501, 'each arrives');

$node->stop;
done_testing();
