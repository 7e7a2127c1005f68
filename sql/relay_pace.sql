-- The pace of a relay to a target that allows so many events a second, by itself: in
-- simulated time, against a bucket of tokens and a count that begins anew each second.
CREATE FUNCTION test_pace(manner int, is_window boolean, rate int, burst int, latency int, lifted int, events int,
	OUT refused float8, OUT used float8, OUT limited boolean) LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_pace_fn';

-- 429 with Retry-After, 429 without, 503 with Retry-After: percent that is refused, and how
-- much of what the target allows is used
SELECT manner, is_window, rate, max(refused) < 1.5 AS refused, min(used) > 80 AS used
  FROM generate_series(0, 2) manner, unnest('{false,true}'::bool[]) is_window, unnest('{10,100}'::int[]) rate,
	unnest('{1,50,300}'::int[]) latency, test_pace(manner, is_window, rate, rate, latency, 0, 10000)
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- a rate of one, and a large reserve, which is used up before the target asks for the first time
SELECT refused < 12 AS refused, used > 80 AS used FROM test_pace(0, false, 1, 1, 50, 0, 2000);
SELECT manner, refused < 2 AS refused, used > 80 AS used FROM generate_series(0, 2) manner, test_pace(manner, false, 10, 1000, 50, 0, 10000);

-- the limit ends: soon there is none here, either
SELECT rate, limited, used > 500 AS used FROM unnest('{1,10,100}'::int[]) rate, test_pace(0, false, rate, rate, 5, 20 * rate, 200000);

-- single events that are refused until a time that the target names are no limit
SELECT limited, used > 90 AS used FROM test_pace(3, false, 1000, 0, 5, 0, 20000);
