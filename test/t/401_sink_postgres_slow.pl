
# Copyright (c) 2026, the idempotency developers

# A target whose calls are quick one by one, and take longer than statement_timeout
# in a batch: no transaction there lasts longer, every event arrives once, and none
# is given up although a single attempt is all it has.  And events whose call takes longer by
# itself take the time of others once each.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');
my ($host, $port) = ($node->host, $node->port);

$node->safe_psql('postgres', 'CREATE DATABASE target');
$node->safe_psql('postgres', <<"END");
CREATE SERVER target FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'target', function 'app.on_event', statement_timeout '2000');
CREATE USER MAPPING FOR CURRENT_USER SERVER target OPTIONS (user '@{[ $node->safe_psql('postgres', 'SELECT current_user') ]}');
END
$node->safe_psql('target', $node->safe_psql('postgres', q{SELECT idempotency.sink_setup_sql('target')}));
$node->safe_psql('target', <<'END');
CREATE SCHEMA app;
CREATE TABLE app.got (n bigserial, event_id uuid, key text, began timestamptz DEFAULT now(),
	after interval DEFAULT clock_timestamp() - now());
CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO app.got (event_id, key) VALUES (event_id, aggregate_id);
	SELECT pg_sleep(CASE aggregate_id WHEN 'slow1' THEN 60 WHEN 'slow2' THEN 60 ELSE 0.05 END);
$$;
END
$node->safe_psql('postgres', <<'END');
SELECT idempotency.outbox_enqueue('o', (i % 50)::text, 't', '{}') FROM generate_series(1, 100) i;
SELECT idempotency.relay_create('r', 'target', max_attempts => 1);
END
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND state IN ('streaming', 'idle') FROM idempotency.stat_relay});
ok($node->poll_query_until('target', 'SELECT count(*) >= 100 FROM app.got'), 'all events arrive');
is($node->safe_psql('target', 'SELECT count(*), count(DISTINCT event_id) FROM app.got'), '100|100', 'each of them once');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'), '0', 'none is given up');
is($node->safe_psql('target', q{SELECT count(*) FROM app.got WHERE after > '2 s'}), '0', 'no transaction took longer');
cmp_ok($node->safe_psql('target', 'SELECT count(DISTINCT began) FROM app.got'), '>', 2, 'there were several');

# Two slow ones at the head, which a batch in order of the outbox would have before the others, for ever.
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_alter('r', max_attempts => 0, max_backoff => '1 s');
SELECT idempotency.outbox_enqueue('o', CASE WHEN i < 3 THEN 'slow' || i ELSE 'k' || i END, 't', '{}') FROM generate_series(1, 100) i;
END
ok($node->poll_query_until('target', q{SELECT count(*) = 198 FROM app.got}), 'slow calls hold no other one back for long');
is($node->safe_psql('postgres', q{SELECT string_agg(aggregate_id || ' ' || state, ', ' ORDER BY aggregate_id) FROM idempotency_data.relay_parked r JOIN (VALUES ('slow1'), ('slow2')) v(k) ON aggregate_id = k}),
	'slow1 retry, slow2 retry', 'and are tried again');

# Calls that take leases, of which a transaction has room for a few: all do, or one in twenty.
# None of them counts as refused, and an outage of the target there is not.
$node->safe_psql('postgres', 'CREATE DATABASE leases');
$node->safe_psql('leases', 'CREATE EXTENSION idempotency CASCADE');
$node->safe_psql('leases', <<'END');
CREATE TABLE got (event_id uuid, relay text);
CREATE FUNCTION lease(event_id uuid, aggregate_type text, aggregate_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF aggregate_type = 'all' OR aggregate_id::int % 20 = 0 THEN
		PERFORM idempotency.lease_event(event_id, 'mailer');
	END IF;
	INSERT INTO public.got VALUES (event_id, aggregate_type);
END $$;
END
$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_drop('r');
CREATE SERVER leases FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '$host', port '$port', dbname 'leases', function 'public.lease');
CREATE USER MAPPING FOR CURRENT_USER SERVER leases OPTIONS (user '@{[ $node->safe_psql('postgres', 'SELECT current_user') ]}');
END
$node->safe_psql('leases', $node->safe_psql('postgres', q{SELECT idempotency.sink_setup_sql('leases')}));
$node->safe_psql('postgres', <<'END');
SELECT count(idempotency.outbox_enqueue(t, i::text, 'E', '{}')) FROM generate_series(1, 1000) i, unnest('{all,some}'::text[]) t;
SELECT idempotency.relay_create(t, 'leases', aggregate_types => ARRAY[t], max_attempts => 1, max_backoff => '1 s') FROM unnest('{all,some}'::text[]) t;
END
foreach my $relay ('all', 'some')
{
	ok($node->poll_query_until('leases', "SELECT count(*) >= 1000 FROM got WHERE relay = '$relay'"), "$relay: all events arrive");
	is($node->safe_psql('leases', "SELECT count(*), count(DISTINCT event_id) FROM got WHERE relay = '$relay'"), '1000|1000', "$relay: each of them once");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'), '0', 'none of them is given up');

# A smart shutdown waits for clients, and in a database of the same server the programs are such: also one with an
# event that is tried again and again, and one that would stay for ever.
$node->append_conf('postgresql.conf', 'idempotency.sink_idle_timeout = 0');
$node->reload;
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_alter('some', max_attempts => 0);
SELECT idempotency.outbox_enqueue('some', 'no number', 'E', '{}'), idempotency.outbox_enqueue('all', '1', 'E', '{}');
END
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked WHERE attempts > 0});
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = 'leases' AND application_name = 'idempotency sink'});
$node->stop('smart');
ok(!-e $node->data_dir . '/postmaster.pid', 'a smart shutdown ends the programs');
$node->start;
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('all', '2', 'E', '{}')});
ok($node->poll_query_until('leases', "SELECT count(*) = 1002 FROM got WHERE relay = 'all'"), 'and they go on after it');

$node->stop;
done_testing();
