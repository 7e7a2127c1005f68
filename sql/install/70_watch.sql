-- ---------------------------------------------------------------------------
-- What an operator looks at first
-- ---------------------------------------------------------------------------

CREATE FUNCTION @extschema@.doctor(
    OUT area text, OUT ok boolean, OUT finding text, OUT remedy text) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 20 AS 'MODULE_PATHNAME', 'idem_doctor_fn';
COMMENT ON FUNCTION @extschema@.doctor() IS
    'What is set wrongly, missing or stands still in this database and server: a row for each fault, with what to do about it, or one row for an area without. ok is null where nobody can tell. Changes nothing; a report of a fault begins with it.';

CREATE FUNCTION idempotency_data.progress_reports(
    OUT pid int, OUT job text, OUT object bigint, OUT done bigint, OUT total bigint, OUT unit text,
    OUT since timestamptz) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 5 AS 'MODULE_PATHNAME', 'idem_progress_reports_fn';
COMMENT ON FUNCTION idempotency_data.progress_reports() IS
    'What processes of this database report of their long jobs; a source of the view stat_progress.';

CREATE FUNCTION idempotency_data.relay_replays(
    OUT relay text, OUT done bigint, OUT total bigint, OUT since timestamptz) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 5 AS 'MODULE_PATHNAME', 'idem_relay_replays_fn';
COMMENT ON FUNCTION idempotency_data.relay_replays() IS
    'How far relays have come with what relay_replay sends again; a source of the view stat_progress.';

CREATE VIEW @extschema@.stat_progress AS
SELECT j.job, j.object, j.done, j.total, j.unit, j.since,
       CASE WHEN j.done > 0 AND j.total >= j.done
             -- an interval overflows at 9 * 10^12 seconds
             AND EXTRACT(epoch FROM pg_catalog.clock_timestamp() - j.since)::float8 * ((j.total - j.done)::float8 / j.done::float8) < '1e12'::float8
            THEN (pg_catalog.clock_timestamp() - j.since) * ((j.total - j.done)::float8 / j.done::float8) END AS remaining,
       j.pid
  FROM (SELECT p.job COLLATE "C",
               CASE p.job WHEN 'merging' THEN 'slot ' || p.object::text WHEN 'import' THEN NULL
                          ELSE 'segment ' || p.object::text END COLLATE "C",
               p.done, p.total, p.unit COLLATE "C", p.since, p.pid
          FROM idempotency_data.progress_reports() AS p
        UNION ALL
        SELECT 'replay', r.relay, r.done, r.total, 'events', r.since, NULL::int
          FROM idempotency_data.relay_replays() AS r)
       AS j (job, object, done, total, unit, since, pid);
COMMENT ON VIEW @extschema@.stat_progress IS
    'Long jobs that go on in this database, one row each: packing, merging and filling of what claims remember, imports of claims, and replays of relays.';
COMMENT ON COLUMN @extschema@.stat_progress.job IS
    'packing = a segment of remembered ids is packed; merging = packed ids are merged; filling = after a crash, the place of each remembered id is noted again; import = claims_backfill, or whoever calls claims_progress; replay = a relay sends again what relay_replay asked for.';
COMMENT ON COLUMN @extschema@.stat_progress.object IS
    'What the job works on: a segment or slot of stat_claim_segments, or a relay; NULL for an import.';
COMMENT ON COLUMN @extschema@.stat_progress.done IS 'How much is done.';
COMMENT ON COLUMN @extschema@.stat_progress.total IS 'How much there is to do; for a replay an estimate beyond 1,000 events.';
COMMENT ON COLUMN @extschema@.stat_progress.unit IS
    'What done and total count: entries, pages or events; NULL for an import, which counts what it likes, claims_backfill pages.';
COMMENT ON COLUMN @extschema@.stat_progress.since IS 'When the job began.';
COMMENT ON COLUMN @extschema@.stat_progress.remaining IS
    'How long it takes yet, if it goes on as fast as it did so far; NULL: nothing is done yet, or next to nothing.';
COMMENT ON COLUMN @extschema@.stat_progress.pid IS
    'The process that does it; NULL for a replay: see pid of stat_relay.';

-- Short texts for a screen: at most 6, 6 and 8 characters.  The planner takes the bodies
-- into the query, as long as these are expressions and no argument is volatile.
-- Here as in all scripts, a constant beside a numeric is one: to "numeric > int" a database
-- has no best operator whose cast from numeric to int was made implicit.
-- Their bodies are parsed here: in a body that is a string, names would be those of the caller's search_path.
CREATE FUNCTION idempotency_data.short_number(n numeric) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN n < 10.0 AND n <> pg_catalog.trunc(n) THEN pg_catalog.round(n, 1)::text
                WHEN n < 99999.5 THEN pg_catalog.round(n)::text
                WHEN n < 99999500.0 THEN pg_catalog.round(n / 1000.0)::text || 'k'
                WHEN n < 99999500000.0 THEN pg_catalog.round(n / 1000000.0)::text || 'M'
                ELSE pg_catalog.round(n / 1000000000.0)::text || 'G' END;
COMMENT ON FUNCTION idempotency_data.short_number(numeric) IS
    'A number for the view watch.';

CREATE FUNCTION idempotency_data.short_time(t interval) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN t < '100 s' THEN GREATEST(EXTRACT(epoch FROM t)::bigint, 0)::text || ' s'
                WHEN t < '100 min' THEN (EXTRACT(epoch FROM t)::bigint / 60)::text || ' min'
                WHEN t < '100 h' THEN (EXTRACT(epoch FROM t)::bigint / 3600)::text || ' h'
                ELSE (EXTRACT(epoch FROM t)::bigint / 86400)::text || ' d' END;
COMMENT ON FUNCTION idempotency_data.short_time(interval) IS
    'A length of time for the view watch.';

CREATE FUNCTION idempotency_data.short_size(bytes bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN bytes < 10240 THEN bytes::text || ' B' ELSE pg_catalog.pg_size_pretty(bytes) END;
COMMENT ON FUNCTION idempotency_data.short_size(bigint) IS
    'A size for the view watch.';

-- The log of leases is not read here: its length would be the price of each look.
CREATE VIEW @extschema@.watch AS
-- By name: with a star an update that adds a column to stat_relay would have to make this view anew
WITH relays AS MATERIALIZED (
    SELECT relay, state, waiting_for, lag_events, lag_bytes, retrying, oldest_waiting, rate, dead
      FROM @extschema@.stat_relay),
segments AS MATERIALIZED (SELECT events, bytes, oldest, held_by FROM @extschema@.outbox_segments()),
rows AS (
    SELECT 1 AS part, 0::bigint AS place, p.job AS kind, p.object AS name,
           NULL::numeric AS per_s, (p.total - p.done)::numeric AS waiting, p.since AS oldest, NULL::bigint AS bytes,
           (CASE WHEN p.total > 0 THEN pg_catalog.div(p.done::numeric * 100.0, p.total::numeric)::text || ' % done' ELSE 'begins' END)
           || COALESCE(', ' || idempotency_data.short_time(p.remaining) || ' left', '') AS state
      FROM @extschema@.stat_progress p
    UNION ALL
    SELECT 2, 1, 'outbox', NULL, NULL, pg_catalog.sum(s.events), pg_catalog.min(s.oldest), pg_catalog.sum(s.bytes)::bigint,
           CASE WHEN NOT EXISTS (SELECT FROM relays) THEN CASE WHEN pg_catalog.sum(s.events) > 0.0 THEN 'no relay reads it' END
                ELSE COALESCE('held by ' || pg_catalog.string_agg(DISTINCT s.held_by, ', '),
                              (SELECT 'for relay ' || r.relay FROM relays r WHERE r.lag_bytes > 0 ORDER BY r.lag_bytes DESC, r.relay LIMIT 1),
                              CASE WHEN pg_catalog.sum(s.events) > 0.0 THEN 'retention' END) END
      FROM segments s
    UNION ALL
    SELECT 2, 2, 'store', NULL, NULL, NULL, NULL,
           (SELECT pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))::bigint FROM pg_catalog.pg_class c
             WHERE c.relnamespace = 'idempotency_data'::pg_catalog.regnamespace AND c.relkind IN ('r', 'S') AND c.relname LIKE 'store\_%'),
           'held by ' || (SELECT pg_catalog.string_agg(DISTINCT s.held_by, ', ') FROM @extschema@.stat_claim_segments s)
    UNION ALL
    SELECT 2, 3, 'leases', NULL, NULL, NULL, NULL, l.table_bytes + l.index_bytes, 'held by ' || l.held_by FROM idempotency_data.stat_leases_source() l
    UNION ALL
    SELECT 2, 4, 'cursors', NULL, NULL, NULL, NULL, c.table_bytes + c.index_bytes, 'held by ' || c.held_by FROM idempotency_data.stat_cursors_source() c
    UNION ALL
    SELECT CASE WHEN r.state IN ('streaming', 'idle', 'starting') AND r.dead = 0 THEN 4 ELSE 3 END,
           -(COALESCE(r.lag_events, 0) + r.retrying), 'relay', r.relay, r.rate, (r.lag_events + r.retrying)::numeric, r.oldest_waiting, r.lag_bytes,
           CASE WHEN r.dead > 0 THEN idempotency_data.short_number(r.dead) || ' dead, ' ELSE '' END
           || r.state || COALESCE(': ' || NULLIF(r.waiting_for, 'events'), '')
      FROM relays r
    UNION ALL
    SELECT 5, -(v.claimed + v.duplicate + v.busy), 'consumer', v.consumer, NULL, NULL, NULL, NULL,
           idempotency_data.short_number(v.claimed) || ' claimed, ' || idempotency_data.short_number(v.duplicate) || ' dup, '
           || idempotency_data.short_number(v.busy) || ' busy'
      FROM idempotency_data.claim_verdicts() v)
SELECT w.kind COLLATE "C" AS kind,
       (CASE WHEN pg_catalog.length(w.name) > 16 THEN pg_catalog."left"(w.name, 15) || '~' ELSE w.name END) COLLATE "C" AS name,
       idempotency_data.short_number(w.per_s) AS per_s,
       idempotency_data.short_number(w.waiting) AS waiting,
       idempotency_data.short_time(pg_catalog.statement_timestamp() - w.oldest) AS oldest,
       idempotency_data.short_size(w.bytes) AS size,
       (CASE WHEN pg_catalog.length(w.state) > 28 THEN pg_catalog."left"(w.state, 27) || '~' ELSE w.state END) COLLATE "C" AS state
  FROM rows w
 ORDER BY w.part, w.place, w.name COLLATE "C";
COMMENT ON VIEW @extschema@.watch IS
    'What goes on in this database, for \watch 1 on a screen of 100 columns: long jobs, what holds the disk, relays (those that need somebody first, then by what waits), consumers by their verdicts. Texts are shortened, ~ stands for what was cut; programs read the views stat_*.';
COMMENT ON COLUMN @extschema@.watch.kind IS
    'A job of stat_progress; outbox, store (what claims remember), leases or cursors (the logs); relay; or consumer.';
COMMENT ON COLUMN @extschema@.watch.name IS 'Name of the relay or consumer, or what the job works on.';
COMMENT ON COLUMN @extschema@.watch.per_s IS 'Events that the relay delivers per second.';
COMMENT ON COLUMN @extschema@.watch.waiting IS
    'Events that wait for the relay, parked ones included and dead letters not; events in the outbox; what is left of the job.';
COMMENT ON COLUMN @extschema@.watch.oldest IS
    'Age of the oldest of these; of a job, since when it runs.';
COMMENT ON COLUMN @extschema@.watch.size IS 'Bytes on disk; of a relay, what the outbox keeps for it.';
COMMENT ON COLUMN @extschema@.watch.state IS
    'State of the relay, what it waits for, and its dead letters; verdicts of the consumer since the server started, dup = duplicate; how far the job is; what holds the disk: what keeps the outbox, the store or the log from giving space back at this moment.';
