-- Maintenance of the store of claims: closed segments are packed into runs.

CREATE FUNCTION @extschema@.claims_maintain()
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claims_maintain_fn';
COMMENT ON FUNCTION @extschema@.claims_maintain() IS
'pack what claims remember: starts a background worker that does all there is to do, and waits until it has ended; false if none could be started, because all max_worker_processes are in use. Claims start such a worker by themselves when there is enough to pack';

CREATE FUNCTION idempotency_data.stat_claim_segments_source(
	OUT kind text, OUT number bigint, OUT slot int, OUT level int, OUT class text, OUT state text,
	OUT entries bigint, OUT bytes bigint, OUT oldest timestamptz, OUT newest timestamptz, OUT expires timestamptz, OUT held_by text)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 40
AS 'MODULE_PATHNAME', 'idem_stat_claim_segments_source_fn';
COMMENT ON FUNCTION idempotency_data.stat_claim_segments_source() IS
'source of the view stat_claim_segments; use the view instead';

CREATE VIEW @extschema@.stat_claim_segments AS
SELECT s.kind, s.number, s.slot, s.level, s.class, s.state, s.entries, s.bytes, s.oldest, s.newest, s.expires, s.held_by
  FROM idempotency_data.stat_claim_segments_source() AS s;
COMMENT ON VIEW @extschema@.stat_claim_segments IS
'where the store keeps what claims remember: segments that claims write to, and runs that segments were packed into';
COMMENT ON COLUMN @extschema@.stat_claim_segments.kind IS
'segment; run; or slot, for a table of runs that has none yet';
COMMENT ON COLUMN @extschema@.stat_claim_segments.number IS 'number of the segment, of the run or of the slot';
COMMENT ON COLUMN @extschema@.stat_claim_segments.slot IS 'number of the table that the run is in; null for a segment';
COMMENT ON COLUMN @extschema@.stat_claim_segments.level IS
'how often what is in the run was merged; null for a segment';
COMMENT ON COLUMN @extschema@.stat_claim_segments.class IS
'how long the entries of the run are remembered: hour, day, month or for ever; null for a segment';
COMMENT ON COLUMN @extschema@.stat_claim_segments.state IS
'of a segment: current = claims write to it, closed = to be packed, packed = to be emptied, empty; of a run: searched, merged = other runs took its place, unfinished = a restore brought it, and not all of its rows: those that are there are searched, or expired = to be dropped; of a slot: unfinished, or unknown while somebody locks it';
COMMENT ON COLUMN @extschema@.stat_claim_segments.entries IS
'events; of a segment with more than 64 pages an estimate, and those of transactions that aborted are included';
COMMENT ON COLUMN @extschema@.stat_claim_segments.bytes IS
'size of the segment with its index and with results out of line; of a run without filters and results';
COMMENT ON COLUMN @extschema@.stat_claim_segments.oldest IS 'no event in it was claimed before; null if it is empty';
COMMENT ON COLUMN @extschema@.stat_claim_segments.newest IS
'no event in a run was completed after; the latest claim in a segment';
COMMENT ON COLUMN @extschema@.stat_claim_segments.expires IS
'when the run may be dropped, if the server stays up until then; null for a segment, and for what is remembered for ever';
COMMENT ON COLUMN @extschema@.stat_claim_segments.held_by IS
'what keeps it from its next step: writer, reader, prepared transaction, snapshot, transaction (an open one that is older), packed segment (what has expired goes after it), lock, no empty segment, no empty slot, restore (the end mark or other rows of a run are to come), no packer (none is at work; the next claims start one), idempotency.store_maintenance (it is off); null if nothing does';
