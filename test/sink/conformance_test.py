#!/usr/bin/env python3
"""The programs of this tree but the postgres sink, held against doc/sink-protocol.md."""
import json
import os
import pathlib
import sqlite3
import sys

import conformance
from conformance import Program
from sinklib import HERE, PYTEST_SINK

BIN = pathlib.Path(os.environ.get("SINK_BINDIR", HERE.parent.parent / "src/sink/bin"))
BYTES = {"payload": b"\xff\0", "json": False}


def null(_):
    return Program(BIN / "idempotency-sink-null")


def pytest_sink(directory):
    return Program(PYTEST_SINK, {"file": f"{directory}/log", "reject_type": "BAD"}, {"type": "BAD"})


def pytest_sharing(directory):
    """The test sink with several batches in a commit, which refuses events only there."""
    p = Program(PYTEST_SINK, {"file": f"{directory}/log", "position": "on", "share": "3", "abort_type": "BAD"},
                {"type": "BAD"}, True)

    def effects():
        with open(p.options["file"]) as f:
            lines = [json.loads(line) for line in f]
        return {e["event"]: e.get("payload") for e in lines if e.get("outcome") == "acked"}

    p.effects = effects
    return p


def sqlite(directory):
    file = f"{directory}/db"

    def query(sql):
        with sqlite3.connect(file) as db:
            return db.execute(sql).fetchall()

    def set_back():
        query("DELETE FROM inbox WHERE rowid = (SELECT max(rowid) FROM inbox)")
        query("UPDATE position SET row_id = 1")

    return Program(HERE / "idempotency-sink-sqlite", {"file": file}, BYTES, True,
                   lambda: dict(query("SELECT event_id, payload FROM inbox")), set_back)


def sqlite_before_takeover(directory):
    """The target is set back to before the program said hello."""
    p = sqlite(directory)
    back = p.set_back

    def set_back():
        back()
        with sqlite3.connect(p.options["file"]) as db:
            db.execute("UPDATE position SET epoch = epoch - 1")
    p.set_back = set_back
    return p


# The test sink is told to break rules, and does not look for all that a worker could break.
LAX = ("refuses_unknown_option", "dies_of_broken_frames")


def main():
    failed = conformance.run(null, "null ")
    failed += conformance.run(pytest_sink, "pytest ", LAX)
    failed += conformance.run(pytest_sharing, "pytest, sharing ", LAX + ("stores_the_position", "fences_predecessors"))
    failed += conformance.run(sqlite, "sqlite ")
    every = [n for n in conformance.CHECKS if n != "notices_a_set_back_target"]
    failed += conformance.run(sqlite_before_takeover, "sqlite, before its hello ", every)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
