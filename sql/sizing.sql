-- sizing(): what a load needs.  test/t/005_sizing.pl compares it with a server.
\set VERBOSITY terse
\set SHOW_CONTEXT never
\pset null '(null)'

SELECT what, value, unit, how FROM idempotency.sizing();

-- By name; what is not given keeps its default
SELECT what, value FROM idempotency.sizing(events_per_second => 2000, payload_size => 210, outbox_retention => '7 days',
	outage => '2 days', remembered_ids => 100000000, parked_events => 1000000, open_leases => 50000, cursors => 4000,
	claims_per_transaction => 500, program_relays => 300, function_relays => 40, databases => 3);

-- An outage that is longer than the retention decides; nothing needs nothing but the tables
SELECT DISTINCT value = 100.0 * 890 * 30 * 86400 AS by_the_outage
  FROM idempotency.sizing(outage => '30 days') WHERE what = 'disk: outbox';
SELECT what, value FROM idempotency.sizing(0, 0, '0', '0', 0, 0, 0, 0, 0, 0, 0, 0);

-- The largest merge is of the largest run that so many ids fill
SELECT ids, value FROM unnest('{1000,700000,10799999,10800000,171999999,172000000,1000000000}'::numeric[]) AS ids,
	   idempotency.sizing(remembered_ids => ids) WHERE what = 'disk: free for a merge';

-- Formulas stand over the arguments alone
SELECT what FROM idempotency.sizing() s
 WHERE EXISTS (SELECT FROM regexp_matches(how, '[a-z_]{4,}', 'g') AS m
				WHERE lower(m[1]) NOT IN ('greatest', 'least', 'case', 'when', 'then', 'else')
				  AND m[1] <> ALL (SELECT unnest(proargnames) FROM pg_proc WHERE proname = 'sizing'));

-- Refused
SELECT idempotency.sizing(payload_size => NULL);
SELECT idempotency.sizing(outage => NULL);
SELECT idempotency.sizing(databases => -1);
SELECT idempotency.sizing(events_per_second => 'NaN');
SELECT idempotency.sizing(remembered_ids => 1e16);
SELECT idempotency.sizing(outbox_retention => '-1 s');

-- Who may call it: operators and monitors
CREATE ROLE regress_sizing;
SELECT idempotency.grant_role('monitor', 'regress_sizing');
SET ROLE regress_sizing;
SELECT count(*) FROM idempotency.sizing();
RESET ROLE;
SELECT has_function_privilege('pg_monitor', p.oid, 'EXECUTE') AS pg_monitor, proacl::text ~ '[{,]=' AS public
  FROM pg_proc p WHERE proname = 'sizing';
DROP OWNED BY regress_sizing;
DROP ROLE regress_sizing;
