-- What the programs of doc/howto/payments.md work on.
-- >>> schema
CREATE TABLE tenants (name text PRIMARY KEY, token_hash bytea NOT NULL UNIQUE);
CREATE TABLE accounts (tenant text NOT NULL, name text NOT NULL,
    balance bigint NOT NULL CHECK (balance >= 0), PRIMARY KEY (tenant, name));
CREATE TABLE transfers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL,
    source text NOT NULL, target text NOT NULL, amount bigint NOT NULL,
    FOREIGN KEY (tenant, source) REFERENCES accounts, FOREIGN KEY (tenant, target) REFERENCES accounts);
CREATE TABLE payments (id uuid PRIMARY KEY, tenant text NOT NULL, amount bigint NOT NULL,
    status text NOT NULL DEFAULT 'pending', charge text);
-- <<<
-- >>> rights
GRANT SELECT ON tenants TO pay;
GRANT SELECT, UPDATE ON accounts TO pay;
GRANT SELECT, INSERT ON transfers TO pay;
GRANT SELECT, INSERT, UPDATE ON payments TO pay;
SELECT idempotency.grant_role('consumer', 'pay'), idempotency.grant_role('producer', 'pay');
SELECT idempotency.consumer_create('payments', retention => '30 days', max_attempts => 20);
-- <<<
