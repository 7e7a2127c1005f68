
# Copyright (c) 2026, the idempotency developers

# A database that has a worker for moments only, and one process for function relays: each of
# its relays has a turn, not only the one that the worker finds first.  So has, of each relay, what
# was refused, beside new events.  And where databases take turns, what takes longer than a turn
# is not cut off in each of them.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @databases = qw(postgres b);
my @relays = qw(f g);
my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.max_workers = 2
idempotency.max_function_workers = 1
idempotency.sink_idle_timeout = 0
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

foreach my $database (@databases)
{
	if ($database ne 'postgres')
	{
		sql("CREATE DATABASE $database");
		IdemTest::create_extension($node, $database);
	}
	sql('CREATE TABLE effect (relay text)', $database);
	foreach my $relay (@relays)
	{
		sql(<<"END", $database);
CREATE FUNCTION $relay(event_id uuid) RETURNS void LANGUAGE sql AS \$\$INSERT INTO public.effect VALUES ('$relay')\$\$;
CREATE SERVER $relay FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.$relay');
SELECT idempotency.relay_create('$relay', '$relay');
END
	}
	sql(q{SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', '{}')) FROM generate_series(1, 10)}, $database);
}
foreach my $database (@databases)
{
	foreach my $relay (@relays)
	{
		IdemRelay::wait_until("relay $relay of $database has its turn",
			sub { sql("SELECT count(*) FROM effect WHERE relay = '$relay'", $database) == 10 });
	}
}

# Two relays with more to do than a turn is long.
sql(<<'END');
CREATE TABLE slow (relay text, n int, serial bigserial);
CREATE SEQUENCE tries;
CREATE FUNCTION slow(aggregate_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.3);
	IF payload = '2' AND aggregate_type = 'x' AND nextval('public.tries') = 1 THEN
		RAISE EXCEPTION 'not now';
	END IF;
	INSERT INTO public.slow VALUES (aggregate_type, payload::int);
END $$;
CREATE SERVER slow FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.slow');
SELECT count(idempotency.outbox_enqueue(t, 'k' || i, 'E', to_jsonb(i))) FROM generate_series(1, 60) i, unnest('{x,y}'::text[]) t;
SELECT count(idempotency.relay_create(t, 'slow', aggregate_types => ARRAY[t], min_backoff => '10 ms', max_backoff => '10 ms')) FROM unnest('{x,y}'::text[]) t;
END
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM slow WHERE relay = 'x' AND n = 2});
cmp_ok(sql(q{SELECT max(n) FROM slow WHERE relay = 'x' AND serial < (SELECT serial FROM slow WHERE relay = 'x' AND n = 2)}), '<', 60,
	'a refused event is tried again before all new ones were');

# Three databases, of which two have a worker, and batches that take nine seconds.
sql(q{SELECT idempotency.relay_drop(relay) FROM unnest('{x,y}'::text[]) relay});
sql('CREATE DATABASE c');
IdemTest::create_extension($node, 'c');
foreach my $database (@databases, 'c')
{
	IdemRelay::pytest_server($node, 'long', "$dir/$database.log", database => $database, delay_ms => 9000);
	sql(q{SELECT idempotency.relay_create('long', 'long', aggregate_types => '{long}')}, $database);
	sql(q{SELECT count(idempotency.outbox_enqueue('long', 'k', 'Long', '1')) FROM generate_series(1, 40)}, $database);
}
foreach my $database (@databases, 'c')
{
	IdemRelay::wait_until("what $database has sent is answered",
		sub { sql(q{SELECT lag_events FROM idempotency.stat_relay WHERE relay = 'long'}, $database) eq '0' });
}

$node->stop;
done_testing();
