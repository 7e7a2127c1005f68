"""Compares the ledger, the business table and the events that the sinks received.

Each rule is a difference of sets or one pass over a list.  A violation is
printed with the ledger's line of the event, not with the whole history.
"""
from server import Finding

SHOWN = 5


class Verdict:
    """orders: event -> (key, n), as the surviving primary has them."""

    def __init__(self, operations, orders):
        self.operations = {op.event: op for op in operations}
        self.orders = orders
        self.findings = []

    def report(self, rule, events):
        events = list(events)
        if not events:
            return
        lines = [f"{rule}: {len(events)}"]
        for event in events[:SHOWN]:
            lines.append(f"    {self.operations.get(event, event)}"
                         f"{' (committed)' if event in self.orders else ' (not committed)'}")
        self.findings.append("\n".join(lines))

    def ledger(self, lost_allowed=False):
        """Compare the server with the answers to its clients."""
        if not lost_allowed:
            self.report("acknowledged durable commit is gone",
                        (op.event for op in self.operations.values()
                         if op.outcome == "ok" and op.durable and op.event not in self.orders))
        self.report("committed although it failed",
                    (op.event for op in self.operations.values()
                     if op.outcome == "fail" and op.event in self.orders))
        self.report("nobody wrote it", (e for e in self.orders if e not in self.operations))

    def sink(self, name, arrivals, once=True, ordered=True, forgiven=()):
        """arrivals: (event, key, n) in the order of arrival.

        forgiven: events that a failover without a synchronous standby lost.
        """
        seen, repeated, last, overtaken = set(), [], {}, []
        for event, key, n in arrivals:
            if event in seen:
                repeated.append(event)
                continue
            seen.add(event)
            if n <= last.get(key, 0):
                overtaken.append(event)
            last[key] = max(n, last.get(key, 0))
        self.report(f"{name}: lost", (e for e in self.orders if e not in seen))
        self.phantoms(name, seen, forgiven)
        if once:
            self.report(f"{name}: doubled", repeated)
        if ordered:
            self.report(f"{name}: overtaken by a later one of its key", overtaken)

    def phantoms(self, name, events, forgiven=()):
        self.report(f"{name}: phantom", {e for e in events if e not in self.orders and e not in forgiven})

    def pronounce(self):
        if self.findings:
            raise Finding("\n".join(self.findings))
