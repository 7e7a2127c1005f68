-- Moving in: events that another table remembers become completed claims.

CREATE FUNCTION @extschema@.claims_progress(done bigint, total bigint)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claims_progress_fn';
COMMENT ON FUNCTION @extschema@.claims_progress(done bigint, total bigint) IS
'shows in stat_progress how far an import of this session has come, in whatever it counts; done = total ends it, and so does an error. claims_backfill calls it, and so may an import of your own';

-- Each transaction takes one page of the source, by a scan of a range of TIDs.  So
-- the procedure needs no index and no order of ids, and no snapshot lasts longer
-- than a page.  But each page is read at a moment of its own: an UPDATE may move a
-- row from a page that is not read yet to one that was.  So the last statement reads
-- the whole table, with one snapshot, for rows that were written since "since".  A
-- row that it sees and leaves out was committed before the first page was read, and
-- has stood in its page ever since.  Only a new file of the table moves rows as they
-- are (VACUUM FULL): then the procedure begins anew.
--
-- A loop that commits keeps the rest of its query in a tuplestore.  A procedure that
-- commits can have no SET clause, so each transaction begins with the settings that
-- the body needs.

CREATE PROCEDURE @extschema@.claims_backfill(source regclass, id_column name, consumer text = 'default',
	condition text = 'true', first_block bigint = 0, INOUT remembered bigint = 0)
LANGUAGE plpgsql
AS $$
DECLARE
	tries_at_busy CONSTANT int := 200;
	block bigint := claims_backfill.first_block;
	file oid;
	since xid;
	rereads boolean;
	read_page CONSTANT text := 'SELECT coalesce(array_agg(m.%1$I::text), ''{}'') FROM ONLY %2$s AS m'
		' WHERE m.ctid >= $1 AND m.ctid < $2 AND (%3$s)';
	-- Transaction ids go round; age() of an old row that is frozen may be anything.
	read_written CONSTANT text := 'SELECT array_agg(w.id) FROM'
		' (SELECT m.%1$I::text AS id, (row_number() OVER () - 1) / 200 AS part FROM ONLY %2$s AS m'
		' WHERE age(m.xmin) <= age($3) AND (%3$s)) AS w GROUP BY w.part';
	tries int;
	ids text[];
	mine text[];
	expired text[];
	known text[];
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	IF source IS NULL OR id_column IS NULL OR claims_backfill.consumer IS NULL OR condition IS NULL OR first_block IS NULL THEN
		RAISE EXCEPTION 'argument "%" must not be null',
			CASE WHEN source IS NULL THEN 'source' WHEN id_column IS NULL THEN 'id_column'
				 WHEN claims_backfill.consumer IS NULL THEN 'consumer' WHEN condition IS NULL THEN 'condition'
				 ELSE 'first_block' END
			USING ERRCODE = 'null_value_not_allowed';
	ELSIF first_block NOT BETWEEN 0 AND 4294967294 THEN
		RAISE EXCEPTION 'argument "first_block" must be between 0 and 4294967294'
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF NOT EXISTS (SELECT FROM pg_class c JOIN pg_am a ON a.oid = c.relam
					   WHERE c.oid = source AND c.relkind IN ('r', 'm') AND a.amname = 'heap') THEN
		RAISE EXCEPTION '"%" is not a table whose rows are stored in pages', source
			USING ERRCODE = 'wrong_object_type',
				HINT = 'Call it for each partition of a partitioned table; copy other relations into a table first.';
	ELSIF EXISTS (SELECT FROM pg_inherits WHERE inhparent = source) THEN
		RAISE EXCEPTION 'table "%" has children, whose rows would be left out', source
			USING ERRCODE = 'wrong_object_type',
				HINT = 'Call it for each child; if the table has rows of its own, copy them into another table first.';
	END IF;

	-- Nothing to claim: fails unless the caller may claim for the consumer.
	PERFORM @extschema@.claim_events('{}', claims_backfill.consumer);

	remembered := 0;
	LOOP
		PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
		-- A policy would hide rows silently; with this setting it raises an error.
		PERFORM set_config('row_security', 'off', true);
		IF file IS NULL THEN
			file := pg_relation_filenode(source);
			since := pg_snapshot_xmin(pg_current_snapshot())::xid;
		END IF;
		rereads := block >= pg_relation_size(source) / current_setting('block_size')::bigint;
		FOR ids IN EXECUTE format(CASE WHEN rereads THEN read_written ELSE read_page END, id_column, source, condition)
			USING format('(%s,0)', block)::tid, format('(%s,0)', block + 1)::tid, since
		LOOP
			IF array_position(ids, NULL) IS NOT NULL THEN
				RAISE EXCEPTION 'column "%" of table "%" is null%', id_column, source,
					CASE WHEN rereads THEN '' ELSE format(' in block %s', block) END
					USING ERRCODE = 'null_value_not_allowed',
						HINT = 'Leave such rows out by the condition.';
			END IF;
			tries := 0;
			WHILE ids <> '{}' LOOP
				IF tries > tries_at_busy THEN
					RAISE EXCEPTION 'event "%" of table "%" is busy', ids[1], source
						USING ERRCODE = 'lock_not_available',
							DETAIL = format('For more than 10 seconds another transaction has had it for consumer "%s", or it is leased or waits; %s.',
											claims_backfill.consumer,
											CASE WHEN rereads THEN 'all blocks were read once'
												 ELSE format('blocks before %s are remembered', block) END),
							HINT = 'Wait for that transaction, which may be a prepared one, or for the holder of the lease (view "leases"), and call claims_backfill again.';
				ELSIF tries > 0 THEN
					PERFORM pg_sleep(0.05);
				END IF;
				tries := tries + 1;
				-- Past the budget of locks, claims of consumers with foreign lockers are busy.
				PERFORM set_config('idempotency.max_claim_locks', '1000', true);

				SELECT coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'claimed'), '{}'),
					   coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'busy'), '{}'),
					   coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'expired'), '{}'),
					   coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'duplicate'), '{}')
				  INTO mine, ids, expired, known
				  FROM @extschema@.claim_events(ids, claims_backfill.consumer) c;
				-- An event that is too old by its id (expire_by_id_age) was handled all the same.
				IF expired <> '{}' THEN
					SELECT mine || coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'claimed'), '{}'),
						   ids || coalesce(array_agg(c.event_id) FILTER (WHERE c.result = 'busy'), '{}')
					  INTO mine, ids
					  FROM (SELECT e.event_id,
								   @extschema@.claim_event(e.event_id, claims_backfill.consumer, valid_until => 'infinity') AS result
							  FROM unnest(expired) AS e (event_id)) AS c;
				END IF;
				PERFORM @extschema@.complete_events(mine, claims_backfill.consumer);
				remembered := remembered + cardinality(mine);
				-- What is remembered already, and perhaps for a shorter time
				IF known <> '{}' THEN
					BEGIN
						PERFORM @extschema@.claims_renew(known, claims_backfill.consumer);
					EXCEPTION WHEN lock_not_available THEN
						ids := ids || known;
					END;
				END IF;
				COMMIT;
				PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
			END LOOP;
		END LOOP;
		-- The query has locked the table, so this is the file that it has read, or a later one.
		IF pg_relation_filenode(source) <> file THEN
			file := NULL;
			block := 0;
		ELSE
			EXIT WHEN rereads;
			block := block + 1;
		END IF;
		PERFORM @extschema@.claims_progress(block, greatest(block, pg_relation_size(source) / current_setting('block_size')::bigint) + 1);
		COMMIT;
	END LOOP;
	PERFORM @extschema@.claims_progress(0, 0);
END
$$;
COMMENT ON PROCEDURE @extschema@.claims_backfill(source regclass, id_column name, consumer text, condition text, first_block bigint, remembered bigint) IS
'for the rows of a table that meet a condition, remember the event whose id is in a column as completed: one page per transaction, and what was written meanwhile at the end; renews events that would be forgotten before the retention of the consumer is over, and waits for events that are busy';
