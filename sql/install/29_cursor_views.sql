-- How far streams have come: views of cursors and producers.

CREATE FUNCTION idempotency_data.cursors_source(
	OUT consumer text, OUT producer text, OUT producer_id bigint, OUT topic text, OUT partition int,
	OUT next_offset bigint, OUT generation bigint, OUT last_sequence bigint, OUT epoch bigint,
	OUT records bigint, OUT since timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000
AS 'MODULE_PATHNAME', 'idem_cursors_source_fn';
COMMENT ON FUNCTION idempotency_data.cursors_source() IS
'source of the view cursors; use the view instead';

CREATE VIEW @extschema@.cursors WITH (security_barrier) AS
SELECT (p.r).consumer COLLATE "C" AS consumer,
	   (p.r).producer COLLATE "C" AS producer,
	   (p.r).producer_id AS producer_id,
	   (p.r).topic COLLATE "C" AS topic,
	   (p.r).partition AS partition,
	   (p.r).next_offset AS next_offset,
	   (p.r).generation AS generation,
	   (p.r).last_sequence AS last_sequence,
	   (p.r).epoch AS epoch,
	   (p.r).records AS records,
	   (p.r).since AS since
  FROM (SELECT idempotency_data.cursors_source() AS r) AS p;
COMMENT ON VIEW @extschema@.cursors IS
'how far each consumer has read each partition, and each producer has written each; as of now at every isolation level; of consumers and producers that the reader may claim for, or of all for operators';
COMMENT ON COLUMN @extschema@.cursors.consumer IS 'who reads the partition; null in a row of a producer';
COMMENT ON COLUMN @extschema@.cursors.producer IS 'who writes the partition; null in a row of a consumer';
COMMENT ON COLUMN @extschema@.cursors.producer_id IS 'id of the producer';
COMMENT ON COLUMN @extschema@.cursors.topic IS 'what the partition is a part of';
COMMENT ON COLUMN @extschema@.cursors.partition IS 'number of the partition';
COMMENT ON COLUMN @extschema@.cursors.next_offset IS
'the offset at which the consumer goes on; null: it has claimed nothing yet';
COMMENT ON COLUMN @extschema@.cursors.generation IS
'the highest generation of readers; null: none was given';
COMMENT ON COLUMN @extschema@.cursors.last_sequence IS 'the last sequence that was accepted of the producer';
COMMENT ON COLUMN @extschema@.cursors.epoch IS 'the epoch in which that was accepted';
COMMENT ON COLUMN @extschema@.cursors.records IS 'records that were accepted of the producer, in all epochs';
COMMENT ON COLUMN @extschema@.cursors.since IS 'when the last claim was made';

CREATE FUNCTION idempotency_data.producers_source(
	OUT producer text, OUT producer_id bigint, OUT epoch bigint, OUT gapless boolean, OUT owner text,
	OUT since timestamptz, OUT expires_at timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000
AS 'MODULE_PATHNAME', 'idem_producers_source_fn';
COMMENT ON FUNCTION idempotency_data.producers_source() IS
'source of the view producers; use the view instead';

CREATE VIEW @extschema@.producers WITH (security_barrier) AS
SELECT (p.r).producer COLLATE "C" AS producer,
	   (p.r).producer_id AS producer_id,
	   (p.r).epoch AS epoch,
	   (p.r).gapless AS gapless,
	   (p.r).owner COLLATE "C" AS owner,
	   (p.r).since AS since,
	   (p.r).expires_at AS expires_at
  FROM (SELECT idempotency_data.producers_source() AS r) AS p;
COMMENT ON VIEW @extschema@.producers IS
'registered producers, as of now at every isolation level: those that the reader may claim under, or all for operators';
COMMENT ON COLUMN @extschema@.producers.producer IS 'name of the producer';
COMMENT ON COLUMN @extschema@.producers.producer_id IS 'its id, which claims name it by';
COMMENT ON COLUMN @extschema@.producers.epoch IS 'its epoch; claims under an older one are fenced';
COMMENT ON COLUMN @extschema@.producers.gapless IS
'true: its sequences follow each other without a gap, from 0 on in each epoch; false: they rise';
COMMENT ON COLUMN @extschema@.producers.owner IS
'the role that registered it first; its members may claim under it';
COMMENT ON COLUMN @extschema@.producers.since IS
'when it was registered, or its use was last noted';
COMMENT ON COLUMN @extschema@.producers.expires_at IS
'when it is forgotten if it does nothing until then and the server stays up; its use is noted eight times in that time; null: never';

CREATE FUNCTION idempotency_data.stat_cursors_source(OUT table_bytes bigint, OUT index_bytes bigint, OUT held_by text)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_stat_cursors_source_fn';
COMMENT ON FUNCTION idempotency_data.stat_cursors_source() IS
'source of the view stat_cursors; use the view instead';

CREATE VIEW @extschema@.stat_cursors AS
SELECT s.table_bytes, s.index_bytes, s.held_by
  FROM idempotency_data.stat_cursors_source() AS s;
COMMENT ON VIEW @extschema@.stat_cursors IS
'what the log of cursors costs and what keeps it from being shortened: one row for the database';
COMMENT ON COLUMN @extschema@.stat_cursors.table_bytes IS 'size of the tables of the log';
COMMENT ON COLUMN @extschema@.stat_cursors.index_bytes IS 'size of the indexes of the tables';
COMMENT ON COLUMN @extschema@.stat_cursors.held_by IS
'what keeps a table of the log from being emptied: writer, prepared transaction, reader, or no worker (none is at work; the next claims start one); null if nothing does';
