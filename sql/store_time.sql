--
-- The time by which things expire goes on while something expires, whatever that is, and
-- else a database is not written to.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.store_unnoted(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_unnoted_fn';
-- Was the time noted when it was looked after?  The last note is made two minutes old.
CREATE PROCEDURE t.goes_on(INOUT goes_on boolean = NULL) LANGUAGE plpgsql AS $$
DECLARE
	before bigint;
BEGIN
	PERFORM t.store_unnoted(120);
	SELECT last_value & 4294967295 INTO before FROM idempotency_data.store_clock;
	COMMIT;
	PERFORM idempotency.claims_maintain();
	COMMIT;
	SELECT (last_value & 4294967295) > before INTO goes_on FROM idempotency_data.store_clock;
END $$;
CALL t.goes_on();
-- neither what is kept for ever
SELECT idempotency.claim_event('e'), idempotency.complete_event('e');
SELECT result FROM idempotency.lease_event('l');
SET idempotency.producer_retention = 0;
SELECT epoch FROM idempotency.register_producer('p');
RESET idempotency.producer_retention;
CALL t.goes_on();
-- A lease that is kept for a day; by then it is not needed any more
BEGIN;
SELECT idempotency.consumer_create('short', retention => '1 day');
SELECT result FROM idempotency.lease_event('l', 'short');
COMMIT;
CALL t.goes_on();
SELECT round((n.last_value - (c.last_value >> 32)) / 3600.0) AS hours FROM idempotency_data.store_needed AS n, idempotency_data.store_clock AS c;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
SELECT t.store_add_time(32 * 3600);
CALL t.goes_on();
-- A producer that is kept for an hour; its next claims need the time for longer
SET idempotency.producer_retention = '1 h';
SELECT producer_id FROM idempotency.register_producer('q') \gset
CALL t.goes_on();
SELECT t.store_add_time(3000);
SELECT result FROM idempotency.claim_sequence(:producer_id, 0, 0);
SELECT t.store_add_time(3000);
SELECT result FROM idempotency.claim_sequence(:producer_id, 0, 1);
SELECT t.store_add_time(3000);
SELECT result FROM idempotency.claim_sequence(:producer_id, 0, 2);
CALL t.goes_on();
-- idle for longer than that
SELECT t.store_add_time(4000);
SELECT result FROM idempotency.claim_sequence(:producer_id, 0, 3);
DROP SCHEMA t CASCADE;
