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

CREATE FUNCTION @extschema@.lease_restored()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_lease_restored_fn';
COMMENT ON FUNCTION @extschema@.lease_restored() IS
'trigger: rows of the log of leases were restored, so the next token goes beyond their numbers';

DO $$
DECLARE
	log name;
BEGIN
	FOR n IN 0 .. 2 LOOP
		log := 'lease_log_' || n;
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
			work jsonb
		) WITH (
			autovacuum_freeze_min_age = 0,
			autovacuum_analyze_threshold = 2147483647
		)', log);
		EXECUTE format('CREATE INDEX %I ON idempotency_data.%I (digest, kind, number DESC)', log || '_key', log);
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
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.event_id IS %L', log, 'id of the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.consumer IS %L', log, 'who processes the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.holder IS %L', log, 'what the holder of the lease calls itself');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.error IS %L', log, 'why the last attempt failed');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.recovery_point IS %L', log, 'where the next attempt goes on');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.work IS %L', log, 'what the next attempt needs to know for that');
		EXECUTE format('CREATE TRIGGER lease_restored AFTER INSERT ON idempotency_data.%I
			FOR EACH STATEMENT EXECUTE FUNCTION @extschema@.lease_restored()', log);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER lease_restored', log);
		EXECUTE format('COMMENT ON TRIGGER lease_restored ON idempotency_data.%I IS %L', log,
			'fires for rows restored from a dump only');
		PERFORM pg_catalog.pg_extension_config_dump(format('idempotency_data.%I', log), '');
	END LOOP;
END
$$;
