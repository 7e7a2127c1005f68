
# Copyright (c) 2026, the idempotency developers

# A crash in the middle of emptying leaves a segment's index without a block, on which
# VACUUM fails; likewise the index of a TOAST table of the log of positions.  The worker
# repairs that, and does so too where the last relay was dropped before it came to it:
# it does not leave the database before.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => IdemOutbox::eager_conf() . "autovacuum = off\n");
IdemOutbox::create_functions($node);

# The relay is paused: it needs all events, and no worker empties anything.
$node->safe_psql('postgres', q{
CREATE SERVER s FOREIGN DATA WRAPPER idempotency_null;
BEGIN;
SELECT idempotency.relay_create('r', 's'), idempotency.relay_pause('r');
COMMIT;
SELECT idempotency.outbox_enqueue('a', 'old', 't', '1');
});
$node->poll_query_until('postgres', q{
SELECT t.maintain(ARRAY[]::pg_snapshot[]) IS NULL OR NOT is_current
FROM idempotency.outbox_segments() WHERE first_xid IS NOT NULL}) or die 'the segment is not closed';
my $segment = $node->safe_psql('postgres', 'SELECT segment FROM idempotency.outbox_segments() WHERE first_xid IS NOT NULL');
my $file = $node->safe_psql('postgres',
	"SELECT pg_relation_filepath('idempotency_data.outbox_segment_${segment}_xid_seq_idx')");
my $toast_file = $node->safe_psql('postgres', q{
SELECT pg_relation_filepath(i.indexrelid) FROM pg_class AS r JOIN pg_index AS i ON i.indrelid = r.reltoastrelid
WHERE r.oid = 'idempotency_data.relay_log_1'::regclass AND pg_relation_size(r.oid) = 0});

# This lock keeps the worker in the database, while rows may still be deleted.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE idempotency_data.relays IN ROW EXCLUSIVE MODE');
$node->safe_psql('postgres', "SELECT idempotency.relay_drop('r')");
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
eval { $lock->{run}->kill_kill };
cmp_ok(-s($node->data_dir . "/$file"), '>', 8192, 'the closed segment has events');
for my $cut ($file, $toast_file)
{
	truncate($node->data_dir . "/$cut", 0) or die "could not truncate $cut: $!";
}
$node->start;

IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_shseclabel WHERE provider = 'idempotency'});
my ($rc, $out, $err) = $node->psql('postgres', "VACUUM idempotency_data.outbox_segment_$segment");
is($err, '', 'the worker has left, and VACUUM works');
($rc, $out, $err) = $node->psql('postgres', "VACUUM idempotency_data.relay_log_1");
is($err, '', 'also on the log of positions');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.outbox_events'), '0', 'and so do plans');

$node->stop;
done_testing();
