"""Power cuts: data that were not synced are gone."""
import signal
import time

from machine.consumers import SCHEMA, Consumers
from machine.disk import Disk
from machine.scenario import scenario
from machine.world import World
from server import Finding, send_signal, wait_until

# With these settings asynchronous commits stay unsynced until something needs them
# synced.  After each cut there is another loop device; without a name in publish_as it
# would be another identity.
LAZY = """
idempotency.publish_as = 'power'
fsync = on
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
autovacuum = off
"""

# Before each cut: the relays that run, and whether all commits are asynchronous.  A relay
# that commits, or that writes positions, syncs the log as a side effect.  The relay "file"
# among asynchronous commits, whose program takes events and does not answer, syncs by the
# flush gate only.  In that case, and without any relay, asynchronous commits must be lost.
ROUNDS = (
    (("pg", "fn", "file"), False),
    (("file",), True),
    ((), True),
    (("pg", "file"), True),
    (("file",), True),
)


def cut_power(server, disk, rng):
    """The disk stops at once, the processes some time later."""
    disk.cut_power()
    time.sleep(rng.random() * 0.05)
    server.kill()
    disk.power_up()
    server.start()


def wait_for_work(world, relays):
    """Wait until a relay or a writer has made progress since then."""
    def done():
        if relays == ("file",):
            return len(list(world.received(anyhow=True)))
        return len(world.arrivals(relays[-1])) if relays else world.traffic.count()
    before = done()
    # A program that does not answer gets a few batches only.
    wait_until("work goes on", lambda: done() > before + (5 if relays == ("file",) else 60))


def is_unsynced_alone(relays):
    return relays in ((), ("file",))


def wait_unsynced(world, n=10):
    """Wait until commits were answered that are not synced and that nothing will sync before the cut."""
    source, traffic = world.source, world.traffic
    send_signal(source.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"), signal.SIGSTOP)
    seen = [None, 0]

    def unsynced():
        flushed = source.value("SELECT pg_current_wal_flush_lsn()")
        if flushed != seen[0]:
            seen[:] = [flushed, traffic.count()]
        return traffic.count() >= seen[1] + n
    wait_until("asynchronous commits stay unsynced", unsynced)


def gone_with(traffic, orders):
    return sum(op.outcome == "ok" and not op.durable and op.event not in orders for op in list(traffic.operations))


@scenario("power cut")
def power_cut(lab, rng):
    disk = Disk(lab, "disk")
    source = lab.server("source", LAZY, data=disk.path / "data")
    source.panic = "Input/output error"
    disk.sync()
    world = World(lab, rng.random(), source, lab.server("target"))
    traffic = world.write()
    gone = [0]
    for relays, lazy in ROUNDS:
        world.run_only(relays)
        traffic.lazy_only = lazy
        traffic.tag = f"round {len(gone) - 1}"
        if relays == ("file",):
            source.rows("ALTER SERVER file OPTIONS (ADD mute_type 'Made')")
        wait_for_work(world, relays)
        time.sleep(rng.random() * 0.2)
        if is_unsynced_alone(relays):
            wait_unsynced(world)
        cut_power(source, disk, rng)
        if relays == ("file",):
            source.rows("ALTER SERVER file OPTIONS (DROP mute_type)")
        gone.append(gone_with(traffic, world.committed()))
        if is_unsynced_alone(relays) and gone[-1] == gone[-2]:
            raise Finding(f"cut {len(gone) - 1} lost no unsynced commit ({gone})")
    world.run_only(world.relays)
    world.drain()
    return f"{len(ROUNDS)} cuts, {world.judge()}, {gone[-1]} asynchronous commits gone with the power"


@scenario("power cut at the target")
def power_cut_at_target(lab, rng):
    """An event that arrived has one effect, and a completion stays, although its commit was asynchronous."""
    disk = Disk(lab, "disk")
    target = lab.server("target", LAZY, data=disk.path / "data")
    target.panic = "Input/output error"
    disk.sync()
    target.start()
    target.rows(SCHEMA)
    world = World(lab, rng.random(), lab.server("source"), target)
    world.write()
    consumers = Consumers(lambda: target.connect(autocommit=False), rng.random())
    cuts = 3
    for _ in range(cuts):
        world.wait_progress()
        done = len(consumers.handled)
        wait_until("consumers work", lambda n=done: len(consumers.handled) >= n + 20)
        time.sleep(rng.random() * 0.2)
        cut_power(target, disk, rng)
        consumers.judge(target)
    world.wait_progress()
    world.drain()
    consumers.finish(target, len(world.committed()))
    return f"{cuts} cuts, {world.judge()}, {len(consumers.handled)} claims completed"
