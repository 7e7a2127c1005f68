-- Database B: the same accounts, changed by the consumers alone.
--
-- The inbox and the relay's position were made by what sink_setup_sql(server)
-- printed in A.  B has the extension, too: the consumers claim from it, and
-- the sink claims what it puts into the inbox.
\set ON_ERROR_STOP on

-- The inbox stands for a broker's queue: what is not acked is delivered again.
-- "repeated" is the re-deliverer's note.
ALTER TABLE inbox ADD COLUMN acked boolean NOT NULL DEFAULT false,
	ADD COLUMN repeated boolean NOT NULL DEFAULT false;
CREATE INDEX inbox_unacked ON inbox (event_id) WHERE NOT acked;
CREATE INDEX inbox_to_repeat ON inbox (event_id) WHERE NOT repeated AND seq % 5 = 0;

CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account SELECT id, 1000 FROM generate_series(1, 200) AS id;

-- The effects.  No key: a second effect of an event must be able to show.
CREATE TABLE entry (event_id uuid NOT NULL, src int NOT NULL, dst int NOT NULL, amount int NOT NULL);

-- Deliveries that found the event done.
CREATE TABLE refused (event_id uuid NOT NULL);

-- The handler of a message; accounts are locked in the order of their ids.
CREATE FUNCTION book(message inbox) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	src int := message.payload ->> 'src';
	dst int := message.payload ->> 'dst';
	amount int := message.payload ->> 'amount';
BEGIN
	PERFORM FROM account WHERE id IN (src, dst) ORDER BY id FOR UPDATE;
	UPDATE account SET balance = balance - amount WHERE id = src;
	UPDATE account SET balance = balance + amount WHERE id = dst;
	INSERT INTO entry VALUES (message.event_id, src, dst, amount);
END
$$;
