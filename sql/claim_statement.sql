-- Claims, effect and completions in one statement: doc/howto/consume.md, "A batch".
\set VERBOSITY terse

-- How many of the ids are completed just now
CREATE FUNCTION completed(ids text[]) RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT count(*) FROM unnest(ids) id, idempotency.event_status(id) s WHERE s.status = 'completed'
$$;
CREATE TABLE effects (event_id text PRIMARY KEY, n int NOT NULL, completed_before bigint);
PREPARE batch(text[], int[]) AS
	WITH message AS (
		SELECT * FROM ROWS FROM (idempotency.claim_events($1), unnest($2)) AS m (ord, event_id, result, n)
	), effect AS (
		INSERT INTO effects SELECT event_id, n, completed($1) FROM message WHERE result = 'claimed'
		RETURNING event_id, n
	), done AS (
		SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM effect),
			results => ARRAY(SELECT to_jsonb(n) FROM effect))
	)
	SELECT ord, event_id, result, idempotency.event_result(event_id) AS stored FROM message, done ORDER BY ord;

-- The effect's rows are all made before the first completion
EXECUTE batch('{c,a,b,a}', '{3,1,2,1}');
SELECT * FROM effects ORDER BY event_id;
EXECUTE batch('{c,d,a}', '{3,4,1}');
SELECT * FROM effects WHERE event_id = 'd';

-- Other plans, and claims past the budget, are no different
SET enable_nestloop = off;
SET idempotency.max_claim_locks = 1;
EXECUTE batch('{h,a,g,f,g}', '{8,1,7,6,7}');
SELECT * FROM effects WHERE event_id > 'd' ORDER BY event_id;
RESET idempotency.max_claim_locks;
RESET enable_nestloop;

-- No events
EXECUTE batch('{}', '{}');

-- An effect that fails leaves neither claims nor completions: j has no number
EXECUTE batch('{i,j}', '{9}');
SELECT status FROM idempotency.event_status('i');
EXECUTE batch('{i,j}', '{9,10}');

-- A completion that nobody reads does not happen
WITH message AS (
	SELECT * FROM idempotency.claim_events('{k}')
), done AS (
	SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM message))
)
SELECT event_id, result FROM message;

-- An effect without a row leaves its event uncompleted: the effect of l is there
INSERT INTO effects VALUES ('l', 0);
WITH message AS (
	SELECT * FROM idempotency.claim_events('{l,m}')
), effect AS (
	INSERT INTO effects SELECT event_id, ord FROM message WHERE result = 'claimed'
	ON CONFLICT DO NOTHING RETURNING event_id
), done AS (
	SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM effect))
)
SELECT event_id, result FROM message, done;
-- unless all claimed events are completed; the effect, which nobody reads, happens all the same
WITH message AS (
	SELECT * FROM idempotency.claim_events('{l,m}')
), effect AS (
	INSERT INTO effects SELECT event_id, ord FROM message WHERE result = 'claimed'
	ON CONFLICT DO NOTHING
), done AS (
	SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM message WHERE result = 'claimed'))
)
SELECT event_id, result, (SELECT status FROM idempotency.event_status(event_id)) FROM message, done;
SELECT event_id, n FROM effects WHERE event_id IN ('l', 'm') ORDER BY event_id;

-- An effect of several rows for one event
CREATE TABLE lines (event_id text, line int);
PREPARE lines(text) AS
	WITH message AS (
		SELECT * FROM idempotency.claim_events(ARRAY[$1])
	), effect AS (
		INSERT INTO lines SELECT event_id, line FROM message, generate_series(1, 2) line WHERE result = 'claimed'
		RETURNING event_id
	), done AS (
		SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM effect))
	)
	SELECT event_id, result FROM message, done;
EXECUTE lines('n');
WITH message AS (
	SELECT * FROM idempotency.claim_events('{n}')
), effect AS (
	INSERT INTO lines SELECT event_id, line FROM message, generate_series(1, 2) line WHERE result = 'claimed'
	RETURNING event_id
), done AS (
	SELECT idempotency.complete_events(ARRAY(SELECT DISTINCT event_id FROM effect))
)
SELECT event_id, result FROM message, done;
SELECT * FROM lines ORDER BY line;

-- Whatever else a WHERE asks is asked before an event is claimed: functions that change
-- anything are dear, and a condition is evaluated in the order of costs
SELECT proname, procost FROM pg_proc
 WHERE pronamespace = 'idempotency'::regnamespace AND provolatile = 'v' AND prokind = 'f'
   AND prorettype <> 'trigger'::regtype AND proname NOT LIKE 'sink\_%\_validator' AND procost < 10000;
CREATE FUNCTION wanted(id text) RETURNS boolean LANGUAGE plpgsql COST 1000 AS $$ BEGIN RETURN id LIKE 'x1%'; END $$;
CREATE TABLE inbox AS SELECT 'x' || i AS id, i FROM generate_series(1, 12) i;
BEGIN;
SELECT idempotency.complete_event(id) FROM inbox
 WHERE idempotency.claim_event(id) = 'claimed' AND wanted(id) AND i > 10 ORDER BY i;
COMMIT;
SELECT count(*) FILTER (WHERE status = 'completed') AS completed, count(*) FROM inbox, idempotency.event_status(id);
-- A join, IN (SELECT ...) included, and a LIMIT come after the conditions on one table at any
-- cost: events are chosen first
CREATE TABLE orders AS SELECT i FROM generate_series(2, 6) i;
BEGIN;
WITH chosen AS MATERIALIZED (
	SELECT id FROM inbox JOIN orders USING (i) ORDER BY i LIMIT 3
), message AS MATERIALIZED (
	SELECT * FROM idempotency.claim_events(ARRAY(SELECT id FROM chosen))
), done AS (
	SELECT idempotency.complete_events(ARRAY(SELECT event_id FROM message WHERE result = 'claimed'))
)
SELECT event_id, result FROM message, done ORDER BY ord;
COMMIT;
SELECT id, status FROM inbox, idempotency.event_status(id) ORDER BY i;

-- A COMMIT in a loop runs the loop's query to its end first, with the calls in it.  What such a
-- call decides would be committed before the effects of later passes, so it is refused
SET client_min_messages = warning;
CREATE TABLE passes (name text, i int, answer text);
CREATE PROCEDURE looped(name text, call text, ending text = 'commit') LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	FOR r IN EXECUTE format('SELECT i, (%s)::text AS answer FROM generate_series(1, 3) AS i', call) LOOP
		INSERT INTO passes VALUES (name, r.i, r.answer);
		IF ending = 'commit' THEN COMMIT; ELSE ROLLBACK; END IF;
	END LOOP;
END $$;
SELECT producer_id FROM idempotency.register_producer('looped') \gset
-- a function that makes the call for the query, and one that makes the effect, too
CREATE FUNCTION claim_for_query(i int) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN RETURN (idempotency.claim_offset('looped', 'for query', 0, i)).result; END $$;
CREATE TABLE handled (id text, event_id uuid);
CREATE FUNCTION enqueue_handled() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN NEW.event_id := idempotency.outbox_enqueue('looped', NEW.id, 'handled', '{}'); RETURN NEW; END $$;
CREATE TRIGGER enqueue BEFORE INSERT ON handled FOR EACH ROW EXECUTE FUNCTION enqueue_handled();
CREATE FUNCTION handle(id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF idempotency.claim_event(id, 'looped') = 'claimed' THEN
		INSERT INTO handled VALUES (id);
		PERFORM idempotency.complete_event(id, 'looped');
		RETURN 'handled';
	END IF;
	RETURN 'not handled';
END $$;
CALL looped('claim_offset', $$(idempotency.claim_offset('looped', 't', 0, i)).result$$);
CALL looped('claim_offset, ROLLBACK', $$(idempotency.claim_offset('looped', 'rolled back', 0, i)).result$$, 'rollback');
CALL looped('claim_offset in a function', 'claim_for_query(i)');
CALL looped('claim_sequence', format($$(idempotency.claim_sequence(%s, 0, i - 1)).result$$, :'producer_id'));
CALL looped('complete_event', $$CASE WHEN idempotency.claim_event('looped ' || i, 'looped') = 'claimed' THEN idempotency.complete_event('looped ' || i, 'looped') END$$);
CALL looped('complete_events', $$(WITH c AS MATERIALIZED (SELECT event_id FROM idempotency.claim_events(ARRAY['looped ' || i], 'looped')) SELECT idempotency.complete_events(ARRAY(TABLE c), 'looped'))$$);
CALL looped('complete_request', $$CASE WHEN (idempotency.claim_request('looped ' || i, 's')).result = 'started' THEN idempotency.complete_request('looped ' || i, 's', 200) END$$);
CALL looped('outbox_enqueue', $$idempotency.outbox_enqueue('looped', 'row', 'looped', '{}')$$);
CALL looped('outbox_enqueue_bytes', $$idempotency.outbox_enqueue_bytes('looped', 'row', 'looped', '')$$);
CALL looped('outbox_enqueue_many', $$SELECT count(*) FROM idempotency.outbox_enqueue_many('looped', '{row}', '{looped}', ARRAY[to_jsonb(i)])$$);
-- claims without completions do not commit
CALL looped('claim_event', $$idempotency.claim_event('looped ' || i, 'looped')$$);
-- nothing of all that is there
SELECT * FROM passes;
SELECT count(*) FROM idempotency.cursors WHERE consumer = 'looped' OR producer = 'looped';
SELECT count(*) FROM idempotency.processed_events WHERE consumer = 'looped';
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = 'looped';
-- A function that makes the effect with its claim may be called ahead
CALL looped('handle', $$handle('looped ' || i)$$);
SELECT i, answer FROM passes WHERE name = 'handle' ORDER BY i;
SELECT id, count(*) FROM handled JOIN idempotency.outbox_events USING (event_id) GROUP BY 1 ORDER BY 1;
-- What the hint says
DO $$
DECLARE r record;
BEGIN
	FOR r IN SELECT i FROM generate_series(1, 3) AS i LOOP
		INSERT INTO passes SELECT 'own statement', r.i, result FROM idempotency.claim_offset('looped', 't', 0, r.i);
		PERFORM idempotency.outbox_enqueue('looped', 'own statement', 'looped', '{}');
		COMMIT;
	END LOOP;
END $$;
SELECT i, answer FROM passes WHERE name = 'own statement' ORDER BY i;
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_id = 'own statement';
-- A cursor WITH HOLD that has rows left at COMMIT, one whose query COMMIT runs anew, and one that is done
BEGIN;
DECLARE rest NO SCROLL CURSOR WITH HOLD FOR SELECT (idempotency.claim_offset('looped', 'held', 0, i)).result FROM generate_series(1, 3) AS i;
FETCH rest;
COMMIT;
BEGIN;
DECLARE anew SCROLL CURSOR WITH HOLD FOR SELECT idempotency.outbox_enqueue('looped', 'anew', 'looped', '{}') IS NULL AS no_id FROM generate_series(1, 3) AS i;
FETCH ALL anew;
COMMIT;
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_id = 'anew';
BEGIN;
DECLARE every SCROLL CURSOR FOR SELECT i FROM generate_series(1, 3) AS i;
DECLARE done NO SCROLL CURSOR WITH HOLD FOR SELECT (idempotency.claim_offset('looped', 'held', 0, i)).result FROM generate_series(1, 3) AS i;
FETCH every;
FETCH ALL done;
FETCH every;
COMMIT;
-- Beside a cursor that is kept, all is as ever
BEGIN;
DECLARE kept CURSOR WITH HOLD FOR SELECT i FROM generate_series(4, 6) AS i;
COMMIT;
FETCH kept;
SELECT (idempotency.claim_offset('looped', 'held', 0, 4)).result;
BEGIN;
DECLARE plain CURSOR FOR SELECT (idempotency.claim_offset('looped', 'held', 0, i)).result FROM generate_series(5, 6) AS i;
FETCH plain;
FETCH kept;
FETCH plain;
COMMIT;
CLOSE ALL;
-- and portals that collect their rows for another reason
CREATE TABLE collected (i int);
INSERT INTO collected VALUES (7), (8) RETURNING (idempotency.claim_offset('looped', 'held', 0, i)).result;
WITH gone AS (DELETE FROM collected RETURNING i) SELECT (idempotency.claim_offset('looped', 'held', 0, i + 2)).result FROM gone ORDER BY i;
PREPARE own(int) AS SELECT (idempotency.claim_offset('looped', 'held', 0, $1)).result;
EXECUTE own(11);
