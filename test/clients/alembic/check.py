"""What Alembic's autogenerate makes of a database with the extension, and the filter that keeps it off.

The lines between the marks are those of doc/howto/deploy.md.  As a role without rights on the
extension's tables, and as a superuser; a table of the application's is to be proposed each time.
"""

import warnings

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from sqlalchemy.exc import ProgrammingError, SAWarning


# >>> filter
def include_name(name, type_, parent_names):
    """The extension's schemas are the extension's: autogenerate does not look into them."""
    return type_ != "schema" or name not in ("idempotency", "idempotency_data")
# <<<


def include_object(obj, name, type_, reflected, compare_to):
    return getattr(obj, "schema", None) not in ("idempotency", "idempotency_data")


def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


def proposed(role, **opts):
    """The tables that autogenerate would add and remove, with include_schemas; None if it fails."""
    metadata = MetaData()
    Table("deliveries", metadata, Column("id", Integer, primary_key=True))
    engine = create_engine("postgresql+psycopg://", connect_args={"user": role})
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **opts})
            changes = [c for c in compare_metadata(context, metadata) if isinstance(c, tuple)]
    except ProgrammingError as error:
        return None if error.orig.sqlstate == "42501" else str(error)
    finally:
        engine.dispose()
    return {(what, item.fullname) for what, item, *_ in changes if what.endswith("_table")}


def main():
    warnings.simplefilter("ignore", SAWarning)      # types of the extension's tables
    ours = {("add_table", "deliveries")}
    theirs = {("remove_table", "orders"), ("remove_table", "invoices")}
    check("without the filter a plain role fails", proposed("shop") is None)
    check("without the filter a superuser would drop the extension's tables",
          any(what == "remove_table" and "idempotency_data" in table for what, table in proposed("postgres")))
    check("include_object comes too late for a plain role", proposed("shop", include_object=include_object) is None)
    for role in ("shop", "postgres"):
        check(f"with the filter {role} sees the application's tables only",
              proposed(role, include_name=include_name) == ours | theirs)


main()
