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
