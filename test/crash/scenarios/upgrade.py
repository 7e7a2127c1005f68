"""pg_upgrade, with and without a name in publish_as."""
from machine.scenario import scenario
from machine.world import World
from server import Finding

SETTLED = """
SELECT bool_and(target IS NULL) FROM (
    SELECT DISTINCT ON (relay_id) target
    FROM (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1) AS l
    WHERE relay_id > 0 ORDER BY relay_id, epoch DESC, id DESC) AS last
"""


def upgrade(lab, source, conf):
    """Upgrade into a new cluster of the same version; the server then has the new data directory."""
    made = lab.make("new", source.data.with_name(source.data.name + "-new"))
    made.configure(conf)
    new = made.data
    lab.user_run(lab.bindir / "pg_upgrade", "-b", lab.bindir, "-B", lab.bindir, "-d", source.data, "-D", new,
                 "-U", "postgres", "-s", lab.sock, "-p", "5601", "-P", "5602", "-j", "2")
    source.data = new


@scenario("pg_upgrade")
def pg_upgrade(lab, rng):
    source = lab.server("source", "idempotency.publish_as = 'shop'\n")
    world = World(lab, rng.random(), source, lab.server("target"))
    traffic = world.write()
    world.wait_progress()
    source.stop()
    upgrade(lab, source, "idempotency.publish_as = 'shop'\n")
    source.start()
    world.wait_progress(when="after an upgrade, by itself")

    # No event is in flight, and the position says so: then relay_adopt repeats nothing.
    traffic.pause_all()
    source.wait_for("SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay")
    source.wait_for(SETTLED)
    source.stop()
    upgrade(lab, source, "")
    source.start()
    traffic.resume()
    source.wait_for("SELECT bool_and(state = 'unadopted') FROM idempotency.stat_relay")
    # All writers write, no relay sends.
    before = {relay: len(world.arrivals(relay)) for relay in world.relays}
    done = traffic.count()
    source.wait_for(f"SELECT count(*) > {done + 20} FROM orders")
    if before != {relay: len(world.arrivals(relay)) for relay in world.relays}:
        raise Finding("an unadopted relay sent something")
    source.rows("SELECT idempotency.relay_adopt(relay) FROM idempotency.stat_relay")
    world.wait_progress(when="after relay_adopt")
    world.drain()
    return f"2 upgrades, {world.judge()}"
