-- Whose fault a refusal is, by itself: in a random world the rules are compared with their
-- words, which look back at all verdicts.
CREATE FUNCTION test_blame(seed int, steps int, keys int, bad int,
	OUT counted int, OUT opened int, OUT wrong int) LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_blame_fn';

SELECT keys, bad, sum(counted) > 1000 AS counts, sum(opened) > 100 AS opens, sum(wrong) AS wrong
  FROM unnest('{1,2,3,5,64}'::int[]) keys, unnest('{0,1,2}'::int[]) bad, generate_series(1, 20) seed, test_blame(seed, 2000, keys, bad)
 WHERE bad < keys OR keys = 1 GROUP BY 1, 2 ORDER BY 1, 2;

-- keys that share a place may lack evidence, and never have too much
SELECT sum(counted) > 1000 AS counts, sum(wrong) AS wrong FROM generate_series(1, 20) seed, test_blame(seed, 5000, 1000, 100);
