-- The migrations of doc/howto/deploy.md.  Flyway begins and commits a transaction for each by itself.
-- >>> migration
SET ROLE shop_migrate;
BEGIN;
CREATE TABLE invoices (order_id text PRIMARY KEY);
GRANT SELECT, INSERT ON invoices TO shop_rights;
SELECT idempotency.consumer_create('billing', retention => '30 days');
CREATE FUNCTION on_order(aggregate_id text) RETURNS void LANGUAGE sql AS
$$ INSERT INTO public.invoices VALUES (aggregate_id) $$;
CREATE SERVER invoicing FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.on_order');
SELECT idempotency.relay_create('invoices', 'invoicing', aggregate_types => '{order}');
COMMIT;
-- <<<
-- >>> back
SET ROLE shop_migrate;
SELECT idempotency.relay_drop('invoices');
DROP SERVER invoicing;
SELECT idempotency.consumer_drop('billing');
-- <<<
