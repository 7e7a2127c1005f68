
# Copyright (c) 2026, the idempotency developers

# A dump takes the events along, undelivered ones would be lost otherwise; their
# transaction ids mean nothing in the other cluster, and they are given new ones.

use strict;
use warnings FATAL => 'all';

use IPC::Run qw(finish start);

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('old', conf => IdemOutbox::eager_conf());
IdemOutbox::create_functions($node);
# Transaction ids that the other cluster has not reached
$node->safe_psql('postgres',
	'DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
$node->safe_psql('postgres', q{
SELECT idempotency.outbox_enqueue('a', '1', 't', '{"n": 1}', headers => '{"h": 1}', event_id => '00000000-0000-7000-8000-000000000001')});
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[]::pg_snapshot[])');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue_bytes('a', '2', 't', '\x00ff')});
$node->safe_psql('postgres', 'DROP SCHEMA t CASCADE');
my $events = 'SELECT * FROM idempotency.outbox_events ORDER BY seq';
my $before = $node->safe_psql('postgres', $events);
my $last_seq = $node->safe_psql('postgres', 'SELECT last_seq FROM idempotency.stat_outbox');

my $new = IdemTest::cluster('new', extension => 0, conf => IdemOutbox::eager_conf());
my $dump = $node->basedir . '/dump.sql';
command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'dumped');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $new->connstr('postgres') ],
	'restored');
is($new->safe_psql('postgres', $events), $before, 'the same events');
IdemOutbox::create_functions($new);
is( $new->safe_psql('postgres',
		"SELECT string_agg(aggregate_id, ',') FROM t.read(NULL, t.snapshot(), 0, 10)"),
	'1,2', 'and a reader of the new cluster sees them');
$new->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', '3', 't', '1')");
is( $new->safe_psql('postgres',
		"SELECT string_agg(aggregate_id, ',') FROM t.read(NULL, t.snapshot(), 0, 10)"),
	'1,2,3', 'later ones come after them');
is($new->safe_psql('postgres', 'SELECT last_seq FROM idempotency.stat_outbox'), $last_seq + 1, 'numbers go on after theirs');
$new->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])');
is($new->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'),
	'0', 'their segments are emptied in time');

# A dump that takes long.  What is delivered meanwhile stays for it: the effects are
# not in the dump, and the restored database has to make them.
IdemOutbox::create_functions($node);
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])');
is($node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'), '0', 'an empty outbox');
my $keeper = $node->background_psql('postgres');
my $dumper = $node->background_psql('postgres');
my $maintain = 'SELECT t.maintain(ARRAY[t.snapshot()])';
my $held = q{SELECT string_agg(held_by, ' ') FROM idempotency.outbox_segments()};

# The transaction of a relay that delivers something
sub deliver
{
	$node->safe_psql('postgres', 'SELECT pg_current_xact_id()');
	return;
}

# For longer than a snapshot may be anybody's
sub maintain_for_long
{
	$keeper->query_safe(<<'END');
DO $$
DECLARE
	until timestamptz := clock_timestamp() + '1 s';
BEGIN
	WHILE clock_timestamp() < until LOOP
		PERFORM t.maintain(ARRAY[t.snapshot()]);
		COMMIT;
	END LOOP;
END $$;
END
	return;
}

# Begin what a dump begins with; returns its snapshot.
sub begin_dump
{
	$dumper->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_extension');
	return $dumper->query_safe('SELECT pg_export_snapshot()');
}

$keeper->query_safe("SET idempotency.outbox_dump_size = '1GB'");
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'late', 't', '1')");
my $snapshot = begin_dump();
is($keeper->query_safe($held), '', 'the current segment is held by nobody');
deliver();

maintain_for_long();
is($keeper->query_safe($held), 'dump', 'a dump keeps what was delivered since it began');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok([ 'pg_dump', "--snapshot=$snapshot", '-N', 't', '-f', $dump, '-d', $node->connstr('postgres') ], 'dumped as of its beginning');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ], 'restored beside');
is($node->safe_psql('restored', 'SELECT string_agg(aggregate_id, $$ $$) FROM idempotency.outbox_events'),
	'late', 'with the event');
$dumper->query_safe('COMMIT');
is($keeper->query_safe($maintain), '1', 'the end of the dump frees the segment');

# An old snapshot that is no dump's is soon not waited for.
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'old', 't', '1')");
$dumper->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
deliver();
$keeper->query_safe(<<'END');
DO $$
BEGIN
	LOOP
		PERFORM t.maintain(ARRAY[t.snapshot()]);
		COMMIT;
		EXIT WHEN (SELECT segments_used FROM idempotency.stat_outbox) = 0;
	END LOOP;
END $$;
END
is($node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'), '0', 'an old snapshot keeps nothing');
$dumper->query_safe('COMMIT');

# A dump that looks for what its patterns match has read pg_namespace only.
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'matched', 't', '1')");
$dumper->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class LEFT JOIN pg_namespace AS n ON n.oid = relnamespace');
deliver();
maintain_for_long();
is($keeper->query_safe($held), 'dump', 'a dump that looks for what its patterns match keeps what was delivered since it began');
$dumper->query_safe('COMMIT');
is($keeper->query_safe($maintain), '1', 'and frees the segment at its end');

# A dump that waits for its snapshot to be safe has it already, and shows nothing else.
my $writer = $node->background_psql('postgres');
$writer->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM pg_class');
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'safe', 't', '1')");
my $safe = start([ 'pg_dump', '--serializable-deferrable', '-N', 't', '-f', $dump, '-d', $node->connstr('postgres') ]);
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SafeSnapshot'});
deliver();
maintain_for_long();
is($keeper->query_safe($held), 'dump', 'a dump that waits for a safe snapshot keeps what was delivered since it began');
$writer->query_safe('ROLLBACK');
$writer->quit;
finish($safe);
is($safe->result(0), 0, 'it is done');
like(slurp_file($dump), qr/\tsafe\t/, 'and has the event');
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])');

# What is kept for a dump is bounded.
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'much', 't', '1')");
begin_dump();
deliver();
is($keeper->query_safe($maintain), '0', 'a dump is waited for');
my $log = -s $node->logfile;
is($keeper->query_safe("SET idempotency.outbox_dump_size = '1kB'; $maintain"), '1', 'until the outbox has kept too much');
like(slurp_file($node->logfile, $log), qr/outbox_segment_\d" is emptied while a dump of the database runs/, 'which the log tells');
$dumper->query_safe('COMMIT');
$_->quit foreach $keeper, $dumper;

$node->stop;
$new->stop;
done_testing();
