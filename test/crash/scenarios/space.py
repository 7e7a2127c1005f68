"""Disks that fill up, under the log and under the data, and are freed again."""
import shutil
import time

import psycopg2

from machine.disk import Disk
from machine.scenario import scenario
from machine.world import World
from server import run, wait_until

ROUNDS = 2


def start_again(server):
    """A full log disk may end the server; the server comes back when there is room."""
    def up():
        if server.process.poll() is None:
            return server.answers()
        server.kill()
        server.start()
        return True
    wait_until(lambda: f"server {server.name} accepts connections\n{server.tail()}", up)


@scenario("disk full under the log")
def log_full(lab, rng):
    disk = Disk(lab, "disk")
    source = lab.server("source", "max_wal_size = 4GB\ncheckpoint_timeout = 1h\n")
    shutil.move(source.data / "pg_wal", disk.path / "pg_wal")
    (source.data / "pg_wal").symlink_to(disk.path / "pg_wal")
    run("chown", "-R", f"{lab.uid}:{lab.gid}", disk.path)
    source.panic = "No space left on device"
    world = World(lab, rng.random(), source, lab.server("target"))
    world.write()
    for _ in range(ROUNDS):
        wait_until("orders are made", world.traffic.count)
        fill_log(disk, world)
        start_again(source)
    world.drain()
    return f"filled {ROUNDS} times, {world.judge()}"


def fill_log(disk, world):
    """A WAL segment is allocated as a whole: the switch to a new segment fails when no old segment is left over."""
    at = len(world.source.log_text())

    def noticed():
        disk.fill()
        try:
            world.source.rows("SELECT pg_switch_wal()")
        except psycopg2.Error:
            pass
        return "No space left on device" in world.source.log_text()[at:]
    wait_until("the full disk is noticed", noticed)
    disk.free()


def fill_data(disk, world, rng):
    """Tables grow by whole blocks that the file system had set aside: use these blocks up."""
    at = len(world.source.log_text())
    disk.fill()

    def noticed():
        try:
            world.source.rows("INSERT INTO filler SELECT repeat(i::text, 1000) FROM generate_series(1, 1000) i")
        except psycopg2.Error:
            pass
        return "outbox" in full_tables(world, at) or world.traffic.count("fail") > fails + 100
    fails = world.traffic.count("fail")
    wait_until("the full disk is noticed", noticed)
    time.sleep(rng.random())
    disk.free()


def full_tables(world, at):
    return " ".join(line for line in world.source.log_text()[at:].splitlines()
                    if "No space left on device" in line)


@scenario("disk full under the data")
def data_full(lab, rng):
    """Only the tables are on the small disk, in a tablespace of the database."""
    disk = Disk(lab, "disk")
    lab.mkdir("disk/space")
    source = lab.server("source")
    source.start()
    source.rows(f"CREATE TABLESPACE small LOCATION '{disk.path}/space'")
    source.rows("ALTER DATABASE postgres SET default_tablespace = small")
    world = World(lab, rng.random(), source, lab.server("target"))
    source.rows("CREATE TABLE filler (t text)")
    world.write()
    for _ in range(ROUNDS):
        wait_until("orders are made", world.traffic.count)
        fill_data(disk, world, rng)
    done = world.traffic.count()
    wait_until("writers go on", lambda: world.traffic.count() > done + 20)
    world.drain()
    return f"filled {ROUNDS} times, {world.judge()}"
