-- What doc/howto/deploy.md has a superuser do once, and two migrations; Migrate.java has Flyway
-- run these as a plain role.
-- >>> grants
CREATE EXTENSION IF NOT EXISTS idempotency CASCADE;
CREATE ROLE shop_migrate LOGIN PASSWORD 'secret';
CREATE ROLE shop_rights NOLOGIN;
CREATE ROLE shop_app LOGIN PASSWORD 'secret';
GRANT CREATE, USAGE ON SCHEMA public TO shop_migrate;
SELECT idempotency.grant_role('operator', 'shop_migrate');
SELECT idempotency.grant_role('producer', 'shop_rights'), idempotency.grant_role('consumer', 'shop_rights');
GRANT shop_rights TO shop_app;
GRANT shop_rights TO shop_migrate WITH ADMIN OPTION;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function, idempotency_postgres TO shop_migrate;
-- <<<
