"""The world that most scenarios share: a source, its traffic, and three kinds of sinks.

    source --> relay "pg"   --> function at the target, exactly once by position alone
           --> relay "fn"   --> function at the source, exactly once
           --> relay "file" --> a program that appends to a file, at least once

The target and the file stay whole whatever happens to the source.
"""
import json
import random
import uuid

from machine.quiet import QuietTime
from machine.traffic import SCHEMA, Traffic
from machine.verdict import Verdict
from server import wait_until

TARGET_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS app;
CREATE TABLE app.arrivals (id bigserial, event_id uuid, key text, n bigint);
CREATE TABLE app.refusing (since timestamptz DEFAULT now());
CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM app.refusing) THEN
        RAISE 'not now';
    END IF;
    INSERT INTO app.arrivals (event_id, key, n) VALUES (event_id, aggregate_id, (payload->>'n')::bigint);
END $$;
"""

SOURCE_SCHEMA = SCHEMA + """
CREATE TABLE effects (id bigserial, event_id uuid, key text, n bigint);
CREATE FUNCTION handle(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO public.effects (event_id, key, n) VALUES (event_id, aggregate_id, (payload->>'n')::bigint) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
"""

# Relays that try again at once, and for ever.
EAGER = ", min_backoff => '20 ms', max_backoff => '500 ms', max_attempts => 1000000"


class World:
    """Made once per scenario.  A scenario mends what it broke before it calls drain()."""

    def __init__(self, lab, seed, source, target, file_sink=True, target_host=None,
                 target_options="", target_port=None, patience=EAGER):
        self.lab, self.seed = lab, seed
        self.source, self.target = source, target
        self.primary = source
        self.forgiven = ()
        self.lost_allowed = False
        self.ignored = ()           # keys of events that no writer made
        self.waited = []            # the longest of each quiet time
        self.file = lab.mkdir("sink") / "received" if file_sink else None
        self.traffic = None
        if not target.is_running():
            target.start()
        if not source.is_running():
            source.start()
        self.relays = ["pg", "fn"] + (["file"] if file_sink else [])
        self.make_source(target_host or target.host, target_port or target.port, target_options)
        self.make_target()
        self.make_relays(patience)

    def make_source(self, host, port, options):
        self.source.rows("CREATE EXTENSION idempotency CASCADE")
        self.source.rows(SOURCE_SCHEMA)
        self.source.rows(f"""
            CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres
                OPTIONS (host '{host}', port '{port}', dbname 'postgres', function 'app.on_event'{options});
            CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (user 'postgres')""")
        if self.file:
            self.source.rows("CREATE SERVER file FOREIGN DATA WRAPPER idempotency_program"
                            f" OPTIONS (program 'pytest', file '{self.file}')")

    def make_target(self):
        self.target.rows(TARGET_SCHEMA)
        self.target.rows(self.source.value("SELECT idempotency.sink_setup_sql('pg')"))

    def make_relays(self, patience):
        for relay in self.relays:
            self.source.rows(f"SELECT idempotency.relay_create(%s, %s{patience})", (relay, relay))

    def run_only(self, relays):
        """Pause all other relays."""
        for relay in self.relays:
            verb = "resume" if relay in relays else "pause"
            self.primary.rows(f"SELECT idempotency.relay_{verb}(%s)", (relay,))

    def refuse(self, refusing=True):
        """The target's function raises, so that events are parked."""
        self.target.rows("INSERT INTO app.refusing DEFAULT VALUES" if refusing else "DELETE FROM app.refusing")

    def wait_progress(self, relays=None, n=10, when=""):
        """Check that each relay delivers something new."""
        for relay in relays or self.relays:
            before = len(self.arrivals(relay))
            wait_until(lambda r=relay: f"relay {r} goes on {when}\n{self.primary.relays()}",
                       lambda r=relay, b=before: len(self.arrivals(r)) >= b + n)

    def write(self, **kwargs):
        """Begin to write to the present primary."""
        self.traffic = Traffic(kwargs.pop("connect", None) or (lambda: self.primary.connect(autocommit=False)),
                               self.seed, **kwargs).start()
        return self.traffic

    def committed(self):
        return {str(e): (key, n) for e, key, n in
                self.primary.rows("SELECT event_id::text, key, n FROM orders")}

    def arrivals(self, relay):
        if relay == "pg":
            found = self.target.rows("SELECT event_id::text, key, n FROM app.arrivals ORDER BY id")
        elif relay == "fn":
            found = self.primary.rows("SELECT event_id::text, key, n FROM effects ORDER BY id")
        else:
            found = self.received()
        return [arrival for arrival in found if arrival[1] not in self.ignored]

    def received(self, anyhow=False):
        """The events that the program acknowledged, or that it got at all."""
        if not self.file.exists():
            return
        for line in self.file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                return
            entry = json.loads(line)
            if "event" in entry and (anyhow or entry["outcome"] == "acked"):
                yield str(uuid.UUID(entry["event"])), entry["aggregate_id"], json.loads(entry["payload"])["n"]

    def drain(self):
        """Stop writing, wait until everything committed has arrived, and see how soon single events arrive."""
        if self.traffic:
            self.traffic.stop()
        for relay in self.relays:
            self.wait_arrived(relay)
        if self.traffic:
            self.be_quiet()

    def rest(self, hold=None):
        """Have a quiet time before the next fault."""
        self.traffic.rest()
        for relay in self.relays:
            self.wait_arrived(relay)
        self.be_quiet(hold)
        self.traffic.resume()

    def be_quiet(self, hold=None):
        rng = random.Random(f"{self.seed}/quiet/{len(self.waited)}")
        self.waited.append(QuietTime(self, rng, hold).run())

    def wait_arrived(self, relay):
        orders = set(self.committed())

        def missing():
            return len(orders - {event for event, _, _ in self.arrivals(relay)})
        wait_until(lambda: f"relay {relay}: {missing()} of {len(orders)} events are missing\n"
                   f"{self.primary.relays()}", lambda: not missing(), pause=0.1)

    def judge(self, repeated=("file",)):
        """repeated: the relays that may send an event again."""
        verdict = Verdict(self.traffic.operations if self.traffic else [], self.committed())
        verdict.ledger(lost_allowed=self.lost_allowed)
        for relay in self.relays:
            verdict.sink(relay, self.arrivals(relay), once=relay not in repeated, forgiven=self.forgiven)
        if self.file:
            verdict.phantoms("file, unanswered", (event for event, key, _ in self.received(anyhow=True)
                                                  if key not in self.ignored), self.forgiven)
        verdict.pronounce()
        unknown = self.traffic.count("unknown") if self.traffic else 0
        n = len(verdict.orders)
        bound = f"< {3 / n:.2g}" if n else "unknown"
        return (f"{n} committed, no finding (95 %: {bound} per event), {unknown} commits unknown to their clients,"
                f" COMMIT to arrival at most {max(self.waited, default=0):.2f} s in {len(self.waited)} quiet times")
