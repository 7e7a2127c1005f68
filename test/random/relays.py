"""Relays of every kind under operators' commands, kills and restarts, against relays_model.

What the relays do is not the test's to order; so nothing is compared before a quiet point.  There the door is opened,
the target is back, what is paused goes on, and within a bounded time everything that is owed has to be there.
"""
import os
import signal
import time

import relays_model
from episodes import Mismatch
from outbox_model import Event, Model, Txn
from relays_model import DEADLY, DOOR, FINE, KINDS, LATE, REFUSED, Arrivals, Relay
from session import Session

WRITERS = 3
KEYS = 5
MOST = 5
# A relay that owes something delivers something in this time on a slow machine; a lost wake-up takes a minute.
SECONDS = int(os.environ.get("DRAIN_SECONDS") or 180)
# After a replay all events may come again, in transactions of one each.
MOST_SECONDS = 900
BACKOFF = "min_backoff => '5 ms', max_backoff => '100 ms'"


class Relays:
    def __init__(self, world):
        self.world = world
        self.cluster = world.cluster
        self.model = Model()
        self.sessions = [Session(self.cluster, world.source, f"relays {i}") for i in range(WRITERS)]
        self.relays = {}
        self.keys = {}          # key -> the session or prepared transaction that has it locked
        self.numbers = {}       # key -> the last one given out under its lock
        self.away = self.closed = False
        self.names = self.created = 0
        self.transactions = 0
        self.longest = 0
        self.trace = []

    @property
    def remark(self):
        return f"{self.longest:5.1f} s the longest drain"

    # Choosing.

    def choose(self, rng):
        chance = rng.random()
        if chance < 0.01:
            return (-1, "quiet", rng.random())
        if chance < 0.0125:
            return (-1, "restart", rng.choice(("fast", "immediate")))
        if chance < 0.015:
            return (-1, "kill_worker", rng.random())
        if chance < 0.02:
            return (-1, "kill_sink", rng.random())
        if chance < 0.025:
            return (-1, "door", rng.random() < 0.5)
        if chance < 0.028:
            return (-1, "target", rng.random() < 0.5)
        if chance < 0.07 or not self.relays:
            return self.choose_command(rng)
        return self.choose_writing(rng, rng.randrange(WRITERS))

    def choose_command(self, rng):
        if len(self.relays) < MOST and (not self.relays or rng.random() < 0.4):
            self.created += 1
            return (-1, "create", f"r{self.created}", rng.choice(sorted(KINDS)), rng.choice(((), (), ("j",), ("k",))),
                    rng.choice(("key", "key", "none")), rng.choice(("skip", "skip", "block_key", "stop")),
                    rng.choice(("earliest", "latest")), rng.randint(1, 3), rng.choice((1, 10, 100, 1000)))
        name = rng.choice(sorted(self.relays))
        way = rng.choice(("pause", "resume", "resume", "alter", "order", "start_at", "replay", "replay_event", "adopt",
                          "redrive", "discard", "drop"))
        more = {"alter": rng.choice((3, 10, 100, 1000)), "order": rng.choice(("key", "none")),
                "start_at": rng.choice(("earliest", "latest")), "replay": rng.random() < 0.5,
                "replay_event": rng.random()}.get(way)
        return (-1, way, name) + (() if more is None else (more,))

    def choose_writing(self, rng, s):
        txn = self.model.txns.get(s)
        if txn is None:
            if self.model.prepared and rng.random() < 0.2:
                return (s, "finish_prepared", rng.choice(sorted(self.model.prepared)), rng.random() < 0.7)
            return (s, "begin")
        ways = ["enqueue"] * 6 + ["locked"] * 3 + ["many"] + ["savepoint"] + ["commit"] * 4 + ["rollback"] + ["prepare"]
        if txn.savepoints:
            ways += ["rollback_to"] * 2
        way = rng.choice(ways)
        event_type = rng.choices((FINE, REFUSED, DOOR, DEADLY, LATE), (92, 2, 3, 1, 2))[0]
        if way in ("enqueue", "locked"):
            return (s, way, f"{'j' if way == 'enqueue' else 'k'}{rng.randrange(KEYS)}", event_type)
        if way == "many":
            return (s, way, rng.randint(1, 40))
        return (s, way)

    def makes_sense(self, _op):
        return True

    def apply(self, op):
        self.trace.append(f"{op!r}")
        if op[0] < 0:
            self.transactions += op[1] not in ("quiet", "restart", "kill_worker", "kill_sink", "door", "target")
            getattr(self, "do_" + op[1])(*op[2:])
        else:
            getattr(self, "do_" + op[1])(op[0], self.model.txns.get(op[0]), *op[2:])

    def run(self, s, sql, args=None):
        answer = self.sessions[s].run(sql, args)
        if answer.state or answer.lost:
            raise Mismatch(f"{self.trace[-1]}: {answer}")
        return answer.rows

    # Writing.

    def do_begin(self, s, txn):
        self.transactions += 1
        self.model.txns[s] = Txn("READ COMMITTED")
        self.run(s, "BEGIN")

    def enqueue(self, s, txn, aggregate, key, event_type, n):
        event_id = self.run(s, "SELECT idempotency.outbox_enqueue(%s, %s, %s, to_jsonb(%s))::text",
                            (aggregate, key, event_type, n))[0][0]
        txn.events.append(Event(self.model.now(), (event_id, aggregate, key, event_type, n)))

    def do_enqueue(self, s, txn, key, event_type):
        self.enqueue(s, txn, "j", key, event_type, 0)

    def do_locked(self, s, txn, key, event_type):
        """Under the lock of the key, which is taken before any savepoint and held to the end."""
        holder = self.keys.get(key)
        if holder not in (None, s) or holder is None and txn.savepoints:
            return
        if holder is None:
            self.run(s, "INSERT INTO r.keys VALUES (%s, 0) ON CONFLICT (key) DO UPDATE SET n = keys.n + 1", (key,))
            self.keys[key] = s
        self.numbers[key] = self.numbers.get(key, 0) + 1
        self.enqueue(s, txn, "k", key, event_type, self.numbers[key])

    def do_many(self, s, txn, count):
        rows = self.run(s, """SELECT outbox_enqueue_many::text FROM idempotency.outbox_enqueue_many('j', %s, %s, %s::jsonb[])""",
                        ([f"m{i % 3}" for i in range(count)], [FINE] * count, ["0"] * count))
        for i, (event_id,) in enumerate(rows):
            txn.events.append(Event(self.model.now(), (event_id, "j", f"m{i % 3}", FINE, 0)))

    def do_savepoint(self, s, txn):
        self.run(s, "SAVEPOINT s")
        self.model.savepoint(txn, "s")

    def do_rollback_to(self, s, txn):
        self.run(s, "ROLLBACK TO s")
        self.model.rollback_to(txn, "s")

    def free(self, holder, to=None):
        for key in [k for k, h in self.keys.items() if h == holder]:
            del self.keys[key]
            if to is not None:
                self.keys[key] = to

    def do_commit(self, s, txn):
        self.run(s, "COMMIT")
        self.model.commit(self.model.txns.pop(s))
        self.free(s)

    def do_rollback(self, s, txn):
        self.run(s, "ROLLBACK")
        del self.model.txns[s]
        self.free(s)

    def do_prepare(self, s, txn):
        self.names += 1
        gid = f"relays-{self.names}"
        self.run(s, f"PREPARE TRANSACTION '{gid}'")
        self.model.prepared[gid] = self.model.txns.pop(s)
        self.free(s, gid)

    def do_finish_prepared(self, s, txn, gid, commit):
        self.run(s, f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
        txn = self.model.prepared.pop(gid)
        if commit:
            self.model.commit(txn)
        self.free(gid)

    # Operators.

    def do_create(self, name, kind, types, ordering, on_dead, start, attempts, batch):
        if kind in ("pg", "pgplain"):
            self.do_target(False)
        self.world.create_server(name, kind)
        self.world.sql(f"""SELECT idempotency.relay_create('{name}', 's_{name}', %s, start_at => '{start}',
            ordering => '{ordering}', on_dead => '{on_dead}', max_attempts => {attempts}, batch_events => {batch},
            {BACKOFF})""", (list(types) or None,))
        self.relays[name] = Relay(name, kind, types, ordering, on_dead, 0 if start == "earliest" else self.model.commits)

    def command(self, _name, sql, args=None):
        return self.world.sql(f"SELECT idempotency.relay_{sql}", args)

    def do_pause(self, name):
        self.command(name, f"pause('{name}')")
        self.relays[name].paused = True

    def do_resume(self, name):
        self.command(name, f"resume('{name}')")
        self.relays[name].paused = False

    def do_alter(self, name, batch):
        self.command(name, f"alter('{name}', batch_events => {batch})")

    def do_order(self, name, ordering):
        self.command(name, f"alter('{name}', ordering => '{ordering}')")
        relay = self.relays[name]
        relay.reordered = relay.reordered or relay.ordering != ordering
        relay.ordering = ordering

    def ids(self, relay, of=FINE):
        return {e.row[0] for events in self.model.committed for e in events if relay.wants(e) and e.row[3] == of}

    def moved(self, relay, again):
        """Its position was moved by an operator; again: what it has to send once more, if its sink takes it."""
        relay.repeats = relay.reordered = True
        if again and not KINDS[relay.kind][1]:
            relay.again.append((len(self.arrived(relay)), again))

    def arrived(self, relay):
        """While the target is away nobody can look: nothing arrives there either, but what is there stays."""
        if self.away and relay.kind in ("pg", "pgplain"):
            self.do_target(False)
        return self.world.arrivals(relay.name, relay.kind)

    def do_start_at(self, name, start):
        relay = self.relays[name]
        before = {e.row[0] for events in self.model.committed for e in events}
        if start == "earliest":
            self.moved(relay, self.ids(relay))
            self.command(name, f"alter('{name}', start_at => 'earliest')")
            relay.start = 0
        else:
            self.moved(relay, None)
            self.command(name, f"alter('{name}', start_at => 'latest')")
            relay.optional |= before
            relay.again = []

    def do_replay(self, name, everything):
        relay = self.relays[name]
        self.moved(relay, self.ids(relay) if everything else None)
        self.command(name, f"replay('{name}', since => now() - interval '{'1 day' if everything else '0'}')")

    def do_replay_event(self, name, which):
        relay = self.relays[name]
        ids = sorted(self.ids(relay))
        if ids:
            event_id = ids[int(which * len(ids))]
            self.moved(relay, {event_id})
            self.command(name, f"replay('{name}', event_id => '{event_id}')")

    def do_adopt(self, name):
        self.moved(self.relays[name], None)
        self.command(name, f"adopt('{name}')")

    def do_redrive(self, name):
        self.relays[name].reordered = True
        self.command(name, f"redrive('{name}')")

    def do_discard(self, name):
        dead = self.world.dead(name)
        if dead:
            self.command(name, f"discard('{name}', %s::uuid[])", (sorted(dead),))
            self.relays[name].optional |= dead

    def do_drop(self, name):
        self.command(name, f"drop('{name}')")
        self.world.sql(f"DROP SERVER s_{name} CASCADE")
        del self.relays[name]

    # What goes wrong around them.

    def do_door(self, closed):
        self.closed = closed
        if self.away:
            self.do_target(False)
        self.world.door(closed)

    def do_target(self, away):
        if away != self.away:
            (self.world.target_away if away else self.world.target_back)()
        self.away = away

    def pick(self, column, which):
        found = sorted({s[column] for s in self.world.status().values() if s[column]})
        return found[int(which * len(found))] if found else None

    def do_kill_worker(self, which):
        self.world.sql("SELECT pg_terminate_backend(%s)", (self.pick(3, which),))

    def do_kill_sink(self, which):
        self.cluster.signal(self.pick(4, which), signal.SIGKILL)

    def do_restart(self, mode):
        for s in self.sessions:
            s.close()
        self.cluster.restart(mode)
        for s in self.sessions:
            s.open()
        for s in list(self.model.txns):
            self.free(s)
        self.model.txns = {}

    # Quiet points.

    def do_quiet(self, which):
        self.do_target(False)
        self.do_door(False)
        for name in sorted(self.relays):
            if self.relays[name].paused:
                self.do_resume(name)
        every = {e.row[0]: e for events in self.model.committed for e in events}
        for name in sorted(self.relays):
            self.drain(self.relays[name], every)
        if which < 0.3:
            for name in sorted(self.relays):
                (self.do_redrive if which < 0.2 else self.do_discard)(name)

    def drain(self, relay, every):
        began = time.monotonic()
        owed = {}

        def state():
            dead = self.world.dead(relay.name)
            return Arrivals(self.world.arrivals(relay.name, relay.kind)), dead

        def drained():
            owed.update(relays_model.due(relay, self.model.committed))
            arrivals, dead = state()
            self.attend(relay, every, dead)
            # an event that it need not send may stand before others of its key, or be taken for an outage
            waits = any(state != "dead" for state, _ in self.world.waiting(relay.name))
            if waits or any(e.row[3] == REFUSED and i not in dead and i not in relay.optional for i, e in owed.items()):
                self.let_pass(relay, every)
            if waits:
                return False
            if relays_model.missing(relay, owed, arrivals, {i for i in dead if every[i].row[3] == REFUSED}):
                return False
            status = self.world.status()[relay.name]
            idle = not self.model.txns and not self.model.prepared
            return status[0] in ("streaming", "idle") and (not idle or status[1] == "events" and status[2] == 0)

        moved, most = began, None
        while not drained():
            now, here = time.monotonic(), self.progress(relay)
            if here != most:
                moved, most = now, here
            if now - moved > SECONDS or now - began > MOST_SECONDS:
                raise Mismatch(f"relay {relay.name} is not drained after {now - began:.0f} s, and for {now - moved:.0f} s"
                               f" nothing has come\n{self.describe(relay, owed, every)}")
            time.sleep(0.05)
        took = time.monotonic() - began
        self.trace[-1] += f" {relay.name} {took:.1f}s"
        self.longest = max(self.longest, took)
        arrivals, dead = state()
        for fault in relays_model.faults(relay, owed, every, arrivals, dead):
            raise Mismatch(f"relay {relay.name}: {fault}\n{self.describe(relay, owed, every)}")
        relay.again = []

    def progress(self, relay):
        """What has come so far: after a replay, of one event per batch, that is a lot."""
        return len(self.world.arrivals(relay.name, relay.kind)), self.world.waiting(relay.name)

    def let_pass(self, relay, every):
        """An event that passes: a refusal counts only while others do."""
        aggregate = relay.types[0] if relay.types else "j"
        event_id = self.world.sql("SELECT idempotency.outbox_enqueue(%s, 'passes', %s, '0')::text", (aggregate, FINE))[0][0]
        txn = Txn("READ COMMITTED")
        txn.events.append(Event(self.model.now(), (event_id, aggregate, "passes", FINE, 0)))
        self.model.commit(txn)
        every[event_id] = txn.events[0]

    def attend(self, relay, every, dead):
        """An operator's day: what was refused for its own sake is given up where it stops others, the rest is redriven."""
        others = {i for i in dead if every[i].row[3] in (DOOR, DEADLY)}
        if others:
            self.command(relay.name, f"redrive('{relay.name}', %s::uuid[])", (sorted(others),))
            relay.reordered = True
        if relay.on_dead != "skip":
            hopeless = {i for i in dead if every[i].row[3] == REFUSED}
            if hopeless:
                self.command(relay.name, f"discard('{relay.name}', %s::uuid[])", (sorted(hopeless),))
                relay.optional |= hopeless
            if self.world.status()[relay.name][0] == "halted":
                self.command(relay.name, f"resume('{relay.name}')")

    def describe(self, relay, owed, every):
        """What it waits for, and what comes of it when one waits longer."""
        dead = self.world.dead(relay.name)
        found = []
        for pause in (0, 50):
            time.sleep(pause)
            gone = relays_model.missing(relay, owed, Arrivals(self.world.arrivals(relay.name, relay.kind)), dead)
            found.append(f"arrived and parked {self.progress(relay)}, missing {len(gone)} {[(i, every[i].row[1:]) for i in sorted(gone)[:3]]}, dead {len(dead)},"
                         f" open {len(self.model.txns)}, prepared {len(self.model.prepared)},"
                         f" state {self.world.status()[relay.name]}\n{self.world.doing(relay.name)}")
        return f"{relay}\nat once: {found[0]}\n50 s later: {found[1]}"

    def finish(self):
        self.trace.append("end")
        for s in sorted(self.model.txns):
            self.do_commit(s, self.model.txns[s])
        for gid in sorted(self.model.prepared):
            self.do_finish_prepared(0, None, gid, True)
        self.do_quiet(1)
        for name in sorted(self.relays):
            self.do_drop(name)
        for s in self.sessions:
            s.close()
