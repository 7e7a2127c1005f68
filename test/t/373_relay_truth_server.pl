
# Copyright (c) 2026, the idempotency developers

# The operator's query of doc/howto/operate.md where the server is at fault: no worker can
# start, the library is not preloaded, or the database is a copy.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $query = IdemRelay::operator_query(5);
my $node = IdemTest::cluster('main', conf => "idempotency.sink_idle_timeout = 0\n");

# What the query says: relay, state and what it waits for.
sub named
{
	my ($database) = @_;

	return $node->safe_psql($database // 'postgres',
		"SELECT string_agg(concat_ws(' ', relay, state, waiting_for), ', ' ORDER BY relay) FROM ($query) q");
}

sub is_named
{
	my ($expected, $what, $database) = @_;

	return IdemRelay::wait_until($what, sub { named($database) eq $expected }) || diag('it is: ' . named($database));
}

sub set_and_restart
{
	my ($sql) = @_;

	$node->safe_psql('postgres', $sql) if $sql;
	$node->restart;
	return;
}

$node->safe_psql('postgres', <<'END');
CREATE TABLE done (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.done VALUES (event_id)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('f', 'fn');
SELECT idempotency.relay_create('p', 'nul');
SELECT idempotency.outbox_enqueue('t', 'k', 'E', '1');
END
IdemTest::wait_for($node, 'SELECT bool_and(sent = 1) FROM idempotency.stat_relay');
is(named(), '', 'both are healthy');

# A copy by TEMPLATE, which has no worker and gets none.
$node->safe_psql('postgres', 'SELECT idempotency.relay_pause(relay) FROM idempotency.stat_relay');
IdemTest::wait_for($node, q{SELECT bool_and(state = 'paused') FROM idempotency.stat_relay});
is(named(), 'f paused operator, p paused operator', 'paused relays are named');
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
is_named('f unadopted operator, p unadopted operator', 'relays of a copy', 'copy');
$node->safe_psql('template1', 'DROP DATABASE copy');
$node->safe_psql('postgres', 'SELECT idempotency.relay_resume(relay) FROM idempotency.stat_relay');
is_named('', 'and those of the original are healthy again');

# One worker for all: the function relay has none.
set_and_restart('ALTER SYSTEM SET idempotency.max_workers = 1');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '2')});
is_named('f starting worker slot', 'no worker for a function relay');

# No process at all but for the launcher.
set_and_restart('ALTER SYSTEM SET max_worker_processes = 2');
is_named('f not running worker, p not running worker', 'no process for the worker of the database');

# Without the library nothing runs, and the query says so.
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
set_and_restart();
is_named('f not running worker, p not running worker', 'the library is not preloaded');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
set_and_restart('ALTER SYSTEM RESET ALL');
IdemTest::wait_for($node, 'SELECT count(*) = 2 FROM done');
is_named('', 'at the end both are healthy');
$node->stop;
done_testing();
