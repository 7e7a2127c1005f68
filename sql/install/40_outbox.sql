--
-- Outbox: a ring of segments, the functions that append to it, and views.
--

CREATE SEQUENCE idempotency_data.outbox_seq AS bigint CACHE 1;
COMMENT ON SEQUENCE idempotency_data.outbox_seq IS
'numbers the events in the order in which they were enqueued';

CREATE SEQUENCE idempotency_data.outbox_generation AS bigint MINVALUE 0 START WITH 0 CACHE 1;
COMMENT ON SEQUENCE idempotency_data.outbox_generation IS
'the current segment of the outbox is the last value modulo 8';

CREATE FUNCTION idempotency_data.outbox_restamp()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_outbox_restamp_fn';
COMMENT ON FUNCTION idempotency_data.outbox_restamp() IS
'gives events that are restored from a dump the transaction id of the restore';

-- The segments.  Their columns are in an order that needs no padding.  The
-- functions below append rows, and the rows go when their segment is emptied.
-- Nothing updates or deletes rows, so autovacuum has nothing to do.
DO $$
DECLARE
	segment name;
BEGIN
	FOR n IN 0 .. 7 LOOP
		segment := 'outbox_segment_' || n::text;
		EXECUTE format('CREATE TABLE idempotency_data.%I (
			xid xid8 NOT NULL,
			seq bigint NOT NULL,
			event_id uuid NOT NULL,
			enqueued_at timestamptz NOT NULL,
			aggregate_type text NOT NULL,
			aggregate_id text NOT NULL,
			event_type text NOT NULL,
			payload jsonb,
			payload_bytes bytea,
			content_type text,
			headers jsonb,
			CONSTRAINT sound CHECK (
				seq > 0 AND seq < 4611686018427387904 AND isfinite(enqueued_at)
				AND octet_length(aggregate_type) BETWEEN 1 AND 1020 AND octet_length(aggregate_id) BETWEEN 1 AND 1020
				AND octet_length(event_type) BETWEEN 1 AND 1020
				AND (content_type IS NULL OR octet_length(content_type) BETWEEN 1 AND 1020)
				AND (payload IS NULL) <> (payload_bytes IS NULL))
		) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', segment);
		EXECUTE format('COMMENT ON TABLE idempotency_data.%I IS %L',
			segment, format('segment %s of the outbox; use the view outbox_events', n));

		EXECUTE format('CREATE INDEX %I ON idempotency_data.%I (xid, seq) WITH (deduplicate_items = off)',
			segment || '_xid_seq_idx', segment);
		EXECUTE format('COMMENT ON INDEX idempotency_data.%I IS %L',
			segment || '_xid_seq_idx', 'finds the events of a transaction, in order');

		EXECUTE format('CREATE TRIGGER outbox_restamp BEFORE INSERT ON idempotency_data.%I
			FOR EACH ROW EXECUTE FUNCTION idempotency_data.outbox_restamp()', segment);
		EXECUTE format('ALTER TABLE idempotency_data.%I ENABLE ALWAYS TRIGGER outbox_restamp', segment);
		EXECUTE format('COMMENT ON TRIGGER outbox_restamp ON idempotency_data.%I IS %L',
			segment, 'fires for rows restored from a dump only');

		PERFORM pg_extension_config_dump(format('idempotency_data.%I', segment), '');
	END LOOP;
END
$$;

-- Two dumps may have events of the same number in different segments, where no
-- index would notice.  From the first enqueue on restored events are refused, and
-- housekeeping empties the table.
CREATE TABLE idempotency_data.outbox_restored (
	seq bigint CONSTRAINT outbox_restored_pkey PRIMARY KEY
);
COMMENT ON TABLE idempotency_data.outbox_restored IS
'numbers of the events that were restored from a dump, until the first event is enqueued';
COMMENT ON CONSTRAINT outbox_restored_pkey ON idempotency_data.outbox_restored IS
'no two restored events have the same number';

-- Neither sequence is part of a dump: the setval of a restore would set the
-- sequences of a database in use back.  After a restore, the first enqueue finds
-- the greatest number.

CREATE FUNCTION @extschema@.outbox_enqueue(
	aggregate_type text,
	aggregate_id text,
	event_type text,
	payload jsonb,
	headers jsonb DEFAULT NULL,
	event_id uuid DEFAULT NULL,
	dedup_id text DEFAULT NULL,
	dedup_window interval DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 CALLED ON NULL INPUT
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue(text, text, text, jsonb, jsonb, uuid, text, interval, timestamptz, timestamptz) IS
'append an event to the outbox, which is relayed if this transaction commits; returns the id of the event. If the dedup_id was used for the aggregate type within the window of its first use (dedup_window, 5 minutes if null), nothing is appended, and the id of the first event is returned';

CREATE FUNCTION @extschema@.outbox_enqueue_bytes(
	aggregate_type text,
	aggregate_id text,
	event_type text,
	payload bytea,
	content_type text DEFAULT 'application/octet-stream',
	headers jsonb DEFAULT NULL,
	event_id uuid DEFAULT NULL,
	dedup_id text DEFAULT NULL,
	dedup_window interval DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 CALLED ON NULL INPUT
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_bytes_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue_bytes(text, text, text, bytea, text, jsonb, uuid, text, interval, timestamptz, timestamptz) IS
'append an event with a binary payload to the outbox; returns the id of the event, or of the first event with that dedup_id within its window';

CREATE FUNCTION @extschema@.outbox_enqueue_many(
	aggregate_type text,
	aggregate_ids text[],
	event_types text[],
	payloads jsonb[],
	headers jsonb[] DEFAULT NULL,
	event_ids uuid[] DEFAULT NULL,
	dedup_ids text[] DEFAULT NULL,
	dedup_window interval DEFAULT NULL,
	deliver_ats timestamptz[] DEFAULT NULL,
	expires_ats timestamptz[] DEFAULT NULL)
RETURNS SETOF uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 CALLED ON NULL INPUT ROWS 100
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_many_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue_many(text, text[], text[], jsonb[], jsonb[], uuid[], text[], interval, timestamptz[], timestamptz[]) IS
'append one event per array element to the outbox; returns the ids of the events in the same order; for a dedup id that was used within its window, that of its first event';

CREATE FUNCTION idempotency_data.outbox_events_source(
	OUT event_id uuid, OUT seq bigint, OUT aggregate_type text, OUT aggregate_id text,
	OUT event_type text, OUT payload jsonb, OUT payload_bytes bytea, OUT content_type text,
	OUT headers jsonb, OUT enqueued_at timestamptz)
RETURNS SETOF record
LANGUAGE C STABLE PARALLEL RESTRICTED ROWS 100000
AS 'MODULE_PATHNAME', 'idem_outbox_events_source_fn';
COMMENT ON FUNCTION idempotency_data.outbox_events_source() IS
'source of the view outbox_events; use the view instead';

CREATE VIEW @extschema@.outbox_events AS
SELECT (e.r).event_id AS event_id, (e.r).seq AS seq, (e.r).aggregate_type AS aggregate_type,
	(e.r).aggregate_id AS aggregate_id, (e.r).event_type AS event_type,
	(e.r).payload AS payload, (e.r).payload_bytes AS payload_bytes,
	(e.r).content_type AS content_type, (e.r).headers AS headers,
	(e.r).enqueued_at AS enqueued_at
FROM (SELECT idempotency_data.outbox_events_source() AS r) AS e;
COMMENT ON VIEW @extschema@.outbox_events IS
'events in the outbox, delivered or not, until their segment is emptied';
COMMENT ON COLUMN @extschema@.outbox_events.event_id IS 'id of the event, which goes to the sinks with it';
COMMENT ON COLUMN @extschema@.outbox_events.seq IS
'number of the event in the order of enqueueing, which is not the order of commits';
COMMENT ON COLUMN @extschema@.outbox_events.aggregate_type IS 'kind of thing that the event is about';
COMMENT ON COLUMN @extschema@.outbox_events.aggregate_id IS
'which of that kind: events of one aggregate are delivered in their order';
COMMENT ON COLUMN @extschema@.outbox_events.event_type IS 'what happened to it';
COMMENT ON COLUMN @extschema@.outbox_events.payload IS
'the event as JSON; null if it was enqueued as bytes';
COMMENT ON COLUMN @extschema@.outbox_events.payload_bytes IS
'the event as bytes; null if it was enqueued as JSON';
COMMENT ON COLUMN @extschema@.outbox_events.content_type IS
'media type of payload_bytes; null if the event is JSON';
COMMENT ON COLUMN @extschema@.outbox_events.headers IS
'JSON object that is sent beside the payload; null: none';
COMMENT ON COLUMN @extschema@.outbox_events.enqueued_at IS 'when outbox_enqueue was called';

CREATE FUNCTION @extschema@.outbox_segments(
	OUT segment int,
	OUT is_current boolean,
	OUT events bigint,
	OUT bytes bigint,
	OUT first_xid xid8,
	OUT last_xid xid8,
	OUT oldest timestamptz,
	OUT newest timestamptz,
	OUT held_by text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 8
AS 'MODULE_PATHNAME', 'idem_outbox_segments_fn';
COMMENT ON FUNCTION @extschema@.outbox_segments() IS
'state of each segment of the outbox; the number of events is an estimate, which includes uncommitted events; held_by: what keeps a closed segment at this moment, apart from relays and the retention';

CREATE FUNCTION idempotency_data.outbox_generation()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_outbox_generation_fn';
COMMENT ON FUNCTION idempotency_data.outbox_generation() IS
'a number that rises when a segment of the outbox is closed; modulo 8 it is the current segment';

CREATE FUNCTION idempotency_data.outbox_last_seq()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_outbox_last_seq_fn';
COMMENT ON FUNCTION idempotency_data.outbox_last_seq() IS
'the last number given to an event of the outbox';

CREATE FUNCTION @extschema@.outbox_mend_seq()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_outbox_mend_seq_fn';
COMMENT ON FUNCTION @extschema@.outbox_mend_seq() IS
'if somebody has set the sequence of event numbers: makes it go on after the greatest number in use; returns the last number';

CREATE VIEW @extschema@.stat_outbox AS
SELECT idempotency_data.outbox_generation() AS generation,
	pg_catalog.max(s.segment) FILTER (WHERE s.is_current) AS current_segment,
	pg_catalog.count(*) FILTER (WHERE s.first_xid IS NOT NULL) AS segments_used,
	pg_catalog.count(*) AS segments,
	pg_catalog.sum(s.events)::bigint AS events,
	pg_catalog.sum(s.bytes)::bigint AS bytes,
	pg_catalog.min(s.oldest) AS oldest,
	pg_catalog.max(s.newest) AS newest,
	idempotency_data.outbox_last_seq() AS last_seq
FROM @extschema@.outbox_segments() AS s;
COMMENT ON VIEW @extschema@.stat_outbox IS
'size and age of the outbox; the number of events is an estimate, which includes uncommitted events';
COMMENT ON COLUMN @extschema@.stat_outbox.generation IS 'a number that rises when a segment is closed';
COMMENT ON COLUMN @extschema@.stat_outbox.current_segment IS
'number of the segment that events are appended to';
COMMENT ON COLUMN @extschema@.stat_outbox.segments_used IS 'segments that have events';
COMMENT ON COLUMN @extschema@.stat_outbox.segments IS 'all segments';
COMMENT ON COLUMN @extschema@.stat_outbox.events IS
'estimated number of events, those not committed and those rolled back included';
COMMENT ON COLUMN @extschema@.stat_outbox.bytes IS
'size of the segments on disk, with indexes and TOAST tables';
COMMENT ON COLUMN @extschema@.stat_outbox.oldest IS
'when the oldest event that is still there was enqueued; null: there is none';
COMMENT ON COLUMN @extschema@.stat_outbox.newest IS
'when the newest event was enqueued; null: there is none';
COMMENT ON COLUMN @extschema@.stat_outbox.last_seq IS 'the last number given to an event';
