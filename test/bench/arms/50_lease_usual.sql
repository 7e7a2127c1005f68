-- title: a table of leases of one's own: INSERT … ON CONFLICT DO UPDATE, then UPDATE with the token
-- about: two transactions, two round trips; no attempts that end, no pauses, no guard
-- tables: bench.lease
\set id random(1, 9000000000000000000)
INSERT INTO bench.lease AS l VALUES ('default', :id, nextval('bench.lease_token'), 1, now() + '30 s')
	ON CONFLICT (consumer, event_id) DO UPDATE SET token = excluded.token, attempt = l.attempt + 1, lease_until = excluded.lease_until
	WHERE l.completed_at IS NULL AND l.lease_until < now() RETURNING token \gset
UPDATE bench.lease SET completed_at = now() WHERE consumer = 'default' AND event_id = :id::text AND token = :token AND completed_at IS NULL;
