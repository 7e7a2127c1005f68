-- The dedup store: the open ring of segments, to which claims write.

CREATE SEQUENCE idempotency_data.store_state AS bigint MINVALUE 0 START WITH 0 CACHE 1;
COMMENT ON SEQUENCE idempotency_data.store_state IS
'the state of the dedup store: a number that says which segment is current, and which segments need no probe';

CREATE SEQUENCE idempotency_data.store_clock AS bigint MINVALUE 0 START WITH 0 CACHE 1;
COMMENT ON SEQUENCE idempotency_data.store_clock IS
'the time of the dedup store, by which entries expire: a number made of how long the server has been up, and of the clock when that was noted';
CREATE SEQUENCE idempotency_data.store_needed AS bigint MINVALUE 0 START WITH 0 CACHE 1;
COMMENT ON SEQUENCE idempotency_data.store_needed IS
'until when the time of store_clock has to go on for rows of the logs that expire; not dumped';

CREATE FUNCTION idempotency_data.store_restored()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_store_restored_fn';
COMMENT ON FUNCTION idempotency_data.store_restored() IS
'trigger: rows of the dedup store are being restored, so nothing is relied on that sessions know of it';

CREATE FUNCTION idempotency_data.store_keyed()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_store_keyed_fn';
COMMENT ON FUNCTION idempotency_data.store_keyed() IS
'trigger: others have written, changed or removed a row of the dedup store, so it is noted where claims look for rows';

-- Rows are inserted and not updated, and a segment is emptied as a whole, so
-- autovacuum only has to freeze what stays.  Claims use no planner, so ANALYZE is
-- off: it would only leave dead rows in the statistics.
DO $$
DECLARE
	segment name;
BEGIN
	FOR n IN 0 .. 7 LOOP
		segment := 'store_segment_' || n::text;
		EXECUTE format('CREATE TABLE idempotency_data.%I (
			claimed_at timestamptz NOT NULL,
			completed_at timestamptz,
			digest uuid NOT NULL,
			turn smallint NOT NULL,
			class smallint NOT NULL DEFAULT 0,
			state "char" NOT NULL,
			keep_id boolean NOT NULL DEFAULT false,
			event_id text COLLATE "C" NOT NULL,
			consumer text COLLATE "C" NOT NULL,
			result jsonb,
			CONSTRAINT sound CHECK (
				turn > 0 AND class BETWEEN 0 AND 3 AND state IN (''c'', ''k'', ''f'')
				AND isfinite(claimed_at)
				AND CASE WHEN state = ''c'' THEN completed_at IS NOT NULL AND isfinite(completed_at)
					ELSE completed_at IS NULL AND result IS NULL END
				AND octet_length(event_id) <= 4096 AND octet_length(consumer) BETWEEN 1 AND 1020)
		) WITH (
			autovacuum_freeze_min_age = 0,
			autovacuum_vacuum_insert_scale_factor = 0.1,
			autovacuum_analyze_threshold = 2147483647
		)', segment);
		-- Not logged: made anew from the segment after a crash.  Not dumped either.
		EXECUTE format('CREATE UNLOGGED SEQUENCE idempotency_data.%I', 'store_keys_' || n::text);
		EXECUTE format('COMMENT ON SEQUENCE idempotency_data.%I IS %L', 'store_keys_' || n::text,
			format('where the rows of an event stand in segment %s of the dedup store: pages of a hash behind the sequence, not logged', n));
		EXECUTE format('COMMENT ON TABLE idempotency_data.%I IS %L', segment,
			format('segment %s of the dedup store, written by the claim functions only; read it through processed_events', n));
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.claimed_at IS %L', segment, 'when the event was claimed');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.completed_at IS %L', segment,
			'when the event was completed; null if its claim was kept uncompleted');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.digest IS %L', segment,
			'the first 16 bytes of the hash that gives the key of the event''s lock');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.turn IS %L', segment,
			'of several rows of an event the one with the highest turn counts');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.class IS %L', segment,
			'how long the row is remembered: 0 = for ever, 1 = an hour, 2 = a day, 3 = 31 days');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.keep_id IS %L', segment,
			'the id stays in clear when the row is packed');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.state IS %L', segment,
			'c = completed, k = claim kept uncompleted, f = order to forget the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.event_id IS %L', segment, 'id of the event');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.consumer IS %L', segment,
			'who processed the event; names that start with @ are the extension''s own');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.result IS %L', segment, 'result given to complete_event');
		EXECUTE format('CREATE TRIGGER store_restored BEFORE INSERT ON idempotency_data.%I
			FOR EACH STATEMENT EXECUTE FUNCTION idempotency_data.store_restored()', segment);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER store_restored', segment);
		EXECUTE format('COMMENT ON TRIGGER store_restored ON idempotency_data.%I IS %L', segment,
			'fires for rows restored from a dump only');
		EXECUTE format('CREATE TRIGGER store_keyed AFTER INSERT OR UPDATE OR DELETE ON idempotency_data.%I
			FOR EACH ROW EXECUTE FUNCTION idempotency_data.store_keyed()', segment);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER store_keyed', segment);
		EXECUTE format('COMMENT ON TRIGGER store_keyed ON idempotency_data.%I IS %L', segment,
			'fires for rows that are not written by claims');
		PERFORM pg_catalog.pg_extension_config_dump(format('idempotency_data.%I', segment), '');
	END LOOP;
END
$$;

-- The sequences store_state, store_clock and store_needed are not part of a dump: a segment that a
-- restore fills is probed until it is packed, and what is restored is remembered from
-- the restore on.

CREATE VIEW @extschema@.stat_claims AS
SELECT pg_catalog.int8(pg_catalog.sum(GREATEST(c.reltuples::float8, t.n_live_tup::float8, 0::float8))) AS live_rows,
	   pg_catalog.int8(pg_catalog.sum(pg_catalog.pg_stat_get_numscans(k.oid))) AS probes,
	   pg_catalog.int8(pg_catalog.sum(t.n_tup_ins)) AS rows_written,
	   pg_catalog.int8(pg_catalog.sum(t.n_tup_del)) AS rows_removed,
	   pg_catalog.int8(pg_catalog.sum(t.n_dead_tup)) AS dead_rows,
	   pg_catalog.int8(pg_catalog.sum(pg_catalog.pg_table_size(c.oid))) AS table_bytes,
	   pg_catalog.int8(pg_catalog.sum(pg_catalog.pg_relation_size(k.oid))) AS index_bytes,
	   pg_catalog.max(GREATEST(t.last_vacuum, t.last_autovacuum)) AS last_vacuum
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid
  JOIN pg_catalog.pg_class k ON k.relnamespace = c.relnamespace AND k.relname = pg_catalog.replace(c.relname, 'segment', 'keys')
 WHERE c.relnamespace = 'idempotency_data'::pg_catalog.regnamespace AND c.relname LIKE 'store\_segment\__';
COMMENT ON VIEW @extschema@.stat_claims IS
'what the segments that claims write to cost: one row of sizes and cumulative counters; what was packed is in stat_claim_segments';
COMMENT ON COLUMN @extschema@.stat_claims.live_rows IS 'estimated number of rows that were not packed, or whose segment was not emptied since: from the last vacuum, and from the counts since the statistics began';
COMMENT ON COLUMN @extschema@.stat_claims.probes IS 'look-ups of events: by claims that got the event''s lock, by event_result and by event_status';
COMMENT ON COLUMN @extschema@.stat_claims.rows_written IS 'rows written, those of aborted transactions included';
COMMENT ON COLUMN @extschema@.stat_claims.rows_removed IS 'rows that their own transaction wrote and took back: of claims past the budget of locks';
COMMENT ON COLUMN @extschema@.stat_claims.dead_rows IS 'estimated number of dead rows; stays near zero unless transactions abort';
COMMENT ON COLUMN @extschema@.stat_claims.table_bytes IS 'size of the tables, TOAST included';
COMMENT ON COLUMN @extschema@.stat_claims.index_bytes IS 'size of the pages that say where an event''s rows stand';
COMMENT ON COLUMN @extschema@.stat_claims.last_vacuum IS 'when one of the tables was last vacuumed';

