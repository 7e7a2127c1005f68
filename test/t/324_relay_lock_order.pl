
# Copyright (c) 2026, the idempotency developers

# Under on_dead = stop a worker locks its relay before a parked event, as operators do:
# who has the relay is not stopped by a worker that waits for it.  And what an operator
# has parked, or made due, is flushed before a worker sees it.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "autovacuum = off\nwal_writer_delay = 10s\n");

# The first try fails at once, the second when lock 1 is to be had.
$node->safe_psql('postgres', <<'END');
CREATE SEQUENCE tries;
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type <> 'Bad' THEN
		RETURN;
	END IF;
	IF pg_catalog.nextval('public.tries') > 1 THEN
		PERFORM pg_catalog.pg_advisory_xact_lock(1);
	END IF;
	RAISE EXCEPTION 'no';
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
SELECT idempotency.relay_create('fn', 'fn', on_dead => 'stop', max_attempts => 2, min_backoff => '1 ms', max_backoff => '1 ms');
END

my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $event = $node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'k', 'Bad', '1')});
my $worker = q{SELECT pid FROM idempotency.stat_relay WHERE relay = 'fn'};

IdemTest::wait_for($node, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = ($worker)");
my $operator = $node->background_psql('postgres');
$operator->query_safe(q{BEGIN; SELECT idempotency.relay_redrive('fn')});
$gate->query_safe('SELECT pg_advisory_unlock(1)');
IdemTest::wait_for($node,
	"SELECT wait_event_type = 'Lock' AND wait_event <> 'advisory' FROM pg_stat_activity WHERE pid = ($worker)");
$operator->query_safe("SELECT idempotency.relay_replay('fn', event_id => '$event')");
$operator->query_safe('COMMIT');
IdemTest::wait_for($node, q{SELECT halted IS NOT NULL FROM idempotency_data.relays});
unlike(slurp_file($node->logfile), qr/deadlock detected/, 'operator and worker have one order');
$operator->quit;
$gate->quit;

# Nobody reads a parked event's WAL position before sending it.
sub is_flushed
{
	my ($what, $call) = @_;

	is( $node->safe_psql('postgres', <<"END"), 't', "$what is flushed");
SET synchronous_commit = off;
\\o /dev/null
BEGIN;
$call;
SELECT pg_current_wal_insert_lsn() AS lsn \\gset
COMMIT;
\\o
SELECT pg_current_wal_flush_lsn() >= :'lsn';
END
	return;
}
is_flushed('a dead letter that is redriven', q{SELECT idempotency.relay_redrive('fn')});
$node->safe_psql('postgres', q{
SELECT idempotency.relay_discard('fn');
DELETE FROM idempotency_data.relay_parked;
});
is_flushed('an event that is replayed', "SELECT idempotency.relay_replay('fn', event_id => '$event')");

$node->stop;
done_testing();
