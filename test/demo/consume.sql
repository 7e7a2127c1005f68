-- One delivery of one message: claim, effect and completion in one
-- transaction, and the acknowledgement after its commit.  Killed anywhere in
-- between, the message is delivered again and the claim answers "duplicate".
--
-- busy: another consumer is at it; no ack, so that it comes again if he dies.
BEGIN;
SELECT v = 'claimed' AS claimed, v = 'duplicate' AS duplicate
	FROM idempotency.claim_event(:'event_id', consumer => 'bookkeeper') AS v \gset
\if :claimed
	SELECT book(inbox) FROM inbox WHERE event_id = :'event_id' \g /dev/null
	SELECT idempotency.complete_event(:'event_id', consumer => 'bookkeeper') \g /dev/null
	COMMIT;
	UPDATE inbox SET acked = true WHERE event_id = :'event_id';
\elif :duplicate
	INSERT INTO refused VALUES (:'event_id');
	COMMIT;
	UPDATE inbox SET acked = true WHERE event_id = :'event_id';
\else
	ROLLBACK;
\endif
