"""Clocks that jump, while everything works and while relays wait; outages of hours."""
import signal
import time

from actions import Skip
from actions.process import crash
from machine.clock import Clock
from machine.scenario import scenario
from machine.world import World
from server import Finding, command_of, descendants, send_signal, wait_until

HOUR = 3600
TEN_YEARS = 10 * 365 * 24 * HOUR
JUMPS = (HOUR, 0, TEN_YEARS, 0, -HOUR, 0, -TEN_YEARS, 0)
SET_BACK = (-HOUR, -2 * HOUR, -TEN_YEARS, -TEN_YEARS - HOUR)


def see_jump(server, offset):
    """Check that the server really has the other time."""
    wait_until(f"the server's clock is {offset} s off", lambda: abs(server.value(
        "SELECT extract(epoch FROM clock_timestamp())::bigint - %s", (int(time.time()) + offset,))) < 60)


@scenario("clock jumps")
def clock_jumps(lab, rng):
    clock = Clock(lab, "source")
    # A jump of the clock is longer than this time, a stall of the machine is shorter.
    source = lab.server("source", "idempotency.sink_timeout = 1min\n", env=clock.env)
    target = lab.server("target")
    world = World(lab, rng.random(), source, target)
    world.write(durable=(True, True, False), pause=0.02)
    for offset in JUMPS:
        clock.set(offset)
        see_jump(source, offset)
        progress(world, f"after a jump to {offset:+d} s")
    if "is outage" in source.log_text():
        raise Finding(f"a jump alone made an outage\n{source.relays()}")
    for jump, offset in enumerate(SET_BACK):
        wait_out = (outage, refusal)[jump % 2]
        wait_out(world, lambda o=offset: (clock.set(o), see_jump(source, o)))
        progress(world, f"after {wait_out.__name__} and a jump to {offset:+d} s")
    world.drain()
    return f"{len(JUMPS) + len(SET_BACK)} jumps, {world.judge()}"


def outage(world, jump):
    """A relay waits out a backoff while the clock is set back."""
    world.target.stop("immediate")
    world.source.wait_for("SELECT state = 'outage' FROM idempotency.stat_relay WHERE relay = 'pg'")
    jump()
    world.target.start()


def refusal(world, jump):
    """A target that refuses all waits for its next probe while the clock is set back."""
    world.refuse()
    world.source.wait_for("SELECT (state, waiting_for) = ('outage', 'backoff') AND retrying > 0"
                          " FROM idempotency.stat_relay WHERE relay = 'pg'")
    jump()
    world.refuse(False)


def progress(world, when):
    """Check that each relay delivers something new, within the usual patience."""
    for relay in world.relays:
        before = len(world.arrivals(relay))
        wait_until(lambda r=relay: f"relay {r} goes on {when}\n{world.source.relays()}",
                   lambda r=relay, n=before: len(world.arrivals(r)) > n, seconds=40)


# A handler refuses the keys that stand in a table, and all keys if '*' does.
REFUSING = """
CREATE TABLE {schema}.refused (key text);
CREATE OR REPLACE FUNCTION {function}(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.refused AS r WHERE r.key IN (aggregate_id, '*')) THEN
        RAISE 'not now';
    END IF;
    INSERT INTO {schema}.{arrivals} (event_id, key, n) VALUES (event_id, aggregate_id, (payload->>'n')::bigint);
END $$
"""


def stopped(world):
    """The target's server is down; what the function relay sends passes."""
    world.target.stop("immediate")
    return "relay = 'pg' AND state = 'outage'", world.target.start


def refused(key):
    """Both handlers refuse the key.  If that is every key, one of them remains refused until its
    event was tried beside others that pass: only such a refusal asks how long the event was tried."""
    def everywhere(world, sql):
        world.target.try_rows(sql.format("app.refused"))
        world.source.try_rows(sql.format("public.refused"))

    def begin(world):
        everywhere(world, f"INSERT INTO {{}} VALUES ('{key}')")

        def end():
            if key == "*":
                everywhere(world, "UPDATE {} SET key = 'w1'")
                world.source.wait_for("SELECT count(DISTINCT relay_id) = 2 FROM idempotency_data.relay_parked"
                                      " WHERE aggregate_id = 'w1' AND attempts > 0")
            everywhere(world, "DELETE FROM {}")
        return "relay IN ('pg', 'fn') AND retrying > 0", end
    return begin


def killers(world, rng):
    """What is killed in an outage, by turns: the server, processes of ours in it, programs."""
    def server():
        world.source.kill()
        world.source.start()

    def worker():
        crash(world.source, rng.choice(world.source.pids("backend_type LIKE 'idempotency%'")))

    def programs():
        for pid in descendants(world.source.process.pid):
            if command_of(pid).startswith("idempotency-sin"):
                send_signal(pid, signal.SIGKILL)
    return [server, worker, programs]


@scenario("outages of hours")
def outages(lab, rng):
    """Relays wait out hours in which the target refuses all, and others in which it refuses one key,
    while the server and its processes are killed; everything comes by itself, and nothing dies.
    Hours in which nothing passes do not count, so they are more than retry_for."""
    clock = Clock(lab, "source")
    source = lab.server("source", "idempotency.sink_timeout = 1min\n", env=clock.env)
    source.signals.add(signal.SIGKILL)
    world = World(lab, rng.random(), source, lab.server("target"), patience=", retry_for => '2 hours'")
    source.rows(REFUSING.format(schema="public", function="handle", arrivals="effects"))
    world.target.rows(REFUSING.format(schema="app", function="app.on_event", arrivals="arrivals"))
    world.write(durable=(True, True, False), pause=0.02)
    hours, kills, due, one_key = 0, 0, killers(world, rng), refused("w1")

    def pass_hours():
        nonlocal hours
        hours += rng.choice((1, 2, 3))
        clock.set(hours * HOUR)
        see_jump(source, hours * HOUR)

    for begin in (stopped, refused("*"), stopped, refused("*"), one_key):
        if begin is one_key:
            source.rows("SELECT idempotency.relay_alter(relay, retry_for => '3 days') FROM idempotency.stat_relay")
        world.wait_progress()
        shown, end = begin(world)
        for _ in range(3):
            relays = shown.count("'pg'") + shown.count("'fn'")
            source.wait_for(f"SELECT count(*) = {relays} FROM idempotency.stat_relay WHERE {shown}")
            pass_hours()
            try:
                due[kills % len(due)]()
            except Skip:
                pass
            kills += 1
        end()
        # The next try of a single key is due in an hour at most, as the reference says.
        pass_hours()
        world.rest()
    world.drain()
    dead = source.value("SELECT count(*) FROM idempotency.dead_letters")
    if dead:
        raise Finding(f"{dead} dead letters\n{source.relays()}")
    return f"5 outages of {hours} hours in all, {kills} kills, {world.judge()}"
