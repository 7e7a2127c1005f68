-- Leases: claims that outlive their transaction.

-- Rows are appended to one of three tables.  When that table has grown, another one
-- becomes current, the rows that are still needed are copied to it, and the former
-- table is emptied in place.  Autovacuum only has to freeze what stays.
CREATE SEQUENCE idempotency_data.lease_number CACHE 1;
COMMENT ON SEQUENCE idempotency_data.lease_number IS
'the last number of a row in the log of leases; the number of a lease is its token';
CREATE SEQUENCE idempotency_data.lease_identity CACHE 1;
COMMENT ON SEQUENCE idempotency_data.lease_identity IS
'a hash of the database and the history that gave out the tokens; not dumped';
CREATE SEQUENCE idempotency_data.lease_start CACHE 1;
COMMENT ON SEQUENCE idempotency_data.lease_start IS
'when the server was started in which the tokens were last looked after; not dumped';

CREATE FUNCTION idempotency_data.lease_restored()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_lease_restored_fn';
COMMENT ON FUNCTION idempotency_data.lease_restored() IS
'trigger: rows of the log of leases were restored, so the next token goes beyond their numbers';

CREATE FUNCTION idempotency_data.lease_restamp()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_lease_restamp_fn';
COMMENT ON FUNCTION idempotency_data.lease_restamp() IS
'trigger: rows of the log of leases that are restored from a dump are kept from now on for as long as they were to be';

DO $$
DECLARE
	log name;
BEGIN
	FOR n IN 0 .. 2 LOOP
		log := 'lease_log_' || n::text;
		EXECUTE format('CREATE TABLE idempotency_data.%I (
			number bigint NOT NULL,
			digest uuid NOT NULL,
			kind "char" NOT NULL,
			state "char",
			token bigint,
			attempt int,
			until timestamptz,
			at timestamptz NOT NULL,
			event_id text COLLATE "C",
			consumer text COLLATE "C",
			holder text,
			error text,
			recovery_point text,
			work jsonb,
			scope text COLLATE "C",
			fingerprint bytea,
			request jsonb,
			written bigint,
			kept bigint,
			redriven boolean,
			origin xid8,
			CONSTRAINT sound CHECK (
				number > 0 AND number < 7258118400000000 AND isfinite(at)
				AND (written IS NULL) = (kept IS NULL)
				AND (written IS NULL OR written BETWEEN 0 AND 1099511627776)
				AND (kept IS NULL OR kept BETWEEN 0 AND 1099511627776)
				AND CASE kind
				WHEN ''s'' THEN state IS NOT NULL AND (state = ''f'' OR (state IN (''l'', ''w'', ''d'')
					AND until IS NOT NULL
					AND attempt IS NOT NULL AND attempt BETWEEN 0 AND 999999999
					AND event_id IS NOT NULL AND octet_length(event_id) BETWEEN 1 AND 4096
					AND consumer IS NOT NULL AND octet_length(consumer) BETWEEN 1 AND 1020
					AND (scope IS NULL OR octet_length(scope) <= 1020)
					AND (fingerprint IS NULL OR octet_length(fingerprint) BETWEEN 1 AND 1020)))
				WHEN ''e'' THEN token IS NOT NULL AND until IS NOT NULL
				WHEN ''p'' THEN token IS NOT NULL
				ELSE kind = ''m'' END)
		) WITH (
			autovacuum_freeze_min_age = 0,
			autovacuum_analyze_threshold = 2147483647
		)', log);
		EXECUTE format('CREATE INDEX %I ON idempotency_data.%I (digest, kind, number DESC) WITH (deduplicate_items = off)', log || '_key', log);
		EXECUTE format('COMMENT ON INDEX idempotency_data.%I IS %L', log || '_key',
			'leads to the newest row of each part of an event''s state');
		EXECUTE format('COMMENT ON TABLE idempotency_data.%I IS %L', log,
			format('table %s of the log of leases, written by the functions of leases only', n));
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.number IS %L', log,
			'of several rows of a part the one with the highest number counts; the token, if the row is a lease');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.digest IS %L', log,
			'the first 16 bytes of the hash that gives the key of the event''s lock; zero in a marker');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.kind IS %L', log,
			's = state of the event, e = another end of its lease, p = another recovery point, m = marker: the table with the newest one is current');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.state IS %L', log,
			'l = leased, w = waiting, d = dead, f = free: nothing is known of the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.token IS %L', log,
			'the lease that an end or a recovery point belongs to');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.attempt IS %L', log, 'leases taken and not given back');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.until IS %L', log,
			'leased: when the lease ends; waiting: when the event may be leased again');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.at IS %L', log, 'when the row was written');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.event_id IS %L', log, 'id of the event, or key of the request');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.consumer IS %L', log, 'who processes the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.holder IS %L', log, 'what the holder of the lease calls itself');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.error IS %L', log, 'why the last attempt failed');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.recovery_point IS %L', log, 'where the next attempt goes on');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.work IS %L', log, 'what the next attempt needs to know for that');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.scope IS %L', log, 'scope of the request; null: an event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.fingerprint IS %L', log, 'fingerprint of the request');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.request IS %L', log, 'what is needed to execute the request again');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.written IS %L', log,
			'when the row was written, in seconds of store_clock; null: it does not expire');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.kept IS %L', log,
			'for how many seconds after that it is kept at least, if nothing happens to the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.redriven IS %L', log,
			'attempts have begun that an operator''s redrive has given back; null: none');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.origin IS %L', log,
			'of a copy that a turn of the tables made: the transaction that wrote the row; null: the row''s own');
		EXECUTE format('CREATE TRIGGER lease_restamp BEFORE INSERT ON idempotency_data.%I
			FOR EACH ROW EXECUTE FUNCTION idempotency_data.lease_restamp()', log);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER lease_restamp', log);
		EXECUTE format('COMMENT ON TRIGGER lease_restamp ON idempotency_data.%I IS %L', log,
			'fires for rows restored from a dump only');
		EXECUTE format('CREATE TRIGGER lease_restored AFTER INSERT ON idempotency_data.%I
			FOR EACH STATEMENT EXECUTE FUNCTION idempotency_data.lease_restored()', log);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER lease_restored', log);
		EXECUTE format('COMMENT ON TRIGGER lease_restored ON idempotency_data.%I IS %L', log,
			'fires for rows restored from a dump only');
		PERFORM pg_catalog.pg_extension_config_dump(format('idempotency_data.%I', log), '');
	END LOOP;
END
$$;

-- Taking and keeping leases

CREATE TYPE @extschema@.lease_state AS ENUM ('leased', 'waiting', 'dead');
COMMENT ON TYPE @extschema@.lease_state IS
'what is open of an event: leased = somebody has it; waiting = it may be leased again, at once or later; dead = it is not tried again by itself';

CREATE FUNCTION @extschema@.lease_event(event_id text, consumer text = 'default', duration interval = NULL, holder text = NULL,
	wait interval = '0', valid_until timestamptz = NULL,
	OUT result @extschema@.claim_result, OUT token bigint, OUT attempt int, OUT lease_until timestamptz,
	OUT recovery_point text, OUT state jsonb, OUT event_result jsonb, OUT retry_after interval, OUT last_error text)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_lease_event_fn';
COMMENT ON FUNCTION @extschema@.lease_event(text, text, interval, text, interval, timestamptz) IS
'lease an event: claimed = after COMMIT do the work, then complete_event with the token; duplicate = it was completed; busy = try again after retry_after, or soon if that is null; expired = too old; dead = parked after its last attempt';

CREATE FUNCTION @extschema@.lease_event(event_id uuid, consumer text = 'default', duration interval = NULL, holder text = NULL,
	wait interval = '0', valid_until timestamptz = NULL,
	OUT result @extschema@.claim_result, OUT token bigint, OUT attempt int, OUT lease_until timestamptz,
	OUT recovery_point text, OUT state jsonb, OUT event_result jsonb, OUT retry_after interval, OUT last_error text)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_lease_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.lease_event(uuid, text, interval, text, interval, timestamptz) IS
'lease an event, keyed on the uuid''s canonical text: claimed = after COMMIT do the work, then complete_event with the token; duplicate = it was completed; busy = try again after retry_after, or soon if that is null; expired = too old; dead = parked after its last attempt';

CREATE FUNCTION @extschema@.lease_events(event_ids text[], consumer text = 'default', duration interval = NULL, holder text = NULL,
	OUT ord int, OUT event_id text, OUT result @extschema@.claim_result, OUT token bigint, OUT attempt int, OUT lease_until timestamptz,
	OUT recovery_point text, OUT state jsonb, OUT event_result jsonb, OUT retry_after interval, OUT last_error text)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 100
AS 'MODULE_PATHNAME', 'idem_lease_events_fn';
COMMENT ON FUNCTION @extschema@.lease_events(text[], text, interval, text) IS
'lease many events at once: one answer per element, in order; if an id occurs more than once, the first may be claimed and the rest are busy';

CREATE FUNCTION @extschema@.extend_lease(event_id text, token bigint, consumer text = 'default', duration interval = NULL,
	recovery_point text = NULL, state jsonb = NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_extend_lease_fn';
COMMENT ON FUNCTION @extschema@.extend_lease(text, bigint, text, interval, text, jsonb) IS
'extend a lease: it lasts for the duration from now on, and the next attempt gets the recovery point and the state; returns the end of the lease';

CREATE FUNCTION @extschema@.extend_lease(event_id uuid, token bigint, consumer text = 'default', duration interval = NULL,
	recovery_point text = NULL, state jsonb = NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_extend_lease_uuid_fn';
COMMENT ON FUNCTION @extschema@.extend_lease(uuid, bigint, text, interval, text, jsonb) IS
'extend a lease: it lasts for the duration from now on, and the next attempt gets the recovery point and the state; returns the end of the lease; the event is keyed on the uuid''s canonical text';

CREATE FUNCTION @extschema@.assert_lease(event_id text, token bigint, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_assert_lease_fn';
COMMENT ON FUNCTION @extschema@.assert_lease(text, bigint, text) IS
'make a lease the claim of this transaction: nobody can take the event over until the transaction ends';

CREATE FUNCTION @extschema@.assert_lease(event_id uuid, token bigint, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_assert_lease_uuid_fn';
COMMENT ON FUNCTION @extschema@.assert_lease(uuid, bigint, text) IS
'make a lease the claim of this transaction: nobody can take the event over until the transaction ends; the event is keyed on the uuid''s canonical text';

CREATE FUNCTION @extschema@.release_lease(event_id text, token bigint, consumer text = 'default', error text = NULL,
	retry_after interval = NULL, park boolean = false)
RETURNS @extschema@.lease_state
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_release_lease_fn';
COMMENT ON FUNCTION @extschema@.release_lease(text, bigint, text, text, interval, boolean) IS
'give a lease back: with an error the attempt failed, and the event waits, or is dead after its last attempt; without an error the attempt does not count; with park the event is dead';

CREATE FUNCTION @extschema@.release_lease(event_id uuid, token bigint, consumer text = 'default', error text = NULL,
	retry_after interval = NULL, park boolean = false)
RETURNS @extschema@.lease_state
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_release_lease_uuid_fn';
COMMENT ON FUNCTION @extschema@.release_lease(uuid, bigint, text, text, interval, boolean) IS
'give a lease back, keyed on the uuid''s canonical text: with an error the attempt failed, and the event waits, or is dead after its last attempt; without an error the attempt does not count; with park the event is dead';

CREATE FUNCTION @extschema@.consumer_redrive(consumer text, event_ids text[] = NULL, scope text = NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_consumer_redrive_fn';
COMMENT ON FUNCTION @extschema@.consumer_redrive(text, text[], text) IS
'have dead events of a consumer, or requests of a scope, tried again, with all their attempts: those named, also of those that wait for the end of a pause, or all dead ones, as far as the budget of locks goes; returns how many, so call it until that is 0';

CREATE FUNCTION @extschema@.consumer_discard(consumer text, event_ids text[] = NULL, scope text = NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_consumer_discard_fn';
COMMENT ON FUNCTION @extschema@.consumer_discard(text, text[], text) IS
'remember dead events of a consumer, or requests of a scope, as completed: those named, or all dead ones, as far as the budget of locks goes; returns how many, so call it until that is 0';
