#!/usr/bin/python3
"""Break a rule of the consumers of doc/howto/kafka-consume.md, and see that it is noticed.

    consume_wrong.py make DIRECTORY         in the folder of a language: its wrong programs, as sources
    consume_wrong.py run WORK LANGUAGE...   run the programs, right and wrong, through one story

The story: all programs consume one partition, each in a group and a database of its own.
Records of an aborted transaction are among the others (1).  The program is killed, events
come, their ids' time is over, and it is started again (2).  It has polled events and is
about to store its offset when it freezes; another process takes the partition over and
handles them; their ids' time is over, too; the first process wakes up (3).  The ids are
forgotten because claims would hide what the offset alone has to prevent.  A right program
has made each effect once; a wrong one has lost, doubled or made up some.  The last lines are
"ok NAME" or "NOT OK NAME", and "N passed, N failed".
"""
import collections
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

SOURCES = {"python": "billing.py", "java": "Billing.java", "go": "main.go"}
OTHER_RESET = {"python": ('"auto.offset.reset": "error"', '"auto.offset.reset": "{}"'),
               "java": ('"auto.offset.reset", "none"', '"auto.offset.reset", "{}"'),
               "go": ("kgo.NoResetOffset()", "kgo.NewOffset().At{}()")}
NO_SEEK = {
    "python": [("p.offset, = conn", "stored, = conn"),
               ("position[p.topic, p.partition] = p.offset", "position[p.topic, p.partition] = stored"),
               ("messages = [m for m in polled if m.offset() >= position.get((m.topic(), m.partition()), m.offset() + 1)]",
                "messages = polled")],
    "java": [("consumer.seekToBeginning(List.of(p));", ";"), ("consumer.seek(p, next);", ";")],
    "go": [("numbers[number] = kgo.NewOffset().At(next) // -2 is the start", "")],
}


def reset(language, java, go):
    old, new = OTHER_RESET[language]
    return [(old, new.format(go if language == "go" else java))]


# What is broken, and how in each language: texts of the source, each of which is there once, and what replaces them.
WRONG = {
    "no_condition": {
        "python": [("kafka_partition = %s AND next_offset = %s", "kafka_partition = %s AND (next_offset = %s OR true)")],
        "java": [("kafka_partition = ? AND next_offset = ?", "kafka_partition = ? AND (next_offset = ? OR true)")],
        "go": [("kafka_partition = $4 AND next_offset = $5", "kafka_partition = $4 AND (next_offset = $5 OR true)")]},
    "no_seek_oldest": {language: NO_SEEK[language] + reset(language, "earliest", "Start") for language in SOURCES},
    "no_seek_newest": {language: NO_SEEK[language] + reset(language, "latest", "End") for language in SOURCES},
    "uncommitted": {
        "python": [('"read_committed"', '"read_uncommitted"')],
        "java": [('"read_committed"', '"read_uncommitted"')],
        "go": [("kgo.ReadCommitted()", "kgo.ReadUncommitted()")]},
}


def make(directory):
    """The sources of the wrong programs, in wrong/NAME below the folder of their language."""
    directory = pathlib.Path(directory)
    source = directory / SOURCES[directory.name]
    for name, changes in WRONG.items():
        text = source.read_text()
        for old, new in changes[directory.name]:
            assert text.count(old) == 1, f"{source.name} has {text.count(old)} times: {old}"
            text = text.replace(old, new)
        path = directory / "wrong" / name / source.name
        path.parent.mkdir(parents=True)
        path.write_text(text)


class Proxy:
    """Carries connections to the server; hold() keeps back what clients send."""

    def __init__(self, port):
        self.server = port
        self.open = threading.Event()
        self.open.set()
        self.kept = 0
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            client, _ = self.sock.accept()
            server = socket.create_connection(("127.0.0.1", self.server))
            for args in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=args, daemon=True).start()

    def _carry(self, source, target, keep):
        try:
            while data := source.recv(65536):
                if keep and not self.open.is_set():
                    self.kept += len(data)
                    self.open.wait()
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hold(self):
        self.open.clear()


class Candidate:
    """A program, right or wrong, with its database, its proxy and up to two processes."""

    def __init__(self, language, wrong, work, admin):
        self.language, self.wrong = language, wrong
        self.name = f"{language}_{wrong or 'right'}"
        self.log = work / f"{self.name}.log"
        admin.execute(f"CREATE DATABASE {self.name} TEMPLATE wrong")
        self.proxy = Proxy(int(os.environ["PGPORT"]))
        self.conn = psycopg2.connect(dbname=self.name, user="postgres")
        self.conn.autocommit = True
        self.procs = {}
        self.phase = self.verdict = None                # when it was seen to be wrong, and what was wrong

    def rows(self, query, args=None):
        with self.conn.cursor() as cursor:
            cursor.execute(query, args)
            return cursor.fetchall()

    def command(self):
        if not self.wrong:
            return PROGRAMS[self.language]
        folder = f"wrong/{self.wrong}"
        return {"python": ["venv/bin/python", "-B", f"{folder}/billing.py"], "go": [f"{folder}/billing"],
                "java": [w.replace("classes:", f"{folder}/classes:") for w in PROGRAMS["java"]]}[self.language]

    def start(self, broker, which):
        port = self.proxy.port if which == "first" else os.environ["PGPORT"]
        env = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "shop", "PGDATABASE": self.name,
               "PGSSLMODE": "disable", "KAFKA_BROKERS": broker.address, "KAFKA_GROUP": self.name, "KAFKA_TOPIC": TOPIC,
               "KAFKA_SESSION_TIMEOUT": "2000", "JDBC_URL": f"jdbc:postgresql://127.0.0.1:{port}/{self.name}?user=shop"}
        with open(self.log, "ab") as log:
            self.procs[which] = subprocess.Popen(self.command(), cwd=HERE / "consume" / self.language, env=env,
                                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tend(self, broker, which):
        if self.procs[which].poll() is not None:
            self.start(broker, which)

    def offset(self):
        return max((o for o, in self.rows("SELECT next_offset FROM kafka_offsets")), default=-2)

    def forget(self, events):
        """As if the time was over for which claims are remembered."""
        self.rows("SELECT idempotency.forget_event(e, consumer => %s) FROM unnest(%s) e", (self.name, list(events)))

    def found(self, feed):
        """What is wrong, in words; empty if nothing is."""
        causes = collections.Counter(c for c, in self.rows(
            "SELECT payload->>'cause' FROM idempotency.outbox_events WHERE event_type = 'AccountCharged'"))
        owed = collections.Counter()
        for customer, total in feed.events.values():
            owed[customer] += total
        wrong = {"lost": set(feed.events) - set(causes), "doubled": {c for c, n in causes.items() if n > 1},
                 "made up": set(causes) - set(feed.events)}
        said = [f"{len(ids)} {what}" for what, ids in wrong.items() if ids]
        if not said and owed != {c: int(o) for c, o in self.rows("SELECT customer, owed FROM accounts")}:
            said.append("the accounts differ from the events")
        return ", ".join(said)

    def kill(self):
        self.proxy.open.set()
        for proc in self.procs.values():
            if proc.poll() is None:
                proc.kill()
                proc.wait()


def feed_some(feed, n, good=True):
    """Events of customers of their own; their ids."""
    records = [(f"customer {len(feed.events) + i}".encode(), str(uuid.UUID(int=feed.rng.getrandbits(128), version=4)).encode(),
                b'{"total": %d}' % feed.rng.randrange(1, 1000), False) for i in range(n)]
    feed.write(records, good)
    return [r[1].decode() for r in records]


def go_on(broker, feed, candidates, which):
    """Feed events until each program is at the end, or does not get there."""
    end = time.monotonic() + TIMEOUT
    while any(c.offset() < feed.ends[0] for c in candidates):
        if time.monotonic() > end:
            raise Finding(f"not at the end: {[c.name for c in candidates if c.offset() < feed.ends[0]]}")
        for c in candidates:
            c.tend(broker, which)
        last = time.monotonic() + 3
        while time.monotonic() < last and any(c.offset() < feed.ends[0] for c in candidates):
            time.sleep(0.05)
        if any(c.offset() < feed.ends[0] for c in candidates):
            feed_some(feed, 1)


def wake(c, feed):
    """Until the process that was frozen has ended or has done its work."""
    c.proxy.open.set()
    c.procs["first"].send_signal(signal.SIGCONT)
    until(f"the first process of {c.name} ends or goes on", lambda: c.procs["first"].poll() is not None or c.found(feed))


def story(broker, feed, candidates):
    """Run it; each program leaves when something is found."""
    def judge(phase):
        for c in candidates[:]:
            if c.found(feed):
                c.phase, c.verdict = phase, c.found(feed)
                c.kill()
                candidates.remove(c)
    for c in candidates:
        c.start(broker, "first")
    first = feed_some(feed, 10)
    feed_some(feed, 3, good=False)
    go_on(broker, feed, candidates, "first")
    judge("the beginning")
    for c in candidates:
        c.procs["first"].kill()
        c.procs["first"].wait()
        c.forget(first)
    feed_some(feed, 5)
    go_on(broker, feed, candidates, "first")
    judge("a restart")
    for c in candidates:
        c.proxy.hold()
    held = feed_some(feed, 5)
    for c in candidates:
        until(f"{c.name} is about to store its offset", lambda: c.proxy.kept)       # noqa: B023
        c.procs["first"].send_signal(signal.SIGSTOP)
        c.start(broker, "second")
    go_on(broker, feed, candidates, "second")
    for c in candidates:
        c.procs["second"].kill()
        c.procs["second"].wait()
        c.forget(held)
        wake(c, feed)
    judge("a process that froze")


def run(work, *languages):
    began, results, candidates, broker = time.monotonic(), [], [], None
    try:
        admin = psycopg2.connect(dbname="postgres", user="postgres")
        admin.autocommit = True
        candidates += [Candidate(language, wrong, pathlib.Path(work), admin.cursor())
                       for language in languages for wrong in (None, *WRONG)]
        broker = Broker(group_min_session_timeout_ms=1000)
        broker.topic(TOPIC, 1)
        feed = Feed(broker, random.Random(7), 1)
        story(broker, feed, candidates[:])
        for c in candidates:
            c.kill()
            said = f"{c.verdict} after {c.phase}"
            if c.wrong:
                results.append((c.phase, f"wrong program, {c.name}: {said}", "nobody noticed"))
            else:
                results.append((not c.phase, f"right program, {c.name}: each effect once", said))
        feed.close()
    except Exception as error:  # noqa: every failure has to be counted
        if not isinstance(error, Finding):
            traceback.print_exc()
        results.append((False, "wrong programs", f"{type(error).__name__}: {error}"))
    finally:
        for c in candidates:
            c.kill()
        if broker:
            broker.remove()
    for good, what, why in results:
        say(f"ok {what}" if good else f"NOT OK {what}: {why}")
    bad = sum(not good for good, _, _ in results)
    if bad:
        for c in candidates:
            say("\n".join(f"    {c.name} | {line}" for line in c.log.read_text(errors="replace").splitlines()[-6:]))
    say(f"== {time.monotonic() - began:.0f} s")
    say(f"{len(results) - bad} passed, {bad} failed")
    return bool(bad)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        sys.exit(make(sys.argv[2]))
    import psycopg2
    from kafka.broker import Broker
    from kafka.consume import HERE, PROGRAMS, TIMEOUT, TOPIC, Feed, Finding, say, until
    sys.exit(run(*sys.argv[2:]))
