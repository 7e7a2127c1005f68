-- title: claim_offset of one record
-- about: one round trip; there is nothing to complete
-- rows: 0
SELECT result FROM idempotency.claim_offset('bench', 'arm', :client_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
