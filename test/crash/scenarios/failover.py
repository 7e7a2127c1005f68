"""Synchronous and asynchronous standbys are promoted, and the old primary comes back."""
import signal
import time

from machine.scenario import scenario
from machine.world import World
from server import Finding, command_of, descendants, send_signal, wait_until

# After its promotion the standby must not wait for a standby of its own.
GROUP = "idempotency.publish_as = 'group'\n"
ALONE = "synchronous_standby_names = ''\n"


def add_standby(lab, world, name, synchronous):
    standby = lab.standby_of(world.primary, name, ALONE)
    if synchronous:
        world.primary.configure("synchronous_standby_names = '*'")
        world.primary.reload()
        world.primary.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
    return standby


def promote(world, standby):
    standby.wait_for("SELECT pg_promote()")
    world.primary = standby


def stop_receiving(standby):
    for pid in descendants(standby.process.pid):
        if command_of(pid) == "postgres":
            send_signal(pid, signal.SIGSTOP)


def hold(standby):
    """Stop the standby: no event may leave the primary until the function that this function returns is called."""
    stopped = [pid for pid in descendants(standby.process.pid) if command_of(pid) == "postgres"]
    for pid in stopped:
        send_signal(pid, signal.SIGSTOP)

    def release():
        for pid in stopped:
            send_signal(pid, signal.SIGCONT)
    return release


def forget_unreceived(standby):
    """Restart the standby, so that the data in its sockets are lost: a new WAL receiver cannot read them."""
    standby.kill()
    standby.start()


def cancelled(world):
    return [op for op in list(world.traffic.operations) if op.outcome == "ok" and "cancel" in op.note]


def cancel_waits(world, standby):
    """Make commits whose wait is cancelled: they are visible on the primary only."""
    stop_receiving(standby)
    world.traffic.tag = "wait cancelled"

    def cancel():
        world.primary.rows("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                          " AND backend_type = 'client backend'")
        return len(cancelled(world)) >= 6
    wait_until("writers are told that their waits were cancelled", cancel)


def lines(world):
    return [event for event, _, _ in world.received(anyhow=True)]


def come_back(world, old):
    """Start the old primary as if nothing had happened, and write to it: it must not publish anything."""
    world.traffic.pause_all()
    world.primary.wait_for("SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay")
    before = lines(world)
    old.start()
    old.rows("SET synchronous_commit = local; SELECT idempotency.outbox_enqueue('order', 'old', 'Made', '{\"n\": 1}')"
            " FROM generate_series(1, 100)")
    old.wait_for("SELECT bool_and(state IN ('diverged', 'fenced') OR coalesce(waiting_for, '') = 'synchronous standby')"
                 " FROM idempotency.stat_relay WHERE relay <> 'fn'")
    shown = old.rows("SELECT relay, state, waiting_for FROM idempotency.stat_relay WHERE relay <> 'fn' ORDER BY 1")
    old.stop("immediate")
    new = [event for event in lines(world) if event not in set(before)]
    if new:
        raise Finding(f"the old primary published {len(new)} events, among them {new[:3]}\n{shown}")
    world.traffic.resume()
    arrived = len(world.arrivals("pg"))

    # The old primary may have taken the sink over; an operator has to settle this.
    def goes_on():
        world.primary.rows("SELECT idempotency.relay_resume(relay) FROM idempotency.stat_relay"
                          " WHERE relay = 'pg' AND state = 'fenced'")
        return len(world.arrivals("pg")) > arrived
    wait_until("relay pg goes on after the old primary was there", goes_on)
    return ", ".join(f"{relay} {state} ({waiting})" for relay, state, waiting in shown)


@scenario("failover to a synchronous standby")
def synchronous(lab, rng):
    world = World(lab, rng.random(), lab.server("source", GROUP), lab.server("target"))
    world.write()
    waits, gone = [], []
    for number in range(3):
        standby = add_standby(lab, world, f"standby{number}", True)
        world.wait_progress()
        world.rest(lambda s=standby: hold(s))
        if number == 1:
            cancel_waits(world, standby)
        time.sleep(rng.random() * 0.3)
        old = world.primary
        old.kill()
        if number == 1:
            forget_unreceived(standby)
        promote(world, standby)
        if number == 1:
            committed = world.committed()
            waits = cancelled(world)
            gone = [op for op in waits if op.event not in committed]
            if not gone:
                raise Finding(f"all {len(waits)} commits whose wait was cancelled outlived the failover")
        world.traffic.tag = f"after failover {number}"
        world.wait_progress(when=f"after failover {number}, without help")
        if number == 2:
            shown = come_back(world, old)
            world.wait_progress(when="after the old primary was there")
    world.drain()
    return (f"3 failovers, {world.judge()}, {len(waits)} waits cancelled, {len(gone)} of them gone;"
            f" the old primary: {shown}")


@scenario("failover to an asynchronous standby")
def asynchronous(lab, rng):
    """Commits that were not replicated are lost, as documented; the others go on."""
    world = World(lab, rng.random(), lab.server("source", GROUP), lab.server("target"))
    world.lost_allowed = True
    traffic = world.write()
    # If everything is replicated, nothing is lost and no operator has to help.
    standby = add_standby(lab, world, "standby0", False)
    world.wait_progress()
    traffic.pause_all()
    world.primary.wait_for("SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay")
    position = world.primary.value("SELECT pg_current_wal_flush_lsn()::text")
    standby.wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
    before = set(world.committed())
    world.primary.kill()
    promote(world, standby)
    if before - set(world.committed()):
        raise Finding("a replicated commit is gone")
    traffic.resume()
    world.wait_progress(when="after a failover that lost nothing")

    standby = add_standby(lab, world, "standby1", False)
    stop_receiving(standby)
    traffic.tag = "not replicated"
    world.wait_progress(n=30)
    world.primary.kill()
    traffic.tag = ""
    forget_unreceived(standby)
    promote(world, standby)
    committed = set(world.committed())
    gone = [op for op in list(traffic.operations) if op.event not in committed and op.outcome != "fail"]
    world.forgiven = {op.event for op in gone}
    if not any(op.outcome == "ok" and op.tag == "not replicated" for op in gone):
        raise Finding("no acknowledged commit was lost: the standby had received everything")
    standby.wait_for("SELECT bool_and(state IN ('streaming', 'idle', 'diverged')) FROM idempotency.stat_relay")
    diverged = help_diverged(standby)
    world.wait_progress(when="after a failover that lost commits")
    world.drain()
    # Events that were in flight when the position was last written may come again.
    return (f"2 failovers, {world.judge(repeated=('file', 'pg'))}, {len(world.forgiven)} lost with the primary,"
            f" diverged: {', '.join(diverged) or 'none'}")


def help_diverged(server):
    """The relays whose sink knows more than the log: they say so, and an operator has to settle it."""
    relays = [relay for relay, in server.rows("SELECT relay FROM idempotency.stat_relay WHERE state = 'diverged'")]
    for relay in relays:
        server.rows("SELECT idempotency.relay_adopt(%s)", (relay,))
    return relays
