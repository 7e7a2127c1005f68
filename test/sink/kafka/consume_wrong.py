#!/usr/bin/python3
"""Break a rule of the consumers of doc/howto/kafka-consume.md, and see that it is noticed.

    consume_wrong.py make DIRECTORY         in the folder of a language: its wrong programs, as sources
    consume_wrong.py run WORK LANGUAGE...   run the programs, right and wrong, through one story

The story: all programs consume one partition, each in a group and a database of its own.
Records of an aborted transaction are among the others (1).  The program is killed, records
come, and it is started again (2).  It has polled records and is about to claim them when it
freezes; another process takes the partition over and handles them; the first process wakes
up (3).  A right program has made each effect once; a wrong one has lost, doubled or made up
some.  The last lines are "ok NAME" or "NOT OK NAME", and "N passed, N failed".
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

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

SOURCES = {"python": "billing.py", "java": "Billing.java", "go": "main.go"}
OTHER_RESET = {"python": ('"auto.offset.reset": "error"', '"auto.offset.reset": "{}"'),
               "java": ('"auto.offset.reset", "none"', '"auto.offset.reset", "{}"'),
               "go": ("kgo.NoResetOffset()", "kgo.NewOffset().At{}()")}
NO_SEEK = {
    "python": [("p.offset = OFFSET_BEGINNING if next_offset is None else next_offset", "pass"),
               ("messages = [m for m in polled if m.offset() >= position.get((m.topic(), m.partition()), m.offset() + 1)]",
                "messages = polled")],
    "java": [("consumer.seekToBeginning(List.of(p));", ";"), ("consumer.seek(p, position.get(p));", ";")],
    "go": [("numbers[number] = kgo.NewOffset().AtStart()", ""), ("numbers[number] = kgo.NewOffset().At(*next)", "")],
}


def reset(language, java, go):
    old, new = OTHER_RESET[language]
    return [(old, new.format(go if language == "go" else java))]


# What is broken, and how in each language: texts of the source, each of which is there once, and what replaces them.
WRONG = {
    "any_verdict": {
        "python": [('raise SystemExit(f"{topic}/{partition}, offsets', 'print(f"{topic}/{partition}, offsets'),
                   ("if m.offset() >= new_from[m.topic(), m.partition()]:", "if new_from:")],
        "java": [('throw new IllegalStateException(p + ", offsets "', 'System.err.println(p + ", offsets "'),
                 ("newFrom.put(p, Long.parseLong(row[1]));", "newFrom.put(p, 0L);")],
        "go": [('return fmt.Errorf("%s/%d, offsets', 'log.Printf("%s/%d, offsets'),
               ("if m.Offset < newFrom[partition{m.Topic, m.Partition}] {", "if false {")]},
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
        return max((o for o, in self.rows("SELECT coalesce(next_offset, 0) FROM idempotency.cursors")), default=-1)

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
            said.append("the accounts differ from the records")
        return ", ".join(said)

    def kill(self):
        self.proxy.open.set()
        for proc in self.procs.values():
            if proc.poll() is None:
                proc.kill()
                proc.wait()


def feed_some(feed, n, good=True):
    """Records of customers of their own."""
    feed.write([(b"customer %d" % (len(feed.events) + i), b'{"total": %d}' % feed.rng.randrange(1, 1000), False)
                for i in range(n)], good)


def go_on(broker, feed, candidates, which):
    """Feed records until each program is at the end, or does not get there."""
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
    feed_some(feed, 10)
    feed_some(feed, 3, good=False)
    go_on(broker, feed, candidates, "first")
    judge("the beginning")
    for c in candidates:
        c.procs["first"].kill()
        c.procs["first"].wait()
    feed_some(feed, 5)
    go_on(broker, feed, candidates, "first")
    judge("a restart")
    for c in candidates:
        c.proxy.hold()
    feed_some(feed, 5)
    for c in candidates:
        until(f"{c.name} is about to claim", lambda: c.proxy.kept)       # noqa: B023
        c.procs["first"].send_signal(signal.SIGSTOP)
        c.start(broker, "second")
    go_on(broker, feed, candidates, "second")
    for c in candidates:
        c.procs["second"].kill()
        c.procs["second"].wait()
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
