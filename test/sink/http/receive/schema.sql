-- What the receivers of doc/howto/webhooks.md keep; receive_test.py makes it.

-- >>> invoices
CREATE TABLE invoices (order_id text NOT NULL, total numeric NOT NULL, event_id uuid NOT NULL);
-- <<<

-- >>> sms
SELECT idempotency.consumer_create('sms', lease_duration => '1 min');
-- <<<
