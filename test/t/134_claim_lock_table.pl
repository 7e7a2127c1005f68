
# Copyright (c) 2026, the idempotency developers

# All connections of a server at once claim more events than their budgets of locks: the
# server's lock table has room for all of them, at the smallest setting.  PostgreSQL 19 has
# room for fewer locks at the same setting than those before.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = 15;
my $node = IdemTest::cluster('main', conf => <<'END');
max_connections = 20
max_worker_processes = 8
max_wal_senders = 0
max_prepared_transactions = 0
END
# CREATE EXTENSION itself takes more locks than that leaves room for.
$node->append_conf('postgresql.conf', 'max_locks_per_transaction = 10');
$node->restart;
my @sessions = map { $node->background_psql('postgres') } 1 .. $clients;
my $budget = $node->safe_psql('postgres', 'SHOW max_locks_per_transaction');

foreach my $n (0 .. $#sessions)
{
	is( $sessions[$n]->query_safe(qq{BEGIN; SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT 's$n-' || i FROM generate_series(1, 10 * $budget) i)) WHERE result = 'claimed'}),
		10 * $budget, "session $n claims ten times its budget");
}
is( $node->safe_psql('postgres', q{SELECT count(DISTINCT pid), max(n) <= current_setting('max_locks_per_transaction')::int FROM (
		SELECT pid, count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid() GROUP BY pid) p}),
	"$clients|t", 'each has locks of its budget');
foreach my $n (0 .. $#sessions)
{
	$sessions[$n]->query_safe(qq{SELECT idempotency.complete_events(ARRAY(SELECT 's$n-' || i FROM generate_series(1, 10 * $budget) i))});
	$sessions[$n]->query_safe('COMMIT');
	$sessions[$n]->quit;
}
is( $node->safe_psql('postgres', qq{SELECT count(*) FROM generate_series(0, $clients - 1) n, generate_series(1, 10 * $budget) i,
		idempotency.event_status('s' || n || '-' || i) s WHERE s.status = 'completed'}),
	$clients * 10 * $budget, 'and all of them are remembered');
$node->stop;
done_testing();
