-- Documents whose text is much longer than they are: refused when they come in, since neither
-- a dump nor a sink could have the text of gigabytes.
\set SHOW_CONTEXT never
CREATE FUNCTION numbers(n int, digits int) RETURNS jsonb LANGUAGE sql AS
$$ SELECT jsonb_agg(('1e' || digits - 1)::numeric) FROM generate_series(1, n) $$;
SELECT pg_column_size(numbers(64, 131072)) AS stored, length(numbers(64, 131072)::text) AS as_text;

-- Events: eight times idempotency.max_payload_size
SELECT idempotency.outbox_enqueue('document', '1', 'e', numbers(64, 131072));
SELECT idempotency.outbox_enqueue('document', '1', 'e', '{}', headers => jsonb_build_object('h', numbers(64, 131072)));
SELECT idempotency.outbox_enqueue_many('document', '{1,2}', '{e,e}', ARRAY['{}', jsonb_build_array(numbers(64, 131072))]);
SELECT idempotency.outbox_enqueue_many('document', '{1}', '{e}', ARRAY['{}'::jsonb], headers => ARRAY[jsonb_build_object('h', numbers(64, 131072))]);
SELECT idempotency.outbox_enqueue('document', '1', 'e', jsonb_build_object(repeat(chr(1), 700000), numbers(32, 131072)));
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = 'document';

-- Near the limit, and what is long in both forms
SELECT count(idempotency.outbox_enqueue('document', '1', 'e', payload))
  FROM (VALUES (numbers(63, 131072)), (numbers(70000, 3)), (to_jsonb(repeat(chr(1), 1000000))), (to_jsonb(repeat('"', 1000000))),
			   (jsonb_build_array(1e-16383, -1e131071, 0, 'NaN', NULL, true))) v (payload);
SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = 'document' AND length(payload::text) > 0;
SET idempotency.max_payload_size = '2MB';
SELECT count(idempotency.outbox_enqueue('document', '1', 'e', numbers(64, 131072)));
RESET idempotency.max_payload_size;

-- Results of events: 256 MB
BEGIN;
SELECT idempotency.claim_events('{document-1,document-2}');
SAVEPOINT s;
SELECT idempotency.complete_event('document-1', result => numbers(2048, 131072));
ROLLBACK TO s;
SELECT idempotency.complete_events('{document-2}', results => ARRAY[numbers(2048, 131072)]);
ROLLBACK TO s;
SELECT idempotency.complete_event('document-1', result => to_jsonb(repeat(chr(1), 50000000)));
ROLLBACK TO s;
SELECT idempotency.complete_event('document-1', result => numbers(64, 131072));
SELECT idempotency.complete_events('{document-2}', results => ARRAY[numbers(64, 131072)]);
COMMIT;
SELECT length(idempotency.event_result('document-1')::text), length(idempotency.event_result('document-2')::text);

-- Requests and leases: eight times their limits
BEGIN;
SELECT idempotency.claim_request('document', 'tenant', request => numbers(64, 131072));
ROLLBACK;
BEGIN;
SELECT result FROM idempotency.claim_request('document', 'tenant');
SELECT idempotency.complete_request('document', 'tenant', 200, jsonb_build_object('h', numbers(64, 131072)));
ROLLBACK;
SELECT token AS token FROM idempotency.lease_event('document-3') \gset
SELECT idempotency.extend_lease('document-3', :token, state => numbers(64, 131072));
SELECT idempotency.release_lease('document-3', :token);
DROP FUNCTION numbers;
