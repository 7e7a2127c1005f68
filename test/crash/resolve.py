"""Makes a History from logs and tables: how each transaction ended.

An unknown COMMIT is resolved by pg_xact_status and by the row that the transaction leaves in
app.business.  Both are needed: a crash that loses an asynchronous commit may lose its
transaction id, too.  Another transaction then gets the id, and a status of "committed" is that
transaction's.
"""
import ledger
from rules import Claim, Event, History
from server import Finding
from topology import RELAYS, REPEATING, TYPES, WINDOW, dashed


def statuses(cluster, xids):
    found = {}
    xids = list(xids)
    for i in range(0, len(xids), 5000):
        found.update(cluster.rows("SELECT x, pg_xact_status(x::xid8) FROM unnest(%s::text[]) x",
                                  (xids[i:i + 5000],)))
    return found


def producers(h, entries):
    """txn -> its xid, and how it was decided if it was prepared."""
    xids, decided, ok = {}, {}, set()
    for e in entries:
        txn = e.get("txn")
        if e["op"] == "commit" and "events" in e:
            xids[txn] = e["xid"]
            if e["sync"]:
                ok.add(txn)
            for i, (event, key, n, amount, kept, kind) in enumerate(e["events"]):
                h.events.setdefault(event, []).append(Event(event, key, n, amount, kept, txn, i, kind))
        elif e["op"] == "ok":
            h.said_ok.add(txn)
        elif e["op"] == "decide":
            decided[txn] = e["what"]
    h.said_ok &= ok
    # For a prepared transaction "ok" is the answer to PREPARE.
    h.said_ok -= {t for t, what in decided.items() if what == "ROLLBACK"}
    return xids, decided


def resolve(h, cluster, xids, decided):
    status = statuses(cluster, set(xids.values()))
    for txn, xid in xids.items():
        here = txn in h.business
        if here and status[xid] != "committed":
            raise Finding(f"{txn}: its row is there, but transaction {xid} is {status[xid]}")
        if here and decided.get(txn) == "ROLLBACK":
            raise Finding(f"{txn}: was rolled back as prepared, and its row is there")
        h.outcome[txn] = "committed" if here else "aborted"
    for txn in h.business:
        if txn not in h.outcome:
            raise Finding(f"{txn}: its row is there, and COMMIT was never sent")


def consumers(h, entries):
    for e in entries:
        op, txn = e["op"], e.get("txn")
        if op == "answers":
            h.claims.extend(Claim(e["at"], txn, event, verdict) for event, verdict in e["of"])
        elif op == "effects":
            h.meant[txn] = set(e["of"])
        elif op == "commit" and "events" not in e:
            h.committing.setdefault(txn, e["at"])
        elif op == "decide":
            # The effects of a prepared transaction do not exist yet.
            h.committing[txn] = e["at"] if e["what"] == "COMMIT" else float("inf")
    for c in [c for c in h.claims if c.verdict not in ("claimed", "duplicate", "busy")]:
        raise Finding(f"{c.txn}: claim of {c.event} answered {c.verdict}")


def sessions(topology):
    """The events that each instance of the program got, in order."""
    found = []
    for entry in topology.program_log():
        if "hello" in entry:
            found.append([])
        elif entry.get("outcome") == "acked":
            found[-1].append(dashed(entry["event"]))
    return found


def shared(arrivals, known):
    """The arrivals, of which equal ones at several relays are in memory once.  known: id -> its first arrival."""
    for arrival in arrivals:
        first = known.setdefault(arrival[0], arrival)
        yield first if first == arrival else arrival


def history(topology, directory, quiet=()):
    h = History(types=TYPES, repeats=REPEATING, window=WINDOW)
    xids, decided = producers(h, ledger.read(directory))
    for txn, events, amount in topology.a.rows("SELECT txn, events, amount FROM app.business"):
        h.business.setdefault(txn, []).append((events, amount))
    resolve(h, topology.a, xids, decided)
    consumers(h, ledger.read(directory))
    known = {}
    h.arrivals = {relay: list(shared(topology.arrivals(relay), known)) for relay in RELAYS}
    h.effects = topology.consumer_effects()
    h.sessions = sessions(topology)
    h.quiet = list(quiet)
    for q in h.quiet:
        q.arrived = {relay: topology.first_arrivals(relay, q.begin, q.end) for relay in RELAYS}
    return h


def lines_about(what, topology, directory, most=40):
    """All lines of clients and receivers about one event or transaction, by time if they have one."""
    found = []
    for e in ledger.read(directory):
        text = str(e)
        if what in text:
            if "events" in e:
                e = {**e, "events": [x for x in e["events"] if what in (x[0], e["txn"])][:5]}
            elif isinstance(e.get("of"), list):
                e = {**e, "of": [x for x in e["of"] if what in (x, x[0])][:5]}
            found.append((e["at"], str(e)))
    out = [text for _, text in sorted(found)[:most]]
    for relay in RELAYS:
        for pos, (event, key, payload) in enumerate(topology.arrivals(relay)):
            if what in (event, payload.get("t")):
                out.append(f"{relay} number {pos}: {event} key {key} {payload}")
    out.extend(f"effect {pos}: {e} by {t}" for pos, (e, t) in enumerate(topology.consumer_effects()) if what in (e, t))
    return out[:most]
