-- Whose fault a refusal is, by itself: in a random world the rules are compared with their
-- words, which look back at all verdicts.
CREATE FUNCTION test_blame(seed int, steps int, keys int, bad int, lanes int, exact bool,
	OUT counted int, OUT opened int, OUT alone int, OUT wrong int) LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_blame_fn';

SELECT keys, bad, sum(counted) > 1000 AS counts, sum(opened) > 100 AS opens, sum(wrong) AS wrong
  FROM unnest('{1,2,3,5,64}'::int[]) keys, unnest('{0,1,2}'::int[]) bad, generate_series(1, 20) seed, test_blame(seed, 2000, keys, bad, 0, seed % 2 = 0)
 WHERE bad < keys OR keys = 1 GROUP BY 1, 2 ORDER BY 1, 2;

-- destinations that have names; "alone": one is down, and the target is not
SELECT lanes, keys, sum(counted) > 1000 AS counts, sum(opened) > 100 AS opens, sum(alone) > 100 AS alone, sum(wrong) AS wrong
  FROM unnest('{2,3,7,63}'::int[]) lanes, unnest('{9,63}'::int[]) keys, generate_series(1, 20) seed, test_blame(seed, 2000, keys, 1, lanes, seed % 2 = 0)
 WHERE lanes <= keys GROUP BY 1, 2 ORDER BY 1, 2;

-- a thousand keys; if nobody knows the numbers of their refusals, those that share a place may lack evidence, and never have too much
SELECT exact, sum(counted) > 1000 AS counts, sum(wrong) AS wrong
  FROM unnest('{t,f}'::bool[]) exact, generate_series(1, 20) seed, test_blame(seed, 5000, 1000, 100, 0, exact) GROUP BY 1 ORDER BY 1;

-- targets that recover, and refuse many in a row again
SELECT sum(opened) > 1000 AS opens, sum(wrong) AS wrong FROM generate_series(1, 5) seed, test_blame(seed, 100000, 20, 1, 0, true);
