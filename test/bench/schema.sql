-- What the arms of the benchmark write to: the floors, and the rivals in the
-- form they are published in.
CREATE EXTENSION idempotency CASCADE;
CREATE EXTENSION pgstattuple;
CREATE EXTENSION pageinspect;
CREATE EXTENSION pg_walinspect;
CREATE SCHEMA bench;

-- The table that an index, a TOAST table or its index belongs to; or itself.
CREATE FUNCTION bench.table_of(relation oid) RETURNS oid
LANGUAGE sql AS $$
	SELECT coalesce((SELECT c.oid FROM pg_class c WHERE c.reltoastrelid = base.oid), base.oid)
	  FROM (SELECT coalesce((SELECT indrelid FROM pg_index WHERE indexrelid = relation), relation) AS oid) base
$$;

-- Floor of a claim: one row, one uuid key.
CREATE TABLE bench.floor_claim (
	id uuid PRIMARY KEY
);

-- Floor of a lease: what a log of leases appends.
CREATE TABLE bench.floor_lease (
	number bigint GENERATED ALWAYS AS IDENTITY,
	digest uuid NOT NULL,
	lease_until timestamptz,
	event_id text,
	consumer text
);
CREATE INDEX ON bench.floor_lease (digest, number DESC);

-- Floors of leases, offsets and sequences where a plain table has a row for each, which is
-- updated in place.
CREATE TABLE bench.plain_lease (
	digest uuid PRIMARY KEY,
	token bigint NOT NULL,
	lease_until timestamptz NOT NULL,
	completed_at timestamptz
);
CREATE TABLE bench.floor_offset (
	consumer text NOT NULL,
	topic text NOT NULL,
	partition int NOT NULL,
	next_offset bigint NOT NULL,
	PRIMARY KEY (consumer, topic, partition)
);
CREATE TABLE bench.floor_producer (
	producer_id bigint PRIMARY KEY,
	epoch int NOT NULL
);
CREATE TABLE bench.floor_sequence (
	producer_id bigint NOT NULL,
	topic text NOT NULL,
	partition int NOT NULL,
	last_sequence bigint NOT NULL,
	PRIMARY KEY (producer_id, topic, partition)
);

-- A table of leases as one makes it oneself.
CREATE SEQUENCE bench.lease_token;
CREATE TABLE bench.lease (
	consumer varchar(255) NOT NULL,
	event_id varchar(255) NOT NULL,
	token bigint NOT NULL,
	attempt int NOT NULL,
	lease_until timestamptz NOT NULL,
	completed_at timestamptz,
	PRIMARY KEY (consumer, event_id)
);

-- The published claim flow and the bare INSERT ... ON CONFLICT.
CREATE TABLE bench.flow (
	consumer varchar(255) NOT NULL,
	event_id varchar(255) NOT NULL,
	status varchar(20) NOT NULL,
	claimed_at timestamptz NOT NULL DEFAULT now(),
	completed_at timestamptz,
	PRIMARY KEY (consumer, event_id)
);
CREATE TABLE bench.conflict (
	consumer varchar(255) NOT NULL,
	event_id varchar(255) NOT NULL,
	processed_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
);

-- The same in partitions by time, so that old rows can be dropped: unique within each only.
CREATE TABLE bench.conflict_parted (
	LIKE bench.conflict INCLUDING DEFAULTS,
	PRIMARY KEY (consumer, event_id, processed_at)
) PARTITION BY RANGE (processed_at);

-- The answer of a request, and a result of the same size.
CREATE TABLE bench.answer AS
SELECT '{"Content-Type": "application/json"}'::jsonb AS headers, convert_to(t, 'UTF8') AS body,
	   jsonb_build_object('status', 200, 'headers', '{"Content-Type": "application/json"}'::jsonb, 'body', t) AS result
  FROM (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 63) i) AS b (t);

-- Floor of an enqueue: what every outbox has to store, in a heap without index.
CREATE TABLE bench.floor_outbox (
	event_id uuid NOT NULL DEFAULT gen_random_uuid(),
	enqueued_at timestamptz NOT NULL DEFAULT now(),
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	event_type text NOT NULL,
	payload jsonb NOT NULL
);

-- The usual outbox table of a polling publisher.
CREATE TABLE bench.usual_outbox (
	event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	event_type text NOT NULL,
	payload jsonb NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	published_at timestamptz
);
CREATE INDEX usual_outbox_unpublished ON bench.usual_outbox (created_at)
	WHERE published_at IS NULL;

-- What a consumer makes of the records that it reads, and a producer with an epoch, which its
-- arm registers: claims look into the log of leases once a number of its rows was drawn.
CREATE TABLE bench.record (
	id bigint NOT NULL,
	body text NOT NULL
);
CREATE TABLE bench.keyed_record (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	record bigint NOT NULL,
	body text NOT NULL
);
CREATE TABLE bench.producer AS
SELECT * FROM idempotency.register_producer('bench', gapless => false)
WITH NO DATA;

-- What a function relay does with an event: one row.
CREATE TABLE bench.effect (
	event_id uuid NOT NULL
);
CREATE FUNCTION bench.on_event(event_id uuid) RETURNS void
LANGUAGE sql AS 'INSERT INTO bench.effect VALUES (event_id)';

CREATE SERVER null_sink FOREIGN DATA WRAPPER idempotency_null;
CREATE USER MAPPING FOR CURRENT_USER SERVER null_sink;
CREATE SERVER effect_sink FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'bench.on_event');

-- A handler that does nothing, so that the relay's own work shows.
CREATE FUNCTION bench.ignore_event(event_id uuid) RETURNS void
LANGUAGE plpgsql AS 'BEGIN END';
CREATE SERVER idle_sink FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'bench.ignore_event');

-- A handler that stamps the events that carry the time at which they were due.
CREATE TABLE bench.arrival (
	us bigint NOT NULL
);
CREATE FUNCTION bench.stamp_event(aggregate_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF aggregate_id !~ '^k' THEN
		INSERT INTO bench.arrival VALUES (1e6 * extract(epoch FROM clock_timestamp()) - aggregate_id::bigint);
	END IF;
END
$$;
CREATE SERVER stamp_sink FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'bench.stamp_event');

-- What the consumers of rivals say they have carried out.
CREATE UNLOGGED TABLE bench.drained (
	side text NOT NULL,
	n bigint NOT NULL
);

-- Ids as applications make them: version 4, and version 7 (time-ordered).
CREATE FUNCTION bench.id_random() RETURNS text
LANGUAGE sql AS 'SELECT gen_random_uuid()::text';
CREATE FUNCTION bench.id_ordered() RETURNS text
LANGUAGE sql AS $$
	SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
		PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1),
		52, 1), 53, 1), 'hex')::uuid::text
$$;
