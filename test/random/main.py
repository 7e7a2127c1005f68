"""main.py WORK BINDIR EXTENSION_CONF SINKS: the models, one after another.

TRANSACTIONS of each (5000), SEED of the first episode, ONLY some of them.
"""
import itertools
import os
import pathlib
import sys

import episodes
from claims import Claims, create_consumers
from cursors import Cursors, give_out_first
from leases import CONSUMERS, Leases
from outbox import Outbox, create_functions
from relays import Relays
from relays_world import World
from requests import CONSUMERS as REQUEST_CONSUMERS, Requests
import rows as any_rows
from server import Finding, Server

# Of all but relays; in short, so that segments turn over all the time.
CONF = """
max_prepared_transactions = 100
idempotency.outbox_retention = 0
idempotency.outbox_segment_size = '64kB'
idempotency.outbox_rotation_interval = 0
idempotency.claim_segment_size = '8kB'
idempotency.max_wait = '1h'
idempotency.sink_directory = '{sinks}'
autovacuum_naptime = 1s
deadlock_timeout = 1h
"""
# The relays start with the earliest event: all of them stay.
KEEPING = """
max_prepared_transactions = 100
idempotency.sink_directory = '{sinks}'
idempotency.sink_timeout = 10s
idempotency.max_parked = 3
"""


def database(server, name):
    server.rows(f"CREATE DATABASE {name}")
    server.rows("CREATE EXTENSION idempotency CASCADE", dbname=name)
    return name


def claims(server, _work, transactions, seed):
    name = database(server, "claims")
    create_consumers(server, name)
    return episodes.run("claims", lambda: Claims(server, name), transactions, seed, length=100)


def leases(server, _work, transactions, seed):
    name = database(server, "leases")
    create_consumers(server, name, CONSUMERS)
    return episodes.run("leases", lambda: Leases(server, name), transactions, seed, length=200)


def requests(server, _work, transactions, seed):
    name = database(server, "requests")
    create_consumers(server, name, REQUEST_CONSUMERS)
    return episodes.run("requests", lambda: Requests(server, name), transactions, seed, length=200)


def cursors(server, _work, transactions, seed):
    name = database(server, "cursors")
    give_out_first(server, name)
    return episodes.run("cursors", lambda: Cursors(server, name), transactions, seed, length=200)


def outbox(server, _work, transactions, seed):
    name = database(server, "outbox")
    create_functions(server, name)
    return episodes.run("outbox", lambda: Outbox(server, name), transactions, seed, length=200)


def rows(server, _work, transactions, seed):
    # a round reads everything: a hundredth is as long as a model's run
    return any_rows.run(server, max(1, transactions // 25), seed)


def relays(server, work, transactions, seed):
    numbers = itertools.count()

    def make():
        """A world of its own for each episode: a replay sends all that the outbox has."""
        n = next(numbers)
        if n:
            server.rows(f"DROP DATABASE source{n - 1} WITH (FORCE)")
            server.rows(f"DROP DATABASE target{n - 1} WITH (FORCE)")
        world = World(server, f"{work}/{n}", database(server, f"source{n}"), database(server, f"target{n}"))
        world.make()
        return Relays(world)

    return episodes.run("relays", make, transactions, seed, length=500, shrinks=False)


MODELS = {"claims": claims, "leases": leases, "requests": requests, "cursors": cursors, "outbox": outbox, "rows": rows, "relays": relays}


def main():
    work, bindir, conf, sinks = sys.argv[1:5]
    transactions = int(os.environ.get("TRANSACTIONS") or 5000)
    seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(3), "big"))
    settings = pathlib.Path(conf).read_text()
    only = (os.environ.get("ONLY") or " ".join(MODELS)).split()
    passed = failed = 0
    for name in only:
        server = Server(name, work, bindir)
        server.make(settings + (KEEPING if name == "relays" else CONF).format(sinks=sinks))
        server.start()
        try:
            held = MODELS[name](server, work, transactions, seed)
        except Finding as found:
            print(f"NOT OK {name}: {found}")
            held = False
        finally:
            server.remove()
        passed, failed = passed + held, failed + (not held)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
