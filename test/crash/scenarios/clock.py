"""Clocks that jump, while everything works and while relays wait."""
import time

from machine.clock import Clock
from machine.scenario import scenario
from machine.world import World
from server import Finding, wait_until

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
    """Refused events wait for their next try while the clock is set back."""
    world.refuse()
    world.source.wait_for("SELECT count(*) > 0 FROM idempotency_data.relay_parked WHERE attempts > 1")
    jump()
    world.refuse(False)


def progress(world, when):
    """Check that each relay delivers something new, within the usual patience."""
    for relay in world.relays:
        before = len(world.arrivals(relay))
        wait_until(lambda r=relay: f"relay {r} goes on {when}\n{world.source.relays()}",
                   lambda r=relay, n=before: len(world.arrivals(r)) > n, seconds=40)
