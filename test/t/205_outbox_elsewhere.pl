
# Copyright (c) 2026, the idempotency developers

# Transactions that stay open in another database, one with a snapshot and an
# id, one prepared, hold up neither the ring nor a relay: they touched no
# segment, so all segments are emptied, again and again, in files that do not
# grow.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemRelay;
use IdemTest;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/prog.log";
my $turns = 24;    # three times round
my $node = IdemTest::cluster('main',
	conf => IdemOutbox::eager_conf() . "autovacuum = off\nidempotency.sink_directory = '$dir'\n");

# What is held is older than everything in the outbox.
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', 'CREATE TABLE t (n int)');
my $held = $node->background_psql('elsewhere');
$held->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t; INSERT INTO t VALUES (1)');
$node->safe_psql('elsewhere', "BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'p'");
my $oldest = $node->safe_psql('elsewhere', 'SELECT pg_snapshot_xmin(pg_current_snapshot())');

IdemOutbox::create_functions($node);
IdemRelay::pytest_server($node, 'prog', $file);
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (event_id)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create(name, name) FROM unnest('{fn,prog}'::text[]) AS name;
CREATE VIEW positions AS
	SELECT DISTINCT ON (relay_id) relay_id, base
	FROM (SELECT * FROM idempotency_data.relay_log_0 UNION ALL SELECT * FROM idempotency_data.relay_log_1) l
	WHERE relay_id > 0 ORDER BY relay_id, id DESC;
CREATE FUNCTION files() RETURNS bigint LANGUAGE sql AS 'SELECT bytes FROM idempotency.stat_outbox';
END

# Events for both relays, then what their worker does every five seconds, with
# the positions that they have written: each turn closes a segment.
my $sent = 0;

sub turn
{
	my $generation = $node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox');

	# One call, so that the segment cannot be closed in the middle.
	$node->safe_psql('postgres', q{
		SELECT count(*) FROM idempotency.outbox_enqueue_many('t', array_fill('k'::text, ARRAY[200]),
			array_fill('E'::text, ARRAY[200]), ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 200) i))});
	$sent += 200;
	$node->poll_query_until('postgres', "SELECT count(*) >= $sent FROM effects") or fail("turn: effects");
	IdemRelay::wait_received($file, $sent);
	$node->poll_query_until('postgres', <<"END") or fail('turn: the segment is closed and emptied');
SELECT segments_used = 0 AND generation > $generation FROM
	(SELECT t.maintain(array_agg(base)) FROM positions HAVING count(*) = 2) m, idempotency.stat_outbox
END
	return;
}

turn() foreach 1 .. 8;
my $bytes = $node->safe_psql('postgres', 'SELECT files()');
turn() foreach 9 .. $turns;
is($node->safe_psql('postgres', 'SELECT files()'), $bytes, 'in files of the same size');
is( $node->safe_psql('postgres', "SELECT generation >= $turns, segments_used, events FROM idempotency.stat_outbox"),
	't|0|0', 'every segment was closed and emptied, three times');
is($node->safe_psql('postgres', "SELECT pg_snapshot_xmin(pg_current_snapshot()) = '$oldest'"), 't', 'beside the same old transactions');
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'), "$sent|$sent", 'each event had its effect once');
is(scalar(IdemRelay::acked($file)), $sent, 'and came to the program once');

# A worker that begins beside them goes on where the last one was.
IdemTest::wait_for($node, 'SELECT count(*) = 2 AND bool_and(pg_terminate_backend(pid)) FROM idempotency.stat_relay WHERE pid > 0');
turn();
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'), "$sent|$sent", 'no effect is repeated');
is(scalar(IdemRelay::acked($file)), $sent, 'and nothing is sent again');

# Nor does their end bring anything back.
$held->query_safe('COMMIT');
$held->quit;
$node->safe_psql('elsewhere', "COMMIT PREPARED 'p'");
turn();
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'), "$sent|$sent", 'each event once to the end');
is(scalar(IdemRelay::acked($file)), $sent, 'at the program too');
$node->stop;
done_testing();
