-- Cursors: how far streams have come, committed with the effect.

-- Rows are appended to one of three tables, which take turns, as those of the log of
-- leases do.  The numbers of the rows are drawn from lease_number, too.
CREATE FUNCTION idempotency_data.cursor_restored()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_cursor_restored_fn';
COMMENT ON FUNCTION idempotency_data.cursor_restored() IS
'trigger: rows of the log of cursors that are restored from a dump are kept from now on, and their roles are those of this cluster';

DO $$
DECLARE
	log name;
BEGIN
	FOR n IN 0 .. 2 LOOP
		log := 'cursor_log_' || n::text;
		EXECUTE format('CREATE TABLE idempotency_data.%I (
			number bigint NOT NULL,
			digest uuid NOT NULL,
			kind "char" NOT NULL,
			what "char",
			"position" bigint,
			epoch bigint,
			accepted bigint,
			at timestamptz NOT NULL,
			in_epoch bigint,
			producer_id bigint,
			owner text COLLATE "C",
			topic text COLLATE "C",
			partition int,
			gapless boolean,
			role text,
			role_oid oid,
			role_cluster bigint,
			history bigint,
			written bigint,
			kept bigint,
			origin xid8,
			CONSTRAINT sound CHECK (
				number > 0 AND number < 7258118400000000 AND isfinite(at)
				AND (written IS NULL) = (kept IS NULL)
				AND (written IS NULL OR written BETWEEN 0 AND 1099511627776)
				AND (kept IS NULL OR kept BETWEEN 0 AND 1099511627776)
				AND ("position" IS NULL OR "position" >= 0) AND (epoch IS NULL OR epoch >= 0)
				AND (accepted IS NULL OR accepted BETWEEN 0 AND 1152921504606846976)
				AND (in_epoch IS NULL OR in_epoch BETWEEN 0 AND 1152921504606846976)
				AND (producer_id IS NULL OR producer_id > 0)
				AND CASE WHEN kind = ''m'' THEN true WHEN kind <> ''s'' OR what IS NULL THEN false
				WHEN what IN (''o'', ''s'')
				THEN partition IS NOT NULL AND topic IS NOT NULL AND octet_length(topic) <= 1020
					AND CASE what WHEN ''o'' THEN owner IS NOT NULL AND octet_length(owner) BETWEEN 1 AND 1020
						ELSE producer_id IS NOT NULL AND ("position" IS NULL OR "position" < 9223372036854775807) END
				WHEN what = ''p''
				THEN producer_id IS NOT NULL AND (epoch IS NULL OR (epoch <= 2147483647
					AND gapless IS NOT NULL AND history IS NOT NULL
					AND owner IS NOT NULL AND octet_length(owner) BETWEEN 1 AND 1020
					AND role IS NOT NULL AND octet_length(role) BETWEEN 1 AND 63))
				ELSE what = ''n'' AND owner IS NOT NULL AND octet_length(owner) BETWEEN 1 AND 1020 END)
		) WITH (
			autovacuum_freeze_min_age = 0,
			autovacuum_analyze_threshold = 2147483647
		)', log);
		EXECUTE format('CREATE INDEX %I ON idempotency_data.%I (digest, kind, number DESC) WITH (deduplicate_items = off)', log || '_key', log);
		EXECUTE format('COMMENT ON INDEX idempotency_data.%I IS %L', log || '_key',
			'leads to the newest row of each cursor');
		EXECUTE format('COMMENT ON TABLE idempotency_data.%I IS %L', log,
			format('table %s of the log of cursors, written by the functions of offsets and sequences only', n));
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.number IS %L', log,
			'of several rows of a key the one with the highest number counts');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.digest IS %L', log,
			'the first 16 bytes of the hash that gives the key of the lock; zero in a marker');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.kind IS %L', log,
			's = state, m = marker: the table with the newest one is current');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.what IS %L', log,
			'o = a consumer''s offset in a partition, s = a producer''s sequence in a partition, p = a producer''s registration, n = a producer''s id by its name');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I."position" IS %L', log,
			'o: the next offset; s: the last sequence');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.epoch IS %L', log,
			'o: the generation; s, p: the epoch; null in a row that says that nothing is known');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.accepted IS %L', log, 'records of all epochs');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.at IS %L', log, 'when the row was written');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.in_epoch IS %L', log, 'records of this epoch');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.producer_id IS %L', log, 'id of the producer');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.owner IS %L', log, 'the consumer, or the name of the producer');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.topic IS %L', log, 'what the partition is a part of');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.partition IS %L', log, 'number of the partition');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.gapless IS %L', log,
			'the producer''s rule: its sequences have no gaps');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.role IS %L', log, 'role that registered the producer first');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.role_oid IS %L', log, 'its OID in that cluster; 0: there was no such role');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.role_cluster IS %L', log,
			'system identifier of the cluster in which the role has the OID');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.history IS %L', log,
			'a hash of the database and the history in which the epoch was given out; 0: the row is from a dump');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.written IS %L', log,
			'when the row was written, in seconds of store_clock; null: it does not expire');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.kept IS %L', log,
			'for how many seconds after that it is kept, if the producer does nothing');
		EXECUTE format('COMMENT ON COLUMN idempotency_data.%I.origin IS %L', log,
			'of a copy that a turn of the tables made: the transaction that wrote the row; null: the row''s own');
		EXECUTE format('CREATE TRIGGER cursor_restored BEFORE INSERT ON idempotency_data.%I
			FOR EACH ROW EXECUTE FUNCTION idempotency_data.cursor_restored()', log);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER cursor_restored', log);
		EXECUTE format('COMMENT ON TRIGGER cursor_restored ON idempotency_data.%I IS %L', log,
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

-- Offsets

CREATE TYPE @extschema@.offset_result AS ENUM ('claimed', 'duplicate', 'gap', 'fenced', 'busy');
COMMENT ON TYPE @extschema@.offset_result IS
'outcome of asking for offsets: claimed = make the effect and commit; duplicate = committed before; gap = offsets before them were never claimed; fenced = a newer generation reads the partition; busy = somebody''s transaction is open';

CREATE FUNCTION @extschema@.resume_offset(consumer text, topic text, partition int, generation bigint = NULL,
	wait interval = '10 s', OUT result @extschema@.offset_result, OUT next_offset bigint)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_resume_offset_fn';
COMMENT ON FUNCTION @extschema@.resume_offset(text, text, int, bigint, interval) IS
'where does a reader of a partition go on: claimed = at next_offset, or at the beginning of its choice if that is null, and older generations are fenced from the commit on; waits for the former reader''s open transaction';

CREATE FUNCTION @extschema@.claim_offset(consumer text, topic text, partition int, first_offset bigint,
	next_offset bigint = NULL, generation bigint = NULL, wait interval = '0',
	OUT result @extschema@.offset_result, OUT new_from bigint)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claim_offset_fn';
COMMENT ON FUNCTION @extschema@.claim_offset(text, text, int, bigint, bigint, bigint, interval) IS
'claim the record at first_offset, or what lies from first_offset up to, not including, next_offset: claimed = from new_from on it is new, and it is remembered when this transaction commits; there is nothing to complete';

CREATE FUNCTION @extschema@.reset_offset(consumer text, topic text, partition int, next_offset bigint = NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_reset_offset_fn';
COMMENT ON FUNCTION @extschema@.reset_offset(text, text, int, bigint) IS
'have a consumer go on at another offset of a partition; without an offset forget the partition and its generation; returns whether anything was known of it';

-- Producers and their sequences

CREATE TYPE @extschema@.sequence_result AS ENUM ('accepted', 'duplicate', 'gap', 'fenced', 'busy');
COMMENT ON TYPE @extschema@.sequence_result IS
'outcome of claiming a sequence: accepted = make the effect and commit; duplicate = committed before, as record_number; gap = not the sequence that is expected; fenced = a newer epoch was registered, or the producer is forgotten; busy = somebody''s transaction is open';

CREATE FUNCTION @extschema@.register_producer(producer text, gapless boolean = true,
	OUT producer_id bigint, OUT epoch int)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_register_producer_fn';
COMMENT ON FUNCTION @extschema@.register_producer(text, boolean) IS
'register a producer, at each of its starts: older epochs are fenced from the commit on, and a gapless one begins at sequence 0; waits for open transactions that claim under it';

CREATE FUNCTION @extschema@.claim_sequence(producer_id bigint, epoch int, sequence bigint, topic text = '',
	partition int = 0, count int = 1, wait interval = '0',
	OUT result @extschema@.sequence_result, OUT record_number bigint, OUT expected bigint)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claim_sequence_fn';
COMMENT ON FUNCTION @extschema@.claim_sequence(bigint, int, bigint, text, int, int, interval) IS
'claim count records from a sequence on: accepted = they are remembered when this transaction commits; duplicate = they were accepted before; record_number counts a partition''s records over all epochs; expected is the next sequence';

CREATE FUNCTION @extschema@.last_sequence(producer_id bigint, topic text = '', partition int = 0)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_last_sequence_fn';
COMMENT ON FUNCTION @extschema@.last_sequence(bigint, text, int) IS
'the last sequence that was accepted of a producer in a partition, where one that is not gapless goes on after it has registered; null: none';

CREATE FUNCTION @extschema@.producer_drop(producer text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_producer_drop_fn';
COMMENT ON FUNCTION @extschema@.producer_drop(text) IS
'forget a producer and what it has sent; its claims are answered fenced from the commit on';
