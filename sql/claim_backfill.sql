-- Events of a table of one's own become completed claims.
\set SHOW_CONTEXT never
CREATE ROLE regress_backfill;
SELECT idempotency.grant_role('consumer', 'regress_backfill');
CREATE SCHEMA regress_backfill AUTHORIZATION regress_backfill;
SET ROLE regress_backfill;
SET search_path = regress_backfill;

-- What meets the condition is remembered, for that consumer only
CREATE TABLE old (id text, state text);
INSERT INTO old VALUES ('a', 'done'), ('b', 'open'), ('a', 'done'), (NULL, 'open');
CALL idempotency.claims_backfill('old', 'id', 'billing', $$state = 'done'$$);
BEGIN;
SELECT * FROM idempotency.claim_events('{a,b}', 'billing');
ROLLBACK;
BEGIN;
SELECT * FROM idempotency.claim_events('{a}', 'default');
ROLLBACK;

-- Called again it adds what is new; updated rows are found where they are
INSERT INTO old SELECT 'n' || i, 'done' FROM generate_series(1, 2000) i;
UPDATE old SET state = 'done' WHERE state = 'open' AND id IS NOT NULL;
CALL idempotency.claims_backfill('old', 'id', 'billing', $$state = 'done'$$);
CALL idempotency.claims_backfill('old', 'id', 'billing', $$state = 'done'$$);
BEGIN;
SELECT DISTINCT result FROM idempotency.claim_events(ARRAY(SELECT DISTINCT id FROM old WHERE state = 'done'), 'billing');
ROLLBACK;

-- A row that is written behind the page which is read is found at the end
CREATE TABLE written (id text, state text, pad text) WITH (autovacuum_enabled = off, fillfactor = 50);
INSERT INTO written SELECT 'w' || i, CASE i WHEN 1 THEN 'open' ELSE 'done' END, repeat('x', 500) FROM generate_series(1, 100) i;
CREATE FUNCTION finish_first(id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF id = 'w50' THEN
		UPDATE regress_backfill.written SET state = 'done' WHERE written.id = 'w1';
	END IF;
	RETURN true;
END $$;
CALL idempotency.claims_backfill('written', 'id', 'written', $$state = 'done' AND regress_backfill.finish_first(id)$$);
BEGIN;
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT id FROM written), 'written') GROUP BY 1;
ROLLBACK;

-- Events that are too old to be claimed were handled all the same
CREATE TABLE aged (id uuid);
INSERT INTO aged VALUES ('00000000-0000-7000-8000-000000000001'), ('00000000-0000-7000-8000-000000000001'),
	('00000000-0000-7000-8000-000000000002'), ('ffffffff-ffff-7000-8000-000000000003');
RESET ROLE;
SELECT idempotency.consumer_create('aged', retention => '1 day', expire_by_id_age => true);
SET ROLE regress_backfill;
CALL idempotency.claims_backfill('aged', 'id', 'aged');
CALL idempotency.claims_backfill('aged', 'id', 'aged');
BEGIN;
SELECT * FROM idempotency.claim_events(ARRAY(SELECT DISTINCT id::text FROM aged ORDER BY 1), 'aged');
ROLLBACK;
RESET ROLE;
SELECT idempotency.consumer_drop('aged');
SET ROLE regress_backfill;

-- From a page on
CALL idempotency.claims_backfill('old', 'id', 'later', $$state = 'done'$$, first_block => 1000000);
CALL idempotency.claims_backfill('old', 'id', 'later', $$state = 'done'$$, first_block => 1);
BEGIN;
SELECT * FROM idempotency.claim_events('{n1,n2000}', 'later');
ROLLBACK;

-- Ids of other types are their text, a uuid's the one that uuid claims have
CREATE TABLE others ("the id" uuid PRIMARY KEY, n bigint);
INSERT INTO others VALUES ('AAAAAAAA-0000-0000-0000-000000000001', 7);
CALL idempotency.claims_backfill('others', 'the id');
CALL idempotency.claims_backfill('others', 'n');
BEGIN;
SELECT idempotency.claim_event('aaaaaaaa-0000-0000-0000-000000000001'::uuid), idempotency.claim_event('7');
COMMIT;

-- All of a page under foreign_lockers, past the budget
RESET ROLE;
SELECT idempotency.consumer_create('foreign', foreign_lockers => true);
SET ROLE regress_backfill;
SET idempotency.max_claim_locks = 1;
CALL idempotency.claims_backfill('old', 'id', 'foreign', $$id IS NOT NULL$$);
SHOW idempotency.max_claim_locks;
RESET idempotency.max_claim_locks;

-- No operator and function of the caller's path is taken, and its path stays
CREATE FUNCTION trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = trap);
CREATE FUNCTION cardinality(text[]) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
SET search_path = regress_backfill, pg_catalog;
CALL idempotency.claims_backfill('others', 'n', 'path', $$'a' = 'a'::text$$);
SHOW search_path;
SET search_path = regress_backfill;
DROP OPERATOR regress_backfill.= (text, text);
DROP FUNCTION cardinality(text[]);

-- Refused: a transaction, NULLs, what has no pages, columns and ids that are none
BEGIN;
CALL idempotency.claims_backfill('others', 'n', 'once');
ROLLBACK;
CALL idempotency.claims_backfill(NULL, 'id');
CALL idempotency.claims_backfill('old', NULL);
CALL idempotency.claims_backfill('old', 'id', NULL);
CALL idempotency.claims_backfill('old', 'id', condition => NULL);
CALL idempotency.claims_backfill('old', 'id', first_block => NULL);
CALL idempotency.claims_backfill('old', 'id', first_block => -1);
CALL idempotency.claims_backfill('others', 'n', '@mine');
CALL idempotency.claims_backfill('old', 'none');
CALL idempotency.claims_backfill('old', 'id', condition => 'id IS NULL');
CREATE TABLE parts (id text) PARTITION BY LIST (id);
CREATE VIEW seen AS SELECT * FROM old;
CALL idempotency.claims_backfill('parts', 'id');
CALL idempotency.claims_backfill('seen', 'id');

-- Rows that a policy hides are not passed over
RESET ROLE;
CREATE ROLE regress_backfill_owner;
ALTER TABLE others OWNER TO regress_backfill_owner;
GRANT SELECT ON others TO regress_backfill;
ALTER TABLE others ENABLE ROW LEVEL SECURITY;
SET ROLE regress_backfill;
CALL idempotency.claims_backfill('others', 'n');
RESET ROLE;
ALTER TABLE others DISABLE ROW LEVEL SECURITY;

-- Children have pages of their own
CREATE TABLE parent (id text);
CREATE TABLE child () INHERITS (parent);
CALL idempotency.claims_backfill('parent', 'id');
CALL idempotency.claims_backfill('child', 'id');
DROP TABLE parent, child;

-- The rights are the caller's
REVOKE ALL ON others FROM regress_backfill;
SET ROLE regress_backfill;
CALL idempotency.claims_backfill('others', 'n');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idempotency.claim_events FROM regress_backfill;
SET ROLE regress_backfill;
CALL idempotency.claims_backfill('old', 'id', condition => 'id IS NOT NULL');
RESET ROLE;

DROP OWNED BY regress_backfill, regress_backfill_owner;
DROP ROLE regress_backfill, regress_backfill_owner;
