-- Database A: accounts, transfers between them, and an outbox.
--
-- psql variables: sock and port of the server that holds database B.
\set ON_ERROR_STOP on
CREATE EXTENSION idempotency CASCADE;

CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account SELECT id, 1000 FROM generate_series(1, 200) AS id;

-- What committed.  Nothing else decides what must have happened in B.
CREATE TABLE transfer (event_id uuid PRIMARY KEY, src int NOT NULL, dst int NOT NULL, amount int NOT NULL);

-- What was enqueued and then rolled back, noted afterwards.
CREATE TABLE rolled_back (event_id uuid PRIMARY KEY);

CREATE SERVER ledger FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host :'sock', port :'port', dbname 'ledger', "table" 'public.inbox');
CREATE USER MAPPING FOR CURRENT_USER SERVER ledger OPTIONS (user 'postgres');
