"""Copies of a server: beside it, in its place, and of its database.

No copy publishes before an operator adopts it.
"""
from machine.scenario import scenario
from machine.world import World
from server import Finding, run


def stays_silent(world, server, dbname="postgres"):
    """Check that the copy is not adopted, and that its new events go nowhere."""
    server.wait_for("SELECT bool_and(state = 'unadopted') FROM idempotency.stat_relay", dbname=dbname)
    before = {relay: len(world.arrivals(relay)) for relay in ("pg", "file")}
    effects = server.value("SELECT count(*) FROM effects", dbname=dbname)
    server.rows("SELECT idempotency.outbox_enqueue('order', 'copy', 'Made', '{\"n\": 1}') FROM generate_series(1, 100)",
               dbname=dbname)
    # After this wait the worker has read its configuration twice.
    for _ in range(2):
        server.rows("SELECT idempotency.relay_pause('pg')", dbname=dbname)
        server.rows("SELECT idempotency.relay_resume('pg')", dbname=dbname)
        server.wait_for("SELECT bool_and(state = 'unadopted') FROM idempotency.stat_relay", dbname=dbname)
    if before != {relay: len(world.arrivals(relay)) for relay in ("pg", "file")} or \
            effects != server.value("SELECT count(*) FROM effects", dbname=dbname):
        raise Finding(f"a copy published\n{server.relays(dbname)}")


@scenario("copies do not publish")
def copies(lab, rng):
    source = lab.server("source")
    world = World(lab, rng.random(), source, lab.server("target"))
    traffic = world.write()
    world.wait_progress()
    traffic.stop()
    world.drain()
    source.stop()

    # A copy beside the original, which is down meanwhile, so that every arrival is the copy's.
    copy = lab.bare("copy")
    copy.copy_from(source.data)
    copy.start()
    stays_silent(world, copy)
    copy.stop()

    # A copy in the original's place: the same path, and the original is gone.
    moved = source.data.with_name("data-moved")
    source.data.rename(moved)
    run("cp", "-a", moved, source.data)
    source.start()
    stays_silent(world, source)
    source.stop()
    run("rm", "-rf", source.data)

    # The original itself, back in its place, goes on as before.
    moved.rename(source.data)
    source.start()
    source.wait_for("SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay")

    # A database that is made from the original's database is a copy, too.
    source.rows("CREATE DATABASE twin TEMPLATE postgres", dbname="template1")
    # The new database is not even marked as a database with relays: without a worker its rows tell the state.
    worker = "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'idempotency relay' AND datname = 'twin'"
    source.wait_for("SELECT bool_and(state = 'unadopted') FROM idempotency.stat_relay", dbname="twin")
    if source.value(worker):
        raise Finding("a copy that is not marked has a worker")
    source.rows("SECURITY LABEL FOR idempotency ON DATABASE twin IS 'relays'")
    source.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'")
    source.wait_for(worker)
    stays_silent(world, source, "twin")
    source.rows("DROP DATABASE twin")
    return f"3 copies, {world.judge()}"


@scenario("restored from a backup")
def restored(lab, rng):
    """The events after the backup are lost; when the server is adopted, the rest goes on."""
    source = lab.server("source")
    world = World(lab, rng.random(), source, lab.server("target"))
    world.lost_allowed = True
    traffic = world.write()
    world.wait_progress()
    backup = lab.work / "backup"
    lab.user_run(lab.bindir / "pg_basebackup", "-D", backup, "-c", "fast", "-h", source.host,
                 "-p", str(source.port), "-U", "postgres")
    traffic.tag = "after the backup"
    world.wait_progress()
    traffic.pause_all()
    source.kill()
    run("rm", "-rf", source.data)
    run("cp", "-a", backup, source.data)
    source.start()
    source.wait_for("SELECT bool_and(state = 'unadopted') FROM idempotency.stat_relay")
    committed = set(world.committed())
    world.forgiven = {op.event for op in traffic.operations if op.event not in committed and op.outcome != "fail"}
    source.rows("SELECT idempotency.relay_adopt(relay) FROM idempotency.stat_relay")
    source.wait_for("SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay")
    traffic.resume()
    world.wait_progress(when="after relay_adopt")
    world.drain()
    return f"{world.judge(repeated=('file', 'pg'))}, {len(world.forgiven)} lost with the server"
