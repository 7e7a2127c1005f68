
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

# Each event of an endless relay makes the next one; none is handled while the lock is held.
my $set_up = <<'END';
CREATE TABLE effect (pid int, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect (pid) VALUES (pg_backend_pid())';
CREATE FUNCTION endless(aggregate_type text) RETURNS void LANGUAGE sql AS $$
	SELECT pg_advisory_xact_lock_shared(1);
	INSERT INTO public.effect (pid) VALUES (pg_backend_pid());
	SELECT idempotency.outbox_enqueue(aggregate_type, 'k', 'E', '{}')
$$;
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
CREATE SERVER endless FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.endless', timeout '3600000');
END

# A database's worker notes the new name of a relay's owner when rights have changed.  In
# the other database a trigger keeps it there while there is a row in "held".
my $hold = <<'END';
CREATE TABLE held (t text);
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM public.held) LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN NEW;
END $$;
CREATE TRIGGER hold BEFORE UPDATE ON idempotency_data.relays FOR EACH ROW EXECUTE FUNCTION hold();
END

sql('CREATE DATABASE other');
IdemTest::create_extension($node, 'other');
sql($set_up, $_) foreach 'postgres', 'other';
sql($hold, 'other');
sql(q{CREATE ROLE keeper SUPERUSER; SET ROLE keeper; SELECT idempotency.relay_create('g', 'good')}, 'other');
IdemTest::wait_for($node, q{SELECT state = 'idle' FROM idempotency.stat_relay}, 't', 'other');

# The only slot for functions is taken by a handler that waits.
my $lock = $node->background_psql('postgres');
$lock->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT idempotency.relay_create('e' || i, 'endless', aggregate_types => ARRAY['e' || i], batch_events => 1) FROM generate_series(1, 3) i});
sql(q{SELECT count(idempotency.outbox_enqueue('e' || i, 'k', 'E', '{}')) FROM generate_series(1, 3) i});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});

# The other database waits for it, and its worker is held, so it sees nothing.
sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}, 'other');
IdemTest::wait_for($node, q{SELECT waiting_for = 'worker slot' FROM idempotency.stat_relay}, 't', 'other');
sql(q{INSERT INTO held VALUES ('held'); ALTER ROLE keeper RENAME TO kept; GRANT USAGE ON FOREIGN SERVER good TO kept}, 'other');
IdemTest::wait_for($node, q{SELECT wait_event = 'PgSleep' FROM pg_stat_activity
WHERE application_name LIKE 'idempotency relay for database%' AND datname = 'other'});

# The slot becomes free.
my $since = sql('SELECT clock_timestamp()');
$lock->query_safe('SELECT pg_advisory_unlock(1)');
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});
sql('DELETE FROM held', 'other');
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effect', 't', 'other');
my $until = sql('SELECT at FROM effect', 'other');
is(sql("SELECT count(DISTINCT pid) FROM effect WHERE at BETWEEN '$since' AND '$until'"), '1',
	'the first database takes no other turn before it');
IdemTest::wait_for($node, "SELECT count(DISTINCT pid) > 1 FROM effect WHERE at > '$until'");

$lock->quit;
$node->stop;
done_testing();
