
# Copyright (c) 2026, the idempotency developers

# With wal_level = logical, a logical slot that nobody reads, and a publication of all
# tables: packing, merging and emptying go on, and decoding shows the rows of claims,
# but nothing of what the packer does.  With data checksums, and with all that amcheck
# can check, also after a packer was killed in the middle of a run.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 'logical', extra => ['--data-checksums'], conf => <<'END');
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
autovacuum = off
END

$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
CREATE FUNCTION ids(prefix text, n int) RETURNS text[] LANGUAGE sql AS
	$$ SELECT array_agg(prefix || i) FROM generate_series(1, n) i $$;
CREATE FUNCTION feed(prefix text, n int) RETURNS void LANGUAGE sql AS $$
	SELECT count(*) FROM idempotency.claim_events(ids(prefix, n), 'c');
	SELECT idempotency.complete_events(ids(prefix, n), 'c',
		results => ARRAY(SELECT CASE WHEN i % 10 = 0 THEN to_jsonb(repeat(prefix || i, 1000)) END FROM generate_series(1, n) i));
$$;
CREATE FUNCTION verdicts(ids text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told text;
BEGIN
	SELECT string_agg(DISTINCT result::text, ' ') INTO told FROM idempotency.claim_events(ids, 'c');
	RAISE EXCEPTION USING MESSAGE = 'undo: ' || told;
EXCEPTION WHEN raise_exception THEN
	RETURN substr(SQLERRM, 7);
END
$$;
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT pg_create_logical_replication_slot('shown', 'test_decoding'), pg_create_logical_replication_slot('published', 'pgoutput');
SQL

my $waiting = q{FROM idempotency.stat_claim_segments WHERE state NOT IN ('current', 'empty', 'searched')};
my %fed;

sub feed
{
	my ($prefix, $n) = @_;

	$node->safe_psql('postgres', "SET idempotency.store_maintenance = off; SELECT feed('$prefix', $n)");
	$fed{$prefix} = $n;
	return;
}

sub grow
{
	my ($name) = @_;

	for my $i (1 .. 20)
	{
		feed("$name-$i-", 120);
		$node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()');
	}
	return;
}

sub settle
{
	IdemTest::wait_for($node, "SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT $waiting)");
	return;
}

# Every event is remembered, and the tables and indexes are sound.
sub sound
{
	my ($name) = @_;
	my $all = join ' UNION ALL ', map { "SELECT verdicts(ids('$_', $fed{$_})) AS v" } sort keys %fed;

	is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT v, ' ') FROM ($all) a"), 'duplicate', "$name: all is remembered");
	is($node->safe_psql('postgres', q{SELECT verdicts(ids('never-', 100))}), 'claimed', "$name: nothing else");
	my ($rc, undef, $problem) = $node->psql('postgres', <<'SQL');
SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_' AND i.indisvalid
SQL
	is($problem, '', "$name: the indexes have all rows");
	is($node->safe_psql('postgres', <<'SQL'), '', "$name: heaps and TOAST tables are sound");
SELECT format('%s: %s', t.oid::regclass, v)
FROM pg_class c JOIN pg_class t ON t.oid IN (c.oid, c.reltoastrelid),
	LATERAL verify_heapam(t.oid::regclass, check_toast => t.oid = c.oid) v
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^store_'
SQL
	return;
}

# The server takes settings of the packer from its configuration.
sub configure
{
	my ($name, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	$node->reload;
	IdemTest::wait_for($node, "SHOW $name", $value);
	return;
}

#
# The slots are not read: they hold back the xmin of catalogs, and nothing else.
#
grow('a');
$node->safe_psql('postgres', <<'SQL');
SELECT idempotency.forget_event('a-1-1', 'c');
BEGIN; SELECT idempotency.claim_event('a-1-1', 'c'), idempotency.complete_event('a-1-1', 'c'); COMMIT;
SQL
grow('b');
settle();
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT level::text, ' ' ORDER BY level::text) FROM idempotency.stat_claim_segments WHERE kind = 'run'}),
	'0 1', 'packed, merged and emptied beside slots that nobody reads');
is($node->safe_psql('postgres', 'SELECT count(*), count(xmin), count(catalog_xmin) FROM pg_replication_slots'), '2|0|2',
	'the slots hold catalogs only');
sound('packed');

#
# What is decoded: the rows of claims, as for any table.
#
my %shown = map { split /\|/ } split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT kind, count(*) FROM (
	SELECT substring(data FROM '^table [a-z_]+\."?([a-z]+_?[a-z]*)') || ' ' || substring(data FROM ': ([A-Z]+):') AS kind
	FROM pg_logical_slot_peek_changes('shown', NULL, NULL, 'skip-empty-xacts', 'on')) AS c
WHERE kind IS NOT NULL GROUP BY 1
SQL
# A claim beyond the budget writes its row early, and once more with the result.
is_deeply([ sort keys %shown ], [ 'store_segment DELETE', 'store_segment INSERT' ],
	'rows of claims are decoded, and no row of the packer');
is($shown{'store_segment INSERT'} - $shown{'store_segment DELETE'}, 2 * 20 * 120 + 2,
	'each completion and each order to forget once');
is($node->safe_psql('postgres', <<'SQL'), 't|f|f', 'so it is published');
SELECT bool_or(position('store_segment_'::bytea IN data) > 0), bool_or(position('store_slot_'::bytea IN data) > 0),
	bool_or(position('store_state'::bytea IN data) > 0)
FROM pg_logical_slot_peek_binary_changes('published', NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')
SQL

# What a session writes after it has written rows of a run is decoded as before.
is($node->safe_psql('postgres', <<'SQL'), "logical\n1", 'and nothing else is hidden');
CREATE TABLE afterwards (n int);
CREATE FUNCTION write_run(slot int, run bigint, query text, plain bool = false, finish bool = true, expected bigint = 1000)
	RETURNS void LANGUAGE c AS 'idempotency_test', 'idem_test_run_write_fn';
BEGIN;
SELECT write_run(40, 40, $$ SELECT md5(i::text)::uuid, 1::int2, 'c'::"char", false, now(), now(), NULL::text, NULL::text, NULL::jsonb FROM generate_series(1, 2000) AS i ORDER BY 1 $$)
FROM (SELECT) AS none \g /dev/null
INSERT INTO afterwards VALUES (1);
SHOW wal_level;
COMMIT;
SELECT count(*) FROM pg_logical_slot_peek_changes('shown', NULL, NULL, 'skip-empty-xacts', 'on') WHERE data LIKE 'table public.afterwards: INSERT%';
SQL

#
# A packer is killed in the middle of a run.  All it wrote before is durable.
#
my $bytes = q{SELECT coalesce(sum(pg_relation_size(oid)), 0) FROM pg_class WHERE relname ~ '^store_slot_[0-9]+$'};
my $writing = q{FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.mode = 'RowExclusiveLock' AND l.granted AND c.relname ~ '^store_slot_[0-9]+$'};
my $before = $node->safe_psql('postgres', $bytes);

configure('idempotency.pack_max_rate', '64kB');
feed('killed-', 40000);
my $asker = $node->background_psql('postgres', on_error_stop => 0);
$asker->query_until(qr/asked/, "\\echo asked\nSELECT idempotency.claims_maintain();\n");
IdemTest::wait_for($node, "SELECT ($bytes) > $before + 20 * 8192 AND (SELECT count(*) = 1 $writing)");
configure('idempotency.pack_max_rate', '1kB');
$node->safe_psql('postgres', 'CHECKPOINT');
IdemTest::kill9_backend($node, $node->safe_psql('postgres', "SELECT l.pid $writing"));
$asker->finish if $asker->can('finish');
cmp_ok($node->safe_psql('postgres', $bytes), '>', $before + 20 * 8192, 'pages of a run without an end mark');
sound('killed');
configure('idempotency.pack_max_rate', '0');
grow('c');
settle();
sound('packed after that');

#
# Slots are read and dropped; the store does not care.
#
$node->safe_psql('postgres', q{SELECT count(*) FROM pg_logical_slot_get_changes('shown', NULL, NULL)});
$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots});
grow('d');
settle();
sound('without slots');
$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'all checksums are right');
done_testing();
