-- Idempotency keys: requests whose answer is stored and given again.

CREATE TYPE @extschema@.request_result AS ENUM ('started', 'replay', 'in_progress', 'mismatch', 'dead');
COMMENT ON TYPE @extschema@.request_result IS
'verdict on a request: started = execute it; replay = it was executed, give the stored answer; in_progress = another call executes it, try later; mismatch = its key was used for another request; dead = it is not executed again by itself';

CREATE FUNCTION @extschema@.claim_request(key text, scope text, fingerprint bytea = NULL, consumer text = 'default',
	lease interval = NULL, wait interval = '0', request jsonb = NULL,
	OUT result @extschema@.request_result, OUT token bigint, OUT attempt int, OUT recovery_point text, OUT state jsonb,
	OUT status int, OUT headers jsonb, OUT body bytea, OUT completed_at timestamptz, OUT expires_at timestamptz,
	OUT retry_after interval)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_claim_request_fn';
COMMENT ON FUNCTION @extschema@.claim_request(text, text, bytea, text, interval, interval, jsonb) IS
'ask for a request by its idempotency key, and start it if nobody has it: without a lease this transaction executes it and completes it; with a lease it is executed after COMMIT, by the token';

CREATE FUNCTION @extschema@.advance_request(key text, scope text, token bigint, recovery_point text, consumer text = 'default',
	state jsonb = NULL, lease interval = NULL)
RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_advance_request_fn';
COMMENT ON FUNCTION @extschema@.advance_request(text, text, bigint, text, text, jsonb, interval) IS
'note that a request has come to a recovery point, where the next attempt goes on, and keep its lease; the lease becomes the claim of this transaction; returns the end of the lease';

CREATE FUNCTION @extschema@.complete_request(key text, scope text, status int, headers jsonb = NULL, body bytea = NULL,
	consumer text = 'default', token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_complete_request_fn';
COMMENT ON FUNCTION @extschema@.complete_request(text, text, int, jsonb, bytea, text, bigint) IS
'store the answer of a request, final and given to every repeat: of the one that this transaction started, or of the lease with the token';

CREATE FUNCTION @extschema@.fail_request(key text, scope text, error text, consumer text = 'default', token bigint = NULL,
	retry_after interval = NULL)
RETURNS @extschema@.lease_state
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_fail_request_fn';
COMMENT ON FUNCTION @extschema@.fail_request(text, text, text, text, bigint, interval) IS
'the execution of a request has begun and failed: it may be executed again from its recovery point, after a pause; its fingerprint is kept';

CREATE FUNCTION @extschema@.release_request(key text, scope text, consumer text = 'default', token bigint = NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_release_request_fn';
COMMENT ON FUNCTION @extschema@.release_request(text, text, text, bigint) IS
'the execution of a request has not begun: the key may be used again, also for another request';
