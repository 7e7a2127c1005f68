-- title: claim_events, complete_events of 100 in one statement
-- about: completes what was claimed
-- events: 100
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
SELECT idempotency.complete_events(c.ids)
  FROM (SELECT array_agg(event_id) FILTER (WHERE result = 'claimed') AS ids
		  FROM idempotency.claim_events(ARRAY(SELECT hashint8extended(g, :id)::text FROM generate_series(1, 100) g))) c;
