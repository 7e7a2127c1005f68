"""Failover under Patroni, with events on their way all the time.

	failover.py DIRECTORY BINDIR CONF

Three members with synchronous_mode, publish_as and the witness, configured by the blocks and
commands of doc/patroni-pgbouncer.md as they stand there.  Four writers commit rows with their
events.  A relay sends the events to a target that stores the position, another relay calls a
function.  Meanwhile leaders die, one changes by patronictl, and the old ones come back.  At the
end the rows that the last leader has are compared with the answers that the writers got, and
with what arrived: nothing lost, nothing doubled, and each key in its order.
"""
import os
import pathlib
import socket
import sys
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "test/python"), str(TREE / "test/crash")]

import psycopg2  # noqa: E402
from machine.traffic import Traffic  # noqa: E402
from machine.verdict import Verdict  # noqa: E402
from machine.world import EAGER, SOURCE_SCHEMA, TARGET_SCHEMA  # noqa: E402
from cluster import SCOPE, Cluster, blocks  # noqa: E402
from server import Finding, Server, wait_until  # noqa: E402

WITNESS = "/usr/local/bin/publish-witness"
# The query under "Look" of doc/howto/operate.md is empty if this is true.
WELL = "SELECT count(*) = 2 AND bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay"
UNWITNESSED = "SELECT bool_and(state = 'unwitnessed') FROM idempotency.stat_relay"


class Failover:
    def __init__(self, work, bindir, conf):
        self.work = work
        self.cluster = Cluster(work, bindir, conf, ["a", "b", "c"])
        self.target = Server("target", work, bindir)
        self.traffic = None
        self.sessions = []

    # What the page has an operator do.

    def commands(self, heading):
        """The lines of the section's blocks that are commands of patronictl."""
        return [line for block in blocks(heading) for line in block.splitlines() if line.startswith("patronictl ")]

    def apply(self, settings):
        """Enter a block of the dynamic configuration by the page's first command."""
        (self.work / "idempotency.yml").write_text(settings, encoding="utf-8")
        self.cluster.operator(self.commands("Configuration")[0])

    def configure(self):
        self.apply(blocks("Configuration")[0])
        member = self.cluster.leader()
        self.cluster.wait("every member knows that it has to be restarted", lambda: all(
            row.get("Pending restart") for row in self.cluster.listed().values()))
        for command in self.commands("Configuration")[1:]:
            self.cluster.operator(command)
        self.cluster.wait_whole()
        for command in self.commands("Synchronous standbys"):
            self.cluster.operator(command)
        self.cluster.wait_whole(synchronous=True)
        return f"leader {member.name}"

    def witness(self):
        """Every member has the script, at the same path; here it looks up the port of its member."""
        script, settings = blocks("A witness")[:2]
        path = self.work / "publish-witness"
        mine = script.replace("http://127.0.0.1:8008/", 'http://127.0.0.1:$(cat "$PGDATA.rest")/')
        if mine == script:
            raise Finding("the page's witness asks another address")
        path.write_text(mine, encoding="utf-8")
        path.chmod(0o755)
        self.apply(settings.replace(WITNESS, str(path)))
        for member in self.cluster.members:
            member.wait_for("SHOW idempotency.publish_witness", str(path))
        return "on all members"

    def check(self):
        """The column "Check" of the page's table."""
        leader = self.cluster.leader()
        for member in self.cluster.members:
            for setting, value in (("publish_as", SCOPE), ("sink_directory", self.cluster.staged["idempotency.sink_directory"])):
                member.wait_for(f"SHOW idempotency.{setting}", value)
            member.wait_for("SHOW shared_preload_libraries", "idempotency")
            member.wait_for("SHOW max_worker_processes", "24")
        names = leader.value("SHOW synchronous_standby_names")
        if not names:
            raise Finding("synchronous_standby_names is empty at the leader")
        return f"synchronous_standby_names is {names}"

    # The work that goes on.

    def connect(self):
        """To the leader, as a proxy that asks Patroni would."""
        leader = self.cluster.leader()
        if leader is None:
            raise psycopg2.OperationalError("no member leads")
        connection = leader.connect(autocommit=False)
        self.sessions.append((leader, connection))
        return connection

    def hang_up(self, old):
        """End the sessions with a member that leads no more, as the proxy would."""
        for member, connection in list(self.sessions):
            if member is old and not connection.closed:
                with socket.socket(fileno=os.dup(connection.fileno())) as ours:
                    ours.shutdown(socket.SHUT_RDWR)

    def begin(self):
        leader = self.cluster.leader()
        leader.rows("CREATE EXTENSION idempotency CASCADE")
        leader.rows(SOURCE_SCHEMA)
        leader.rows(f"""
            CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS
                (host '{self.target.host}', port '{self.target.port}', dbname 'postgres', function 'app.on_event');
            CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (user 'postgres')""")
        self.target.rows(TARGET_SCHEMA)
        self.target.rows(leader.value("SELECT idempotency.sink_setup_sql('pg')"))
        for relay in ("pg", "fn"):
            leader.rows(f"SELECT idempotency.relay_create(%s, %s{EAGER})", (relay, relay))
        for member in self.cluster.members:
            label = blocks("Where relays run")[0]
            wait_until(f"the label is at {member.name}", lambda m=member: len(m.rows(label)) == 1)
        self.traffic = Traffic(self.connect, 1, durable=(True,) * 4, pause=0.01).start()
        self.goes_on(leader)
        return "two relays deliver"

    def arrived(self, relay, leader):
        server, table = (self.target, "app.arrivals") if relay == "pg" else (leader, "effects")
        return server.rows(f"SELECT event_id::text, key, n FROM {table} ORDER BY id")

    def goes_on(self, leader):
        """Until both relays deliver rows that were committed from now on; the seconds."""
        began = time.monotonic()
        mark = len(self.traffic.operations)
        for relay in ("pg", "fn"):
            def new(r=relay):
                later = {op.event for op in self.traffic.operations[mark:] if op.outcome == "ok"}
                return later & {event for event, _, _ in self.arrived(r, leader)}
            wait_until(lambda r=relay: f"relay {r} goes on at {leader.name}\n{leader.relays()}", new, pause=0.1)
        leader.wait_for(WELL)
        return time.monotonic() - began

    def promoted(self, old):
        """Until another member leads; what became of the relays, by themselves."""
        new = self.cluster.wait("another member leads", lambda: self.cluster.leader(but=old))
        self.hang_up(old)
        return new, f"{new.name} after {old.name}, both relays deliver {self.goes_on(new):.1f} s after its promotion"

    def comes_back(self, old):
        old.patroni.start()
        self.cluster.wait_whole(synchronous=True)
        old.wait_for("SELECT bool_and(state = 'not running') FROM idempotency.stat_relay")

    # The faults.

    def patroni_dies(self):
        """The leader's Patroni alone: its server goes on as a primary that the others do not count on."""
        old = self.cluster.leader()
        began = time.monotonic()
        old.patroni.kill()
        old.wait_for(UNWITNESSED)
        barred = time.monotonic() - began
        new, said = self.promoted(old)
        # Two primaries now.  The old one publishes nothing, and takes no sink from the new one.
        if old.value("SELECT pg_is_in_recovery()") or not old.value(UNWITNESSED):
            raise Finding(f"the old primary beside the new one\n{old.relays()}")
        self.goes_on(new)
        old.kill_server()
        self.comes_back(old)
        return f"unwitnessed within {barred:.1f} s; {said}"

    def all_dies(self):
        """The leader's Patroni and its server, as if the machine were gone."""
        old = self.cluster.leader()
        old.patroni.kill()
        old.kill_server()
        _, said = self.promoted(old)
        self.comes_back(old)
        return said

    def switchover(self):
        old, candidate = self.cluster.leader(), self.cluster.synchronous()
        command = next(line for line in self.commands("Before a failover") if " switchover " in line)
        self.cluster.operator(command.replace("--leader a", f"--leader {old.name}")
                              .replace("--candidate b", f"--candidate {candidate.name}"))
        new, said = self.promoted(old)
        if new is not candidate:
            raise Finding(f"{new.name} leads, not {candidate.name}")
        self.cluster.wait_whole(synchronous=True)
        old.wait_for("SELECT bool_and(state = 'not running') FROM idempotency.stat_relay")
        return said

    def maintenance(self):
        """Patroni is restarted in maintenance mode: its server goes on, and the relays wait for Patroni."""
        leader = self.cluster.leader()
        pause, resume = self.commands("A witness")
        self.cluster.operator(pause)
        self.goes_on(leader)
        leader.patroni.stop()
        leader.wait_for(UNWITNESSED)
        leader.patroni.start()
        took = self.goes_on(leader)
        leader.wait_for("SELECT current_setting('synchronous_standby_names') <> ''")
        self.cluster.operator(resume)
        self.cluster.wait_whole(synchronous=True)
        if self.cluster.leader() is not leader:
            raise Finding(f"{leader.name} does not lead any more")
        return f"{leader.name} leads, both relays deliver {took:.1f} s after the start of its Patroni"

    def verdict(self):
        self.traffic.stop()
        leader = self.cluster.leader()
        orders = {event: (key, n) for event, key, n in leader.rows("SELECT event_id::text, key, n FROM orders")}
        for relay in ("pg", "fn"):
            wait_until(lambda r=relay: f"relay {r} delivers the rest\n{leader.relays()}",
                       lambda r=relay: not orders.keys() - {event for event, _, _ in self.arrived(r, leader)}, pause=0.1)
        verdict = Verdict(self.traffic.operations, orders)
        verdict.ledger()
        for relay in ("pg", "fn"):
            verdict.sink(relay, self.arrived(relay, leader))
        verdict.pronounce()
        return (f"{len(orders)} committed rows, {self.traffic.count('unknown')} whose answer their writer did not get:"
                " none lost, none doubled, each key in order, at the target and by the function")

    # All of it.

    def run(self):
        self.target.make("shared_preload_libraries = ''\n")
        self.target.start()
        self.cluster.start()
        for name, step in (("the page's configuration", self.configure), ("the page's witness", self.witness),
                           ("what to check before a failover", self.check), ("relays and writers", self.begin),
                           ("the leader's Patroni dies", self.patroni_dies),
                           ("the leader's Patroni and server die", self.all_dies),
                           ("a switchover", self.switchover),
                           ("maintenance mode", self.maintenance), ("the verdict", self.verdict)):
            began = time.monotonic()
            try:
                said = step()
            except Finding as finding:
                print(f"NOT OK {name}: {finding}", flush=True)
                return False
            print(f"ok {name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
        return True

    def stop(self):
        if self.traffic:
            self.traffic.stopping.set()
        self.cluster.stop()
        self.target.stop("immediate")


def main():
    directory, bindir, conf = sys.argv[1:]
    failover = Failover(pathlib.Path(directory), pathlib.Path(bindir), pathlib.Path(conf).read_text(encoding="utf-8"))
    try:
        return 0 if failover.run() else 1
    finally:
        failover.stop()


if __name__ == "__main__":
    sys.exit(main())
