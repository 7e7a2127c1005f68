"""What both services share: an engine that never takes a ROLLBACK for a COMMIT."""

from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine


def engine_for(url):
    engine = create_async_engine(url, pool_pre_ping=True)

    @event.listens_for(engine.sync_engine, "commit")
    def notice(connection):
        connection.exec_driver_sql("SELECT 1")      # fails in a transaction in which a statement has failed

    return engine
