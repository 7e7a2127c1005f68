
# Copyright (c) 2026, the idempotency developers

# The last slot that is left for function relays goes to the database that has had its
# turn longest ago, although another one's worker is the first to see it free.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.max_workers = 3
idempotency.sink_idle_timeout = 300ms
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

# Each event makes the next one.
my $set_up = <<'END';
CREATE TABLE effect (pid int, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect (pid) VALUES (pg_backend_pid())';
CREATE FUNCTION endless(aggregate_type text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO public.effect (pid) VALUES (pg_backend_pid());
	SELECT idempotency.outbox_enqueue(aggregate_type, 'k', 'E', '{}')
$$;
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
CREATE SERVER endless FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.endless');
END

sql('CREATE DATABASE other');
IdemTest::create_extension($node, 'other');
sql($set_up, $_) foreach 'postgres', 'other';
sql(q{SELECT idempotency.relay_create('g', 'good')}, 'other');
IdemTest::wait_for($node, q{SELECT state = 'idle' FROM idempotency.stat_relay}, 't', 'other');
sql(q{SELECT idempotency.relay_create('e' || i, 'endless', aggregate_types => ARRAY['e' || i], batch_events => 1) FROM generate_series(1, 3) i});
sql(q{SELECT count(idempotency.outbox_enqueue('e' || i, 'k', 'E', '{}')) FROM generate_series(1, 3) i});
IdemTest::wait_for($node, q{SELECT count(DISTINCT pid) >= 2 FROM effect});

# The other database waits, and its worker is stopped, so it sees nothing.
my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'idempotency relay for database%' AND datname = 'other'});
sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}, 'other');
IdemTest::wait_for($node, q{SELECT waiting_for = 'worker slot' FROM idempotency.stat_relay}, 't', 'other');
my $since = sql('SELECT clock_timestamp()');
kill 'STOP', $pid;
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});
kill 'CONT', $pid;
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effect', 't', 'other');
my $until = sql('SELECT at FROM effect', 'other');
cmp_ok(sql("SELECT count(DISTINCT pid) FROM effect WHERE at BETWEEN '$since' AND '$until'"), '<=', 1,
	'the first database takes no other turn before it');
IdemTest::wait_for($node, "SELECT count(DISTINCT pid) > 1 FROM effect WHERE at > '$until'");

$node->stop;
done_testing();
