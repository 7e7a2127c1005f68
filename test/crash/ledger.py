"""The clients' logs, written outside of the servers: one file per client.

A line is a JSON object with "at" (monotonic seconds) and "op":

    {"op": "commit", "txn": T, "xid": X, "events": [[id, key, n, amount, kept, type], ...], ...}
                        COMMIT, or PREPARE, is about to be sent
    {"op": "ok"|"unknown"|"fail", "txn": T}
                        how the transaction ended; without "commit" it ended before COMMIT
    {"op": "decide", "txn": T, "what": "COMMIT"|"ROLLBACK"}
                        a prepared transaction is about to be ended so
    {"op": "answers", "txn": T, "of": [[event id, verdict], ...]}
                        the verdicts of claims
    {"op": "effects", "txn": T, "of": [event id, ...]}
                        effects that the transaction makes if it commits

Only the client that owns a file writes to it.  Only the last line may be incomplete.
"""
import json
import pathlib
import time


class Ledger:
    def __init__(self, directory, client):
        self.path = pathlib.Path(directory) / f"{client}.ledger"
        self.client = client
        self.count = 0
        self.file = open(self.path, "a", encoding="ascii", buffering=1 << 16)

    def transaction(self):
        """A name that no other transaction has."""
        self.count += 1
        return f"{self.client}.{self.count}"

    def write(self, op, **more):
        self.file.write(json.dumps({"at": time.monotonic(), "op": op, **more}) + "\n")

    def flush(self):
        """Call only while the client does not write."""
        self.file.flush()

    def close(self):
        self.file.close()


class Follower:
    """The lines that have come since the last look."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.offsets = {}

    def new(self):
        for path in sorted(self.directory.glob("*.ledger")):
            with open(path, "rb") as f:
                f.seek(self.offsets.get(path, 0))
                for line in f:
                    if line.endswith(b"\n"):
                        self.offsets[path] = self.offsets.get(path, 0) + len(line)
                        yield json.loads(line)


def read(directory):
    """All lines of all clients; each client's lines in their order.  The last line of a client that still works
    may be incomplete."""
    for path in sorted(pathlib.Path(directory).glob("*.ledger")):
        with open(path, encoding="ascii") as f:
            for line in f:
                if line.endswith("\n"):
                    yield json.loads(line)
