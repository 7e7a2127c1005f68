
# Copyright (c) 2026, the idempotency developers

# Offsets and sequences are claimed while an old snapshot pins what was written: there is not
# a dead tuple, a claim reads as much as it did before, and the log stays short.
#
# CURSOR_CLAIMS: how many claims

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $claims = $ENV{CURSOR_CLAIMS} // 100_000;
# Three tables of 256 blocks, and what is written to one before the worker has seen it
my $bound = 4 * 256 * 8192;

# Dumps are not waited for: the tables take their turns at once.
my $node = IdemTest::cluster('pinned', conf => <<'END');
autovacuum = off
synchronous_commit = off
idempotency.cursor_log_dump_size = 0
END

sub sql
{
	my ($query) = @_;

	return $node->safe_psql('postgres', $query);
}

IdemTest::watch_dead_tuples($node);
sql(<<'END');
CREATE TABLE producer (id bigint);
INSERT INTO producer SELECT producer_id FROM idempotency.register_producer('p');
CREATE FUNCTION log_bytes() RETURNS bigint LANGUAGE sql AS
	$$SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname ~ '^cursor_log_\d$'$$;
-- Half of the claims are offsets, half sequences, in two partitions each
CREATE PROCEDURE work(n int) LANGUAGE plpgsql AS $$
DECLARE
	producer bigint := (SELECT id FROM producer);
	position bigint := (idempotency.resume_offset('c', 't', 0)).next_offset;
	results text;
BEGIN
	FOR i IN 1 .. n / 100 LOOP
		SELECT string_agg(DISTINCT o.result::text || ' ' || s.result::text, ', ') INTO results
		  FROM generate_series(0, 49) AS g,
			LATERAL idempotency.claim_offset('c', 't', g % 2, coalesce(position, 0) + g / 2, coalesce(position, 0) + g / 2 + 1) AS o,
			LATERAL idempotency.claim_sequence(producer, 0, coalesce(position, 0) + g / 2, 't', g % 2) AS s;
		IF results <> 'claimed accepted' THEN RAISE '% at %', results, position; END IF;
		position := coalesce(position, 0) + 25;
		COMMIT;
	END LOOP;
END $$;
-- Blocks that a claim looks at
CREATE FUNCTION blocks_of_a_claim() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT idempotency.claim_offset(''c'', ''t'', 0, 0) FROM generate_series(1, 100)' INTO plan;
	RETURN ((plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::numeric + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::numeric) / 100;
END $$;
END

sql(<<'END');
SELECT result FROM idempotency.claim_offset('untouched', 't', 0, 0, 10);
CREATE FUNCTION look(consumer text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (idempotency.claim_offset(consumer, 't', 0, 5)).result;
EXCEPTION WHEN serialization_failure THEN
	RETURN SQLERRM;
END $$;
END
my $pin = $node->background_psql('postgres');
$pin->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
sql('CALL work(1000)');
IdemTest::note_dead_tuples($node);
my $blocks = sql('SELECT blocks_of_a_claim()');

# The worker shortens the log; a page that is filled starts it.
sub becomes_short
{
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	while (sql('SELECT log_bytes()') > $bound)
	{
		return if time > $until;
		sql('CALL work(1000)');
	}
	return 1;
}

my $parts = 10;
foreach my $part (1 .. $parts)
{
	sql("CALL work($claims / $parts)");
	ok(becomes_short(), "part $part: the log is short");
}
is(IdemTest::new_dead_tuples($node), '', 'not a dead tuple');
# of up to three tables instead of one
cmp_ok(sql('SELECT blocks_of_a_claim()'), '<=', 3 * $blocks, 'a claim looks at as many blocks of a table as before');
note(join ' ', $blocks, sql('SELECT blocks_of_a_claim(), log_bytes() / 8192'));
my $records = sql(q{SELECT min(records) FROM idempotency.cursors WHERE producer = 'p'});
cmp_ok($records, '>=', $claims / 4, 'all claims were counted');
is(sql('SELECT string_agg(DISTINCT coalesce(next_offset, last_sequence + 1)::text, \' \') FROM idempotency.cursors WHERE consumer IS DISTINCT FROM \'untouched\''), $records, 'and positions are what was claimed');
is(sql(q{SELECT count(*) FROM idempotency.cursors WHERE topic = 't' AND consumer IS DISTINCT FROM 'untouched'}), '4', 'of four partitions');


# The row of a cursor that nobody has moved has moved to another table.
is(sql(q{SELECT count(*) FROM (TABLE idempotency_data.cursor_log_0 UNION ALL TABLE idempotency_data.cursor_log_1 UNION ALL TABLE idempotency_data.cursor_log_2) AS r
	WHERE owner = 'untouched' AND origin IS NOT NULL}), '1', 'the row of a cursor was copied');
is($pin->query_safe(q{SELECT look('untouched')}), 'duplicate', 'to a snapshot before that it is the same cursor');
like($pin->query_safe(q{SELECT look('c')}), qr/^could not serialize/, 'and a cursor that was moved since is not');

$pin->quit;
$node->stop;
done_testing();
