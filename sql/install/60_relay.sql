-- ---------------------------------------------------------------------------
-- Relays: their configuration, positions and parked events
-- ---------------------------------------------------------------------------

CREATE TYPE @extschema@.relay_start AS ENUM ('earliest', 'latest');
COMMENT ON TYPE @extschema@.relay_start IS
    'Where a new relay begins: with the earliest event that is still in the outbox, or after the latest event.';

CREATE TYPE @extschema@.relay_ordering AS ENUM ('none', 'key');
COMMENT ON TYPE @extschema@.relay_ordering IS
    'key: no event overtakes an earlier event of its aggregate; none: later events overtake an event that is retried.';

CREATE TYPE @extschema@.relay_on_dead AS ENUM ('skip', 'block_key', 'stop');
COMMENT ON TYPE @extschema@.relay_on_dead IS
    'What a dead letter does: later events pass it, later events of its aggregate wait, or the relay stops.';

CREATE TYPE @extschema@.parked_state AS ENUM ('retry', 'waiting', 'dead', 'in_flight');
COMMENT ON TYPE @extschema@.parked_state IS
    'retry: refused, to be tried again; waiting: behind a parked event of its aggregate, or passed over while the target refuses all; dead: given up; in_flight: sent, and without an answer while later events were accepted.';

CREATE TYPE @extschema@.relay_halt AS ENUM ('dead_letter', 'sink', 'max_lag_size', 'history');
COMMENT ON TYPE @extschema@.relay_halt IS
    'Why a relay waits until an operator acts: a dead letter under on_dead => stop, a sink whose target wants no more events, a lag larger than max_lag_size, or transaction ids that went back behind the relay''s position; that last one shows as diverged, and relay_adopt ends it.';

CREATE TABLE idempotency_data.relays (
    relay_id int PRIMARY KEY,
    relay text COLLATE "C" NOT NULL UNIQUE,
    owner text COLLATE "C" NOT NULL,
    owner_oid oid NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    halted @extschema@.relay_halt,
    halt_message text,
    epoch bigint NOT NULL,
    server_epoch bigint NOT NULL DEFAULT 0,
    incarnation text COLLATE "C" NOT NULL,
    identity text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- the options, as IDEM_RELAY_ARGUMENTS of src/relay/row.h has them
    aggregate_types text[] COLLATE "C",
    ordering @extschema@.relay_ordering NOT NULL,
    on_dead @extschema@.relay_on_dead NOT NULL,
    retry_for interval NOT NULL,
    max_attempts int NOT NULL,
    min_backoff interval,
    max_backoff interval,
    batch_events int NOT NULL,
    batch_size bigint NOT NULL,
    max_lag_size bigint,
    -- the last relay_replay since a time: when, and what was there then
    replay_at timestamptz,
    replay_events bigint,
    replay_seq bigint,
    CONSTRAINT sound CHECK (
        relay_id BETWEEN 1 AND 1999999999 AND octet_length(relay) BETWEEN 1 AND 1020
        AND epoch BETWEEN 0 AND 1152921504606846976 AND server_epoch BETWEEN 0 AND 1152921504606846976
        AND array_position(aggregate_types, NULL) IS NULL AND coalesce(array_ndims(aggregate_types), 1) = 1
        AND extract(epoch FROM retry_for) * 1000.0 BETWEEN 0.0 AND 3155760000000.0
        AND max_attempts BETWEEN 0 AND 1000000
        AND extract(epoch FROM min_backoff) * 1000.0 BETWEEN 1.0 AND 86400000.0
        AND extract(epoch FROM max_backoff) * 1000.0 BETWEEN 1.0 AND 86400000.0
        AND batch_events BETWEEN 1 AND 10000
        AND batch_size BETWEEN 1024 AND 16777216
        AND max_lag_size BETWEEN 1048576 AND 9223372036854775807
        AND isfinite(replay_at) AND replay_events BETWEEN 0 AND 1000000000000000
        AND replay_seq BETWEEN 0 AND 4611686018427387903)
);
COMMENT ON TABLE idempotency_data.relays IS
    'The configuration of each relay, one row per relay. Only the relay_* functions change it. The relay''s server and owner are those of the foreign table relay_<relay_id>.';
COMMENT ON COLUMN idempotency_data.relays.owner IS
    'Name of the foreign table''s owner at the last look. If a restore left the table to another role, the relay does not run.';
COMMENT ON COLUMN idempotency_data.relays.owner_oid IS
    'OID of the role "owner" in the cluster that "identity" names; 0 in a restored row.';
COMMENT ON COLUMN idempotency_data.relays.retry_for IS
    '0: no limit.';
COMMENT ON COLUMN idempotency_data.relays.max_attempts IS
    '0: no limit.';
COMMENT ON COLUMN idempotency_data.relays.min_backoff IS
    'NULL: the default.';
COMMENT ON COLUMN idempotency_data.relays.max_backoff IS
    'NULL: the default.';
COMMENT ON COLUMN idempotency_data.relays.batch_size IS
    'Bytes.';
COMMENT ON COLUMN idempotency_data.relays.max_lag_size IS
    'Bytes; NULL: no limit.';
COMMENT ON COLUMN idempotency_data.relays.replay_at IS
    'When relay_replay moved the position back last; NULL: never.';
COMMENT ON COLUMN idempotency_data.relays.replay_events IS
    'The events after the position at that time, counted as lag_events.';
COMMENT ON COLUMN idempotency_data.relays.replay_seq IS
    'The last number given to an event at that time.';
COMMENT ON COLUMN idempotency_data.relays.halted IS
    'Why the relay waits until an operator acts; NULL: it does not wait.';
COMMENT ON COLUMN idempotency_data.relays.halt_message IS
    'What the sink said of the reason; NULL: nothing.';
COMMENT ON COLUMN idempotency_data.relays.epoch IS
    'Raised when an operator moves the position; rows of the position log with another epoch do not count.';
COMMENT ON COLUMN idempotency_data.relays.server_epoch IS
    'The epoch that began when relay_alter led the relay to its present server; 0: it has had no other since it was created or adopted.';
COMMENT ON COLUMN idempotency_data.relays.incarnation IS
    'Names this position log to a sink that stores positions; relay_adopt sets a new one. Empty after a restore of the row or of events: until relay_adopt the relay sends nothing.';
COMMENT ON COLUMN idempotency_data.relays.identity IS
    'Publish identity and database that the relay is bound to; under any other the relay sends nothing.';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.relays', '');
CREATE FUNCTION idempotency_data.relays_restore()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_relays_restore_fn';
COMMENT ON FUNCTION idempotency_data.relays_restore() IS
    'Trigger: lets a relay that comes from a dump wait for relay_adopt, under an epoch of its own.';
CREATE TRIGGER relays_restore BEFORE INSERT ON idempotency_data.relays
    FOR EACH ROW EXECUTE FUNCTION idempotency_data.relays_restore();
COMMENT ON TRIGGER relays_restore ON idempotency_data.relays IS
    'Acts only on rows that are restored from a dump.';
ALTER TABLE idempotency_data.relays ENABLE ALWAYS TRIGGER relays_restore;

-- Ids are never used again, so remains of a dropped relay are not taken for
-- another relay's.  The sequence is not dumped: relay_create goes on after the ids
-- that were restored.
CREATE SEQUENCE idempotency_data.relay_id_seq AS int;
COMMENT ON SEQUENCE idempotency_data.relay_id_seq IS
    'Numbers the relays.';

-- Positions are appended to one of these two tables.  When that table has grown,
-- the other table becomes current, the rows that are still needed are copied to
-- it, and the first table is emptied in place.
CREATE TABLE idempotency_data.relay_log_0 (
    id bigint NOT NULL,
    epoch bigint NOT NULL,
    life bigint NOT NULL,
    acked_row bigint NOT NULL,
    acked_k bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    relay_id int NOT NULL,
    kind "char" NOT NULL,
    fresh "char" NOT NULL,
    base pg_catalog.pg_snapshot NOT NULL,
    target pg_catalog.pg_snapshot,
    CONSTRAINT sound CHECK (
        id > 0 AND id < 1152921504606846976 AND isfinite(at)
        AND kind IN ('m', 's', 'r', 'p', 'n', 'q', 't', 'e') AND fresh IN ('n', 'm', 's', 'b', 'a'))
) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
CREATE TABLE idempotency_data.relay_log_1 (LIKE idempotency_data.relay_log_0 INCLUDING CONSTRAINTS)
    WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
COMMENT ON TABLE idempotency_data.relay_log_0 IS
    'Position log; rows are only appended. Delivered are the events that "base" sees, and of the events that "target" sees those up to number "seq". relay_id 0: only a snapshot, to cut a long backlog at, or of what the outbox has emptied.';
COMMENT ON COLUMN idempotency_data.relay_log_0.kind IS
    'Why the row was written. m: an operator set the position; s: a batch carries the id of the row to a sink that stores positions; r: all events before it are settled; p: events were passed that were not for the sink; n: the sink stored row "acked_row"; q: the sink stored row "acked_row" with repeated events; t: tick; e: all events that the outbox has emptied are of transactions that "base" sees.';
COMMENT ON COLUMN idempotency_data.relay_log_0.acked_row IS
    'The row that the sink had stored when this row was written, as far as was known; 0: not known. "acked_k" is the number of the event up to which it had stored the difference of that row.';
COMMENT ON COLUMN idempotency_data.relay_log_0.fresh IS
    'n: a sink had confirmed something of the epoch. Otherwise the letter says what began the epoch: m: create, alter or replay; s: alter to another server; b: the same, and another move since; a: adopt.';
COMMENT ON COLUMN idempotency_data.relay_log_0.life IS
    'A random number for each start of a sink program. The sink stores it with the id, so that rows of a copy of this database can be told from rows of this database.';
COMMENT ON TABLE idempotency_data.relay_log_1 IS
    'The other half of the position log; see relay_log_0.';
CREATE SEQUENCE idempotency_data.relay_log_id MAXVALUE 1152921504606846975;
COMMENT ON SEQUENCE idempotency_data.relay_log_id IS
    'Numbers the rows of the position log; a sink that stores positions stores this number.';

CREATE TABLE idempotency_data.relay_parked (
    parked_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay_id int NOT NULL,
    state @extschema@.parked_state NOT NULL,
    attempts int NOT NULL,
    next_attempt_at timestamptz,
    batch_row bigint,
    batch_life bigint,
    xid pg_catalog.xid8 NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    enqueued_at timestamptz NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id text COLLATE "C" NOT NULL,
    event_type text COLLATE "C" NOT NULL,
    payload jsonb,
    payload_bytes bytea,
    content_type text COLLATE "C",
    headers jsonb,
    sqlstate text COLLATE "C",
    error text,
    first_failed_at timestamptz,
    last_failed_at timestamptz,
    crashes int NOT NULL DEFAULT 0,
    deferrals int NOT NULL DEFAULT 0,
    relay_created_at timestamptz,
    tried_for interval NOT NULL DEFAULT '0',
    UNIQUE (relay_id, event_id),
    CONSTRAINT sound CHECK (
        relay_id BETWEEN 1 AND 1999999999
        AND attempts >= 0 AND crashes >= 0 AND deferrals >= 0 AND isfinite(enqueued_at)
        AND seq > 0 AND seq < 4611686018427387904
        AND (next_attempt_at IS NULL OR isfinite(next_attempt_at))
        AND octet_length(aggregate_type) BETWEEN 1 AND 1020 AND octet_length(aggregate_id) BETWEEN 1 AND 1020
        AND octet_length(event_type) BETWEEN 1 AND 1020
        AND (content_type IS NULL OR octet_length(content_type) BETWEEN 1 AND 1020)
        AND (payload IS NULL) <> (payload_bytes IS NULL))
);
COMMENT ON TABLE idempotency_data.relay_parked IS
    'Events that a relay has taken out of the order of the outbox: to be retried, waiting behind a parked event, for the target to take any or for a late answer, or dead. The rows are copies, so that the outbox can be emptied.';
COMMENT ON COLUMN idempotency_data.relay_parked.batch_row IS
    'The position row of the repetition that is under way to a sink that stores positions: once the sink has stored this row, the event is delivered.';
COMMENT ON COLUMN idempotency_data.relay_parked.batch_life IS
    'The start of the sink program that the repetition was sent to.';
COMMENT ON COLUMN idempotency_data.relay_parked.crashes IS
    'Number of attempts at which the event took the server down, or ended its program alone. After one, the event is tried alone, to a function with a note in relay_attempts; it is dead after two that took the server down, and after three that ended its program.';
COMMENT ON COLUMN idempotency_data.relay_parked.deferrals IS
    'Number of failures in a row that do not count, such as deadlocks, or refusals by a target that refuses all; the wait before the next try grows with it.';
COMMENT ON COLUMN idempotency_data.relay_parked.tried_for IS
    'For how long the event has been tried: the times between refusals that count and those before them. The event is dead when that reaches retry_for.';
COMMENT ON COLUMN idempotency_data.relay_parked.relay_created_at IS
    'When the relay was created. It tells the relay from one of another database with the same id, after a restore.';
-- A worker finds a row by parked_id, and knows which row is next.  So no column that
-- the worker changes with each attempt needs to be in an index.
CREATE INDEX relay_parked_dead ON idempotency_data.relay_parked (relay_id) WHERE state = 'dead';
COMMENT ON INDEX idempotency_data.relay_parked_dead IS
    'Finds the dead letters of a relay.';
CREATE INDEX relay_parked_open ON idempotency_data.relay_parked (relay_id, enqueued_at) WHERE state <> 'dead';
COMMENT ON INDEX idempotency_data.relay_parked_open IS
    'Finds the parked events of a relay that are not dead, however many are.';
CREATE FUNCTION idempotency_data.relay_parked_restore()
RETURNS trigger LANGUAGE C AS 'MODULE_PATHNAME', 'idem_relay_parked_restore_fn';
COMMENT ON FUNCTION idempotency_data.relay_parked_restore() IS
    'Trigger: accepts parked events of a dump only if the outbox is not in use, and their id of a relay is not another relay''s.';
CREATE TRIGGER relay_parked_restore BEFORE INSERT ON idempotency_data.relay_parked
    FOR EACH ROW EXECUTE FUNCTION idempotency_data.relay_parked_restore();
COMMENT ON TRIGGER relay_parked_restore ON idempotency_data.relay_parked IS
    'Acts only on rows that are restored from a dump.';
ALTER TABLE idempotency_data.relay_parked ENABLE ALWAYS TRIGGER relay_parked_restore;
COMMENT ON SEQUENCE idempotency_data.relay_parked_parked_id_seq IS
    'Numbers the rows of relay_parked; not dumped, restored rows get new numbers.';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.relay_parked', '');

-- The table is not dumped: where a dump is restored, relay_adopt sends all that the outbox has.
CREATE TABLE idempotency_data.relay_blocked (
    blocked_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay_id int NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id text COLLATE "C" NOT NULL,
    base pg_catalog.pg_snapshot NOT NULL,
    target pg_catalog.pg_snapshot,
    seq bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT sound CHECK (
        seq >= 0 AND seq < 4611686018427387904 AND isfinite(since)
        AND octet_length(aggregate_type) BETWEEN 1 AND 1020 AND octet_length(aggregate_id) BETWEEN 1 AND 1020)
);
COMMENT ON TABLE idempotency_data.relay_blocked IS
    'Aggregates whose events wait in the outbox, behind a refused event: those after a position. They are read again, and parked, when no event of the aggregate is parked any more.';
COMMENT ON COLUMN idempotency_data.relay_blocked.base IS
    'The position, with "target" and "seq", as in relay_log_0.';
COMMENT ON COLUMN idempotency_data.relay_blocked.since IS
    'When the aggregate''s first event was left in the outbox.';
COMMENT ON SEQUENCE idempotency_data.relay_blocked_blocked_id_seq IS
    'Numbers the rows of relay_blocked.';

-- The table is not dumped: only the next start of this server can use it.
CREATE TABLE idempotency_data.relay_attempts (
    relay_id int PRIMARY KEY,
    attempt bigint NOT NULL,
    event_id uuid
) WITH (fillfactor = 10);
COMMENT ON TABLE idempotency_data.relay_attempts IS
    'The event that a function relay hands to its handler alone. The row is written before the call, so an event that a row still names after a crash took the server down.';
COMMENT ON COLUMN idempotency_data.relay_attempts.event_id IS
    'NULL: the last attempt has ended.';

-- ---------------------------------------------------------------------------
-- One foreign-data wrapper per kind of sink
-- ---------------------------------------------------------------------------

DO $$
DECLARE
	kind text;
	note text;
BEGIN
	FOR kind, note IN VALUES
		('function', 'Sink: a SQL function of this database, called in the transaction that stores the position. Exactly once.'),
		('postgres', 'Sink: another PostgreSQL; position and effect commit in one remote transaction. Exactly once.'),
		('kafka', 'Sink: topics of Kafka; records and position commit in one transaction of the brokers. Exactly once.'),
		('http', 'Sink: webhooks, and queues of clouds with an HTTP interface. At least once, with the event''s id in each request.'),
		('nats', 'Sink: a stream of NATS JetStream; messages and position are stored in one atomic batch. Exactly once, or at least once.'),
		('redis', 'Sink: streams of Redis or Valkey; entries and position are added by one script. Exactly once.'),
		('rabbitmq', 'Sink: exchanges of RabbitMQ by AMQP 0-9-1, with confirms. At least once. Or a stream of RabbitMQ, exactly once.'),
		('mqtt', 'Sink: topics of a broker of MQTT 5. At least once, with the event''s id in each message.'),
		('null', 'Sink: a program that acknowledges events and discards them, for measurements.'),
		('program', 'Sink: any program that speaks the sink protocol; the option "program" names the program.')
	LOOP
		EXECUTE format('CREATE FUNCTION idempotency_data.%I(options text[], catalog oid) RETURNS void LANGUAGE c AS %L, %L',
			'sink_' || kind || '_validator', 'MODULE_PATHNAME', 'idem_sink_' || kind || '_validator');
		EXECUTE format('COMMENT ON FUNCTION idempotency_data.%I IS %L', 'sink_' || kind || '_validator',
			'Checks the options of CREATE SERVER and CREATE USER MAPPING for idempotency_' || kind || '.');
		EXECUTE format('CREATE FOREIGN DATA WRAPPER %I VALIDATOR idempotency_data.%I', 'idempotency_' || kind, 'sink_' || kind || '_validator');
		EXECUTE format('COMMENT ON FOREIGN DATA WRAPPER %I IS %L', 'idempotency_' || kind, note);
	END LOOP;
END $$;

-- ---------------------------------------------------------------------------
-- Operating a relay
-- ---------------------------------------------------------------------------

CREATE FUNCTION @extschema@.relay_create(
    relay text, server text DEFAULT NULL, aggregate_types text[] DEFAULT NULL,
    event_types text[] DEFAULT NULL, filter text DEFAULT NULL,
    start_at @extschema@.relay_start DEFAULT 'earliest',
    ordering @extschema@.relay_ordering DEFAULT 'key',
    on_dead @extschema@.relay_on_dead DEFAULT 'skip',
    retry_for interval DEFAULT '3 days', max_attempts int DEFAULT 0,
    min_backoff interval DEFAULT NULL, max_backoff interval DEFAULT NULL,
    batch_events int DEFAULT 1000, batch_size text DEFAULT '1MB', max_lag_size text DEFAULT NULL,
    max_rate numeric DEFAULT NULL, max_key_rate numeric DEFAULT NULL,
    max_in_flight int DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_create_fn';
COMMENT ON FUNCTION @extschema@.relay_create IS
    'Creates a relay from the outbox of this database to a server; the relay acts as the role that creates it.';

CREATE FUNCTION @extschema@.relay_alter(
    relay text, server text DEFAULT NULL, aggregate_types text[] DEFAULT NULL,
    event_types text[] DEFAULT NULL, filter text DEFAULT NULL,
    start_at @extschema@.relay_start DEFAULT NULL,
    ordering @extschema@.relay_ordering DEFAULT NULL,
    on_dead @extschema@.relay_on_dead DEFAULT NULL,
    retry_for interval DEFAULT NULL, max_attempts int DEFAULT NULL,
    min_backoff interval DEFAULT NULL, max_backoff interval DEFAULT NULL,
    batch_events int DEFAULT NULL, batch_size text DEFAULT NULL, max_lag_size text DEFAULT NULL,
    max_rate numeric DEFAULT NULL, max_key_rate numeric DEFAULT NULL,
    max_in_flight int DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_alter_fn';
COMMENT ON FUNCTION @extschema@.relay_alter IS
    'Changes a relay; an argument that is NULL keeps the present value, 0 or an empty list takes a limit or a list away. start_at moves the position.';

CREATE FUNCTION @extschema@.relay_drop(relay text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_drop_fn';
COMMENT ON FUNCTION @extschema@.relay_drop(text) IS
    'Drops a relay, its position and its parked events.';

CREATE FUNCTION @extschema@.relay_pause(relay text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_pause_fn';
COMMENT ON FUNCTION @extschema@.relay_pause(text) IS
    'Stops sending after the events in flight; the position stays, and the outbox keeps the events after it.';

CREATE FUNCTION @extschema@.relay_resume(relay text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_resume_fn';
COMMENT ON FUNCTION @extschema@.relay_resume(text) IS
    'Lets a paused or halted relay go on.';

CREATE FUNCTION @extschema@.relay_adopt(relay text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_adopt_fn';
COMMENT ON FUNCTION @extschema@.relay_adopt(text) IS
    'Binds a relay to this cluster and database under a new incarnation: after a copy, after a restore, or when the relay is diverged.';

CREATE FUNCTION @extschema@.relay_check(
    relay text, OUT what text, OUT ok boolean, OUT problem text, OUT remedy text) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10 AS 'MODULE_PATHNAME', 'idem_relay_check_fn';
COMMENT ON FUNCTION @extschema@.relay_check(text) IS
    'Looks whether a relay is set up right, here and at its target: a row for each thing. Connects, sends nothing and changes nothing.';

CREATE FUNCTION @extschema@.relay_replay(
    relay text, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    event_id uuid DEFAULT NULL, aggregate_types text[] DEFAULT NULL,
    aggregate_ids text[] DEFAULT NULL, event_types text[] DEFAULT NULL,
    preview boolean DEFAULT false,
    OUT events bigint, OUT first_at timestamptz, OUT last_at timestamptz) RETURNS record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_replay_fn';
COMMENT ON FUNCTION @extschema@.relay_replay(text, timestamptz, timestamptz, uuid, text[], text[],
    text[], boolean) IS
    'Sends events again that are still in the outbox: one event, or at least all events enqueued since a time.';

CREATE FUNCTION @extschema@.relay_redrive(
    relay text, event_ids uuid[] DEFAULT NULL, event_types text[] DEFAULT NULL,
    sqlstate text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
    max_rate numeric DEFAULT NULL) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_redrive_fn';
COMMENT ON FUNCTION @extschema@.relay_redrive(text, uuid[], text[], text, timestamptz, timestamptz,
    numeric) IS
    'Tries dead letters again, all or those that are given by id, type, SQLSTATE and time of the last failure; returns their number.';

CREATE FUNCTION @extschema@.relay_discard(
    relay text, event_ids uuid[] DEFAULT NULL, event_types text[] DEFAULT NULL,
    sqlstate text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL)
    RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_discard_fn';
COMMENT ON FUNCTION @extschema@.relay_discard(text, uuid[], text[], text, timestamptz, timestamptz) IS
    'Forgets dead letters, all or those that are given by id, type, SQLSTATE and time of the last failure; returns their number.';

CREATE FUNCTION @extschema@.sink_setup_sql(server text) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_sink_setup_sql_fn';
COMMENT ON FUNCTION @extschema@.sink_setup_sql(text) IS
    'The statements to run on the remote side before a relay to this server can work; nothing is created silently.';

CREATE FUNCTION @extschema@.sink_setup(server text, relay text DEFAULT NULL) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_sink_setup_fn';
COMMENT ON FUNCTION @extschema@.sink_setup(text, text) IS
    'What to run at the target before the relay (default: the relay with the server''s name) can work: SQL or commands for a shell; nothing is created silently.';

CREATE FUNCTION idempotency_data.relay_status(
    OUT relay_id int, OUT state text, OUT waiting_for text, OUT rate float8, OUT sent bigint,
    OUT retried bigint, OUT last_error text, OUT last_error_at timestamptz, OUT pid int,
    OUT sink_pid int, OUT waiting_since timestamptz, OUT delivered_at timestamptz) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_status_fn';
COMMENT ON FUNCTION idempotency_data.relay_status() IS
    'What the workers of this database report of their relays; a source of the view stat_relay.';

CREATE FUNCTION idempotency_data.relay_lag(
    OUT relay_id int, OUT "position" text, OUT lag_events bigint, OUT lag interval,
    OUT lag_bytes bigint, OUT oldest timestamptz) RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 AS 'MODULE_PATHNAME', 'idem_relay_lag_fn';
COMMENT ON FUNCTION idempotency_data.relay_lag() IS
    'Stored positions of the relays, and their lag; a source of the view stat_relay.';

CREATE FUNCTION idempotency_data.stat_relay_source(
    OUT relay_id int, OUT relay text, OUT server text, OUT paused boolean, OUT dead bigint,
    OUT retrying bigint, OUT in_flight bigint, OUT oldest timestamptz) RETURNS SETOF record
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'idem_stat_relay_source_fn';
COMMENT ON FUNCTION idempotency_data.stat_relay_source() IS
    'Relays and the numbers of their parked events; a source of the view stat_relay.';

CREATE VIEW @extschema@.stat_relay AS
SELECT r.relay COLLATE "C" AS relay, r.server COLLATE "C" AS server,
       COALESCE(s.state, CASE WHEN r.paused THEN 'paused' ELSE 'not running' END) AS state,
       COALESCE(s.waiting_for,
                CASE WHEN s.state IS NULL AND NOT r.paused THEN 'worker' END) AS waiting_for,
       s.waiting_since,
       l."position", l.lag_events + r.in_flight AS lag_events, l.lag, l.lag_bytes,
       r.retrying, LEAST(l.oldest, r.oldest) AS oldest_waiting, s.delivered_at,
       pg_catalog.round(s.rate::numeric, 3) AS rate,
       s.sent, s.retried, NULL::bigint AS filtered, NULL::bigint AS expired, r.dead,
       s.last_error, s.last_error_at, s.pid, s.sink_pid
  FROM idempotency_data.stat_relay_source() r
  LEFT JOIN idempotency_data.relay_status() s ON s.relay_id = r.relay_id
  LEFT JOIN idempotency_data.relay_lag() l ON l.relay_id = r.relay_id;
COMMENT ON VIEW @extschema@.stat_relay IS
    'One row per relay: state, what the relay waits for, position, lag, counters since its worker started, last error.';
COMMENT ON COLUMN @extschema@.stat_relay.relay IS 'Name of the relay.';
COMMENT ON COLUMN @extschema@.stat_relay.server IS
    'Name of the server that the relay sends to; NULL if the relay has lost it.';
COMMENT ON COLUMN @extschema@.stat_relay.state IS
    'starting, streaming, idle, outage, paused, halted, unadopted, diverged, fenced, unwitnessed, misconfigured, or not running.';
COMMENT ON COLUMN @extschema@.stat_relay.waiting_for IS
    'What the relay waits for; NULL if it waits for nothing.';
COMMENT ON COLUMN @extschema@.stat_relay.waiting_since IS
    'Since when the relay has waited for that without getting on; NULL if that is not known.';
COMMENT ON COLUMN @extschema@.stat_relay.position IS
    'Transaction id before which everything is delivered or parked; within a difference from..to/seq.';
COMMENT ON COLUMN @extschema@.stat_relay.lag_events IS
    'Committed events after the position, unread or in flight, of all types; counted up to 1,000, an estimate beyond. Also those before it whose answer is late.';
COMMENT ON COLUMN @extschema@.stat_relay.lag IS 'Age of the oldest event after the position; 0 if there is none.';
COMMENT ON COLUMN @extschema@.stat_relay.lag_bytes IS
    'What the outbox keeps for the relay: the size of the events after the position, or after the first one that waits in the outbox behind a refused event; an estimate beyond 1,000 events.';
COMMENT ON COLUMN @extschema@.stat_relay.retrying IS
    'Parked events that are neither dead nor in flight: refused and to be tried again, or waiting, behind a parked event of their aggregate or for the target to take any. Beyond about a hundred per aggregate they wait in the outbox, and lag_bytes counts them.';
COMMENT ON COLUMN @extschema@.stat_relay.oldest_waiting IS
    'When the oldest event was enqueued that is after the position, or parked and not dead; NULL if there is none.';
COMMENT ON COLUMN @extschema@.stat_relay.delivered_at IS
    'When the relay delivered an event last, since its worker started; NULL: none.';
COMMENT ON COLUMN @extschema@.stat_relay.rate IS
    'Events delivered per second, averaged over some 5 s, with three digits after the decimal point.';
COMMENT ON COLUMN @extschema@.stat_relay.sent IS
    'Events delivered since the worker started, at whatever attempt.';
COMMENT ON COLUMN @extschema@.stat_relay.retried IS 'Repeats of parked events since the worker started.';
COMMENT ON COLUMN @extschema@.stat_relay.filtered IS
    'Reserved for the number of events that a filter left out; NULL in this version.';
COMMENT ON COLUMN @extschema@.stat_relay.expired IS
    'Reserved for the number of events that expired; NULL in this version.';
COMMENT ON COLUMN @extschema@.stat_relay.dead IS 'Dead letters, as in the view dead_letters.';
COMMENT ON COLUMN @extschema@.stat_relay.last_error IS
    'The last thing that went wrong, which stays after recovery; shown to roles that may read dead_letters.';
COMMENT ON COLUMN @extschema@.stat_relay.last_error_at IS 'When the last problem was noted.';
COMMENT ON COLUMN @extschema@.stat_relay.pid IS
    'Process of the worker that serves the relay; NULL if none does.';
COMMENT ON COLUMN @extschema@.stat_relay.sink_pid IS
    'Process of the relay''s sink program; NULL if none runs.';

CREATE FUNCTION idempotency_data.dead_letters_source(
    OUT relay text, OUT event_id uuid, OUT attempts int, OUT sqlstate text, OUT error text,
    OUT first_failed_at timestamptz, OUT last_failed_at timestamptz) RETURNS SETOF record
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'idem_dead_letters_source_fn';
COMMENT ON FUNCTION idempotency_data.dead_letters_source() IS
    'Source of the view dead_letters; use the view instead.';

CREATE VIEW @extschema@.dead_letters AS
SELECT d.relay COLLATE "C" AS relay, d.event_id, d.attempts, d.sqlstate COLLATE "C" AS sqlstate,
       d.error, d.first_failed_at, d.last_failed_at
  FROM idempotency_data.dead_letters_source() d;
COMMENT ON VIEW @extschema@.dead_letters IS
    'Events that a relay has given up; relay_redrive and relay_discard act on them.';
COMMENT ON COLUMN @extschema@.dead_letters.relay IS 'Name of the relay.';
COMMENT ON COLUMN @extschema@.dead_letters.event_id IS 'Id of the event.';
COMMENT ON COLUMN @extschema@.dead_letters.attempts IS
    'Attempts that counted; relay_redrive sets them back to 0.';
COMMENT ON COLUMN @extschema@.dead_letters.sqlstate IS 'SQLSTATE of the last failure.';
COMMENT ON COLUMN @extschema@.dead_letters.error IS
    'Text of the last failure, as the handler or the target gave it; it may quote data.';
COMMENT ON COLUMN @extschema@.dead_letters.first_failed_at IS 'When the event was refused first.';
COMMENT ON COLUMN @extschema@.dead_letters.last_failed_at IS
    'When the event was refused last, and became dead.';
