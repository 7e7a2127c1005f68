#!/usr/bin/python3
"""Kill the consumers of doc/howto/kafka-consume.md again and again, and judge what they did.

    consume.py SEED KILLS WORK NAME...

PGHOST and PGPORT lead to a server with a database per name, made by consume.sh; the
program is in the directory NAME beside this file's copy, ready to run.  First the commands of
the page start each, and send it a record (database "pasted").  Then one topic has
records, records of aborted transactions, and poison.  Two processes of each language
consume it as a group, into their database, and a relay takes what they enqueue to a topic
of their own.  They commit asynchronously.  While the topic grows, a process is killed, or
stopped for longer than its session lasts, or loses its connection, or is asked to end; the
relay's program is killed; a backend is killed, and with it the server crashes; the broker
is killed.  What has ended is started again.  At the end a read_committed reader reads the
topics of the relays.  The last lines are "ok NAME" or "NOT OK NAME", and "N passed, N
failed".
"""
import base64
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import traceback
import zlib

import psycopg2

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from kafka.broker import JAVA, Broker  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PROCESSES = 2
PARTITIONS = 6
CUSTOMERS = 50
SESSION = 2000
TOPIC = "orders"
PROGRAMS = {
    "python": ["venv/bin/python", "-B", "billing.py"],
    "java": [*JAVA, "-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", "classes:lib/*", "Billing"],
    "go": ["./billing"],
}
# What is done to a process, or to what it works with, and how often.
ACTS = {"kill": 5, "freeze": 2, "disconnect": 1, "end": 1, "relay program": 2, "server": 2}
# How often the broker is killed.
BROKER_KILLS = 2
TIMEOUT = 120


class Finding(Exception):
    """A program did what it may not."""


def until(what, condition, timeout=TIMEOUT):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise Finding(f"never: {what() if callable(what) else what}")
        time.sleep(0.05)


class Feed:
    """The topic, and what a right consumer makes of it."""

    def __init__(self, broker, rng, partitions=PARTITIONS):
        self.rng, self.partitions = rng, partitions
        self.proc = subprocess.Popen([*JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{broker.jars}/*",
                                      HERE / "consume/Feed.java", broker.address, TOPIC],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.events = {}                                # TOPIC/partition/offset -> (customer, total)
        self.poison = set()                             # (partition, offset)
        self.ends = {}                                  # partition -> the offset behind its last committed record
        self.aborted = 0

    def draw(self):
        """(key, value, is it poison) of a record."""
        rng = self.rng
        key, total = b"customer %d" % rng.randrange(CUSTOMERS), rng.randrange(1, 1000)
        value = b'{"total": %d}' % total
        if rng.random() < 0.05:
            return (*rng.choice((
                (None, value), (b"\xff", value), (key, None), (key, b"{"), (key, b'{"total": "much"}'),
                (key, b'{"sum": 1}'), (key, b"\0"), (key, b'{"total": "\xff"}'))), True)
        return key, value, False

    def transaction(self, n=None):
        """Write some records, most of them for good."""
        rng = self.rng
        self.write([self.draw() for _ in range(n or rng.randrange(1, 40))], rng.random() < 0.85)

    def write(self, records, good):
        """Write records and commit them, or abort."""
        rng = self.rng
        for key, value, _ in records:
            words = ("-" if w is None else base64.b64encode(w).decode() for w in (key, value))
            # by the key; but a few anywhere, so that two processes meet at a customer
            partition = zlib.crc32(key or b"") if rng.random() < 0.95 else rng.randrange(PARTITIONS)
            self.proc.stdin.write("\t".join(["send", str(partition % self.partitions), *words]) + "\n")
        self.proc.stdin.write("commit\n" if good else "abort\n")
        self.proc.stdin.flush()
        answers = list(iter(self.proc.stdout.readline, "ok\n")) if self.proc.poll() is None else []
        if not good:
            self.aborted += len(records)
            return
        for (key, value, bad), line in zip(records, answers, strict=True):
            partition, offset = map(int, line.split())
            self.ends[partition] = offset + 1
            if bad:
                self.poison.add((partition, offset))
                continue
            self.events[f"{TOPIC}/{partition}/{offset}"] = (key.decode(), int(value[len('{"total": '):-1]))

    def close(self):
        self.proc.stdin.close()
        self.proc.wait(60)


class Group:
    """The processes of one language and their database."""

    def __init__(self, name, broker, work):
        self.name = name
        self.log = work / f"{name}.log"
        self.conn = None
        server = f"{self.value('SHOW port')}/{name}"
        self.env = {**os.environ, "PGUSER": "shop", "PGDATABASE": name, "KAFKA_BROKERS": broker.address,
                    "KAFKA_GROUP": f"billing-{name}", "KAFKA_TOPIC": TOPIC, "KAFKA_SESSION_TIMEOUT": str(SESSION),
                    "JDBC_URL": f"jdbc:postgresql://127.0.0.1:{server}?user=shop"}
        self.procs = [None] * PROCESSES
        self.started = [0] * PROCESSES                  # time.time()
        self.acts = collections.Counter()
        self.ended = collections.Counter()
        self.frozen = []                                # (until when, process)
        self.once_frozen = set()                        # processes
        self.relay(broker)
        for i in range(PROCESSES):
            self.start(i)

    def rows(self, query):
        """The rows of a query, which is tried again while the server restarts."""
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                if not self.conn:
                    self.conn = psycopg2.connect(dbname=self.name, user="postgres")
                    self.conn.autocommit = True
                with self.conn.cursor() as cursor:
                    cursor.execute(query)
                    return cursor.fetchall()
            except psycopg2.Error as error:
                lost = error.pgcode is None or isinstance(error, psycopg2.OperationalError)
                if not lost or time.monotonic() > end:
                    raise
                self.conn = None
                time.sleep(0.1)

    def value(self, query):
        return self.rows(query)[0][0]

    def relay(self, broker):
        """Have a relay take what is enqueued to a topic."""
        broker.topic(f"charged.{self.name}.account", 3)
        broker.position_topic(f"position.{self.name}")
        for statement in (
                f"""CREATE SERVER out FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (brokers '{broker.address}',
                    topic 'charged.{self.name}.{{aggregate_type}}', position_topic 'position.{self.name}',
                    timeout '10000', transaction_timeout '10000')""",
                "CREATE USER MAPPING FOR CURRENT_USER SERVER out",
                "SELECT idempotency.relay_create('out', 'out', min_backoff => '20 ms', max_backoff => '500 ms')"):
            self.rows(f"DO $do$ BEGIN EXECUTE $x${statement}$x$; END $do$; SELECT 1")

    def start(self, i):
        self.started[i] = time.time()
        with open(self.log, "ab") as log:
            self.procs[i] = subprocess.Popen(PROGRAMS[self.name], cwd=HERE / "consume" / self.name, stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, env={**self.env, "PGAPPNAME": f"billing {i}"})

    def tend(self):
        """Start what has ended, let go on what was stopped for long enough."""
        for due, proc in list(self.frozen):
            if time.monotonic() > due:
                self.frozen.remove((due, proc))
                proc.send_signal(signal.SIGCONT)
        for i, proc in enumerate(self.procs):
            if proc.poll() is not None:
                self.ended[proc.returncode] += 1
                self.start(i)

    def act(self, what, rng):
        if what in ("relay program", "server"):
            if not self.kill_of_server(what):
                return False
            self.acts[what] += 1
            return True
        i = rng.randrange(PROCESSES)
        proc = self.procs[i]
        if proc.poll() is not None or any(p is proc for _, p in self.frozen):
            return False
        if what == "kill":
            proc.kill()
        elif what == "end":
            proc.terminate()
        elif what == "freeze":
            proc.send_signal(signal.SIGSTOP)
            self.frozen.append((time.monotonic() + SESSION / 1000 + rng.random() * 3, proc))
            self.once_frozen.add(proc)
        elif not self.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' AND "
                           f"datname = '{self.name}' ORDER BY random() LIMIT 1"):
            return False
        self.acts[what] += 1
        return True

    def kill_of_server(self, what):
        """Kill the relay's program; or a backend of a program, with which the server goes down."""
        pids = self.rows("SELECT sink_pid FROM idempotency.stat_relay WHERE sink_pid IS NOT NULL" if what == "relay program"
                         else f"SELECT pid FROM pg_stat_activity WHERE usename = 'shop' AND datname = '{self.name}' LIMIT 1")
        for pid, in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        return bool(pids)

    def offsets(self):
        return dict(self.rows(f"SELECT partition, next_offset FROM idempotency.cursors WHERE consumer = 'billing-{self.name}' "
                              "AND next_offset IS NOT NULL"))

    def have_begun(self):
        """All have connected, and before that they have learned what to do when asked to end.  Java does not tell its name."""
        since = {name: at for name, at in self.rows(
            "SELECT application_name, max(extract(epoch FROM backend_start))::float8 FROM pg_stat_activity GROUP BY 1")}
        return self.name == "java" or all(since.get(f"billing {i}", 0) > at for i, at in enumerate(self.started))

    def stop(self):
        """Ask all to end; how those ended that ended otherwise.

        One that was frozen may find at any time that it has lost its partitions, and end by itself.
        """
        for _, proc in self.frozen:
            proc.send_signal(signal.SIGCONT)
        for proc in self.procs:
            if proc.poll() is None:
                proc.terminate()
        statuses = [(proc.wait(30), proc in self.once_frozen) for proc in self.procs]
        return [s for s, frozen in statuses if s not in ENDS[self.name] and not (frozen and s == LOST)]

    def kill(self):
        for proc in self.procs:
            if proc and proc.poll() is None:
                proc.kill()
                proc.wait()

    def is_delivered(self):
        return self.value("SELECT coalesce(sum(lag_events), 0) = 0 AND NOT bool_or(dead > 0) FROM idempotency.stat_relay")

    def verdicts(self, feed, arrived):
        """(is it good, what it is, what was found); arrived: what a reader has read of the relay's topic"""
        owed = collections.Counter()
        for customer, total in feed.events.values():
            owed[customer] += total
        found = {customer: int(o) for customer, o in self.rows("SELECT customer, owed FROM accounts")}
        wrong = {c: (found.get(c), owed.get(c)) for c in {*found, *owed} if found.get(c) != owed.get(c)}
        yield not wrong, "each record's effect is there once", f"customers with (found, owed): {dict(list(wrong.items())[:5])}"
        for where, found in (("each record has enqueued one event", (c for c, in self.rows(
                "SELECT payload->>'cause' FROM idempotency.outbox_events WHERE event_type = 'AccountCharged'"))),
                ("from topic to topic, each record is there once", (json.loads(r["value"])["cause"] for r in arrived))):
            causes = collections.Counter(found)
            lost, twice = set(feed.events) - set(causes), {c for c, n in causes.items() if n != 1}
            yield not lost and not twice and set(causes) == set(feed.events), where, \
                f"lost {list(lost)[:5]}, repeated {list(twice)[:5]}, foreign {list(set(causes) - set(feed.events))[:5]}"
        rejected = set(self.rows("SELECT kafka_partition, kafka_offset FROM rejected_messages"))
        yield rejected == feed.poison, "the poison is set aside, and only the poison", \
            f"{sorted(rejected ^ feed.poison)[:5]} of {len(rejected)} and {len(feed.poison)}"
        yield self.offsets() == feed.ends, "the offsets are those of the end", f"{self.offsets()}, not {feed.ends}"


def say(text):
    print(text, flush=True)


def as_pasted(name, broker, work):
    """The commands of the page, in the program's folder: a record that Kafka's own tool sends is an effect."""
    other = re.compile(r" {8}# (?!%s)[A-Z]" % name.capitalize())
    block = "".join(line for line in (HERE / "consume/start.sh").read_text().splitlines(True) if not other.search(line))
    topic = f"pasted.{name}"
    for there, here in {"localhost:9092": broker.address, "KAFKA_GROUP=billing": f"KAFKA_GROUP={topic}",
                        "KAFKA_TOPIC=orders": f"KAFKA_TOPIC={topic}", "--topic orders": f"--topic {topic}",
                        "customer 1": f"customer {name}", "PGHOST=localhost ": "", "PGDATABASE=app": "PGDATABASE=pasted",
                        "//localhost/app": f"//127.0.0.1:{os.environ['PGPORT']}/pasted"}.items():
        assert there in block, f"the page has no {there}"
        block = block.replace(there, here)
    start, send = block.split("# >>> send")
    exports = "".join(line for line in block.splitlines(True) if line.startswith("export"))
    functions = start[:start.index("# >>> start")]
    broker.topic(topic, 1)
    with open(work / f"pasted.{name}.log", "ab") as log:
        shell = subprocess.Popen(["bash", "-c", start], cwd=HERE / "consume" / name, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=log, start_new_session=True)
        try:
            subprocess.run(["bash", "-ec", functions + exports + send], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                           env={"KAFKA_JARS": str(broker.jars), **os.environ}, check=True)
            with contextlib.closing(psycopg2.connect(dbname="pasted", user="postgres")) as conn:
                conn.autocommit = True
                cursor = conn.cursor()

                def has_effect():
                    cursor.execute("SELECT owed::int FROM accounts WHERE customer = %s", [f"customer {name}"])
                    return cursor.fetchall() == [(99,)]
                until(f"as pasted, {name} makes the effect", has_effect)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def run(rng, kills, broker, feed, groups):
    """Kill, while the topic grows."""
    total = kills * len(groups)
    broker_due = [total * (n + 1) // (BROKER_KILLS + 1) for n in range(BROKER_KILLS)]
    # a group that has not got going is not worth a kill
    until("each group has begun", lambda: feed.transaction() or all(
        g.tend() or len(g.offsets()) == PARTITIONS for g in groups))
    due = {g: kills for g in groups}
    moved = {g: (sum(g.offsets().values()), time.monotonic()) for g in groups}
    while any(due.values()):
        feed.transaction()
        if broker_due and sum(due.values()) <= broker_due[-1]:
            broker_due.pop()
            broker.kill()
            broker.start()
        for g in groups:
            g.tend()
            now = sum(g.offsets().values())
            at, since = moved[g]
            if time.monotonic() - since > TIMEOUT:
                raise Finding(f"{g.name} does not go on")
            if now > at:
                moved[g] = now, time.monotonic()
                # it is at work: any moment will do
                if due[g] and g.act(rng.choices(list(ACTS), list(ACTS.values()))[0], rng):
                    due[g] -= 1
        time.sleep(rng.random() * 0.3)
    feed.transaction(50 * PARTITIONS)


def read_all(broker, topic, n):
    """The records of a topic.  A commit is answered a little before a reader can see its last records."""
    end = time.monotonic() + 30
    while True:
        records = list(broker.records(topic))
        if len(records) >= n or time.monotonic() > end:
            return records
        time.sleep(0.2)


def main():
    seed, kills, work, *names = sys.argv[1:]
    rng, began = random.Random(seed), time.monotonic()
    results, groups, broker = [], [], None
    try:
        broker = Broker(group_min_session_timeout_ms=1000)
        broker.topic(TOPIC, PARTITIONS)
        for name in names:
            as_pasted(name, broker, pathlib.Path(work))
            results.append((True, f"{name}: the commands of the page", ""))
        feed = Feed(broker, random.Random(f"{seed}/feed"))
        groups += [Group(name, broker, pathlib.Path(work)) for name in names]
        run(rng, int(kills), broker, feed, groups)
        killed = time.monotonic()
        for g in groups:
            until(lambda: f"{g.name} is at the end: {g.offsets()}, not {feed.ends}",    # noqa: B023
                  lambda: [each.tend() for each in groups] and g.offsets() == feed.ends)  # noqa: B023
        feed.close()
        for g in groups:
            until(f"the programs of {g.name} have begun", lambda: [g.tend()] and g.have_begun())    # noqa: B023
            others = g.stop()
            until(f"the relay of {g.name} has delivered", g.is_delivered)   # noqa: B023
            arrived = read_all(broker, f"charged.{g.name}.account", len(feed.events))
            results += [(good, f"{g.name}: {what}", why) for good, what, why in g.verdicts(feed, arrived)]
            results.append((not others, f"{g.name}: they end when asked to", str(others)))
            results.append((sum(g.acts.values()) >= int(kills), f"{g.name}: {dict(g.acts)}", "too few"))
            log = g.log.read_text(errors="replace")
            say(f"   {g.name}: ended with {dict(g.ended)}, {log.count(': fenced')} times fenced, {log.count(': gap')} times a gap, "
                f"{log.count('again: ')} tries again")
        say(f"   {len(feed.events)} records, {len(feed.poison)} poison, {feed.aborted} aborted; the broker was killed {BROKER_KILLS} times; "
            f"kills took {killed - began:.0f} s, all {time.monotonic() - began:.0f} s; seed {seed}")
        results.append((feed.poison and feed.aborted, "there were poison and aborted records", "none"))
    except Exception as error:  # noqa: every failure has to be counted
        if not isinstance(error, Finding):
            traceback.print_exc()
        results.append((False, "consume", f"{type(error).__name__}: {error}; seed {seed}"))
    finally:
        for g in groups:
            g.kill()
        if broker:
            broker.remove()
    bad = [what for good, what, _ in results if not good]
    for good, what, why in results:
        say(f"ok {what}" if good else f"NOT OK {what}: {why}")
    for g in groups:
        if any(what.startswith((g.name, "consume")) for what in bad):
            say("\n".join(f"    | {line}" for line in g.log.read_text(errors="replace").splitlines()[-30:]))
    say(f"{len(results) - len(bad)} passed, {len(bad)} failed")
    return bool(bad)


# How a program ends that is asked to; a JVM tells the signal.
ENDS = {"python": (0,), "go": (0,), "java": (0, 143)}
# And one whose partitions have another owner.
LOST = 1

if __name__ == "__main__":
    sys.exit(main())
