
# Copyright (c) 2026, the idempotency developers

# Where max_worker_processes are fewer than the relays may use, function relays that
# always have something to do give way to the worker of another database, to the
# function relays there, and to each other.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The two launchers, four workers.
my $node = IdemTest::cluster('main', conf => <<'END');
autovacuum = off
max_worker_processes = 6
max_parallel_workers = 0
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

# Each event makes the next one, without an end.
my $set_up = <<'END';
CREATE TABLE effect (type text);
CREATE FUNCTION good(aggregate_type text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect VALUES (aggregate_type)';
CREATE FUNCTION endless(aggregate_type text) RETURNS void LANGUAGE sql AS $$ SELECT idempotency.outbox_enqueue(aggregate_type, 'k', 'E', '{}') $$;
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
CREATE SERVER endless FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.endless');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
END

sql($set_up);
sql(q{SELECT count(idempotency.relay_create('e' || i, 'endless', aggregate_types => ARRAY['e' || i], batch_events => 1)) FROM generate_series(1, 4) i});
sql(q{SELECT count(idempotency.outbox_enqueue('e' || i, 'k', 'E', '{}')) FROM generate_series(1, 4) i});

#
# Four relays, and processes for three: each has its turns.
#
IdemTest::wait_for($node, "SELECT sent > 0 FROM idempotency.stat_relay WHERE relay = 'e$_'") foreach 1 .. 4;

#
# The worker of another database, and its function relay.
#
sql('CREATE DATABASE other');
IdemTest::create_extension($node, 'other');
sql($set_up, 'other');
sql(q{SELECT idempotency.relay_create('n', 'nul'); SELECT idempotency.outbox_enqueue('n', 'k', 'E', '1')}, 'other');
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay WHERE relay = 'n'}, 't', 'other');
sql(q{SELECT idempotency.relay_create('g', 'good', aggregate_types => '{g}'); SELECT idempotency.outbox_enqueue('g', 'k', 'E', '1')}, 'other');
IdemRelay::wait_until('a function relay of the other database is served', sub { sql('SELECT count(*) FROM effect', 'other') == 1 });

#
# As many databases as processes: one process is left to function relays, and the databases
# take turns in the others.
#
foreach my $i (1 .. 2)
{
	sql("CREATE DATABASE d$i");
	IdemTest::create_extension($node, "d$i");
	sql(q{CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('n', 'nul')}, "d$i");
	sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '1')}, "d$i");
}
IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay}, 't', "d$_") foreach 1 .. 2;
sql(q{SELECT idempotency.outbox_enqueue('g', 'k', 'E', '1')}, 'other');
IdemRelay::wait_until('a function relay has its turn', sub { sql('SELECT count(*) FROM effect', 'other') == 2 });
IdemRelay::wait_until('the server log says that processes are too few', sub {
	slurp_file($node->logfile) =~ /no idempotency worker is left for .*\n.*Raise max_worker_processes/ });

#
# One database fewer, and each has its own.
#
sql('DROP DATABASE d1');
IdemTest::wait_for($node, q{SELECT count(DISTINCT datname) = 3 FROM pg_stat_activity WHERE application_name LIKE 'idempotency relay for database%'});
IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});

$node->stop;
done_testing();
