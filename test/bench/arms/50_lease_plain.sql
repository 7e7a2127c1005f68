-- title: INSERT of a lease into a plain table, then UPDATE with its token
-- about: floor of a lease in place: two transactions, two round trips, each writes one row. Nobody leases an event again, so there is no conflict to look for; no attempts, no names of events, no guard
-- tables: bench.plain_lease
\set id random(1, 9000000000000000000)
INSERT INTO bench.plain_lease VALUES (md5(:id::text)::uuid, nextval('bench.lease_token'), now() + '30 s') RETURNING token \gset
UPDATE bench.plain_lease SET completed_at = now() WHERE digest = md5(:id::text)::uuid AND token = :token AND completed_at IS NULL;
