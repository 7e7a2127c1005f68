--
-- Outbox: a ring of segments, the functions that append to it, and views.
--

CREATE SEQUENCE @extschema@.outbox_seq AS bigint CACHE 1;
COMMENT ON SEQUENCE @extschema@.outbox_seq IS
'numbers events in the order they were enqueued in';

CREATE SEQUENCE @extschema@.outbox_generation AS bigint MINVALUE 0 START WITH 0 CACHE 1;
COMMENT ON SEQUENCE @extschema@.outbox_generation IS
'the current segment of the outbox is the last value modulo 8';

-- The columns are in the order that needs no padding.  Rows are appended by
-- the functions below and leave with their segment; nothing updates or deletes
-- them, so there is nothing for autovacuum to do.
CREATE TABLE @extschema@.outbox_segment_0 (
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
	headers jsonb
) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE INDEX outbox_segment_0_xid_seq_idx
	ON @extschema@.outbox_segment_0 (xid, seq) WITH (deduplicate_items = off);

CREATE TABLE @extschema@.outbox_segment_1 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_2 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_3 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_4 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_5 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_6 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE @extschema@.outbox_segment_7 (LIKE @extschema@.outbox_segment_0 INCLUDING ALL)
	WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);

CREATE FUNCTION @extschema@.outbox_restamp()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_outbox_restamp_fn';
COMMENT ON FUNCTION @extschema@.outbox_restamp() IS
'gives events that are restored from a dump the transaction id of the restore';

COMMENT ON TABLE @extschema@.outbox_segment_0 IS
'segment 0 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_0_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_0
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_0 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_0 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_0', '');

COMMENT ON TABLE @extschema@.outbox_segment_1 IS
'segment 1 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_1_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_1
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_1 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_1 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_1', '');

COMMENT ON TABLE @extschema@.outbox_segment_2 IS
'segment 2 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_2_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_2
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_2 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_2 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_2', '');

COMMENT ON TABLE @extschema@.outbox_segment_3 IS
'segment 3 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_3_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_3
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_3 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_3 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_3', '');

COMMENT ON TABLE @extschema@.outbox_segment_4 IS
'segment 4 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_4_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_4
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_4 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_4 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_4', '');

COMMENT ON TABLE @extschema@.outbox_segment_5 IS
'segment 5 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_5_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_5
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_5 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_5 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_5', '');

COMMENT ON TABLE @extschema@.outbox_segment_6 IS
'segment 6 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_6_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_6
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_6 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_6 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_6', '');

COMMENT ON TABLE @extschema@.outbox_segment_7 IS
'segment 7 of the outbox; use the view outbox_events';
COMMENT ON INDEX @extschema@.outbox_segment_7_xid_seq_idx IS
'finds the events of a transaction, in order';
CREATE TRIGGER outbox_restamp BEFORE INSERT ON @extschema@.outbox_segment_7
	FOR EACH ROW EXECUTE FUNCTION @extschema@.outbox_restamp();
COMMENT ON TRIGGER outbox_restamp ON @extschema@.outbox_segment_7 IS
'fires for rows restored from a dump only';
ALTER TABLE @extschema@.outbox_segment_7 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.outbox_segment_7', '');

-- Neither sequence is part of a dump: setval of a restore would set those of a
-- database in use back.  After a restore the first event finds the greatest number.

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
LANGUAGE C VOLATILE PARALLEL UNSAFE CALLED ON NULL INPUT
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue(text, text, text, jsonb, jsonb, uuid, text, interval, timestamptz, timestamptz) IS
'append an event to the outbox, to be relayed if this transaction commits; returns its id';

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
LANGUAGE C VOLATILE PARALLEL UNSAFE CALLED ON NULL INPUT
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_bytes_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue_bytes(text, text, text, bytea, text, jsonb, uuid, text, interval, timestamptz, timestamptz) IS
'append an event with a binary payload to the outbox; returns its id';

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
LANGUAGE C VOLATILE PARALLEL UNSAFE CALLED ON NULL INPUT ROWS 100
AS 'MODULE_PATHNAME', 'idem_outbox_enqueue_many_fn';
COMMENT ON FUNCTION @extschema@.outbox_enqueue_many(text, text[], text[], jsonb[], jsonb[], uuid[], text[], interval, timestamptz[], timestamptz[]) IS
'append one event per array element to the outbox; returns their ids in the same order';

CREATE VIEW @extschema@.outbox_events AS
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_0
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_1
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_2
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_3
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_4
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_5
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_6
UNION ALL
SELECT event_id, seq, aggregate_type, aggregate_id, event_type,
	payload, payload_bytes, content_type, headers, enqueued_at
FROM @extschema@.outbox_segment_7;
COMMENT ON VIEW @extschema@.outbox_events IS
'events in the outbox, delivered or not, until their segment is emptied';

CREATE FUNCTION @extschema@.outbox_segments(
	OUT segment int,
	OUT is_current boolean,
	OUT events bigint,
	OUT bytes bigint,
	OUT first_xid xid8,
	OUT last_xid xid8,
	OUT oldest timestamptz,
	OUT newest timestamptz)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 8
AS 'MODULE_PATHNAME', 'idem_outbox_segments_fn';
COMMENT ON FUNCTION @extschema@.outbox_segments() IS
'state of each segment of the outbox; events are an estimate, uncommitted ones included';

CREATE FUNCTION @extschema@.outbox_generation()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_outbox_generation_fn';
COMMENT ON FUNCTION @extschema@.outbox_generation() IS
'rises when a segment of the outbox is closed; the current segment is this modulo 8';

CREATE FUNCTION @extschema@.outbox_last_seq()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_outbox_last_seq_fn';
COMMENT ON FUNCTION @extschema@.outbox_last_seq() IS
'the last number given to an event of the outbox';

CREATE FUNCTION @extschema@.outbox_mend_seq()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_outbox_mend_seq_fn';
COMMENT ON FUNCTION @extschema@.outbox_mend_seq() IS
'makes numbers of events go on after the greatest in use, if others have set the sequence; returns the last number';

CREATE VIEW @extschema@.stat_outbox AS
SELECT @extschema@.outbox_generation() AS generation,
	pg_catalog.max(s.segment) FILTER (WHERE s.is_current) AS current_segment,
	pg_catalog.count(*) FILTER (WHERE s.first_xid IS NOT NULL) AS segments_used,
	pg_catalog.count(*) AS segments,
	pg_catalog.sum(s.events)::bigint AS events,
	pg_catalog.sum(s.bytes)::bigint AS bytes,
	pg_catalog.min(s.oldest) AS oldest,
	pg_catalog.max(s.newest) AS newest,
	@extschema@.outbox_last_seq() AS last_seq
FROM @extschema@.outbox_segments() AS s;
COMMENT ON VIEW @extschema@.stat_outbox IS
'size and age of the outbox; events are an estimate, uncommitted ones included';
