"""Run both services against a throw-away server, assign shifts, kill what is there, and count.

    run.py DIRECTORY SECONDS        the directory is one that test/setup/server.sh made
"""

import asyncio
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import asyncpg

HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path(sys.argv[1])
PORT = re.search(r"IDEM_PORT=(\d+)", (WORK / "server.env").read_text())[1]
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"
CLIENTS = 4


def url_of(database):
    return f"postgresql://{database}@127.0.0.1:{PORT}/{database}"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def psql(database, *args):
    subprocess.run([HERE / "../../test/setup/server.sh", "psql", WORK, "-qAt", "-v", "ON_ERROR_STOP=1", "-d", database, *args],
                   check=True, stdout=subprocess.DEVNULL)


def rows(database, query):
    """As a superuser; None while the server restarts."""
    async def run():
        conn = await asyncpg.connect(url_of(database).replace(f"//{database}", "//postgres"))
        try:
            return await conn.fetch(query)
        finally:
            await conn.close()
    try:
        return asyncio.run(run())
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return None


class Service:
    """A service that is started again whenever it has ended, as systemd or Kubernetes would do."""

    def __init__(self, name):
        self.name, self.port, self.running, self.process = name, free_port(), True, None
        self.thread = threading.Thread(target=self.supervise)

    def supervise(self):
        env = {**os.environ, "WEBHOOK_SECRET": SECRET,
               f"{self.name.upper()}_DB": url_of(self.name).replace("postgresql", "postgresql+asyncpg")}
        with open(WORK / "log" / f"{self.name}.log", "ab") as log:
            while self.running:
                self.process = subprocess.Popen(
                    [sys.executable, "-B", "-m", "uvicorn", f"{self.name}:app", "--port", str(self.port), "--log-level", "warning"],
                    cwd=HERE, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                self.process.wait()

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            return True
        return False

    def stop(self):
        self.running = False
        while self.thread.is_alive():
            self.kill()
            self.thread.join(0.1)


def kill_process(column):
    """The relay's worker, or its sink program."""
    found = rows("labour", f"SELECT {column} AS pid FROM idempotency.stat_relay WHERE {column} IS NOT NULL")
    if not found:
        return False
    os.kill(found[0]["pid"], signal.SIGKILL)
    return True


def assign(port, number, deadline):
    """Assign a shift: the same request, with the same key, until its answer is here."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/shifts", json.dumps({"worker": f"worker {number % 10}", "hours": 1 + number % 8}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())})
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.load(response)["shift"]
        except urllib.error.HTTPError as error:
            if error.code not in (409, 503):
                raise
        except (OSError, ValueError):
            pass                                # killed before its answer was complete
        time.sleep(0.1)
    raise SystemExit(f"shift {number} got no answer")


def main():
    services = {name: Service(name) for name in ("labour", "notification")}
    for name in services:
        psql("postgres", "-c", f"CREATE DATABASE {name}")
        psql(name, "-v", f"url=http://127.0.0.1:{services['notification'].port}/events", "-v", f"secret={SECRET}",
             "-f", str(HERE / f"{name}.sql"))
    kills = {"labour service": services["labour"].kill, "notification service": services["notification"].kill,
             "sink program": lambda: kill_process("sink_pid"), "relay worker": lambda: kill_process("pid")}
    killed = dict.fromkeys(kills, 0)
    for service in services.values():
        service.thread.start()
    try:
        end = time.monotonic() + float(sys.argv[2])

        answers, done = [], threading.Event()

        def client(number):
            while not done.is_set():
                answers.append(assign(services["labour"].port, number, end + 300))
                number += CLIENTS
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, first) for first in range(CLIENTS)]
            before = (0, 0)
            while (time.monotonic() < end or min(killed.values()) < 2) and time.monotonic() < end + 300:
                time.sleep(random.uniform(0.1, 0.5))
                found = rows("notification", "SELECT count(*) AS n FROM notifications")
                now = (len(answers), found[0]["n"] if found else 0)
                if min(now[0] - before[0], now[1] - before[1]) >= 10:       # all of it has worked since the last kill
                    what = min(killed, key=lambda name: (killed[name], random.random()))
                    killed[what] += kills[what]()
                    before = now
            done.set()
            for c in clients:
                c.result()
        print("killed:", ", ".join(f"{what} {n} times" for what, n in killed.items()))

        deadline, left = time.monotonic() + 300, None
        while left is None or left[0]["left"] > 0:
            if time.monotonic() > deadline:
                raise SystemExit(f"the relay did not get through: {rows('labour', 'TABLE idempotency.stat_relay')}")
            time.sleep(0.2)
            left = rows("labour", "SELECT lag_events + retrying + dead AS left FROM idempotency.stat_relay")
    finally:
        for service in services.values():
            service.stop()

    shifts = [r["id"] for r in rows("labour", "SELECT id FROM shifts ORDER BY id")]
    events = [r["id"] for r in rows("labour", "SELECT aggregate_id::bigint AS id FROM idempotency.outbox_events ORDER BY 1")]
    notified = [r["shift"] for r in rows("notification", "SELECT shift FROM notifications ORDER BY 1")]
    print(f"{len(answers)} requests were answered; there are {len(shifts)} shifts, {len(events)} events, {len(notified)} notifications")
    good = sorted(answers) == shifts == events == notified and min(killed.values()) >= 2
    print("ok: every committed shift has one event and one notification" if good else "NOT OK: the numbers differ")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
