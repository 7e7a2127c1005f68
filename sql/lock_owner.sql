--
-- Who owns the locks: what a function wrote through a cursor stays when a later
-- fetch fails inside of a savepoint; so must the locks that guard it.
--
-- A cursor runs each call of the table twice, and fails the second time.  Whatever
-- lock of ours the backend held before the savepoint, it holds after ROLLBACK TO as
-- well, and no other.  A new function that writes gets a row here; the last query
-- lists the functions without one.
--
\set VERBOSITY terse
CREATE TABLE calls (id serial, name text, call text);
INSERT INTO calls (name, call) VALUES
('claim_event', $$idempotency.claim_event('event ' || g)$$),
('claim_event, private locks', $$idempotency.claim_event('event ' || g, 'private')$$),
('claim_events', $$(SELECT count(*) FROM idempotency.claim_events(ARRAY['many ' || g, 'more ' || g]))$$),
('complete_event, long result', $$idempotency.complete_event('claimed ' || g, result => (SELECT to_jsonb(array_agg(md5(i::text))) FROM generate_series(1, 1000) i))$$),
('complete_events', $$idempotency.complete_events(ARRAY['claimed ' || (g + 2)])$$),
('release_event, past the budget', $$idempotency.release_event('past ' || g)$$),
('forget_event', $$idempotency.forget_event('done ' || g)$$),
('claims_import', $$idempotency.claims_import('default', ARRAY['imported ' || g, 'too ' || g])$$),
('claims_renew', $$idempotency.claims_renew(ARRAY['renewed ' || g, 'imported ' || g])$$),
('lease_event', $$(idempotency.lease_event('lease ' || g)).result$$),
('lease_events', $$(SELECT count(*) FROM idempotency.lease_events(ARRAY['leases ' || g]))$$),
('extend_lease', $$idempotency.extend_lease('extended ' || g, (SELECT token FROM tokens WHERE id = 'extended ' || g), state => '1')$$),
('assert_lease', $$idempotency.assert_lease('asserted ' || g, (SELECT token FROM tokens WHERE id = 'asserted ' || g))$$),
('release_lease', $$idempotency.release_lease('released ' || g, (SELECT token FROM tokens WHERE id = 'released ' || g), error => 'e')$$),
('consumer_redrive', $$idempotency.consumer_redrive('default', ARRAY['dead ' || g])$$),
('consumer_discard', $$idempotency.consumer_discard('default', ARRAY['died ' || g])$$),
('complete_event, token', $$idempotency.complete_event('leased ' || g, token => (SELECT token FROM tokens WHERE id = 'leased ' || g))$$),
('claim_request', $$(idempotency.claim_request('request ' || g, 's')).result$$),
('claim_request, lease', $$(idempotency.claim_request('leases ' || g, 's', lease => '1 min')).result$$),
('claim_request, replay', $$(idempotency.claim_request('answered ' || g, 's')).result$$),
('advance_request', $$idempotency.advance_request('advanced ' || g, 's', (SELECT token FROM tokens WHERE id = 'advanced ' || g), 'p')$$),
('complete_request, token', $$idempotency.complete_request('ended ' || g, 's', 200, body => '', token => (SELECT token FROM tokens WHERE id = 'ended ' || g))$$),
('complete_request, long answer', $$idempotency.complete_request('asked ' || g, 's', 200, body => (SELECT convert_to(string_agg(md5(i::text), ''), 'UTF8') FROM generate_series(1, 1000) i))$$),
('fail_request', $$idempotency.fail_request('asked for ' || g, 's', 'e')$$),
('fail_request, token', $$idempotency.fail_request('failed ' || g, 's', 'e', token => (SELECT token FROM tokens WHERE id = 'failed ' || g))$$),
('release_request', $$idempotency.release_request('asked to ' || g, 's')$$),
('release_request, token', $$idempotency.release_request('returned ' || g, 's', token => (SELECT token FROM tokens WHERE id = 'returned ' || g))$$),
('outbox_enqueue', $$idempotency.outbox_enqueue('a', 'one', 't', '1')$$),
('outbox_enqueue, long payload', $$idempotency.outbox_enqueue('a', 'toasted', 't', (SELECT to_jsonb(array_agg(md5(i::text))) FROM generate_series(1, 1000) i))$$),
('outbox_enqueue, event_id', $$idempotency.outbox_enqueue('a', 'id', 't', '1', event_id => ('00000000-0000-7000-8000-00000000000' || g)::uuid)$$),
('outbox_enqueue, dedup_id', $$idempotency.outbox_enqueue('a', 'dedup', 't', '1', dedup_id => 'd' || g)$$),
('outbox_enqueue, repeat', $$idempotency.outbox_enqueue('a', 'repeat', 't', '1', dedup_id => 'repeat')$$),
('outbox_enqueue_bytes', $$idempotency.outbox_enqueue_bytes('a', 'bytes', 't', '\x00')$$),
('outbox_enqueue_many', $$(SELECT count(*) FROM idempotency.outbox_enqueue_many('a', '{x,y}', '{t,t}', '{1,2}', event_ids => ARRAY[('00000000-0000-7000-8000-00000000001' || g)::uuid, NULL]))$$),
('outbox_enqueue_many, dedup_ids', $$(SELECT count(*) FROM idempotency.outbox_enqueue_many('a', '{x,y,z}', '{t,t,t}', '{1,2,3}', dedup_ids => ARRAY['m' || g, 'm' || g, NULL]))$$),
('resume_offset', $$(idempotency.resume_offset('c', 'resumed', g, 1)).result$$),
('claim_offset', $$(idempotency.claim_offset('c', 'topic', g, 0)).result$$),
('reset_offset', $$idempotency.reset_offset('c', 'reset', g, 5)$$),
('register_producer', $$(idempotency.register_producer('new ' || g)).epoch$$),
('register_producer, again', $$(idempotency.register_producer('again')).epoch$$),
('claim_sequence', $$(idempotency.claim_sequence((SELECT token FROM tokens WHERE id = 'producer'), 0, g - 1)).result$$),
('producer_drop', $$(SELECT idempotency.producer_drop('producer ' || g)::text FROM set_config('idempotency.max_claim_locks', '4', true))$$),
('consumer_create', $$idempotency.consumer_create('consumer ' || g, private_locks => true)$$),
('consumer_alter', $$idempotency.consumer_alter('private', keep_ids => true)$$),
('consumer_drop', $$idempotency.consumer_drop('dropped ' || g)$$),
('relay_create', $$idempotency.relay_create('new ' || g, 'handler')$$),
('relay_alter', $$idempotency.relay_alter('r', start_at => 'latest')$$),
('relay_pause', $$idempotency.relay_pause('r')$$),
('relay_resume', $$idempotency.relay_resume('r')$$),
('relay_adopt', $$idempotency.relay_adopt('r')$$),
('relay_replay', $$idempotency.relay_replay('r', since => now())$$),
('relay_replay, one', $$idempotency.relay_replay('r', event_id => (SELECT event_id FROM idempotency.outbox_events WHERE aggregate_id = 'replayed'))$$),
('relay_redrive', $$idempotency.relay_redrive('r')$$),
('relay_discard', $$idempotency.relay_discard('r')$$),
('relay_drop', $$idempotency.relay_drop('r')$$);

-- What the calls need: consumers, a relay that does nothing, an event, events that
-- are remembered, leases, and producers
SET client_min_messages = error;
INSERT INTO idempotency_data.consumers VALUES ('private', false, true), ('dropped 1', false, true), ('dropped 2', false, true);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS '';
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
BEGIN;
SELECT idempotency.relay_create('r', 'handler');
SELECT idempotency.relay_pause('r');
COMMIT;
SELECT idempotency.outbox_enqueue('a', 'replayed', 't', '1') IS NOT NULL AS enqueued;
SELECT idempotency.outbox_enqueue('a', 'first', 't', '1', dedup_id => 'repeat') IS NOT NULL AS enqueued;
SELECT idempotency.claim_event('done ' || g), idempotency.complete_event('done ' || g) FROM generate_series(1, 2) g;
CREATE TABLE tokens AS SELECT k || ' ' || g AS id, (idempotency.lease_event(k || ' ' || g)).token
  FROM unnest('{extended,asserted,released,leased}'::text[]) AS k, generate_series(1, 2) AS g;
INSERT INTO tokens SELECT k || ' ' || g, (idempotency.claim_request(k || ' ' || g, 's', lease => '1 hour')).token
  FROM unnest('{advanced,ended,failed,returned}'::text[]) AS k, generate_series(1, 2) AS g;
SELECT (idempotency.claim_request('answered ' || g, 's')).result, idempotency.complete_request('answered ' || g, 's', 200) FROM generate_series(1, 2) g;
SELECT idempotency.release_lease(id, (idempotency.lease_event(id)).token, park => true)
  FROM unnest('{dead 1,dead 2,died 1,died 2}'::text[]) AS id;
SELECT epoch FROM unnest('{again,producer 1,producer 2}'::text[]) AS name, idempotency.register_producer(name);
INSERT INTO tokens SELECT 'producer', producer_id FROM idempotency.register_producer('p');
SET idempotency.max_claim_locks = 2;

-- Locks of this backend on the extension's relations, and advisory ones.  Reading
-- needs none to the end: AccessShareLock is left out.
CREATE FUNCTION owned() RETURNS text[] LANGUAGE sql AS $$
	SELECT array_agg(DISTINCT name || ' ' || mode ORDER BY name || ' ' || mode)
	FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
	LEFT JOIN pg_class heap ON heap.reltoastrelid = c.oid
		OR heap.reltoastrelid = (SELECT indrelid FROM pg_index WHERE indexrelid = c.oid),
	LATERAL (SELECT CASE WHEN locktype = 'advisory' THEN CASE objsubid WHEN 1 THEN 'published key' ELSE 'private key' END
			WHEN heap.oid IS NULL THEN c.relname
			WHEN c.relkind = 't' THEN 'toast of ' || heap.relname
			ELSE 'index of toast of ' || heap.relname END AS name) n
	WHERE pid = pg_backend_pid() AND granted AND mode <> 'AccessShareLock'
		AND (locktype = 'advisory' OR COALESCE(heap.relnamespace, c.relnamespace) = 'idempotency_data'::regnamespace)
$$;
CREATE FUNCTION note(what text) RETURNS void LANGUAGE sql AS
	$$SELECT set_config('test.' || what, COALESCE(owned(), '{}')::text, false)$$;
CREATE FUNCTION gone(a text, b text) RETURNS text[] LANGUAGE sql AS
	$$SELECT ARRAY(SELECT unnest(current_setting('test.' || a)::text[])
		EXCEPT SELECT unnest(current_setting('test.' || b)::text[]) ORDER BY 1)$$;
CREATE TABLE results (way text, name text, held text[], too_few text[], too_many text[]);

-- "kept": the first fetch is outside of the savepoint in which the second fails.
-- "undone": the first fetch is inside as well, and ROLLBACK TO takes its rows away.
CREATE FUNCTION script(way text, name text, call text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	asked text := substring(call FROM '''(asked [a-z ]*)''');
BEGIN
	RETURN NEXT 'BEGIN';
	RETURN NEXT $q$SELECT idempotency.claim_event('claimed ' || g) FROM generate_series(1, 4) g WHERE $q$ || (call ~ 'claimed')::text;
	RETURN NEXT $q$SELECT idempotency.claim_event('past ' || g) FROM generate_series(-3, 2) g WHERE $q$ || (call ~ 'past')::text;
	RETURN NEXT format($q$SELECT (idempotency.claim_request(%L || g, 's')).result FROM generate_series(1, 2) g WHERE %L IS NOT NULL$q$, asked, asked);
	RETURN NEXT format('DECLARE c CURSOR FOR SELECT %s, 1 / (2 - g) FROM generate_series(1, 2) g', call);
	IF way = 'kept' THEN RETURN NEXT 'FETCH c'; END IF;
	RETURN NEXT $q$SELECT note('before')$q$;
	RETURN NEXT 'SAVEPOINT s';
	IF way = 'undone' THEN RETURN NEXT 'FETCH c'; END IF;
	RETURN NEXT 'FETCH c';
	RETURN NEXT 'ROLLBACK TO s';
	RETURN NEXT $q$SELECT note('after')$q$;
	RETURN NEXT 'COMMIT';
	RETURN NEXT format($q$INSERT INTO results SELECT %L, %L, current_setting('test.after')::text[], gone('before', 'after'), gone('after', 'before')$q$, way, name);
END $$;

-- Every second fetch fails
SET idempotency.uncompleted_claims = keep;
\o /dev/null
\set ECHO none
SELECT s FROM calls, unnest('{kept,undone}'::text[]) way, script(way, name, call) WITH ORDINALITY s(s, n)
ORDER BY way DESC, calls.id, n \gexec
\set ECHO all
\o

SELECT name, unnest(held) AS lock FROM results JOIN calls USING (name) WHERE way = 'kept' ORDER BY id, lock;
-- No lock is lost with a row that stays, but what plpgsql itself took on consumers
SELECT name, too_few FROM results JOIN calls USING (name) WHERE too_few <> '{}' ORDER BY id;
-- None is left of a row that is gone, but nextval's, which is the transaction's
SELECT name, too_many FROM results JOIN calls USING (name) WHERE too_many <> '{}' ORDER BY id;

-- Functions that are not in the table, and do not write
SELECT DISTINCT proname FROM pg_proc WHERE pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	AND proname NOT IN (SELECT split_part(name, ',', 1) FROM calls)
	AND NOT EXISTS (SELECT FROM pg_foreign_data_wrapper WHERE fdwvalidator = pg_proc.oid) ORDER BY proname;
