-- Claims: one effect per (consumer, event).

-- Types

CREATE TYPE @extschema@.claim_result AS ENUM ('claimed', 'duplicate', 'busy', 'expired', 'dead');
COMMENT ON TYPE @extschema@.claim_result IS
'verdict of a claim: claimed = make the effect and complete it; duplicate = done, acknowledge after COMMIT; busy = another transaction has it, try later; expired = too old to be answered; dead = parked after its last attempt, acknowledge';

-- The type is not named event_status: if it were, event_status('x') would be a
-- cast to the type.
CREATE TYPE @extschema@.claim_status AS ENUM ('processing', 'completed', 'unknown');
COMMENT ON TYPE @extschema@.claim_status IS
'what is remembered of an event: processing = claimed and not completed, by this transaction or by a committed one whose kept claim another may take over; completed = its effect was made; unknown = nothing is remembered';

-- The events that are remembered.  Rows are inserted and not updated, so pages
-- get full, and the first vacuum that visits a page freezes its rows.  Claims
-- use no planner, so ANALYZE is off.  It would only leave dead rows in the
-- statistics, which stay as long as somebody holds the xmin horizon back.

CREATE TABLE idempotency_data.processed (
	claimed_at timestamptz NOT NULL,
	completed_at timestamptz,
	event_id text COLLATE "C" NOT NULL,
	consumer text COLLATE "C" NOT NULL,
	result jsonb,
	CONSTRAINT processed_pkey PRIMARY KEY (event_id, consumer)
) WITH (
	autovacuum_freeze_min_age = 0,
	autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_analyze_threshold = 2147483647
);
COMMENT ON TABLE idempotency_data.processed IS
'events that were completed, one row per event and consumer; written by the claim functions only, read it through processed_events';
COMMENT ON COLUMN idempotency_data.processed.claimed_at IS 'when the event was claimed';
COMMENT ON COLUMN idempotency_data.processed.completed_at IS
'when the event was completed; null if its claim was kept uncompleted';
COMMENT ON COLUMN idempotency_data.processed.event_id IS 'id of the event, compared by bytes';
COMMENT ON COLUMN idempotency_data.processed.consumer IS 'who processed the event; names that start with @ are the extension''s own';
COMMENT ON COLUMN idempotency_data.processed.result IS 'result given to complete_event';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.processed', '');

CREATE TABLE idempotency_data.consumers (
	consumer text COLLATE "C" NOT NULL,
	foreign_lockers boolean NOT NULL,
	private_locks boolean NOT NULL DEFAULT false,
	CONSTRAINT consumers_pkey PRIMARY KEY (consumer)
);
COMMENT ON TABLE idempotency_data.consumers IS
'consumers that differ from the defaults; see consumer_create';
COMMENT ON COLUMN idempotency_data.consumers.consumer IS 'name of the consumer';
COMMENT ON COLUMN idempotency_data.consumers.foreign_lockers IS
'clients without this extension take the advisory locks of its events';
COMMENT ON COLUMN idempotency_data.consumers.private_locks IS
'no SQL function can take the locks of its events';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.consumers', '');

CREATE FUNCTION @extschema@.consumer_changes()
RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_consumer_changes_fn';
COMMENT ON FUNCTION @extschema@.consumer_changes() IS
'trigger: waits for the claims in flight before the locks of a consumer change';

CREATE TRIGGER consumer_changes BEFORE INSERT OR UPDATE OR DELETE ON idempotency_data.consumers
	FOR EACH ROW EXECUTE FUNCTION @extschema@.consumer_changes();
COMMENT ON TRIGGER consumer_changes ON idempotency_data.consumers IS
'waits for the claims in flight whose locks the row decides';
CREATE TRIGGER consumer_truncate BEFORE TRUNCATE ON idempotency_data.consumers
	FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.consumer_changes();
COMMENT ON TRIGGER consumer_truncate ON idempotency_data.consumers IS
'waits for the claims in flight whose locks the rows decide';
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_changes;
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_truncate;

CREATE FUNCTION @extschema@.processed_events_source(
	OUT consumer text, OUT event_id text, OUT claimed_at timestamptz,
	OUT completed_at timestamptz, OUT result jsonb)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL RESTRICTED ROWS 100000
AS 'MODULE_PATHNAME', 'idem_processed_events_source_fn';
COMMENT ON FUNCTION @extschema@.processed_events_source() IS
'source of the view processed_events; use the view instead';

CREATE VIEW @extschema@.processed_events WITH (security_barrier) AS
SELECT (p.r).consumer COLLATE "C" AS consumer,
	   (p.r).event_id COLLATE "C" AS event_id,
	   CASE WHEN (p.r).completed_at IS NULL
			THEN 'processing'::@extschema@.claim_status
			ELSE 'completed'::@extschema@.claim_status
	   END AS status,
	   (p.r).claimed_at AS claimed_at,
	   (p.r).completed_at AS completed_at,
	   (p.r).result AS result
  FROM (SELECT @extschema@.processed_events_source() AS r) AS p;
COMMENT ON VIEW @extschema@.processed_events IS
'events that are remembered, one row per event and consumer';
COMMENT ON COLUMN @extschema@.processed_events.consumer IS 'who processed the event';
COMMENT ON COLUMN @extschema@.processed_events.event_id IS 'id of the event';
COMMENT ON COLUMN @extschema@.processed_events.status IS
'completed; or processing, if the claim of the event was kept uncompleted';
COMMENT ON COLUMN @extschema@.processed_events.claimed_at IS 'when the event was claimed';
COMMENT ON COLUMN @extschema@.processed_events.completed_at IS 'when it was completed';
COMMENT ON COLUMN @extschema@.processed_events.result IS 'result given to complete_event';

CREATE VIEW @extschema@.stat_claims AS
SELECT pg_catalog.int8(GREATEST(c.reltuples, t.n_live_tup, 0)) AS remembered,
	   i.idx_scan AS probes,
	   t.n_tup_ins AS rows_written,
	   t.n_tup_del AS rows_removed,
	   t.n_dead_tup AS dead_rows,
	   pg_catalog.pg_table_size(c.oid) AS table_bytes,
	   pg_catalog.pg_indexes_size(c.oid) AS index_bytes,
	   GREATEST(t.last_vacuum, t.last_autovacuum) AS last_vacuum
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid
  JOIN pg_catalog.pg_stat_all_indexes i ON i.relid = c.oid AND i.indexrelname = 'processed_pkey'
 WHERE c.oid = 'idempotency_data.processed'::pg_catalog.regclass;
COMMENT ON VIEW @extschema@.stat_claims IS
'what the claims of this database cost: one row of sizes and cumulative counters';
COMMENT ON COLUMN @extschema@.stat_claims.remembered IS 'rows remembered, estimated from the last vacuum and from the counts since the statistics began';
COMMENT ON COLUMN @extschema@.stat_claims.probes IS 'look-ups of events: by claims that got the event''s lock, by event_result and by event_status';
COMMENT ON COLUMN @extschema@.stat_claims.rows_written IS 'rows written, those of aborted transactions included';
COMMENT ON COLUMN @extschema@.stat_claims.rows_removed IS 'rows replaced or given up: of kept claims, and of claims released past the budget of locks';
COMMENT ON COLUMN @extschema@.stat_claims.dead_rows IS 'estimated number of dead rows; stays near zero unless transactions abort';
COMMENT ON COLUMN @extschema@.stat_claims.table_bytes IS 'size of the table, TOAST included';
COMMENT ON COLUMN @extschema@.stat_claims.index_bytes IS 'size of the indexes of the table';
COMMENT ON COLUMN @extschema@.stat_claims.last_vacuum IS 'when the table was last vacuumed';

-- Claiming

CREATE FUNCTION @extschema@.claim_event(event_id text, consumer text = 'default', wait interval = '0', valid_until timestamptz = NULL)
RETURNS @extschema@.claim_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_claim_event_fn';
COMMENT ON FUNCTION @extschema@.claim_event(event_id text, consumer text, wait interval, valid_until timestamptz) IS
'claim an event for this transaction: claimed = make the effect and complete it, duplicate = it was made, busy = another transaction has it (after trying for up to wait)';

CREATE FUNCTION @extschema@.complete_event(event_id text, consumer text = 'default', result jsonb = NULL, token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_complete_event_fn';
COMMENT ON FUNCTION @extschema@.complete_event(event_id text, consumer text, result jsonb, token bigint) IS
'complete an event that this transaction claimed; event_result returns the result later';

CREATE FUNCTION @extschema@.release_event(event_id text, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_release_event_fn';
COMMENT ON FUNCTION @extschema@.release_event(event_id text, consumer text) IS
'give up a claim of this transaction, which may then commit without completing it';

CREATE FUNCTION @extschema@.event_result(event_id text, consumer text = 'default')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_event_result_fn';
COMMENT ON FUNCTION @extschema@.event_result(event_id text, consumer text) IS
'result stored with the completion of an event; null if there is none';

CREATE FUNCTION @extschema@.event_status(event_id text, consumer text = 'default', OUT status @extschema@.claim_status, OUT claimed_at timestamptz, OUT completed_at timestamptz, OUT completed_latest timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_event_status_fn';
COMMENT ON FUNCTION @extschema@.event_status(event_id text, consumer text) IS
'what is remembered of an event, without claiming it: always one row, with status unknown if nothing is remembered; the event was claimed at claimed_at or later, and completed between completed_at and completed_latest';

CREATE FUNCTION @extschema@.lock_key(event_id text, consumer text = 'default')
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_lock_key_fn';
COMMENT ON FUNCTION @extschema@.lock_key(event_id text, consumer text) IS
'key of the advisory lock that a claim of the event takes: the first 8 bytes, big-endian, of SHA-256 over the id as UTF-8; for a consumer other than "default" over the consumer, a zero byte and the id';

CREATE FUNCTION @extschema@.claim_event(event_id uuid, consumer text = 'default', wait interval = '0', valid_until timestamptz = NULL)
RETURNS @extschema@.claim_result
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_claim_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.claim_event(event_id uuid, consumer text, wait interval, valid_until timestamptz) IS
'claim an event for this transaction, keyed on the uuid''s canonical text: claimed = make the effect and complete it, duplicate = it was made, busy = another transaction has it (after trying for up to wait)';

CREATE FUNCTION @extschema@.complete_event(event_id uuid, consumer text = 'default', result jsonb = NULL, token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_complete_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.complete_event(event_id uuid, consumer text, result jsonb, token bigint) IS
'complete an event that this transaction claimed, keyed on the uuid''s canonical text; event_result returns the result later';

CREATE FUNCTION @extschema@.release_event(event_id uuid, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_release_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.release_event(event_id uuid, consumer text) IS
'give up a claim of this transaction, keyed on the uuid''s canonical text, which may then commit without completing it';

CREATE FUNCTION @extschema@.event_result(event_id uuid, consumer text = 'default')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_event_result_uuid_fn';
COMMENT ON FUNCTION @extschema@.event_result(event_id uuid, consumer text) IS
'result stored with the completion of an event, keyed on the uuid''s canonical text; null if there is none';

CREATE FUNCTION @extschema@.event_status(event_id uuid, consumer text = 'default', OUT status @extschema@.claim_status, OUT claimed_at timestamptz, OUT completed_at timestamptz, OUT completed_latest timestamptz)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_event_status_uuid_fn';
COMMENT ON FUNCTION @extschema@.event_status(event_id uuid, consumer text) IS
'what is remembered of an event, keyed on the uuid''s canonical text, without claiming it: always one row, with status unknown if nothing is remembered; the event was claimed at claimed_at or later, and completed between completed_at and completed_latest';

CREATE FUNCTION @extschema@.lock_key(event_id uuid, consumer text = 'default')
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_lock_key_uuid_fn';
COMMENT ON FUNCTION @extschema@.lock_key(event_id uuid, consumer text) IS
'key of the advisory lock that a claim of the event takes, keyed on the uuid''s canonical text: the first 8 bytes, big-endian, of SHA-256 over the id as UTF-8; for a consumer other than "default" over the consumer, a zero byte and the id';

CREATE FUNCTION @extschema@.claim_events(event_ids text[], consumer text = 'default', OUT ord int, OUT event_id text, OUT result @extschema@.claim_result)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_claim_events_fn';
COMMENT ON FUNCTION @extschema@.claim_events(event_ids text[], consumer text) IS
'claim many events at once: one verdict per element, in order; if an id occurs more than once, the first may be claimed and the rest are its duplicates';

CREATE FUNCTION @extschema@.complete_events(event_ids text[], consumer text = 'default', results jsonb[] = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_complete_events_fn';
COMMENT ON FUNCTION @extschema@.complete_events(event_ids text[], consumer text, results jsonb[]) IS
'complete many events that this transaction claimed; results, if given, has the same number of elements';

CREATE FUNCTION @extschema@.verify_lock_key(event_id text, consumer text = 'default')
RETURNS void
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_verify_lock_key_fn';
COMMENT ON FUNCTION @extschema@.verify_lock_key(event_id text, consumer text) IS
'fail unless lock_key of the event agrees with pgcrypto''s digest';

-- The lock key must be the published key.  Otherwise claims would not exclude
-- clients that take the published locks.
SELECT @extschema@.verify_lock_key(id, consumer)
  FROM (VALUES ('evt-1'), ('hello world'), ('')) AS ids (id),
	   (VALUES ('default'), ('billing')) AS consumers (consumer);

-- Consumers

-- The arguments from retention on belong to later versions.  A default that is
-- not NULL says how consumers behave today.
CREATE FUNCTION @extschema@.consumer_create(
	consumer text,
	foreign_lockers boolean = false,
	private_locks boolean = false,
	retention interval = NULL,
	keep_ids boolean = false,
	expire_by_id_age boolean = false,
	owner regrole = NULL,
	lease_duration interval = '30 s',
	max_attempts int = 0,
	min_backoff interval = '1 s',
	max_backoff interval = '5 min')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	missing text;
	later text;
	instead text;
BEGIN
	SELECT a.name INTO missing
	  FROM (VALUES (1, 'consumer', consumer_create.consumer IS NULL),
				   (2, 'foreign_lockers', consumer_create.foreign_lockers IS NULL),
				   (3, 'private_locks', consumer_create.private_locks IS NULL),
				   (4, 'keep_ids', consumer_create.keep_ids IS NULL),
				   (5, 'expire_by_id_age', consumer_create.expire_by_id_age IS NULL),
				   (6, 'lease_duration', consumer_create.lease_duration IS NULL),
				   (7, 'max_attempts', consumer_create.max_attempts IS NULL),
				   (8, 'min_backoff', consumer_create.min_backoff IS NULL),
				   (9, 'max_backoff', consumer_create.max_backoff IS NULL)) AS a (ord, name, is_null)
	 WHERE a.is_null ORDER BY a.ord LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'argument "%" must not be null', missing
			USING ERRCODE = 'null_value_not_allowed';
	ELSIF octet_length(consumer_create.consumer) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'argument "consumer" must have 1 to 255 bytes'
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF starts_with(consumer_create.consumer, '@') THEN
		RAISE EXCEPTION 'consumer "%" is reserved', consumer_create.consumer
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Names that start with "@" belong to the extension.';
	ELSIF consumer_create.private_locks AND consumer_create.foreign_lockers THEN
		RAISE EXCEPTION 'arguments "foreign_lockers" and "private_locks" exclude each other'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Clients without this extension cannot take private locks.';
	ELSIF consumer_create.private_locks AND consumer_create.consumer = 'default' THEN
		RAISE EXCEPTION 'consumer "default" cannot have private locks'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Its locks are the published ones.',
				HINT = 'Use a consumer of another name.';
	END IF;

	SELECT a.name, a.hint INTO later, instead
	  FROM (VALUES
		(1, 'retention', consumer_create.retention IS NOT NULL,
		 'Leave it out: completed events are remembered until an administrator deletes them.'),
		(2, 'keep_ids', consumer_create.keep_ids,
		 'Leave it out: ids are kept in clear as long as they are remembered.'),
		(3, 'expire_by_id_age', consumer_create.expire_by_id_age,
		 'Leave it out, and compare the age of an id before claiming it.'),
		(4, 'owner', consumer_create.owner IS NOT NULL,
		 'Leave it out: any role of kind consumer may claim. Use a database of its own for what others must not claim.'),
		(5, 'lease_duration', consumer_create.lease_duration IS DISTINCT FROM '30 s',
		 'Leave it out: claims last until the end of their transaction.'),
		(6, 'max_attempts', consumer_create.max_attempts <> 0,
		 'Leave it out, and count attempts in the consumer or at its broker.'),
		(7, 'min_backoff', consumer_create.min_backoff IS DISTINCT FROM '1 s',
		 'Leave it out, and let the consumer or its broker wait between attempts.'),
		(8, 'max_backoff', consumer_create.max_backoff IS DISTINCT FROM '5 min',
		 'Leave it out, and let the consumer or its broker wait between attempts.')) AS a (ord, name, given, hint)
	 WHERE a.given ORDER BY a.ord LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'argument "%" is not supported by this version', later
			USING ERRCODE = 'feature_not_supported', HINT = instead;
	END IF;

	INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, private_locks)
	VALUES (consumer_create.consumer, consumer_create.foreign_lockers, consumer_create.private_locks)
	ON CONFLICT ON CONSTRAINT consumers_pkey DO NOTHING;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'consumer "%" already exists', consumer_create.consumer
			USING ERRCODE = 'duplicate_object';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.consumer_create(text, boolean, boolean, interval, boolean, boolean, regrole, interval, int, interval, interval) IS
'register a consumer that differs from the defaults: with foreign_lockers its claims keep the advisory lock to the end of the transaction, and are busy past the budget of locks; with private_locks its claims use locks that no SQL function can take';

CREATE FUNCTION @extschema@.consumer_drop(consumer text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF consumer_drop.consumer IS NULL THEN
		RAISE EXCEPTION 'argument "consumer" must not be null'
			USING ERRCODE = 'null_value_not_allowed';
	END IF;
	DELETE FROM idempotency_data.consumers c WHERE c.consumer = consumer_drop.consumer;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'consumer "%" does not exist', consumer_drop.consumer
			USING ERRCODE = 'undefined_object';
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.consumer_drop(consumer text) IS
'undo consumer_create; the events that the consumer processed stay remembered';

