-- Claims: one effect per (consumer, event).

-- Types

CREATE TYPE @extschema@.claim_result AS ENUM ('claimed', 'duplicate', 'busy', 'expired', 'dead');
COMMENT ON TYPE @extschema@.claim_result IS
'verdict of a claim: claimed = make the effect and complete it; duplicate = done, acknowledge after COMMIT; busy = another transaction has it, try later; expired = too old to be answered; dead = parked after its last attempt, acknowledge';

-- The type is not named event_status: if it were, event_status('x') would be a
-- cast to the type.
CREATE TYPE @extschema@.claim_status AS ENUM ('processing', 'completed', 'unknown', 'leased', 'waiting', 'dead');
COMMENT ON TYPE @extschema@.claim_status IS
'what is remembered of an event: processing = claimed and not completed, by this transaction or by a committed one whose kept claim another may take over; completed = its effect was made; unknown = nothing is remembered; leased = somebody has a lease of it, which may be overdue; waiting = it may be leased again, at once or later; dead = it is not tried again by itself';

CREATE TABLE idempotency_data.consumers (
	consumer text COLLATE "C" NOT NULL,
	foreign_lockers boolean NOT NULL,
	private_locks boolean NOT NULL DEFAULT false,
	retention interval,
	keep_ids boolean NOT NULL DEFAULT false,
	expire_by_id_age boolean NOT NULL DEFAULT false,
	lease_duration interval NOT NULL DEFAULT '30 s',
	max_attempts int NOT NULL DEFAULT 0,
	min_backoff interval NOT NULL DEFAULT '1 s',
	max_backoff interval NOT NULL DEFAULT '5 min',
	owner text COLLATE "C",
	owner_oid oid,
	owner_cluster bigint,
	CONSTRAINT consumers_pkey PRIMARY KEY (consumer),
	-- what C reads of a row; consumer_check says what an operator may give
	CONSTRAINT sound CHECK (
		octet_length(consumer) BETWEEN 1 AND 1020 AND NOT starts_with(consumer, '@')
		AND NOT (foreign_lockers AND private_locks) AND max_attempts >= 0
		AND extract(epoch FROM lease_duration) > 0.0 AND extract(epoch FROM lease_duration) < 864000000.0
		AND extract(epoch FROM min_backoff) > 0.0 AND extract(epoch FROM min_backoff) < 864000000.0
		AND extract(epoch FROM max_backoff) > 0.0 AND extract(epoch FROM max_backoff) < 864000000.0
		AND (owner IS NULL) = (owner_oid IS NULL))
);
COMMENT ON TABLE idempotency_data.consumers IS
'consumers that differ from the defaults; see consumer_create';
COMMENT ON COLUMN idempotency_data.consumers.consumer IS 'name of the consumer';
COMMENT ON COLUMN idempotency_data.consumers.foreign_lockers IS
'clients without this extension take the advisory locks of its events';
COMMENT ON COLUMN idempotency_data.consumers.private_locks IS
'no SQL function can take the locks of its events';
COMMENT ON COLUMN idempotency_data.consumers.retention IS
'how long its completed events are remembered at least; null: as idempotency.claim_retention says';
COMMENT ON COLUMN idempotency_data.consumers.keep_ids IS
'ids of its events stay in clear when they are packed';
COMMENT ON COLUMN idempotency_data.consumers.expire_by_id_age IS
'claims of ids that are UUIDs of version 7 are expired if the id is older than the retention and not remembered';
COMMENT ON COLUMN idempotency_data.consumers.lease_duration IS
'how long a lease lasts for which no duration was given';
COMMENT ON COLUMN idempotency_data.consumers.max_attempts IS
'after so many attempts an event is dead; 0: no limit';
COMMENT ON COLUMN idempotency_data.consumers.min_backoff IS
'how long an event waits after its first attempt failed; doubled with each attempt';
COMMENT ON COLUMN idempotency_data.consumers.max_backoff IS
'the longest pause between two attempts';
COMMENT ON COLUMN idempotency_data.consumers.owner IS
'name of the role that owns it, at the last look; null: nobody does, and any role of kind consumer may claim';
COMMENT ON COLUMN idempotency_data.consumers.owner_oid IS
'OID of the owner in the cluster owner_cluster; 0: the role does not exist';
COMMENT ON COLUMN idempotency_data.consumers.owner_cluster IS
'system identifier of the cluster where owner_oid was noted; the trigger consumer_changes fills it in';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.consumers', '');

CREATE FUNCTION idempotency_data.consumer_changes()
RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_consumer_changes_fn';
COMMENT ON FUNCTION idempotency_data.consumer_changes() IS
'trigger: waits for the claims in flight before the locks of a consumer change, and notes the OID of its owner';

CREATE TRIGGER consumer_changes BEFORE INSERT OR UPDATE OR DELETE ON idempotency_data.consumers
	FOR EACH ROW EXECUTE FUNCTION idempotency_data.consumer_changes();
COMMENT ON TRIGGER consumer_changes ON idempotency_data.consumers IS
'waits for the claims in flight whose locks the row decides';
CREATE TRIGGER consumer_truncate BEFORE TRUNCATE ON idempotency_data.consumers
	FOR EACH STATEMENT EXECUTE FUNCTION idempotency_data.consumer_changes();
COMMENT ON TRIGGER consumer_truncate ON idempotency_data.consumers IS
'waits for the claims in flight whose locks the rows decide';
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_changes;
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_truncate;

CREATE FUNCTION idempotency_data.processed_events_source(
	OUT consumer text, OUT event_id text, OUT claimed_at timestamptz,
	OUT completed_at timestamptz, OUT result jsonb)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL RESTRICTED ROWS 100000
AS 'MODULE_PATHNAME', 'idem_processed_events_source_fn';
COMMENT ON FUNCTION idempotency_data.processed_events_source() IS
'source of the view processed_events; use the view instead';

CREATE FUNCTION idempotency_data.processed_events_packed(
	OUT consumer text, OUT event_id text, OUT claimed_at timestamptz,
	OUT completed_at timestamptz, OUT result jsonb)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL RESTRICTED ROWS 1000
AS 'MODULE_PATHNAME', 'idem_processed_events_packed_fn';
COMMENT ON FUNCTION idempotency_data.processed_events_packed() IS
'source of the view processed_events; use the view instead';

CREATE VIEW @extschema@.processed_events WITH (security_barrier) AS
SELECT e.consumer, e.event_id,
	   CASE WHEN e.completed_at IS NULL
			THEN 'processing'::@extschema@.claim_status
			ELSE 'completed'::@extschema@.claim_status
	   END AS status,
	   e.claimed_at, e.completed_at, e.result
  FROM (SELECT (p.r).consumer COLLATE "C", (p.r).event_id COLLATE "C", (p.r).claimed_at, (p.r).completed_at, (p.r).result
		  FROM (SELECT idempotency_data.processed_events_source() AS r) AS p
		UNION ALL
		SELECT (p.r).consumer COLLATE "C", (p.r).event_id COLLATE "C", (p.r).claimed_at, (p.r).completed_at, (p.r).result
		  FROM (SELECT idempotency_data.processed_events_packed() AS r) AS p)
	   AS e (consumer, event_id, claimed_at, completed_at, result);
COMMENT ON VIEW @extschema@.processed_events IS
'events that are remembered in clear, one row per event and consumer: those that were not packed yet, those of consumers that keep ids, and kept claims';
COMMENT ON COLUMN @extschema@.processed_events.consumer IS 'who processed the event';
COMMENT ON COLUMN @extschema@.processed_events.event_id IS 'id of the event';
COMMENT ON COLUMN @extschema@.processed_events.status IS
'completed; or processing, if the claim of the event was kept uncompleted';
COMMENT ON COLUMN @extschema@.processed_events.claimed_at IS 'when the event was claimed';
COMMENT ON COLUMN @extschema@.processed_events.completed_at IS 'when it was completed';
COMMENT ON COLUMN @extschema@.processed_events.result IS 'result given to complete_event';

-- Claiming

CREATE FUNCTION @extschema@.claim_event(event_id text, consumer text = 'default', wait interval = '0', valid_until timestamptz = NULL)
RETURNS @extschema@.claim_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claim_event_fn';
COMMENT ON FUNCTION @extschema@.claim_event(event_id text, consumer text, wait interval, valid_until timestamptz) IS
'claim an event for this transaction: claimed = make the effect and complete it, duplicate = it was made, busy = another transaction has it (after trying for up to wait)';

CREATE FUNCTION @extschema@.complete_event(event_id text, consumer text = 'default', result jsonb = NULL, token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_complete_event_fn';
COMMENT ON FUNCTION @extschema@.complete_event(event_id text, consumer text, result jsonb, token bigint) IS
'complete an event that this transaction claimed, or whose lease has the token; event_result returns the result later';

CREATE FUNCTION @extschema@.release_event(event_id text, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_release_event_fn';
COMMENT ON FUNCTION @extschema@.release_event(event_id text, consumer text) IS
'give up a claim of this transaction, which may then commit without completing it';

CREATE FUNCTION @extschema@.forget_event(event_id text, consumer text = 'default')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_forget_event_fn';
COMMENT ON FUNCTION @extschema@.forget_event(event_id text, consumer text) IS
'forget an event, so that its next claim is answered "claimed"; false if nothing is remembered of it';

CREATE FUNCTION @extschema@.event_result(event_id text, consumer text = 'default')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_event_result_fn';
COMMENT ON FUNCTION @extschema@.event_result(event_id text, consumer text) IS
'result stored with the completion of an event; null if there is none';

CREATE FUNCTION @extschema@.event_status(event_id text, consumer text = 'default', OUT status @extschema@.claim_status, OUT claimed_at timestamptz, OUT completed_at timestamptz,
	OUT completed_latest timestamptz, OUT retry_after interval)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_event_status_fn';
COMMENT ON FUNCTION @extschema@.event_status(event_id text, consumer text) IS
'what is remembered of an event, without claiming it: always one row, with status unknown if nothing is remembered; the event was claimed at claimed_at or later, and completed between completed_at and completed_latest; leased or waiting = it may be leased after retry_after';

CREATE FUNCTION @extschema@.lock_key(event_id text, consumer text = 'default')
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_lock_key_fn';
COMMENT ON FUNCTION @extschema@.lock_key(event_id text, consumer text) IS
'key of the advisory lock that a claim of the event takes: the first 8 bytes, big-endian, of SHA-256 over the id as UTF-8; for a consumer other than "default" over the consumer, a zero byte and the id';

CREATE FUNCTION @extschema@.claim_event(event_id uuid, consumer text = 'default', wait interval = '0', valid_until timestamptz = NULL)
RETURNS @extschema@.claim_result
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claim_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.claim_event(event_id uuid, consumer text, wait interval, valid_until timestamptz) IS
'claim an event for this transaction, keyed on the uuid''s canonical text: claimed = make the effect and complete it, duplicate = it was made, busy = another transaction has it (after trying for up to wait)';

CREATE FUNCTION @extschema@.complete_event(event_id uuid, consumer text = 'default', result jsonb = NULL, token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_complete_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.complete_event(event_id uuid, consumer text, result jsonb, token bigint) IS
'complete an event that this transaction claimed, or whose lease has the token, keyed on the uuid''s canonical text; event_result returns the result later';

CREATE FUNCTION @extschema@.release_event(event_id uuid, consumer text = 'default')
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_release_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.release_event(event_id uuid, consumer text) IS
'give up a claim of this transaction, keyed on the uuid''s canonical text, which may then commit without completing it';

CREATE FUNCTION @extschema@.forget_event(event_id uuid, consumer text = 'default')
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_forget_event_uuid_fn';
COMMENT ON FUNCTION @extschema@.forget_event(event_id uuid, consumer text) IS
'forget an event, keyed on the uuid''s canonical text, so that its next claim is answered "claimed"; false if nothing is remembered of it';

CREATE FUNCTION @extschema@.event_result(event_id uuid, consumer text = 'default')
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_event_result_uuid_fn';
COMMENT ON FUNCTION @extschema@.event_result(event_id uuid, consumer text) IS
'result stored with the completion of an event, keyed on the uuid''s canonical text; null if there is none';

CREATE FUNCTION @extschema@.event_status(event_id uuid, consumer text = 'default', OUT status @extschema@.claim_status, OUT claimed_at timestamptz, OUT completed_at timestamptz,
	OUT completed_latest timestamptz, OUT retry_after interval)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_event_status_uuid_fn';
COMMENT ON FUNCTION @extschema@.event_status(event_id uuid, consumer text) IS
'what is remembered of an event, keyed on the uuid''s canonical text, without claiming it: always one row, with status unknown if nothing is remembered; the event was claimed at claimed_at or later, and completed between completed_at and completed_latest; leased or waiting = it may be leased after retry_after';

CREATE FUNCTION @extschema@.lock_key(event_id uuid, consumer text = 'default')
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_lock_key_uuid_fn';
COMMENT ON FUNCTION @extschema@.lock_key(event_id uuid, consumer text) IS
'key of the advisory lock that a claim of the event takes, keyed on the uuid''s canonical text: the first 8 bytes, big-endian, of SHA-256 over the id as UTF-8; for a consumer other than "default" over the consumer, a zero byte and the id';

CREATE FUNCTION @extschema@.claim_events(event_ids text[], consumer text = 'default', OUT ord int, OUT event_id text, OUT result @extschema@.claim_result)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 100
AS 'MODULE_PATHNAME', 'idem_claim_events_fn';
COMMENT ON FUNCTION @extschema@.claim_events(event_ids text[], consumer text) IS
'claim many events at once: one verdict per element, in order; if an id occurs more than once, the first may be claimed and the rest are its duplicates';

CREATE FUNCTION @extschema@.complete_events(event_ids text[], consumer text = 'default', results jsonb[] = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_complete_events_fn';
COMMENT ON FUNCTION @extschema@.complete_events(event_ids text[], consumer text, results jsonb[]) IS
'complete many events that this transaction claimed; results, if given, has the same number of elements';

CREATE FUNCTION @extschema@.claims_import(consumer text, event_ids text[], completed_at timestamptz[] = NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claims_import_fn';
COMMENT ON FUNCTION @extschema@.claims_import(consumer text, event_ids text[], completed_at timestamptz[]) IS
'remember events as completed whose effect was made elsewhere, at the times given, or now, for the retention of the consumer from now on; returns how many were not remembered yet';

CREATE FUNCTION @extschema@.claims_renew(event_ids text[], consumer text = 'default')
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claims_renew_fn';
COMMENT ON FUNCTION @extschema@.claims_renew(event_ids text[], consumer text) IS
'remember completed events for the retention of the consumer from now on; passes over events that are not completed; returns how many would have been forgotten earlier';

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

CREATE FUNCTION idempotency_data.interval_us(length interval)
RETURNS bigint
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_interval_us_fn';
COMMENT ON FUNCTION idempotency_data.interval_us(interval) IS
'how long an interval is, in microseconds: a year has 365.25 days, a month 30; the greatest or the least number for 290,000 years and more';

-- What consumer_create and consumer_alter refuse.  Arguments that are null are not
-- given, and are not checked: those of consumer_alter have been merged with what is
-- registered.
CREATE FUNCTION idempotency_data.consumer_check(
	consumer text,
	foreign_lockers boolean,
	private_locks boolean,
	retention interval,
	expire_by_id_age boolean,
	owner regrole,
	lease_duration interval,
	max_attempts int,
	min_backoff interval,
	max_backoff interval)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	for_ever CONSTANT bigint := idempotency_data.interval_us('100 years');
	longest CONSTANT bigint := idempotency_data.interval_us('366 days');
	retention_us CONSTANT bigint := idempotency_data.interval_us(consumer_check.retention);
	later text;
	us bigint;
BEGIN
	IF octet_length(consumer_check.consumer) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'argument "consumer" must have 1 to 255 bytes'
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF starts_with(consumer_check.consumer, '@') THEN
		RAISE EXCEPTION 'consumer "%" is reserved', consumer_check.consumer
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Names that start with "@" belong to the extension.';
	ELSIF consumer_check.private_locks AND consumer_check.foreign_lockers THEN
		RAISE EXCEPTION 'arguments "foreign_lockers" and "private_locks" exclude each other'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Clients without this extension cannot take private locks.';
	ELSIF consumer_check.private_locks AND consumer_check.consumer = 'default' THEN
		RAISE EXCEPTION 'consumer "default" cannot have private locks'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Its locks are the published ones.',
				HINT = 'Use a consumer of another name, for new events: it claims anew what was completed for "default".';
	ELSIF retention_us <= 0 THEN
		RAISE EXCEPTION 'argument "retention" must be positive'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = format('It is %s seconds long.', trim_scale(retention_us::numeric / 1000000.0)),
				HINT = 'Give the longest time from an event''s creation to its last delivery, or 100 years to remember for ever.';
	ELSIF consumer_check.expire_by_id_age AND coalesce(retention_us, for_ever) >= for_ever THEN
		RAISE EXCEPTION 'argument "expire_by_id_age" needs a retention of less than 100 years'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = 'Ids are compared with the retention of the consumer itself; the setting idempotency.claim_retention does not count.',
				HINT = 'Give the argument "retention" as well.';
	END IF;
	IF consumer_check.max_attempts < 0 THEN
		RAISE EXCEPTION 'argument "max_attempts" must not be negative'
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Give 0 for no limit.';
	END IF;
	FOREACH later IN ARRAY ARRAY['lease_duration', 'min_backoff', 'max_backoff'] LOOP
		us := idempotency_data.interval_us(CASE later WHEN 'lease_duration' THEN consumer_check.lease_duration
			WHEN 'min_backoff' THEN consumer_check.min_backoff ELSE consumer_check.max_backoff END);
		IF us <= 0 OR us > longest THEN
			RAISE EXCEPTION 'argument "%" must be positive, and at most 366 days', later
				USING ERRCODE = 'invalid_parameter_value';
		END IF;
	END LOOP;
	IF idempotency_data.interval_us(consumer_check.min_backoff) > idempotency_data.interval_us(consumer_check.max_backoff) THEN
		RAISE EXCEPTION 'argument "min_backoff" must not be greater than "max_backoff"'
			USING ERRCODE = 'invalid_parameter_value',
				DETAIL = format('They are %s and %s.', consumer_check.min_backoff, consumer_check.max_backoff);
	END IF;

	-- regrole takes any number for a role.
	IF consumer_check.owner <> 0 AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = consumer_check.owner) THEN
		RAISE EXCEPTION 'role with OID % does not exist', consumer_check.owner::oid
			USING ERRCODE = 'undefined_object',
				HINT = 'Give the name of a role, or ''-'' for no owner.';
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_data.consumer_check(text, boolean, boolean, interval, boolean, regrole, interval, int, interval, interval) IS
'fails for what consumer_create and consumer_alter refuse';

-- To be called when the change has waited for all claims and leases in flight.
CREATE FUNCTION idempotency_data.consumer_check_leases(consumer text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM FROM @extschema@.leases AS l
	  WHERE l.consumer = consumer_check_leases.consumer AND l.scope IS NULL AND l.state = 'leased';
	IF FOUND THEN
		RAISE EXCEPTION 'consumer "%" has leases, and cannot have foreign lockers', consumer_check_leases.consumer
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'Clients without this extension see only locks, and no lock lasts as long as a lease.',
				HINT = 'Complete or release first what the view "leases" shows as leased.';
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_data.consumer_check_leases(text) IS
'fails if events of a consumer that gets foreign lockers are leased';

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
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	missing text;
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
	END IF;
	PERFORM idempotency_data.consumer_check(consumer_create.consumer,
		consumer_create.foreign_lockers, consumer_create.private_locks,
		consumer_create.retention, consumer_create.expire_by_id_age,
		consumer_create.owner, consumer_create.lease_duration,
		consumer_create.max_attempts, consumer_create.min_backoff,
		consumer_create.max_backoff);

	INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, private_locks, retention, keep_ids, expire_by_id_age,
			lease_duration, max_attempts, min_backoff, max_backoff, owner, owner_oid)
	SELECT consumer_create.consumer, consumer_create.foreign_lockers, consumer_create.private_locks,
		   consumer_create.retention, consumer_create.keep_ids, consumer_create.expire_by_id_age,
		   consumer_create.lease_duration, consumer_create.max_attempts,
		   consumer_create.min_backoff, consumer_create.max_backoff, r.rolname, r.oid
	  FROM (VALUES (1)) AS one LEFT JOIN pg_roles r ON r.oid = consumer_create.owner
	ON CONFLICT ON CONSTRAINT consumers_pkey DO NOTHING;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'consumer "%" already exists', consumer_create.consumer
			USING ERRCODE = 'duplicate_object',
				HINT = 'Change it with consumer_alter.';
	END IF;
	IF consumer_create.foreign_lockers THEN
		PERFORM idempotency_data.consumer_check_leases(consumer_create.consumer);
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.consumer_create(text, boolean, boolean, interval, boolean, boolean, regrole, interval, int, interval, interval) IS
'register a consumer that differs from the defaults: with foreign_lockers its claims keep the advisory lock to the end of the transaction, and are busy past the budget of locks; with private_locks its claims use locks that no SQL function can take; its completed events are remembered for the retention, rounded up to an hour, a day, 31 days or for ever; with expire_by_id_age ids that are UUIDs of version 7, older than the retention and not remembered, are expired; with owner only members of that role may claim its events';

CREATE FUNCTION @extschema@.consumer_alter(
	consumer text,
	foreign_lockers boolean = NULL,
	private_locks boolean = NULL,
	retention interval = NULL,
	keep_ids boolean = NULL,
	expire_by_id_age boolean = NULL,
	owner regrole = NULL,
	lease_duration interval = NULL,
	max_attempts int = NULL,
	min_backoff interval = NULL,
	max_backoff interval = NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	policy idempotency_data.consumers;
	gets_foreign_lockers boolean;
BEGIN
	IF consumer_alter.consumer IS NULL THEN
		RAISE EXCEPTION 'argument "consumer" must not be null'
			USING ERRCODE = 'null_value_not_allowed';
	END IF;
	SELECT * INTO policy FROM idempotency_data.consumers c
	 WHERE c.consumer = consumer_alter.consumer FOR UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'consumer "%" does not exist', consumer_alter.consumer
			USING ERRCODE = 'undefined_object',
				HINT = 'Consumers need no registration; consumer_create registers one that differs from the defaults.';
	END IF;
	gets_foreign_lockers := consumer_alter.foreign_lockers AND NOT policy.foreign_lockers;
	policy.foreign_lockers := coalesce(consumer_alter.foreign_lockers, policy.foreign_lockers);
	policy.private_locks := coalesce(consumer_alter.private_locks, policy.private_locks);
	policy.retention := coalesce(consumer_alter.retention, policy.retention);
	policy.keep_ids := coalesce(consumer_alter.keep_ids, policy.keep_ids);
	policy.expire_by_id_age := coalesce(consumer_alter.expire_by_id_age, policy.expire_by_id_age);
	policy.lease_duration := coalesce(consumer_alter.lease_duration, policy.lease_duration);
	policy.max_attempts := coalesce(consumer_alter.max_attempts, policy.max_attempts);
	policy.min_backoff := coalesce(consumer_alter.min_backoff, policy.min_backoff);
	policy.max_backoff := coalesce(consumer_alter.max_backoff, policy.max_backoff);
	PERFORM idempotency_data.consumer_check(policy.consumer, policy.foreign_lockers,
		policy.private_locks, policy.retention, policy.expire_by_id_age,
		consumer_alter.owner, policy.lease_duration, policy.max_attempts,
		policy.min_backoff, policy.max_backoff);
	IF consumer_alter.owner IS NOT NULL THEN
		policy.owner_cluster := NULL;
		SELECT r.rolname, r.oid INTO policy.owner, policy.owner_oid
		  FROM pg_roles r WHERE r.oid = consumer_alter.owner;
	END IF;

	UPDATE idempotency_data.consumers c
	   SET foreign_lockers = policy.foreign_lockers, private_locks = policy.private_locks,
		   retention = policy.retention, keep_ids = policy.keep_ids,
		   expire_by_id_age = policy.expire_by_id_age, lease_duration = policy.lease_duration,
		   max_attempts = policy.max_attempts, min_backoff = policy.min_backoff,
		   max_backoff = policy.max_backoff, owner = policy.owner,
		   owner_oid = policy.owner_oid, owner_cluster = policy.owner_cluster
	 WHERE c.consumer = policy.consumer;
	IF gets_foreign_lockers THEN
		PERFORM idempotency_data.consumer_check_leases(policy.consumer);
	END IF;
END
$$;
COMMENT ON FUNCTION @extschema@.consumer_alter(text, boolean, boolean, interval, boolean, boolean, regrole, interval, int, interval, interval) IS
'change a consumer that consumer_create registered; null keeps what is registered; owner ''-'' and max_attempts 0 unset; events that were completed before stay remembered as long as was said then';

CREATE FUNCTION @extschema@.consumer_drop(consumer text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER
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

CREATE FUNCTION idempotency_data.claim_consumers_source(
	OUT consumer text, OUT foreign_lockers boolean, OUT private_locks boolean,
	OUT retention interval, OUT class text, OUT keep_ids boolean, OUT expire_by_id_age boolean,
	OUT lease_duration interval, OUT max_attempts int, OUT min_backoff interval, OUT max_backoff interval,
	OUT owner text, OUT owner_missing boolean)
RETURNS SETOF record
LANGUAGE c STABLE PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'idem_claim_consumers_source_fn';
COMMENT ON FUNCTION idempotency_data.claim_consumers_source() IS
'source of the view claim_consumers; use the view instead';

CREATE VIEW @extschema@.claim_consumers WITH (security_barrier) AS
SELECT (p.r).consumer COLLATE "C" AS consumer,
	   (p.r).foreign_lockers AS foreign_lockers,
	   (p.r).private_locks AS private_locks,
	   (p.r).retention AS retention,
	   (p.r).class AS class,
	   (p.r).keep_ids AS keep_ids,
	   (p.r).expire_by_id_age AS expire_by_id_age,
	   (p.r).lease_duration AS lease_duration,
	   (p.r).max_attempts AS max_attempts,
	   (p.r).min_backoff AS min_backoff,
	   (p.r).max_backoff AS max_backoff,
	   (p.r).owner COLLATE "C" AS owner,
	   (p.r).owner_missing AS owner_missing
  FROM (SELECT idempotency_data.claim_consumers_source() AS r) AS p;
COMMENT ON VIEW @extschema@.claim_consumers IS
'consumers that were registered by consumer_create; others have the defaults';
COMMENT ON COLUMN @extschema@.claim_consumers.consumer IS 'name of the consumer';
COMMENT ON COLUMN @extschema@.claim_consumers.foreign_lockers IS
'clients without this extension take the advisory locks of its events';
COMMENT ON COLUMN @extschema@.claim_consumers.private_locks IS
'no SQL function can take the locks of its events';
COMMENT ON COLUMN @extschema@.claim_consumers.retention IS
'how long its completed events are remembered at least, as it was given; null: as idempotency.claim_retention says';
COMMENT ON COLUMN @extschema@.claim_consumers.class IS
'that retention rounded up to hour, day, month (31 days) or for ever; where it is null, by the setting of this session';
COMMENT ON COLUMN @extschema@.claim_consumers.keep_ids IS
'ids of its events stay in clear when they are packed';
COMMENT ON COLUMN @extschema@.claim_consumers.expire_by_id_age IS
'claims of ids that are UUIDs of version 7 are expired if the id is older than the retention and not remembered';
COMMENT ON COLUMN @extschema@.claim_consumers.lease_duration IS
'how long a lease lasts for which no duration was given';
COMMENT ON COLUMN @extschema@.claim_consumers.max_attempts IS
'after so many attempts an event is dead; 0: no limit';
COMMENT ON COLUMN @extschema@.claim_consumers.min_backoff IS
'how long an event waits after its first attempt failed; doubled with each attempt';
COMMENT ON COLUMN @extschema@.claim_consumers.max_backoff IS
'the longest pause between two attempts';
COMMENT ON COLUMN @extschema@.claim_consumers.owner IS
'role that owns it: only its members may claim; null: any role of kind consumer';
COMMENT ON COLUMN @extschema@.claim_consumers.owner_missing IS
'the owner does not exist, so only superusers may claim until consumer_alter gives it another one';
