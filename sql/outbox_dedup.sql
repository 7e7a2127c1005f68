--
-- outbox_enqueue(dedup_id => ...): within the window a repeat enqueues nothing
-- and gets the id of the first event.
--
SET TIME ZONE 'UTC';
CREATE TABLE sent (name text PRIMARY KEY, event_id uuid);

-- Enqueue, and remember the event's id under a name
CREATE FUNCTION send(name text, dedup_id text, aggregate_type text = 'orders', dedup_window interval = NULL,
	event_id uuid = NULL, payload jsonb = '1') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	id uuid := idempotency.outbox_enqueue(aggregate_type, name, 't', payload, event_id => event_id,
		dedup_id => dedup_id, dedup_window => dedup_window);
	first text;
BEGIN
	SELECT s.name INTO first FROM sent s WHERE s.event_id = id;
	IF first IS NOT NULL THEN RETURN 'repeat of ' || first; END IF;
	INSERT INTO sent VALUES (name, id);
	RETURN 'new';
END $$;
CREATE VIEW events AS SELECT aggregate_type, aggregate_id, event_id = (SELECT event_id FROM sent WHERE name = aggregate_id) AS id_returned
	FROM idempotency.outbox_events ORDER BY seq;
-- No packer by itself: it would close a segment at any time, and later rows would be in the next one
SET idempotency.store_maintenance = off;
-- The rows of dedup ids that are not packed
CREATE FUNCTION rows() RETURNS TABLE (consumer text, event_id text, turn int2, class int2, state "char", keep_id boolean, window_us text)
LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0..7 LOOP
		RETURN QUERY EXECUTE format('SELECT consumer, event_id, turn, class, state, keep_id, result->>''window_us''
			FROM idempotency_data.store_segment_%s WHERE consumer LIKE ''@dedup%%''', n);
	END LOOP;
END $$;
-- Let time pass for a dedup id: its rows become older
CREATE FUNCTION pass(id text, by interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0..7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET claimed_at = claimed_at - $2, completed_at = completed_at - $2
			WHERE consumer LIKE ''@dedup%%'' AND event_id = $1', n) USING id, by;
	END LOOP;
END $$;

-- SQS FIFO: the send succeeds and returns the original; nothing is enqueued, whatever the body is
SELECT send('sqs 1', 'sqs');
SELECT send('sqs 2', 'sqs', payload => '2');
SELECT * FROM events;
-- SQS FIFO: five minutes, from the first send; a repeat does not prolong them
SELECT pass('sqs', '4 min 30 s');
SELECT send('sqs 3', 'sqs');
SELECT pass('sqs', '30 s');
SELECT send('sqs 4', 'sqs');
SELECT send('sqs 5', 'sqs');
SELECT turn, class, state, keep_id, window_us FROM rows() ORDER BY turn;
-- SQS FIFO: the id is remembered although the message is gone
TRUNCATE idempotency_data.outbox_segment_0;
SELECT send('sqs 6', 'sqs');
-- SQS FIFO: the scope is the queue, here the aggregate type
SELECT send('sqs 7', 'sqs', 'payments');
-- SQS FIFO: content-based, SHA-256 of the body
SELECT send('content ' || n, encode(sha256(convert_to(p::text, 'UTF8')), 'hex'), payload => p)
	FROM unnest('{"{\"b\": 1, \"a\": 2}", "{\"a\": 2, \"b\": 1}", "{\"a\": 3}"}'::jsonb[]) WITH ORDINALITY p(p, n);
SELECT aggregate_id, payload FROM idempotency.outbox_events WHERE aggregate_id LIKE 'content%' ORDER BY seq;

-- Service Bus: a window from seconds to days, which each call chooses
SELECT send('bus 1', 'bus', dedup_window => '7 days');
SELECT pass('bus', '6 days 23:59:30');
SELECT send('bus 2', 'bus', dedup_window => '20 s');
SELECT pass('bus', '30 s');
SELECT send('bus 3', 'bus', dedup_window => '60 s');
SELECT pass('bus', '30 s');
SELECT send('bus 4', 'bus', dedup_window => '7 days');
SELECT pass('bus', '30 s');
SELECT send('bus 5', 'bus', dedup_window => '7 days');
SELECT turn, class, window_us FROM rows() WHERE event_id = 'bus' ORDER BY turn;

-- NATS JetStream: for ever, the first one stays
SELECT send('nats 1', 'nats', dedup_window => '100 years');
SELECT pass('nats', '500 years');
SELECT send('nats 2', 'nats', dedup_window => '2 min');
SELECT class, window_us FROM rows() WHERE event_id = 'nats';
-- NATS JetStream: the caller can tell a duplicate, if it gives the event an id
SELECT send('told', 'told', event_id => '00000000-0000-7000-8000-0000000000d1');
SELECT send('told again', 'told', event_id => '00000000-0000-7000-8000-0000000000d2');
-- the id of the repeat was not used
SELECT send('d2', NULL, event_id => '00000000-0000-7000-8000-0000000000d2');
-- a new dedup id does not make a used event id free, and is not used up by the error
SELECT send('d1', 'told too', event_id => '00000000-0000-7000-8000-0000000000d1');
SELECT send('told too', 'told too');

-- One transaction: a repeat of what it enqueued itself
BEGIN;
SELECT send('own 1', 'own');
SELECT send('own 2', 'own');
-- freed by ROLLBACK TO
SAVEPOINT s;
SELECT send('own 3', 'own s');
ROLLBACK TO s;
SELECT send('own 4', 'own s');
SAVEPOINT s;
SELECT send('own 5', 'own s');
ROLLBACK TO s;
-- no lock and no row of claims is kept, beside the locks on the tables
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
BEGIN;
SELECT send('own 6', 'own r');
ROLLBACK;
SELECT send('own 7', 'own r');
SELECT aggregate_id, id_returned FROM events WHERE aggregate_id LIKE 'own%';
-- the window runs within one transaction as well
BEGIN;
SELECT send('short 1', 'short', dedup_window => '1 us');
SELECT send('short 2', 'short', dedup_window => '1 min');
SELECT send('short 3', 'short', dedup_window => '1 min');
COMMIT;
SELECT turn, window_us FROM rows() WHERE event_id = 'short' ORDER BY turn;

-- Snapshots of a transaction that see the first
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT send('rr', 'told too');
SELECT send('rr 1', 'rr');
SELECT send('rr 2', 'rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT send('ser', 'rr');
COMMIT;

-- outbox_enqueue_bytes shares the ids
SELECT idempotency.outbox_enqueue_bytes('orders', 'bytes', 't', '\x00', dedup_id => 'nats') = event_id AS repeat FROM sent WHERE name = 'nats 1';

-- outbox_enqueue_many: ids in input order; the first of repeats in one call counts
CREATE FUNCTION send_many(names text[], dedup_ids text[], event_ids uuid[] = NULL) RETURNS TABLE (name text, same_as text) LANGUAGE sql AS $$
	WITH e AS MATERIALIZED (SELECT * FROM ROWS FROM (unnest(names), idempotency.outbox_enqueue_many('orders', names,
		array_fill('t'::text, ARRAY[cardinality(names)]), array_fill('1'::jsonb, ARRAY[cardinality(names)]),
		event_ids => event_ids, dedup_ids => dedup_ids)) WITH ORDINALITY e(name, event_id, n))
	SELECT e.name, COALESCE((SELECT s.name FROM sent s WHERE s.event_id = e.event_id),
		(SELECT f.name FROM e f WHERE f.event_id = e.event_id ORDER BY n LIMIT 1)) FROM e ORDER BY n
$$;
SELECT * FROM send_many('{z1,n1,y1,z2,nats2,y2,n2,z3}', '{z,NULL,y,z,nats,y,NULL,z}');
SELECT * FROM send_many('{z4,x1,y3}', '{z,x,y}');
SELECT * FROM send_many('{z5,y4}', '{z,y}');
SELECT aggregate_id FROM idempotency.outbox_events WHERE aggregate_id ~ '^[nxyz].*[0-9]$' AND aggregate_id !~ ' ' ORDER BY seq;
-- event ids of repeats are not used
SELECT * FROM send_many('{w1,w2,w3}', '{w,w,NULL}', '{00000000-0000-7000-8000-0000000000e1,00000000-0000-7000-8000-0000000000e2,00000000-0000-7000-8000-0000000000e2}');
SELECT aggregate_id, event_id FROM idempotency.outbox_events WHERE aggregate_id LIKE 'w%' ORDER BY seq;
-- not even twice
SELECT * FROM send_many('{v1,v2}', '{v,v}', '{00000000-0000-7000-8000-0000000000e3,00000000-0000-7000-8000-0000000000e3}');
-- all or nothing
SELECT * FROM send_many('{u1,u2}', '{u,NULL}', '{NULL,00000000-0000-7000-8000-0000000000e3}');
SELECT * FROM send_many('{u3}', '{u}');
-- many, and once more
SELECT count(DISTINCT e) FROM idempotency.outbox_enqueue_many('many', array_fill('i'::text, ARRAY[3000]), array_fill('t'::text, ARRAY[3000]),
	array_fill('1'::jsonb, ARRAY[3000]), dedup_ids => ARRAY(SELECT 'd' || n % 1000 FROM generate_series(1, 3000) n)) e;
SELECT count(DISTINCT e) FROM idempotency.outbox_enqueue_many('many', array_fill('i'::text, ARRAY[1001]), array_fill('t'::text, ARRAY[1001]),
	array_fill('1'::jsonb, ARRAY[1001]), dedup_ids => ARRAY(SELECT 'd' || n FROM generate_series(0, 1000) n)) e;
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = 'many';

-- Without dedup ids nothing is remembered
SELECT count(*) AS before FROM rows() \gset
SELECT send('plain 1', NULL), send('plain 2', NULL, dedup_window => '1 s');
SELECT * FROM send_many('{plain3,plain4}', '{NULL,NULL}');
SELECT count(*) - :before AS more FROM rows();

-- Limits and errors: nothing is changed
SELECT last_seq FROM idempotency.stat_outbox \gset
CREATE FUNCTION try(call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT idempotency.outbox_' || call;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT try(call) FROM (VALUES
	($$enqueue('a', 'i', 't', '1', dedup_id => '')$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => repeat('x', 1025))$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => repeat('é', 513))$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => 'e', dedup_window => '0')$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => 'e', dedup_window => '-1 s')$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => 'e', dedup_window => '1 day -24 hours')$$),
	($$enqueue('a', 'i', 't', '1', dedup_window => '0')$$),
	($$enqueue('a', 'i', 't', '1', dedup_id => 'e', deliver_at => now())$$),
	($$enqueue_bytes('a', 'i', 't', '\x', dedup_id => '')$$),
	($$enqueue_bytes('a', 'i', 't', '\x', dedup_id => 'e', dedup_window => '0')$$),
	($$enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{e,""}')$$),
	($$enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{e}')$$),
	($$enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{{e},{f}}')$$),
	($$enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{e,f}', dedup_window => '0')$$),
	($$enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{e,f}', expires_ats => '{now,now}')$$)
) AS calls(call);
SELECT last_seq = :last_seq AS unchanged FROM idempotency.stat_outbox;
SELECT count(*) FROM rows() WHERE event_id IN ('e', 'f');
BEGIN READ ONLY;
SELECT send('ro', 'nats');
ROLLBACK;
-- the longest
SELECT send('long 1', repeat('x', 1024), repeat('y', 255)), send('long 2', repeat('x', 1024), repeat('y', 255));
SELECT octet_length(consumer), octet_length(event_id) FROM rows() WHERE event_id LIKE 'xx%';
-- by bytes; and scopes do not run into each other
SELECT send('scope 1', 'b/c', 'a'), send('scope 2', 'c', 'a/b'), send('scope 3', 'é', 'a'), send('scope 4', E'e\u0301', 'a');

-- The consumer belongs to the extension
SELECT count(*) FROM idempotency.processed_events WHERE consumer LIKE '@%';
SELECT idempotency.event_status('nats', '@dedup/orders');

-- Packed: the same answers, and the window goes on
SELECT format('ALTER DATABASE %I SET idempotency.claim_segment_size = %L', current_database(), '64kB') \gexec
CREATE PROCEDURE pack() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		IF NOT EXISTS (SELECT FROM rows()) THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
	RAISE EXCEPTION 'something is never packed';
END $$;
RESET idempotency.store_maintenance;
CALL pack();
SELECT count(*) FROM rows();
SET idempotency.store_maintenance = off;
SELECT send('packed 1', 'nats'), send('packed 2', 'bus');
SELECT send('packed 4', 'packed', dedup_window => '1 us');
SELECT count(*) FROM idempotency.outbox_enqueue_many('fill', array_fill('i'::text, ARRAY[1000]), array_fill('t'::text, ARRAY[1000]),
	array_fill('1'::jsonb, ARRAY[1000]), dedup_ids => ARRAY(SELECT 'd' || n FROM generate_series(1, 1000) n));
RESET idempotency.store_maintenance;
CALL pack();
SELECT send('packed 5', 'packed'), send('packed 6', 'packed');
SELECT turn, window_us FROM rows();

-- An id that is used anew more often than a row can count goes on in another chain
SELECT send('chain 1', 'chain', dedup_window => '1 min');
DO $$
BEGIN
	FOR n IN 0..7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET turn = 32766 WHERE event_id = ''chain''', n);
	END LOOP;
END $$;
SELECT send('chain 2', 'chain');
SELECT pass('chain', '1 min');
SELECT send('chain 3', 'chain'), send('chain 4', 'chain');
SELECT pass('chain', '5 min');
SELECT send('chain 5', 'chain'), send('chain 6', 'chain');
SELECT pass('chain', '5 min');
SELECT send('chain 7', 'chain'), send('chain 8', 'chain');
SELECT consumer, turn, class FROM rows() WHERE event_id = 'chain' ORDER BY consumer COLLATE "C", turn;

-- What happens on an event's way to its relay is not changed
SELECT count(*) FILTER (WHERE NOT id_returned) AS other_ids FROM events WHERE aggregate_type NOT IN ('many', 'fill');

DROP VIEW events;
DROP TABLE sent;
DROP PROCEDURE pack;
DROP FUNCTION send, rows, pass, send_many, try;
