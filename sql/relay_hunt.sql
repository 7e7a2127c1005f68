-- The hunt for an event that kills its sink program, by itself: a simulated program dies
-- of one event, or of each.
CREATE FUNCTION test_hunt(n int, killer int, batch int, in_flight int, in_order bool, sure bool,
	OUT found int, OUT deaths int, OUT openings int) LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_hunt_fn';

-- the killer is found wherever it stands, and nothing else is
SELECT count(*) AS runs, count(*) FILTER (WHERE found = killer) AS found,
	   max(deaths) AS deaths, max(openings) AS openings
  FROM unnest('{1,2,3,31,32,33,100,1000}'::int[]) n, generate_series(0, 999) killer, unnest('{1,7,1000}'::int[]) batch,
	   unnest('{1,8}'::int[]) in_flight, unnest('{f,t}'::bool[]) in_order, test_hunt(n, killer, batch, in_flight, in_order, false)
 WHERE killer < n;

-- a program that answers in order shows its killer at the third death
SELECT DISTINCT deaths, openings FROM generate_series(1, 8000, 13) killer, test_hunt(8000, killer, 1000, 8, true, false) ORDER BY 1, 2;

-- in a large backlog: by the 32nd part
SELECT max(deaths) AS deaths, max(openings) AS openings
  FROM generate_series(0, 79999, 997) killer, test_hunt(80000, killer, 10000, 8, false, false);

-- a sink that says that one of the batch is at fault: the hunt begins at once
SELECT count(*) FILTER (WHERE found <> killer) AS wrong, max(deaths) AS deaths, max(openings) AS openings
  FROM generate_series(0, 999) killer, test_hunt(1000, killer, 1000, 1, false, true);

-- one that dies of each event parks one event per two openings of the breaker
SELECT * FROM test_hunt(100, -2, 10, 8, false, false);

-- one that dies of none is never suspected
SELECT * FROM test_hunt(1000, -1, 10, 8, true, false);
