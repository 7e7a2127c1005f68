
# Copyright (c) 2026, the idempotency developers

# Settings that a site sets small, for the database and for the role of its workers: claims do
# not fail because of the extension's own maintenance, and maintenance goes on.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.claim_segment_size = 64kB
autovacuum = off
END

$node->safe_psql('postgres', <<'END');
CREATE FUNCTION test_hold_extension(table_oid oid, file text) RETURNS void LANGUAGE c AS 'idempotency_test', 'idem_test_hold_extension_fn';
CREATE ROLE worker LOGIN;
SELECT idempotency.grant_role('consumer', 'worker'), idempotency.grant_role('producer', 'worker');
ALTER DATABASE postgres SET temp_file_limit = 0;
ALTER DATABASE postgres SET deadlock_timeout = '1ms';
ALTER DATABASE postgres SET maintenance_work_mem = '1MB';
ALTER DATABASE postgres SET work_mem = '64kB';
ALTER DATABASE postgres SET temp_buffers = '800kB';
ALTER DATABASE postgres SET max_stack_depth = '100kB';
ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '1s';
ALTER DATABASE postgres SET idle_session_timeout = '1s';
ALTER DATABASE postgres SET statement_timeout = '5min';
ALTER DATABASE postgres SET lock_timeout = '1ms';
ALTER DATABASE postgres SET default_tablespace = 'pg_default';
ALTER ROLE worker SET lock_timeout = '1ms';
-- a client that the machine is slow to serve is no failure of a claim
ALTER ROLE worker SET idle_session_timeout = 0;
-- the role of the extension's workers; all at once, because the next session has them
ALTER ROLE CURRENT_USER SET statement_timeout = 1;
ALTER ROLE CURRENT_USER SET lock_timeout = 1;
ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = 1;
ALTER ROLE CURRENT_USER SET idle_session_timeout = 1;
END

# Whoever extends a table has its lock for a moment.  Held for longer, it is waited for a second,
# and not for the lock_timeout of 1 ms.
my $hold = $node->basedir . '/hold';
my %work = (
	store_segment_0 => q{idempotency.claim_event('e'), idempotency.complete_event('e')},
	lease_log_0 => q{token FROM idempotency.lease_event('e')},
	outbox_segment_0 => q{idempotency.outbox_enqueue('t', 'k', 'E', '1')});
foreach my $table (sort keys %work)
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0';
	my ($in, $out, $err) = ('', '', '');

	append_to_file($hold, '');
	my $holder = IPC::Run::start(
		[ 'psql', '-XAtc', "SELECT test_hold_extension('idempotency_data.$table'::regclass, '$hold')", $node->connstr('postgres') ],
		'<', \$in, '>', \$out, '2>', \$err);
	IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'extend' AND granted});
	$ENV{PGOPTIONS} = '';
	is( $node->safe_psql('postgres', <<"END", extra_params => [ '-U', 'worker' ]), '1ms|t', "$table: is extended by somebody else");
CREATE TEMP TABLE waited AS SELECT interval '0' AS at_least;
DO \$\$
DECLARE
	began timestamptz = clock_timestamp();
BEGIN
	PERFORM $work{$table};
EXCEPTION WHEN lock_not_available THEN
	UPDATE waited SET at_least = clock_timestamp() - began;
END \$\$;
SELECT current_setting('lock_timeout'), at_least >= '1 s' FROM waited
END
	unlink $hold;
	$holder->finish or diag $err;
}

# Transactions of one kind each; every event is new, so nobody waits for another client's lock.
my $script = $node->basedir . '/work.sql';
append_to_file($script, <<'END');
SELECT idempotency.claim_event(x), idempotency.complete_event(x, result => '{"a": 1}') FROM (SELECT gen_random_uuid()::text AS x OFFSET 0) e;
SELECT idempotency.complete_event(x, token => l.token) FROM (SELECT gen_random_uuid()::text AS x OFFSET 0) e, idempotency.lease_event(x) l;
SELECT idempotency.outbox_enqueue('t', 'k', 'E', '1');
END
my ($out, $err) = ('', '');
ok(IPC::Run::run([ 'pgbench', '-n', '-c', '4', '-j', '2', '-t', '1500', '-f', $script, '-U', 'worker', $node->connstr('postgres') ],
	'>', \$out, '2>', \$err), 'claims, leases and enqueues with a lock_timeout of 1 ms')
  or diag $err;
like($out, qr{number of transactions actually processed: 6000/6000}, 'all of them');

# The packer writes temporary files for runs with results, and has their limit from the database.
local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0';
IdemTest::wait_for($node, "
	SELECT count(*) = 0 AND (SELECT count(*) > 0 FROM idempotency.stat_claim_segments WHERE kind = 'run')
	  FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND state NOT IN ('current', 'empty', 'searched')");
pass('and the packer packs');
unlike(slurp_file($node->logfile), qr/canceling statement|temporary file size exceeds|lock timeout/, 'no limit of a user has struck');

$node->stop;
done_testing();
