-- title: three bare INSERTs in two transactions
-- about: floor of a lease: a row of the lease; then one that ends it, and one of the completion
-- tables: bench.floor_lease bench.floor_claim
-- rows: 3
\set id random(1, 9000000000000000000)
INSERT INTO bench.floor_lease (digest, lease_until, event_id, consumer) VALUES (md5(:id::text)::uuid, now() + '30 s', :id, 'default');
WITH ended AS (INSERT INTO bench.floor_lease (digest) VALUES (md5(:id::text)::uuid)) INSERT INTO bench.floor_claim VALUES (md5(:id::text)::uuid);
