
# Copyright (c) 2026, the idempotency developers

# The worker of a database ends while function relays have no process: what is known of
# them is kept, and of those that are dropped meanwhile nothing is left.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "autovacuum = off\nidempotency.sink_idle_timeout = 300ms\n");

sub sql
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

my $database_worker = q{SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'idempotency relay for database%'};

sql(<<'END');
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fails(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
CREATE SERVER fails FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.fails');
SELECT idempotency.relay_create('good', 'good', aggregate_types => '{good}');
SELECT idempotency.relay_create('fails', 'fails', aggregate_types => '{fails}');
END
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state = 'idle'});
sql(q{DROP FUNCTION fails; SELECT idempotency.outbox_enqueue('fails', 'k', 'E', '{}')});

# The relay's worker has ended for having nothing to do until the next try.
my $pid = sql($database_worker);
my $backoff = "(state, waiting_for) = ('misconfigured', 'backoff') AND last_error IS NOT NULL";
IdemTest::wait_for($node, "SELECT $backoff AND pid = $pid FROM idempotency.stat_relay WHERE relay = 'fails'");

# Until the pause is long: each is twice as long as the one before, less up to a half.
my $failed_at = 0;

sub pause
{
	my $before = $failed_at;

	IdemTest::wait_for($node, "SELECT extract(epoch FROM last_error_at) > $before FROM idempotency.stat_relay WHERE relay = 'fails'");
	$failed_at = sql(q{SELECT extract(epoch FROM last_error_at) FROM idempotency.stat_relay WHERE relay = 'fails'});
	return $failed_at - $before;
}
pause();
IdemRelay::wait_until('a long pause', sub { pause() > 3 });
sql("SELECT pg_terminate_backend($pid, 180000)");
IdemTest::wait_for($node, "SELECT $backoff AND pid = ($database_worker) AND pid <> $pid FROM idempotency.stat_relay WHERE relay = 'fails'");
sql(q{SELECT idempotency.outbox_enqueue('good', 'k', 'E', '{}')});
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay WHERE relay = 'good'});
cmp_ok(pause(), '>', 1.5, 'the next try was not made at once');
cmp_ok(pause(), '>', 1.5, 'nor did the pauses begin anew');

# To act on it begins anew.
sql(q{CREATE FUNCTION fails(payload jsonb) RETURNS void LANGUAGE sql AS ''; SELECT idempotency.relay_resume('fails')});
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay WHERE relay = 'fails'});

#
# Without a worker of the database nobody knows how a relay does.  One that is dropped
# then leaves nothing in shared memory.
#
my $launcher = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'});
kill 'STOP', $launcher;
sql("SELECT pg_terminate_backend(pid, 180000) FROM ($database_worker) w");
IdemTest::wait_for($node, q{SELECT bool_and((state, waiting_for) = ('not running', 'worker')) FROM idempotency.stat_relay});
sql(q{SELECT idempotency.relay_drop('fails')});
kill 'CONT', $launcher;
IdemTest::wait_for($node, q{SELECT pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'good'});
IdemTest::wait_for($node, q{SELECT count(*) FROM idempotency_data.relay_status()}, '1');

$node->stop;
done_testing();
