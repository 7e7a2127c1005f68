
# Copyright (c) 2026, the idempotency developers

# A standby follows the ring: appending, closing and emptying are in WAL, page
# by page the same (wal_consistency_checking), and a promoted standby goes on.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = IdemTest::cluster(
	'primary',
	allows_streaming => 1,
	conf => IdemOutbox::eager_conf() . "wal_consistency_checking = 'all'\nautovacuum = off\n");
IdemOutbox::create_functions($primary);
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = 0\n");
$standby->start;

for my $i (1 .. 20)
{
	$primary->safe_psql('postgres', qq{
SELECT idempotency.outbox_enqueue('a', '$i', 't', to_jsonb(string_agg(md5(g::text), ''))) FROM generate_series(1, 500) AS g;
SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('m$i'::text, ARRAY[300]),
	array_fill('t'::text, ARRAY[300]), array_fill('1'::jsonb, ARRAY[300]));
});
	$primary->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])') if $i < 20;
}
# A scan marks the entries of rows that were rolled back as dead.  That is not
# logged, so the standby's page has no such marks
my $many = "SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('m20'::text, ARRAY[40]),
	array_fill('t'::text, ARRAY[40]), array_fill('1'::jsonb, ARRAY[40]))";
$primary->safe_psql('postgres', <<"SQL");
$many;
BEGIN; $many; ROLLBACK;
$many;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(payload) FROM idempotency_data.outbox_segment_3 WHERE xid > '0'::xid8;
$many;
SQL
$primary->safe_psql('postgres', 'SELECT t.maintain(ARRAY[]::pg_snapshot[])');
$primary->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'last', 't', '1')");
$primary->wait_for_catchup($standby);

my $state = 'SELECT generation, current_segment, segments_used FROM idempotency.stat_outbox';
my $events = 'SELECT count(*), count(DISTINCT event_id), min(seq) FROM idempotency.outbox_events';
is($primary->safe_psql('postgres', $state), '20|4|2', 'state of the primary');
is($standby->safe_psql('postgres', $state), '20|4|2', 'and of the standby');
like($primary->safe_psql('postgres', $events), qr/^422\|422\|/, 'the primary has the events of the last two segments');
is($standby->safe_psql('postgres', $events), $primary->safe_psql('postgres', $events),
	'the standby has the same events');
# Maps of free space and visibility are each server's own.
my $files = q{
SELECT relname, pg_relation_size(oid), pg_relation_size(NULLIF(reltoastrelid, 0)), pg_indexes_size(oid)
FROM pg_class WHERE oid::regclass::text ~ '^idempotency_data.outbox_segment_.$' ORDER BY 1};
is($standby->safe_psql('postgres', $files), $primary->safe_psql('postgres', $files),
	'and files of the same size');
# The sequence is logged up to 128 values ahead.
my ($on_primary, $on_standby) =
  map { $_->safe_psql('postgres', 'SELECT last_seq FROM idempotency.stat_outbox') } $primary, $standby;
ok($on_standby >= $on_primary && $on_standby <= $on_primary + 128, 'numbers are as far');

my ($ret, $out, $err) =
  $standby->psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'no', 't', '1')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/25006.*during recovery/, 'a standby does not enqueue');
is($standby->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])'),
	'0', 'nor does it keep house');
is($standby->safe_psql('postgres', 'SELECT events FROM t.scan(NULL, t.snapshot(), 100)'),
	'422', 'but it can read');

$primary->stop('immediate');
$standby->promote;
$standby->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'promoted', 't', '1')");
is( $standby->safe_psql('postgres',
		"SELECT string_agg(aggregate_id, ',' ORDER BY seq) FROM t.read(NULL, t.snapshot(), 0, 1000) WHERE aggregate_id !~ '^m'"),
	'20,last,promoted', 'promoted: what was there, and the new');
is($standby->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])'),
	'2', 'promoted: segments are closed and emptied');
is($standby->safe_psql('postgres', $events), '0|0|', 'promoted: nothing is left');
$standby->stop;

done_testing();
