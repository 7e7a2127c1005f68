
# Copyright (c) 2026, the idempotency developers

# Large differences: one transaction of a million events, and more transactions
# than the reader keeps keys of.  Read in order, complete, in bounded memory.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('large',
	conf => "synchronous_commit = off\nfsync = off\nmax_wal_size = 4GB\n");
IdemOutbox::create_functions($node);

my $scan = 'SELECT events, last_seq - first_seq + 1, ordered, memory < 6000000 FROM t.scan';
my $start = $node->safe_psql('postgres', 'SELECT t.snapshot()');

# A transaction that holds numbers before, between and after those of the others
# One timer for the whole session.
my $long = $node->background_psql('postgres', timeout => 10 * $PostgreSQL::Test::Utils::timeout_default);
$long->query_safe("BEGIN; SELECT idempotency.outbox_enqueue('long', g::text, 't', '1') FROM generate_series(1, 1000) AS g");

$node->safe_psql('postgres',
	"SELECT count(idempotency.outbox_enqueue('big', g::text, 't', '1')) FROM generate_series(1, 1000000) AS g");
my $big = $node->safe_psql('postgres', 'SELECT t.snapshot()');
is($node->safe_psql('postgres', "$scan('$start', '$big', 1000)"),
	'1000000|1000000|t|t', 'one transaction of a million events');

$long->query_safe("SELECT idempotency.outbox_enqueue('long', g::text, 't', '1') FROM generate_series(1, 1000) AS g");
$node->safe_psql('postgres', q{
DO $$
BEGIN
	FOR i IN 1..250000 LOOP
		PERFORM idempotency.outbox_enqueue('small', i::text, 't', '1');
		IF i % 2 = 0 THEN
			COMMIT;
		ELSIF i % 101 = 0 THEN
			ROLLBACK;
		END IF;
	END LOOP;
END
$$});
$long->query_safe("SELECT idempotency.outbox_enqueue('long', g::text, 't', '1') FROM generate_series(1, 1000) AS g; COMMIT");
$long->quit;
my $end = $node->safe_psql('postgres', 'SELECT t.snapshot()');

my $want = $node->safe_psql('postgres',
	"SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type <> 'big'");
cmp_ok($want, '>', 249000, 'many transactions');
is( $node->safe_psql('postgres', "SELECT events, ordered, memory < 6000000 FROM t.scan('$big', '$end', 777)"),
	"$want|t|t", 'all of their events, in order');
$want += 1000000;
is( $node->safe_psql('postgres', "SELECT events, ordered, memory < 6000000 FROM t.scan(NULL, '$end', 10000)"),
	"$want|t|t", 'all of the outbox, in order');

# Event by event the same as the table has it
is( $node->safe_psql('postgres', qq{
SELECT count(*) FROM
	(SELECT row_number() OVER () AS n, event_id FROM t.read('$big', '$end', 0, 10000000)) AS r
	FULL JOIN
	(SELECT row_number() OVER (ORDER BY seq) AS n, event_id FROM idempotency.outbox_events
		WHERE aggregate_type <> 'big') AS e
	USING (n, event_id)
WHERE r.event_id IS NULL OR e.event_id IS NULL}),
	'0', 'the same events in the same order');

$node->stop('immediate');
done_testing();
