-- Triggers for tables of applications.

CREATE FUNCTION @extschema@.version_guard()
RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_version_guard_fn';
COMMENT ON FUNCTION @extschema@.version_guard() IS
'trigger, BEFORE UPDATE FOR EACH ROW, with the name of a column: an update has to raise the column, else it is an error, or with the second argument ''ignore'' it is skipped';

CREATE FUNCTION @extschema@.lease_guard()
RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_lease_guard_fn';
COMMENT ON FUNCTION @extschema@.lease_guard() IS
'trigger, BEFORE INSERT OR UPDATE OR DELETE FOR EACH ROW, with the name of a consumer: only a transaction that has claimed an event of it, or asserted a lease, may write; with the name of a column: the event that stands there';
