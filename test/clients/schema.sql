-- What the programs of this folder work on; the beginning is on the pages of doc/howto by language.
-- >>> schema
CREATE TABLE orders (id int PRIMARY KEY, total numeric NOT NULL);
CREATE TABLE invoices (order_id int PRIMARY KEY, total numeric NOT NULL, event_id uuid NOT NULL);
-- <<<
GRANT SELECT, INSERT ON orders, invoices TO shop;
SELECT idempotency.grant_role('producer', 'shop'), idempotency.grant_role('consumer', 'shop');
-- How many events of an order were enqueued: a producer may not read the outbox.
CREATE FUNCTION enqueued(int) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_type = 'order' AND aggregate_id = $1::text
$$;
