
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
