-- What the arms of the benchmark write to: the floors, and the rivals in the
-- form they are published in.
CREATE EXTENSION idempotency CASCADE;
CREATE EXTENSION pgstattuple;
CREATE SCHEMA bench;

-- Floor of a claim: one row, one uuid key.
CREATE TABLE bench.floor_claim (
	id uuid PRIMARY KEY
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
