"""The monitoring files against a server, exporters and a Prometheus, all real.

	tests.py DIRECTORY BINDIR CONF [TEST...]
	DRAW=1			let events flow meanwhile, and write what the dashboard's queries return
					to DIRECTORY/drawn.json
	SLOW=150		what CI says of this machine's speed, in percent

Each alert is made to happen.  It has to be firing in Prometheus' API, the statements of its
section of doc/howto/alerts.md are run as they stand there, and it has to be gone.  Rules and
exporter are those of generate.py with shorter times; nothing else differs from what is
shipped.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TREE = pathlib.Path(__file__).resolve().parents[2]
FILES = TREE / "src/packaging/monitoring"
sys.path[:0] = [str(TREE / "test/python"), str(FILES)]

import generate  # noqa: E402
import source  # noqa: E402
import yaml  # noqa: E402
from server import Finding, Server, free_port, run, wait_until  # noqa: E402

# What the rules and the exporter of the tests have instead of minutes.
QUICK = {"interval": "500ms", "soon": "1s", "later": "1s", "held": "1s", "window": "5s", "stalled": "2",
         "silence": "6", "oldest": "2", "outbox": "1000", "log": "1000", "prepared": "2"}
SCRAPE = "500ms"
CONF = """
idempotency.sink_idle_timeout = 500ms
idempotency.max_relays = 1100
idempotency.max_sink_starts = 1000
idempotency.outbox_retention = 0
idempotency.outbox_segment_size = 8kB
idempotency.outbox_rotation_interval = 0
idempotency.claim_segment_size = 8kB
max_prepared_transactions = 5
track_functions = all
autovacuum = off
"""
OBJECTS = """
CREATE EXTENSION idempotency CASCADE;
CREATE ROLE watcher LOGIN;
SELECT idempotency.grant_role('monitor', 'watcher');
CREATE ROLE sink_user LOGIN;
CREATE TABLE bad (name text PRIMARY KEY);
CREATE TABLE row_to_lock (id int PRIMARY KEY);
INSERT INTO row_to_lock VALUES (1);
CREATE FUNCTION refuse(aggregate_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM public.bad AS b WHERE b.name = aggregate_type) THEN
        RAISE EXCEPTION 'not today';
    END IF;
END $$;
CREATE FUNCTION wait_for_row(event_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM public.row_to_lock FOR UPDATE;
END $$;
CREATE SERVER refuser FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.refuse');
CREATE SERVER waiter FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.wait_for_row');
CREATE SERVER target FOREIGN DATA WRAPPER idempotency_postgres
    OPTIONS (host '127.0.0.1', port '{port}', dbname 'target', "table" 'public.inbox');
CREATE USER MAPPING FOR postgres SERVER target OPTIONS ("user" 'sink_user');
"""
RELAYS = """
SELECT idempotency.relay_create('dead', 'refuser', '{dead}', max_attempts => 1);
SELECT idempotency.relay_create('stops', 'refuser', '{stops}', max_attempts => 1, on_dead => 'stop');
SELECT idempotency.relay_create('other', 'refuser', '{other}');
SELECT idempotency.relay_create('waits', 'waiter', '{waits}');
SELECT idempotency.relay_create('target', 'target', '{target}');
"""
IDLE = "SELECT count(*) = 5 FROM idempotency.stat_relay WHERE state IN ('streaming', 'idle') AND waiting_for = 'events'"

ALL = []


def test(function):
    ALL.append(function)
    return function


def sections():
    """The statements of the page's sections, block by block, by the name of the alert."""
    page = (TREE / source.PAGE).read_text(encoding="utf-8")
    return {m[1]: re.findall(r"^```sql\n(.*?)^```$", m[2], re.M | re.S)
            for m in re.finditer(r"^## (Idempotency\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S)}


HELD = 'idempotency_held_bytes{instance=~".*"}'


def panels():
    """The dashboard's panels, each with its queries as Grafana would send them, and their legends."""
    dashboard = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
    return [{"title": panel["title"], "type": panel["type"], "unit": panel["fieldConfig"]["defaults"].get("unit"),
             "queries": [(target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
                          .replace("$relay", ".*"), target.get("legendFormat", "")) for target in panel["targets"]]}
            for panel in dashboard["panels"] if panel["type"] != "row"]


def snake(alert):
    """IdempotencyDiskHeld as disk_held."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", alert.removeprefix("Idempotency")).lower()


class Program:
    """An exporter or Prometheus, which ends with the tests."""

    def __init__(self, work, *command, env=None):
        self.command, self.env = [str(part) for part in command], env
        self.log = work / f"{pathlib.Path(self.command[0]).name}.log"
        self.work = work
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, env={**os.environ, **(self.env or {})})

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


def fetch(url, **arguments):
    """None while nobody answers."""
    if arguments:
        url += "?" + urllib.parse.urlencode(arguments)
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


class Scene:
    """The server and what watches it."""

    def __init__(self, work, bindir, conf):
        self.work = pathlib.Path(work)
        self.server = Server("watched", work, bindir)
        self.server.make(pathlib.Path(conf).read_text(encoding="utf-8") + CONF)
        self.server.start()
        self.sections = sections()
        self.port = free_port()
        self.exporter_port = free_port()
        self.programs = []

    def sql(self, text, dbname="postgres"):
        return self.server.psql(text, dbname)

    def enqueue(self, kind, n=1):
        self.sql(f"SELECT count(idempotency.outbox_enqueue('{kind}', 'k' || i, 'happened', '{{}}'))"
                 f" FROM generate_series(1, {n}) AS i")

    def prepare(self):
        self.sql(OBJECTS.format(port=self.server.port))
        self.sql("CREATE DATABASE target")
        self.sql(self.sql("SELECT idempotency.sink_setup_sql('target')"), "target")
        self.sql(RELAYS)
        self.server.wait_for(IDLE)

    def program(self, *command, **more):
        self.programs.append(Program(self.work, *command, **more))
        self.programs[-1].start()
        return self.programs[-1]

    def watch(self):
        url = f"postgres://watcher@127.0.0.1:{self.server.port}/postgres?sslmode=disable"
        self.write("exporter.yml", generate.exporter(url, SCRAPE))
        self.write("alerts.yml", generate.rules({**source.LIMITS, **QUICK}))
        scrape = generate.scrape().replace("127.0.0.1:9237", f"127.0.0.1:{self.exporter_port}")
        self.write("prometheus.yml", f"global:\n  scrape_interval: {SCRAPE}\n  scrape_timeout: {SCRAPE}\n"
                   f"rule_files: [alerts.yml]\nscrape_configs:\n{scrape}")
        run("promtool", "check", "config", self.work / "prometheus.yml")
        self.exporter = self.program("prometheus-sql-exporter", "-config.file", self.work / "exporter.yml",
                                     "-web.listen-address", f"127.0.0.1:{self.exporter_port}",
                                     env={"PGAPPNAME": "prometheus-sql-exporter", "LOGLEVEL": "warn"})
        self.program("prometheus", f"--config.file={self.work}/prometheus.yml", f"--storage.tsdb.path={self.work}/tsdb",
                     f"--web.listen-address=127.0.0.1:{self.port}")
        wait_until("Prometheus has the metrics", lambda: self.series("idempotency_database_in_recovery"))

    def write(self, name, text):
        (self.work / name).write_text(text, encoding="utf-8")

    def stop(self):
        for program in self.programs:
            program.stop()
        self.server.stop()

    def api(self, what, **arguments):
        answer = fetch(f"http://127.0.0.1:{self.port}/api/v1/{what}", **arguments)
        answer = json.loads(answer) if answer else {"status": "no answer"}
        if answer["status"] != "success":
            return None
        return answer["data"]

    def series(self, query):
        data = self.api("query", query=query)
        return data["result"] if data else []

    def alerts(self, name, **labels):
        """The instances of an alert with these labels, firing or pending."""
        data = self.api("alerts")
        if data is None:
            raise Finding("Prometheus does not answer")
        return [a for a in data["alerts"] if a["labels"]["alertname"] == name
                and all(a["labels"].get(label) == value for label, value in labels.items())]

    def expect_silence(self, test):
        """The alert that a test is named after does not fire yet, so that what fires is of the test's making."""
        for alert in source.ALERTS:
            if test.startswith("alert_" + snake(alert["name"])):
                self.wait_resolved(alert["name"])

    def wait_firing(self, name, **labels):
        return wait_until(lambda: f"{name} {labels} fires; there are {self.api('alerts')}\n{self.server.relays()}",
                          lambda: [a for a in self.alerts(name, **labels) if a["state"] == "firing"])[0]

    def wait_resolved(self, name, **labels):
        wait_until(lambda: f"{name} {labels} ends; there are {self.alerts(name, **labels)}\n{self.server.relays()}",
                   lambda: not self.alerts(name, **labels))

    def follow(self, name, mend=None, **labels):
        """The alert fires; the page's first block shows what for; its other blocks end it."""
        alert = self.wait_firing(name, **labels)
        page, anchor = alert["annotations"]["runbook"].split("#")
        if page != source.PAGE or anchor != name.lower():
            raise Finding(f"{name} leads to {page}#{anchor}")
        if "<no value>" in str(alert["annotations"]):
            raise Finding(f"a word of {name} is missing: {alert['annotations']}")
        look, *do = self.sections[name]
        if not self.sql(look):
            raise Finding(f"the page shows nothing for {name}:\n{look}")
        if mend:
            self.sql(mend)
        for block in do:
            self.sql(block)
        self.wait_resolved(name, **labels)


# The files themselves.

@test
def files_are_current(scene):
    if not generate.check():
        raise Finding("run generate.py")


@test
def states_are_the_relays(scene):
    """The names of states and waits in C and in source.py are the same."""
    text = (TREE / "src/relay/report.c").read_text(encoding="utf-8")
    for names, known in (("idem_state_names", source.STATES), ("idem_wait_names", source.WAITS)):
        body = re.search(rf"{names}\[\] = \{{(.*?)\}};", text, re.S)[1]
        written = set(re.findall(r'= "([^"]+)"', body))
        missing = written ^ (set(known) - {"not running", "nothing"})
        if missing:
            raise Finding(f"{names} and source.py differ in {sorted(missing)}")


@test
def each_alert_has_its_section(scene):
    alerts = [alert["name"] for alert in source.ALERTS]
    if alerts != list(scene.sections):
        raise Finding(f"alerts {alerts}, sections {list(scene.sections)}")
    tried = {re.sub(r"^alert_", "", f.__name__) for f in ALL if f.__name__.startswith("alert_")}
    untried = {a for a in alerts if snake(a) not in tried}
    if untried:
        raise Finding(f"no test makes these happen: {sorted(untried)}")


@test
def promtool_takes_the_rules(scene):
    run("promtool", "check", "rules", FILES / "alerts.yml")
    run("promtool", "test", "rules", TREE / "test/monitoring/alerts_test.yml")


# The queries.

def as_watcher(server, sql):
    connection = server.connect(name="watcher")
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE watcher")
        cursor.execute(sql)
        rows = [dict(zip((c[0] for c in cursor.description), row)) for row in cursor.fetchall()]
    connection.close()
    return rows


@test
def monitor_may_run_all(scene):
    """Each query has the columns that it promises, numbers but for the labels, and no NULL."""
    for query in source.QUERIES:
        columns = query["labels"] + [column for column, _, _ in query["values"]]
        for row in as_watcher(scene.server, query["sql"]):
            if list(row) != columns:
                raise Finding(f"{query['name']} has {list(row)} instead of {columns}")
            for column, value in row.items():
                if not isinstance(value, str if column in query["labels"] else (int, float)):
                    raise Finding(f"{query['name']}.{column} is {value!r}")


@test
def pgwatch_queries_run(scene):
    for name, metric in yaml.safe_load((FILES / "pgwatch.yaml").read_text(encoding="utf-8"))["metrics"].items():
        query = next(q for q in source.QUERIES if q["name"] == name)
        expected = {"epoch_ns", *(f"tag_{label}" for label in query["labels"]), *(c for c, _, _ in query["values"])}
        for row in as_watcher(scene.server, metric["sqls"][15]):
            if set(row) != expected:
                raise Finding(f"{name} has {sorted(row)}")


@test
def nothing_is_locked(scene):
    """At the end of each query the transaction has locked system catalogs and views for reading, and no table.

    What a view's function locks it gives back before it returns, so a scrape whose
    transaction stays open holds nobody up."""
    connection = scene.server.connect(name="watcher", autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE watcher")
        for query in source.QUERIES:
            cursor.execute(query["sql"])
            cursor.execute("SELECT c.relname, l.locktype, l.mode FROM pg_locks AS l"
                           " LEFT JOIN pg_class AS c ON c.oid = l.relation"
                           " WHERE l.pid = pg_backend_pid() AND l.locktype <> 'virtualxid'"
                           " AND (l.mode <> 'AccessShareLock' OR NOT EXISTS (SELECT FROM pg_namespace AS n"
                           "      WHERE n.oid = c.relnamespace AND (n.nspname = 'pg_catalog'"
                           "            OR n.nspname = 'idempotency' AND c.relkind = 'v')))")
            if locks := cursor.fetchall():
                raise Finding(f"{query['name']} leaves locks: {locks}")
    connection.close()


def make_counted(scene):
    """A database that nothing but the test looks at."""
    if scene.sql("SELECT count(*) FROM pg_database WHERE datname = 'counted'") == "0":
        scene.sql("CREATE DATABASE counted")
        scene.sql("CREATE EXTENSION idempotency CASCADE;"
                  "CREATE SERVER nobody FOREIGN DATA WRAPPER idempotency_null;"
                  "SELECT idempotency.relay_create('null', 'nobody');"
                  "SELECT idempotency.grant_role('monitor', 'watcher')", "counted")


@test
def each_view_is_read_once(scene):
    """What a scrape costs is counted in calls of the views' functions, which do not depend on the machine."""
    calls = ("SELECT funcname, calls FROM pg_stat_user_functions WHERE funcname IN"
             " ('stat_relay_source', 'relay_status', 'relay_lag', 'stat_consumers_source',"
             "  'stat_claim_segments_source', 'stat_leases_source', 'stat_cursors_source')")
    make_counted(scene)
    before = dict(scene.server.rows(calls, dbname="counted"))
    for query in source.QUERIES:
        scene.sql(query["sql"], "counted")
    scene.sql("SELECT pg_stat_force_next_flush()", "counted")
    after = dict(scene.server.rows(calls, dbname="counted"))
    more = {name: after[name] - before.get(name, 0) for name in after if after[name] - before.get(name, 0) != 1}
    if more or len(after) < 7:
        raise Finding(f"called more than once by a scrape: {more}; called: {after}")


@test
def a_thousand_relays(scene):
    """A scrape takes less than 50 ms of the processor; that does not hang on who else is at work."""
    make_counted(scene)
    scene.sql("SELECT count(idempotency.relay_create('r' || i, 'nobody')) FROM generate_series(1, 999) AS i;"
              "SELECT count(idempotency.outbox_enqueue('t', 'k' || i, 'happened', '{}')) FROM generate_series(1, 5000) AS i",
              "counted")
    connection = scene.server.connect("counted", name="watcher")

    def spent():
        return int(pathlib.Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6

    with connection.cursor() as cursor:
        cursor.execute("SET jit = off")
        cursor.execute("SET ROLE watcher")
        cost = {}
        for scrape in range(11):
            for query in source.QUERIES:
                before = spent()
                cursor.execute(query["sql"])
                cursor.fetchall()
                if scrape > 0:          # the first one fills caches
                    cost[query["name"]] = cost.get(query["name"], 0) + (spent() - before) / 10
    connection.close()
    scene.sql("DROP DATABASE counted")
    said = ", ".join(f"{name.removeprefix('idempotency_')} {ms:.1f}" for name, ms in cost.items())
    print(f"a scrape with 1,000 relays: {sum(cost.values()):.1f} ms of the processor ({said})")
    if sum(cost.values()) > 50 * max(100, int(os.environ.get("SLOW") or 100)) / 100:
        raise Finding("a scrape costs more than 50 ms")


@test
def standby_rows_are_left_out(scene):
    """All queries but one ask first whether the server is a standby, and then call no view."""
    for query in source.QUERIES:
        if not query.get("standby"):
            plan = scene.sql("EXPLAIN " + query["sql"].replace(source.PRIMARY, "(SELECT false)"))
            if source.PRIMARY not in query["sql"] or "One-Time Filter" not in plan:
                raise Finding(f"{query['name']}:\n{plan}")


@test
def standby_says_that_it_is_one(scene):
    standby = Server("standby", scene.work, scene.server.bindir)
    scene.server.user_run(standby.bindir / "pg_basebackup", "-h", scene.server.host, "-p", scene.server.port,
                          "-U", "postgres", "-D", standby.data, "-R", "-X", "stream", "-c", "fast")
    standby.start()
    try:
        rows = {query["name"]: as_watcher(standby, query["sql"]) for query in source.QUERIES}
    finally:
        standby.stop()
        standby.remove()
    if rows.pop("idempotency_database")[0]["in_recovery"] != 1 or any(rows.values()):
        raise Finding(f"on a standby: {rows}")


# Exporters and Prometheus.

@test
def prometheus_has_all(scene):
    """All metrics come through the exporter and the renaming, under the names that alerts.yml and others use."""
    scene.sql("SELECT idempotency.consumer_create('mailer')")
    held = {"idempotency_held_bytes"}       # as long as nothing is held
    for query in source.QUERIES:
        for column, _, _ in query["values"]:
            name = generate.metric(query, column)
            if name not in held:
                found = wait_until(f"Prometheus has {name}", lambda n=name: scene.series(n))
                labels = set(found[0]["metric"]) - {"__name__", "instance", "job", "driver", "host", "database", "user", "sql_job"}
                if labels != set(query["labels"]):
                    raise Finding(f"{name} has the labels {labels}")


@test
def postgres_exporter_takes_cloudnativepg(scene):
    """The queries of CloudNativePG's ConfigMap are those of postgres_exporter, which runs them."""
    config = yaml.safe_load((FILES / "cloudnativepg.yaml").read_text(encoding="utf-8"))
    scene.write("custom.yml", config["data"]["custom-queries"])
    port = free_port()
    scene.program("prometheus-postgres-exporter", "--disable-default-metrics", "--disable-settings-metrics",
                  f"--extend.query-path={scene.work}/custom.yml", f"--web.listen-address=127.0.0.1:{port}",
                  env={"DATA_SOURCE_NAME": f"postgres://watcher@127.0.0.1:{scene.server.port}/postgres?sslmode=disable"})
    page = wait_until("postgres_exporter has the metrics",
                      lambda: (p := fetch(f"http://127.0.0.1:{port}/metrics")) and "idempotency_relay_state{" in p and p)
    for query in source.QUERIES:
        for column, kind, _ in query["values"]:
            name = generate.metric(query, column)
            if f"# TYPE {name} {kind}\n" not in page and name != "idempotency_held_bytes":
                raise Finding(f"postgres_exporter has no {kind} {name}")


@test
def panels_have_data(scene):
    """Each query of the dashboard returns something; that of what is held does in alert_packer_stuck."""
    scene.enqueue("target", 50)
    for panel in panels():
        for query, _ in panel["queries"]:
            if query != HELD:
                wait_until(f"panel {panel['title']}: {query}", lambda q=query: scene.series(q))


# The alerts.

@test
def alert_witness(scene):
    scene.sql("ALTER SYSTEM SET idempotency.publish_witness = '/bin/false'")
    scene.sql("SELECT pg_reload_conf()")
    scene.follow("IdempotencyWitness", relay="target")
    scene.server.wait_for(IDLE)


@test
def alert_relay_outage(scene):
    scene.sql("ALTER ROLE sink_user CONNECTION LIMIT 0")
    scene.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sink_user'")
    scene.enqueue("target")
    scene.follow("IdempotencyRelayOutage", mend="ALTER ROLE sink_user CONNECTION LIMIT -1", relay="target")


@test
def alert_dead_letters(scene):
    scene.sql("INSERT INTO bad VALUES ('dead')")
    scene.enqueue("dead")
    scene.follow("IdempotencyDeadLetters", mend="DELETE FROM bad", relay="dead")


@test
def alert_dead_letters_of_consumer(scene):
    scene.sql("SELECT * FROM idempotency.lease_event('evt-1', duration => '1 h', consumer => 'mailer')")
    scene.sql("SELECT idempotency.release_lease('evt-1', token, error => 'cannot be', park => true, consumer => 'mailer')"
              " FROM idempotency.leases WHERE event_id = 'evt-1'")
    scene.wait_firing("IdempotencyDeadLetters", consumer="mailer")
    for block in scene.sections["IdempotencyDeadLetters"]:
        scene.sql(block)
    scene.wait_resolved("IdempotencyDeadLetters", consumer="mailer")
    scene.wait_firing("IdempotencyOldestEvent", consumer="mailer")      # nobody leases what was redriven
    scene.sql("SELECT * FROM idempotency.lease_event('evt-1', duration => '1 h', consumer => 'mailer')")
    scene.wait_resolved("IdempotencyOldestEvent", consumer="mailer")


@test
def alert_relay_stopped(scene):
    scene.sql("INSERT INTO bad VALUES ('stops')")
    scene.enqueue("stops")
    scene.follow("IdempotencyRelayStopped", mend="DELETE FROM bad", relay="stops")


@test
def alert_relay_no_progress(scene):
    holder = scene.server.connect(name="forgotten", autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT FROM row_to_lock FOR UPDATE")
    scene.enqueue("waits")
    scene.follow("IdempotencyRelayNoProgress", relay="waits")
    holder.close()


@test
def alert_slots_spent(scene):
    scene.sql("ALTER SYSTEM SET idempotency.max_function_workers = 1")
    scene.sql("SELECT pg_reload_conf()")
    holder = scene.server.connect(name="forgotten", autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT FROM row_to_lock FOR UPDATE")
    scene.enqueue("waits")
    scene.server.wait_for("SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'waits'")
    scene.enqueue("other")
    scene.follow("IdempotencySlotsSpent", relay="other")
    scene.wait_firing("IdempotencyRelayNoProgress", relay="waits")
    holder.close()
    scene.server.wait_for(IDLE)


@test
def alert_oldest_event(scene):
    scene.sql("SELECT idempotency.relay_pause('other')")
    scene.enqueue("other")
    scene.follow("IdempotencyOldestEvent", relay="other")


@test
def alert_disk_held(scene):
    scene.sql("SELECT idempotency.relay_pause('other')")
    scene.enqueue("other", 100)
    scene.follow("IdempotencyDiskHeld", relay="other")


@test
def alert_disk_held_by_lock(scene):
    """Relays have delivered all, and a transaction that has enqueued stays open."""
    holder = scene.server.connect(name="forgotten", autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT idempotency.outbox_enqueue('other', 'k', 'happened', '{}')")
    for _ in range(5):
        scene.enqueue("other", 100)
    alert = scene.wait_firing("IdempotencyDiskHeld", kind="outbox", held_by="lock")
    if "A lock holds" not in alert["annotations"]["summary"]:
        raise Finding(str(alert))
    pid = str(holder.info.backend_pid)
    if pid not in scene.sql(scene.sections["IdempotencyDiskHeld"][0]).replace("|", " ").split():
        raise Finding("the page does not show who has the lock")
    scene.sql(f"SELECT pg_terminate_backend({pid})")
    scene.wait_resolved("IdempotencyDiskHeld", held_by="lock")
    holder.close()


@test
def alert_disk_held_without_relays(scene):
    """A second database on the same exporter would do as well; here all relays of this one go for a while."""
    scene.sql("SELECT idempotency.relay_drop('other')")
    query = next(a for a in source.ALERTS if a["name"] == "IdempotencyDiskHeld")
    expr = generate.expression(query, {**source.LIMITS, **QUICK}).splitlines()[-1].removeprefix("or ")
    if scene.series(expr):
        raise Finding("relays are there, and the outbox counts as held by none")
    for relay in ("dead", "stops", "waits", "target"):
        scene.sql(f"SELECT idempotency.relay_drop('{relay}')")
    scene.enqueue("other")
    alert = scene.wait_firing("IdempotencyDiskHeld", kind="outbox")
    if "The lack of any relay holds" not in alert["annotations"]["summary"]:
        raise Finding(str(alert))
    scene.sql(RELAYS.replace("'target', '{target}'", "'target', '{target}', start_at => 'latest'"))
    scene.sql("SELECT idempotency.relay_adopt(relay) FROM idempotency.stat_relay WHERE relay = 'target'")
    scene.wait_resolved("IdempotencyDiskHeld", kind="outbox")
    scene.server.wait_for(IDLE)


@test
def alert_lease_log(scene):
    scene.sql("BEGIN; SELECT idempotency.lease_event('evt-2', duration => '1 h', consumer => 'mailer'); PREPARE TRANSACTION 'p'")
    scene.follow("IdempotencyLeaseLog")


def claim(execute, name, n):
    execute(f"""DO $$
        DECLARE ids text[] := ARRAY(SELECT '{name}-' || i FROM generate_series(1, {n}) AS i);
        BEGIN
            PERFORM FROM idempotency.claim_events(ids, consumer => 'shop');
            PERFORM idempotency.complete_events(ids, consumer => 'shop');
        END $$""")


@test
def alert_packer_stuck(scene):
    holder = scene.server.connect(name="forgotten", autocommit=False)
    with holder.cursor() as cursor:
        claim(cursor.execute, "open", 1)
    for n in range(6):
        claim(scene.sql, f"evt-{n}", 500)
    wait_until("the panel of what is held has data", lambda: scene.series(HELD))
    scene.follow("IdempotencyPackerStuck", kind="claims", held_by="writer")
    holder.close()


@test
def alert_no_metrics(scene):
    look, *_ = scene.sections["IdempotencyNoMetrics"]
    if not scene.sql(look):
        raise Finding("the page does not find the exporter's connection")
    scene.exporter.stop()
    scene.wait_firing("IdempotencyNoMetrics")
    scene.server.wait_for("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'prometheus-sql-exporter'")
    scene.exporter.start()
    scene.wait_resolved("IdempotencyNoMetrics")


@test
def alert_no_metrics_of_a_server_that_is_down(scene):
    """prometheus-sql-exporter goes on giving the last numbers; the time among them tells."""
    scene.server.stop()
    alert = scene.wait_firing("IdempotencyNoMetrics")
    if not scene.series("idempotency_relay_state"):
        raise Finding("the exporter has forgotten its numbers, so nothing was tried here")
    if "instance" not in alert["labels"]:
        raise Finding(f"it is the absence that fires: {alert}")
    scene.server.start()
    scene.wait_resolved("IdempotencyNoMetrics")


class Flow:
    """Events and claims, more and fewer by turns, so that there is something to draw."""

    def __init__(self, scene):
        self.scene, self.over = scene, threading.Event()
        self.began = time.time()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        turn = 0
        while not self.over.wait(0.25):
            turn += 1
            self.scene.enqueue("target", 5 + turn // 8 % 4 * 10)
            if turn % 3 == 0:
                self.scene.enqueue("other", 3)
            claim(self.scene.sql, f"flow-{turn}", 10 + turn // 20 % 3 * 20)

    def end(self):
        self.over.set()
        self.thread.join()

    def write(self):
        """What each query returned during the run."""
        drawn = []
        for panel in panels():
            results = []
            for query, legend in panel["queries"]:
                data = self.scene.api("query_range", query=query, start=self.began, end=time.time(), step="1s")
                results += [(re.sub(r"{{(\w+)}}", lambda m, r=r: r["metric"].get(m[1], ""), legend), r["values"])
                            for r in data["result"]]
            drawn.append({**panel, "results": results})
        self.scene.write("drawn.json", json.dumps({"states": source.STATES, "panels": drawn}))


def main():
    work, bindir, conf, *names = sys.argv[1:]
    scene = Scene(work, bindir, conf)
    failed = 0
    flow = None
    try:
        scene.prepare()
        scene.watch()
        flow = Flow(scene) if os.environ.get("DRAW") else None
        for function in ALL:
            if names and function.__name__ not in names:
                continue
            began = time.monotonic()
            try:
                scene.expect_silence(function.__name__)
                function(scene)
                print(f"ok {function.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
            except Exception as error:          # one test's fault is not the next one's
                failed += 1
                print(f"{error}\nnot ok {function.__name__}", flush=True)
        if flow:
            flow.end()
            flow.write()
    finally:
        if flow:
            flow.end()
        scene.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
