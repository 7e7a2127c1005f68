-- What the programs of doc/howto/leases.md work on.
-- >>> mails
CREATE TABLE mails (id text PRIMARY KEY, recipient text NOT NULL, subject text NOT NULL,
    sent_at timestamptz, gave_up_at timestamptz);
SELECT idempotency.consumer_create('mailer', lease_duration => '1 min');
SELECT idempotency.consumer_create('mailer once', lease_duration => '1 min', max_attempts => 1);
-- <<<
-- >>> invoices
CREATE TABLE usage (customer int NOT NULL, night date NOT NULL, amount int NOT NULL);
CREATE TABLE invoices (run text NOT NULL, customer int NOT NULL, amount bigint NOT NULL, PRIMARY KEY (run, customer));
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON invoices FOR EACH ROW
    EXECUTE FUNCTION idempotency.lease_guard('nightly', 'run');
-- <<<
-- >>> rights
GRANT SELECT, UPDATE ON mails TO job;
GRANT SELECT ON usage TO job;
GRANT SELECT, INSERT ON invoices TO job;
SELECT idempotency.grant_role('consumer', 'job');
ALTER ROLE job SET idle_in_transaction_session_timeout = '10 s';
-- <<<
