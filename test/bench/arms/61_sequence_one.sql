-- title: claim_sequence of one record
-- about: of a producer whose sequences rise; a partition for each client
-- rows: 0
SELECT result FROM bench.producer p CROSS JOIN LATERAL idempotency.claim_sequence(p.producer_id, p.epoch, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'arm', :client_id);
