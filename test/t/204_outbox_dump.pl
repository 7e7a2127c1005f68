
# Copyright (c) 2026, the idempotency developers

# A dump takes the events along, undelivered ones would be lost otherwise; their
# transaction ids mean nothing in the other cluster, and they are given new ones.

use strict;
use warnings FATAL => 'all';

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

$node->stop;
$new->stop;
done_testing();
