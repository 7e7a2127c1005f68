"""Faults between a relay and its sink: partition, reset, half-open, slow and lying peers.

The relay that needs no network goes on all the time, and so do the writers.
"""
import re
import time

from machine.network import FAR, Network, Proxy
from machine.scenario import scenario
from machine.world import World
from server import Finding, wait_until

OPTIONS = ", connect_timeout '2', tcp_user_timeout '1000', idle_timeout '2000', statement_timeout '2000'"
LIMIT = 10.0

# The relay's messages when a timeout was reached: libpq's and the kernel's, or its own.
TIMED_OUT = r"timeout expired|timed out|did not answer|did not complete a connection"
# Fault or mood -> what the relay's error has to say.
EFFECTS = {"drop": TIMED_OUT, "drop_answers": TIMED_OUT, "reset": "refused|reset", "tarpit": TIMED_OUT,
           "garbage": ""}
BACKLOG = 100
# If a peer hangs up, the program connects again by itself, and delivers in between.
CUTS = 3


def pg(world, column):
    return world.source.value(f"SELECT {column} FROM idempotency.stat_relay WHERE relay = 'pg'")


def wait_error(world, name):
    """Wait until the relay has an error from after now that the fault caused; its text."""
    before = pg(world, "clock_timestamp()")
    said = []

    def seen():
        said[:] = world.source.rows("SELECT last_error_at, last_error FROM idempotency.stat_relay WHERE relay = 'pg'")[0]
        return said[0] and said[0] > before and re.search(EFFECTS[name], said[1])
    wait_until(lambda: f"an error by {name} that says \"{EFFECTS[name]}\"; it is {said}", seen)
    return f"{name}: {said[1]}"


def wait_backlog(world):
    """Wait until events come faster than they leave."""
    before = pg(world, "lag_events")
    wait_until(lambda: f"{BACKLOG} more events than {before} wait\n{world.source.relays()}",
               lambda: pg(world, "lag_events") > before + BACKLOG)


def use_proxy(world, proxy, server="pg", dbname="postgres"):
    world.source.rows(f"ALTER SERVER {server} OPTIONS (SET host '127.0.0.1', SET port '{proxy.port}')", dbname=dbname)


@scenario("broken network")
def broken_network(lab, rng):
    network = Network()
    target = lab.server("target", prefix=network.prefix)
    world = World(lab, rng.random(), lab.server("source"), target, file_sink=False,
                  target_host=FAR, target_options=OPTIONS)
    world.write(durable=(True, True, False))
    faults = [network.drop, network.drop_answers, network.reset]
    rng.shuffle(faults)
    seen = []
    for fault in faults:
        world.wait_progress()
        fault()
        seen.append(wait_error(world, fault.__name__))
        world.wait_progress(["fn"], n=30, when=f"beside {fault.__name__}")
        network.heal()
        world.wait_progress(when=f"after {fault.__name__}")
    proxy = Proxy(FAR, target.port)
    use_proxy(world, proxy)
    for mood in ("slow", "tarpit", "garbage", "cut"):
        world.wait_progress()
        proxy.mood = mood
        # The effect of the change of mood on the old connection does not count.
        wait_until(f"a connection to a peer that is {mood}", lambda m=mood: proxy.met[m])
        if mood == "slow":
            wait_backlog(world)
        elif mood == "cut":
            wait_until(f"the peer has hung up {CUTS} times in the middle of an answer", lambda: proxy.hung_up >= CUTS)
        else:
            seen.append(wait_error(world, mood))
        world.wait_progress(["fn"], n=30, when=f"beside a peer that is {mood}")
        proxy.mood = "through"
        world.wait_progress(when=f"after a peer that was {mood}")
    print("\n".join(seen))
    world.drain()
    return f"{len(faults) + 4} faults, {world.judge()}"


@scenario("shutdown with every sink hung")
def hung_sinks(lab, rng):
    """Check that DROP DATABASE and a fast shutdown are not held up."""
    target = lab.server("target")
    world = World(lab, rng.random(), lab.server("source", "idempotency.sink_timeout = 10min\n"), target)
    proxy = Proxy("127.0.0.1", target.port)
    proxy.mood = "tarpit"
    source = world.source
    source.rows("CREATE DATABASE doomed")
    source.rows("CREATE EXTENSION idempotency CASCADE", dbname="doomed")
    source.rows(f"CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '127.0.0.1',"
               f" port '{proxy.port}', dbname 'postgres', function 'app.on_event', connect_timeout '600')", dbname="doomed")
    source.rows("CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (user 'postgres')", dbname="doomed")
    source.rows("SELECT idempotency.relay_create('pg', 'pg')", dbname="doomed")
    use_proxy(world, proxy)
    source.rows("ALTER SERVER pg OPTIONS (ADD connect_timeout '600')")
    source.rows("ALTER SERVER file OPTIONS (ADD hello 'hang')")
    for dbname in ("postgres", "doomed"):
        source.wait_for("SELECT bool_and(state = 'starting' AND sink_pid IS NOT NULL) FROM idempotency.stat_relay"
                        " WHERE relay <> 'fn'", dbname=dbname)
    world.write()
    began = time.monotonic()
    source.rows("DROP DATABASE doomed")
    dropped = time.monotonic() - began
    stopped = source.stop("fast")
    if max(dropped, stopped) >= LIMIT:
        raise Finding(f"DROP DATABASE took {dropped:.1f} s, fast shutdown {stopped:.1f} s")
    proxy.mood = "through"
    source.start()
    source.rows("ALTER SERVER file OPTIONS (DROP hello)")
    world.drain()
    return f"DROP DATABASE {dropped:.1f} s, fast shutdown {stopped:.1f} s, {world.judge()}"
