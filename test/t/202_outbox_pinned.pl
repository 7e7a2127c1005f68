
# Copyright (c) 2026, the idempotency developers

# Under a pinned xmin horizon the outbox turns without a dead tuple, in catalogs
# and metadata too, and its files do not grow.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('pinned',
	conf => IdemOutbox::eager_conf() . "autovacuum = off\n");
IdemOutbox::create_functions($node);
IdemTest::watch_dead_tuples($node);
$node->safe_psql('postgres', q{
CREATE PROCEDURE turn(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		PERFORM idempotency.outbox_enqueue('a', i::text, 't',
			(SELECT to_jsonb(string_agg(md5(g::text), '')) FROM generate_series(1, 300) AS g));
		PERFORM count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('m'::text, ARRAY[200]),
			array_fill('t'::text, ARRAY[200]), array_fill('1'::jsonb, ARRAY[200]));
		COMMIT;
		PERFORM t.maintain(ARRAY[t.snapshot()]);
		COMMIT;
	END LOOP;
END
$$;
});

# A snapshot, an xid, and a prepared transaction that wrote elsewhere
my $reader = $node->background_psql('postgres');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
my $writer = $node->background_psql('postgres');
$writer->query_safe('BEGIN; SELECT pg_current_xact_id()');
$node->safe_psql('postgres', "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'p'");

$node->safe_psql('postgres', 'CALL turn(10)');
IdemTest::note_dead_tuples($node);
my $bytes = $node->safe_psql('postgres', 'SELECT bytes FROM idempotency.stat_outbox');
$node->safe_psql('postgres', 'CALL turn(40)');
is( $node->safe_psql('postgres', 'SELECT generation, segments_used FROM idempotency.stat_outbox'),
	'50|0', 'every segment is closed and emptied in spite of it');
is(IdemTest::new_dead_tuples($node), '', 'without a dead tuple');
is($node->safe_psql('postgres', 'SELECT bytes FROM idempotency.stat_outbox'), $bytes,
	'in files of the same size');

# A transaction that has enqueued and stays open keeps one segment, not the ring
$writer->query_safe("SELECT idempotency.outbox_enqueue('a', 'month', 't', '1')");
$node->safe_psql('postgres', 'CALL turn(20)');
is( $node->safe_psql('postgres', 'SELECT generation >= 70, segments_used FROM idempotency.stat_outbox'),
	't|1', 'an open writer keeps its own segment only');
is(IdemTest::new_dead_tuples($node), '', 'still without a dead tuple');
my $before = $node->safe_psql('postgres', 'SELECT t.snapshot()');
$writer->query_safe('COMMIT');
is( $node->safe_psql('postgres',
		"SELECT aggregate_id FROM t.read('$before', t.snapshot(), 0, 10)"),
	'month', 'what it wrote arrives when it commits');
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])');
is($node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'),
	'0', 'and its segment is emptied');

# A reader that stands in a segment keeps it, and maintenance does not read it
# each time to find that out.
$node->safe_psql('postgres', q{
SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('m'::text, ARRAY[100000]),
	array_fill('t'::text, ARRAY[100000]), array_fill('1'::jsonb, ARRAY[100000]))});
$node->safe_psql('postgres', q{SELECT t.maintain('{}')});
$reader->query_safe('COMMIT; BEGIN; DECLARE c CURSOR FOR SELECT seq FROM idempotency.outbox_events; FETCH 1 c');
my $pages = $node->safe_psql('postgres', 'SELECT max(bytes) / 8192 FROM idempotency.outbox_segments()');
# What is about to be older than the retention makes it look at each page.
IdemTest::wait_for($node, q{SELECT max(enqueued_at) < clock_timestamp() - interval '1 s' FROM idempotency.outbox_events});
my ($hits) = $node->safe_psql('postgres', q{
SET idempotency.outbox_retention = 1;
EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT t.maintain(ARRAY[t.snapshot()])}) =~ /Buffers: shared hit=(\d+)/;
cmp_ok($hits, '<', $pages / 2, 'what a reader holds is not read again');
$reader->query_safe('COMMIT');
is($node->safe_psql('postgres', 'SET idempotency.outbox_retention = 1; SELECT t.maintain(ARRAY[t.snapshot()])'), '1',
	'and is emptied when it lets go');

$reader->quit;
$writer->quit;
$node->safe_psql('postgres', "ROLLBACK PREPARED 'p'");
$node->stop;
done_testing();
