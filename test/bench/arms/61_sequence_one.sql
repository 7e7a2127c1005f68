-- title: claim_sequence of one record
-- about: of a producer whose sequences rise; a partition for each client
-- rows: 0
-- before: TRUNCATE bench.producer; INSERT INTO bench.producer SELECT * FROM idempotency.register_producer('bench', gapless => false)
SELECT result FROM bench.producer p CROSS JOIN LATERAL idempotency.claim_sequence(p.producer_id, p.epoch, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'arm', :client_id);
