"""Too little memory for a sink and for a backend; too few processes."""
import re

import psycopg2

from machine.scenario import scenario
from machine.world import World
from server import Finding, wait_until


def limit_memory(lab, pid, more):
    """Limit the data of a process to its present data and so much more; None removes the limit.

    Address space is not limited: malloc's arenas reserve address space before they use it.
    """
    size = "unlimited"
    if more is not None:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            size = int(re.search(r"^VmData:\s+(\d+) kB$", status.read(), re.MULTILINE)[1]) * 1024 + more
    lab.user_run("prlimit", "--pid", str(pid), f"--data={size}:")


OUT_OF_MEMORY = "53200"
ROUNDS = 3
NIDS = 20000
CLAIM_ALL = ("SELECT count(*) FROM idempotency.claim_events("
             f"ARRAY(SELECT 'short' || i || repeat('x', 200) FROM generate_series(1, {NIDS}) i))")


def renew_sinks(lab, world, relays, nbig):
    """Wait for so many big events, then replace the programs by new ones: a program that had a big event keeps memory
    for the next."""
    world.target.wait_for(f"SELECT count(*) = {nbig} FROM app.arrivals WHERE key = 'big'")
    wait_until("the file has the big events",
               lambda: len({event for event, key, _ in world.received() if key == "big"}) == nbig)
    for relay in relays:
        old = wait_until(f"relay {relay} has a program", lambda r=relay: world.source.value(
            "SELECT sink_pid FROM idempotency.stat_relay WHERE relay = %s", (r,)))
        lab.user_run("kill", "-KILL", str(old))
        world.source.wait_for(f"SELECT state = 'streaming' AND sink_pid <> {old} FROM idempotency.stat_relay"
                              f" WHERE relay = '{relay}'")


def starve_sinks(lab, world, nbig):
    """Give the programs no more memory, and send an event that is too big.  Each program must end, or report it."""
    source, relays = world.source, ("pg", "file")
    for relay in relays:
        source.wait_for(f"SELECT state = 'streaming' FROM idempotency.stat_relay WHERE relay = '{relay}'")
    if nbig:
        renew_sinks(lab, world, relays, nbig)
    began = source.value("SELECT clock_timestamp()")
    before = dict(source.rows("SELECT relay, sink_pid FROM idempotency.stat_relay"))
    for relay in relays:
        limit_memory(lab, before[relay], 0)
    source.rows("SELECT idempotency.outbox_enqueue('other', 'big', 'Big',"
               " jsonb_build_object('n', 0, 'filler', repeat('x', 8000000))) FROM generate_series(1, 2)")
    for relay in relays:
        wait_until(lambda r=relay: f"sink {before[r]} of relay {r} runs out of memory\n{source.relays()}",
                   lambda r=relay: source.value("SELECT sink_pid IS DISTINCT FROM %s OR last_error_at > %s"
                                                " FROM idempotency.stat_relay WHERE relay = %s", (before[r], began, r)))


def fails_whole(session, statement, undone):
    """Run a statement: false if it succeeds.  Else its error must be 53200, and undone() checks that nothing is left."""
    with session.cursor() as cursor:
        cursor.execute("SAVEPOINT s")
        try:
            cursor.execute(statement)
            return False
        except psycopg2.Error as error:
            if error.pgcode != OUT_OF_MEMORY:
                raise Finding(f"{statement}: {error.pgcode} {error}") from None
        finally:
            if not session.closed:
                cursor.execute("ROLLBACK TO s")
    undone()
    return True


def claims_are_free(source):
    """Check that the events can be claimed while the transaction that could not claim them is still open."""
    other = source.connect(autocommit=False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT DISTINCT result::text FROM idempotency.claim_events("
                           "(SELECT array_agg('short' || i || repeat('x', 200)) FROM unnest(%s) i))",
                           ([1, 2, NIDS // 2, NIDS],))
            found = [result for result, in cursor.fetchall()]
        if found != ["claimed"]:
            raise Finding(f"a claim that failed for want of memory left {found}")
    finally:
        other.rollback()
        other.close()


def starve_backend(lab, source, warm, statement, undone=lambda: None):
    """Try in one transaction with more and more memory until it is enough; the number of failures."""
    session, failed = source.connect(autocommit=False), 0
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
        # Read the catalogs, and everything else that is read once, before memory is limited.
        cursor.execute("SAVEPOINT w")
        cursor.execute(warm)
        cursor.execute("ROLLBACK TO w")
    for more in (1 << shift for shift in range(18, 31)):
        limit_memory(lab, pid, more)
        if not fails_whole(session, statement, undone):
            break
        failed += 1
    else:
        raise Finding(f"{statement}: wants more than {more} bytes")
    limit_memory(lab, pid, None)
    with session.cursor() as cursor:
        cursor.execute("SELECT idempotency.outbox_enqueue('other', 'big', 'Big', '{\"n\": 0}')")
    session.commit()
    session.close()
    if not failed:
        raise Finding(f"{statement}: memory was never short")
    return failed


def exhaust_locks(source):
    """A batch of claims that all keep their locks: more locks than the lock table holds."""
    session = source.connect(autocommit=False)
    with session.cursor() as cursor:
        cursor.execute("SET idempotency.max_claim_locks = 1000000")
    if not fails_whole(session, CLAIM_ALL, lambda: claims_are_free(source)):
        raise Finding(f"{NIDS} locks fit into the lock table")
    session.commit()
    session.close()


@scenario("out of memory")
def out_of_memory(lab, rng):
    source = lab.server("source", "idempotency.max_payload_size = 16MB\n")
    world = World(lab, rng.random(), source, lab.server("target"))
    source.rows("""
        CREATE TABLE greedy (event_id uuid, n bigint);
        CREATE FUNCTION be_greedy(event_id uuid, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.greedy VALUES (event_id, length(repeat('x', 100000000)) * 0 + (payload->>'n')::bigint);
        END $$;
        CREATE SERVER greedy FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.be_greedy')""")
    source.rows("SELECT idempotency.relay_create('greedy', 'greedy', max_attempts => 1000000, batch_events => 10,"
               " min_backoff => '20 ms', max_backoff => '500 ms')")
    worker = wait_until("the greedy relay runs", lambda: source.value(
        "SELECT pid FROM idempotency.stat_relay WHERE relay = 'greedy' AND state = 'streaming' UNION ALL SELECT NULL LIMIT 1"))
    limit_memory(lab, worker, 64 << 20)
    traffic = world.write(durable=(True,), pause=0.25)
    source.wait_for("SELECT last_error LIKE '%out of memory%' FROM idempotency.stat_relay WHERE relay = 'greedy'")
    # The order of these events is not known: two of each round, and one of each backend.
    world.ignored = ("big",)
    nbig = 2 * ROUNDS + 2
    for i in range(ROUNDS):
        starve_sinks(lab, world, 2 * i)
        world.wait_progress(["fn"], n=2)
    failed = [starve_backend(lab, source, *case) for case in (
        ("SELECT idempotency.outbox_enqueue('other', 'short', 'Big', '{\"n\": 0}')",
         "SELECT idempotency.outbox_enqueue('other', 'short', 'Big',"
         " jsonb_build_object('n', 0, 'filler', repeat('x', 8000000)))"),
        ("SELECT count(*) FROM idempotency.claim_events(ARRAY['warm1', 'warm2'])",
         CLAIM_ALL, lambda: claims_are_free(source)))]
    exhaust_locks(source)
    limit_memory(lab, worker, None)
    traffic.stop()
    source.wait_for(f"SELECT count(*) = (SELECT count(*) FROM orders) + {nbig} AND count(*) = count(DISTINCT event_id)"
                    " FROM greedy")
    world.drain()
    if "reinitializing" in source.log_text():
        raise Finding("want of memory restarted the server")
    if source.value("SELECT count(*) FROM idempotency.processed_events WHERE event_id LIKE 'short%'"):
        raise Finding("a claim that failed for want of memory left a row")
    once = f"SELECT count(*) = {nbig} AND count(DISTINCT event_id) = {nbig} FROM"
    world.target.wait_for(f"{once} app.arrivals WHERE key = 'big'")
    source.wait_for(f"{once} effects WHERE key = 'big'")
    wait_until("the file has the big events",
               lambda: len({event for event, key, _ in world.received() if key == "big"}) == nbig)
    return f"{ROUNDS} rounds, {failed[0]} enqueues and {failed[1]} claims without memory, {world.judge()}"


@scenario("no worker slot is left")
def no_slot(lab, rng):
    """Launcher, the database's worker and one function relay fill all slots; two of them take turns."""
    source = lab.server("source", "max_worker_processes = 3\nmax_logical_replication_workers = 0\n"
                        "max_parallel_workers_per_gather = 0\n")
    world = World(lab, rng.random(), source, lab.server("target"))
    source.wait_for("SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay")
    source.rows("CREATE TABLE effects2 (event_id uuid);"
                "CREATE FUNCTION handle2(event_id uuid) RETURNS void LANGUAGE sql AS"
                " 'INSERT INTO public.effects2 VALUES (event_id)';"
                "CREATE SERVER fn2 FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle2')")
    source.rows("SELECT idempotency.relay_create('fn2', 'fn2')")
    world.write()
    source.wait_for("SELECT count(*) > 0 FROM effects2")
    world.wait_progress()
    world.drain()
    source.wait_for("SELECT count(*) = (SELECT count(*) FROM orders) AND count(*) = count(DISTINCT event_id) FROM effects2")
    return world.judge()
