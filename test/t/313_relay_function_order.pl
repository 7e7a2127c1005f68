
# Copyright (c) 2026, the idempotency developers

# A function relay keeps the order of a key when one of its events fails in the
# middle of a batch, and runs whatever settings its database has.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

# The first try of "Once" fails; a sequence remembers what was rolled back.
$node->safe_psql('postgres', <<'END');
CREATE SCHEMA app;
CREATE SEQUENCE app.tries;
CREATE TABLE app.effects (id bigint GENERATED ALWAYS AS IDENTITY, aggregate_id text, event_type text);
CREATE FUNCTION app.handle(aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Once' AND nextval('app.tries') = 1 THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	INSERT INTO app.effects (aggregate_id, event_type) VALUES (aggregate_id, event_type);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
SELECT idempotency.relay_create('fn', 'fn', min_backoff => '20 ms', max_backoff => '20 ms');
BEGIN;
SELECT idempotency.outbox_enqueue('t', key, type, '1')
	FROM (VALUES (1, 'a', 'First'), (2, 'a', 'Once'), (3, 'b', 'Good'), (4, 'a', 'Last')) e (n, key, type) ORDER BY n;
COMMIT;
END
IdemTest::wait_for($node, 'SELECT count(*) = 4 FROM app.effects');
is( $node->safe_psql('postgres',
		q{SELECT string_agg(event_type, ' ' ORDER BY id) FROM app.effects WHERE aggregate_id = 'a'}),
	'First Once Last', 'a later event of the key waits, in the same batch too');

# Two keys whose parts are the same text end to end are two: of parked events that are
# due together, one that fails keeps the other back only if the keys are one.
$node->safe_psql('postgres', <<'END');
CREATE TABLE app.worked (xid xid);
CREATE FUNCTION app.parts(event_type text, aggregate_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF aggregate_id = 'c' OR NOT EXISTS (SELECT FROM app.open) THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	INSERT INTO app.worked VALUES (pg_current_xact_id()::xid);
END $$;
CREATE TABLE app.open ();
CREATE SERVER parts FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.parts');
SELECT idempotency.relay_create('parts', 'parts', '{a/b,a}', min_backoff => '1 hour', max_backoff => '1 hour');
SELECT idempotency.outbox_enqueue('a/b', 'c', 'Part', '1');
SELECT idempotency.outbox_enqueue('a', 'b/c', 'Part', '1');
END
IdemTest::wait_for($node, 'SELECT count(*) = 2 FROM idempotency_data.relay_parked');
$node->safe_psql('postgres', <<'END');
INSERT INTO app.open DEFAULT VALUES;
BEGIN;
SELECT idempotency.relay_pause('parts');
UPDATE idempotency_data.relay_parked SET next_attempt_at = now();
SELECT idempotency.relay_resume('parts');
COMMIT;
END
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM app.worked');
is( $node->safe_psql('postgres', 'SELECT p.xmin = w.xid FROM idempotency_data.relay_parked p, app.worked w'),
	't', 'an event of another key is tried in the same transaction');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('parts')});

$node->safe_psql('postgres', <<'END');
ALTER DATABASE postgres SET default_transaction_read_only = on;
ALTER DATABASE postgres SET default_transaction_isolation = serializable;
ALTER DATABASE postgres SET search_path = '';
END
$node->restart;
$node->safe_psql('postgres', <<'END');
SET default_transaction_read_only = off;
SELECT idempotency.outbox_enqueue('t', 'c', 'Settings', '1');
END
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'Settings'});

$node->stop;
done_testing();
