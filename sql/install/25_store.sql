--
-- Dedup store: the slots, which hold packed ids.
--

CREATE FUNCTION idempotency_data.store_restamp()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_store_restamp_fn';
COMMENT ON FUNCTION idempotency_data.store_restamp() IS
'takes out of packed ids that are restored from a dump what is true in the dumped database only';

-- The slots.  A body fills a page, is read in place, and therefore stands in
-- its row as it is.  Rows are frozen when they are written, and nothing updates
-- or deletes rows, so autovacuum has nothing to do.
--
-- A dump leaves out the filters, which the restored database would not find at
-- their blocks, the rows of runs that were not finished, and the runs whose transaction
-- the dump's snapshot does not see.  Such a run may have ids that were completed after
-- the snapshot was taken.  The ids that it has from before are still where the run got
-- them from.  A transaction that is 2^31 ids after the snapshot cannot be: ids went back
-- since, by pg_resetwal, and the run is older than the snapshot.
--
-- CASE keeps the look for the end marks from being planned as a join, which might return the rows in another
-- order: the end mark of a run is to come last.
DO $$
DECLARE
	slot name;
BEGIN
	FOR n IN 0 .. 47 LOOP
		slot := 'store_slot_' || n::text;
		EXECUTE format('CREATE TABLE idempotency_data.%I (
			packer xid8 NOT NULL,
			run bigint NOT NULL,
			digest uuid NOT NULL,
			kind smallint NOT NULL,
			turn smallint,
			state "char",
			claimed_at timestamptz,
			completed_at timestamptz,
			event_id text COLLATE "C",
			consumer text COLLATE "C",
			result jsonb,
			body bytea,
			CONSTRAINT sound CHECK (
				CASE WHEN kind BETWEEN 0 AND 2
				THEN body IS NOT NULL AND octet_length(body) > 0 AND num_nonnulls(turn, state, claimed_at) = 0
				ELSE kind = 3 AND body IS NULL
					AND turn IS NOT NULL AND turn > 0 AND state IS NOT NULL AND state IN (''c'', ''k'', ''f'')
					AND claimed_at IS NOT NULL AND isfinite(claimed_at)
					AND (completed_at IS NULL OR isfinite(completed_at)) END)
		) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', slot);
		EXECUTE format('ALTER TABLE idempotency_data.%I ALTER COLUMN body SET STORAGE PLAIN', slot);
		EXECUTE format('COMMENT ON TABLE idempotency_data.%I IS %L',
			slot, format('slot %s of the dedup store, with packed ids', n));

		EXECUTE format('CREATE INDEX %I ON idempotency_data.%I (kind, run, digest) WITH (deduplicate_items = off)',
			slot || '_kind_run_digest_idx', slot);
		EXECUTE format('COMMENT ON INDEX idempotency_data.%I IS %L',
			slot || '_kind_run_digest_idx', 'finds the rows of a run, in the order of their ids');

		EXECUTE format('CREATE TRIGGER store_restamp BEFORE INSERT ON idempotency_data.%I
			FOR EACH ROW EXECUTE FUNCTION idempotency_data.store_restamp()', slot);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER store_restamp', slot);
		EXECUTE format('COMMENT ON TRIGGER store_restamp ON idempotency_data.%I IS %L',
			slot, 'fires for rows restored from a dump only');
		EXECUTE format('CREATE TRIGGER store_restored BEFORE INSERT ON idempotency_data.%I
			FOR EACH STATEMENT EXECUTE FUNCTION idempotency_data.store_restored()', slot);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER store_restored', slot);
		EXECUTE format('COMMENT ON TRIGGER store_restored ON idempotency_data.%I IS %L',
			slot, 'fires for rows restored from a dump only');

		PERFORM pg_extension_config_dump(format('idempotency_data.%I', slot),
			format('WHERE CASE WHEN kind = 2 THEN false ELSE run IN (
	SELECT m.run FROM idempotency_data.%I AS m
	 WHERE m.kind = 0
	   AND (pg_catalog.pg_visible_in_snapshot(m.packer, pg_catalog.pg_current_snapshot())
			OR m.packer::text::numeric - pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::numeric >= 2147483648.0)
	) END', slot));
	END LOOP;
END
$$;
