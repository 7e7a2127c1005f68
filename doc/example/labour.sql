-- The labour service's database.  A superuser runs this; the service logs in as labour.
CREATE EXTENSION idempotency CASCADE;
CREATE TABLE shifts (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker text NOT NULL, hours int NOT NULL);
CREATE ROLE labour LOGIN;
GRANT SELECT, INSERT ON shifts TO labour;
SELECT idempotency.grant_role('producer', 'labour'), idempotency.grant_role('consumer', 'labour');
SELECT idempotency.consumer_create('labour', retention => '30 days');
CREATE SERVER notification FOREIGN DATA WRAPPER idempotency_http
    OPTIONS (url :'url', allowed_addresses '127.0.0.1');        -- the receiver is on this machine
CREATE USER MAPPING FOR CURRENT_USER SERVER notification OPTIONS (signing_secrets :'secret');
SELECT idempotency.relay_create('notification', 'notification', aggregate_types => '{shift}', ordering => 'key',
    min_backoff => '50 ms', max_backoff => '500 ms', max_attempts => 1000);
