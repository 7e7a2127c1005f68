"""Programs under test: started, killed, frozen and started again; and what checks print."""

import concurrent.futures
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from proxy import Proxy

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from server import free_port  # noqa: E402, the drivers import it from here

PATIENCE = 120.0
LOGS = pathlib.Path(tempfile.mkdtemp())


def wait_until(what, condition, seconds=PATIENCE):
    """Until the condition holds; its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.01)


def check(name, good, why=""):
    print("ok" if good else "NOT OK", name, flush=True)
    if not good and why:
        print("    |", str(why).replace("\n", "\n    | "), flush=True)


def as_pasted(block, language, names):
    """A block of shell with the names of the test, without the lines of other languages."""
    for name, real in names.items():
        assert name in block, f"the block has no {name}"
        block = block.replace(name, str(real))
    other = re.compile(r"  # (?:or )?(?!%s\b)(?:Python|Node|Java|Go)\b" % language)
    return "".join(line for line in block.splitlines(True) if not other.search(line))


class Program:
    """A program with a proxy between it and PostgreSQL.

    command: what is run; a "{port}" in it is where it listens.
    """

    def __init__(self, command, user, log, application=None, **env):
        self.proxy = Proxy(f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ['PGPORT']}", application)
        self.port = free_port()
        self.serves = any("{port}" in word for word in command)
        self.command = [word.format(port=self.port) for word in command]
        self.env = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(self.proxy.port), "PGUSER": user,
                    "PGSSLMODE": "disable", "PGGSSENCMODE": "disable", **env}
        self.log = open(LOGS / log, "ab")
        self.lock = threading.Lock()
        self.frozen, self.thawed = threading.Event(), threading.Event()
        self.process = None

    def start(self):
        """It serves, or it runs."""
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)
        if self.serves:
            wait_until(f"{self.command} listens", self.listens)
        return self

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.command} ended with {self.process.returncode}") from None
            return False

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def revive(self):
        """Start it if it was killed."""
        with self.lock:
            if not self.is_running():
                self.start()

    def restart(self):
        """As new: a driver prepares statements after a while, and then takes other steps."""
        if self.is_running():
            self.kill()
        self.start()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        """Return when it is stopped: a signal that was sent has not arrived yet."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until("it is stopped", self.is_frozen)
        self.frozen.set()

    def freeze_until_thawed(self):
        """For the proxy: the step waits as long as the program does, and is sent then."""
        self.freeze()
        self.thawed.wait(PATIENCE)
        return True

    def is_frozen(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "TZX"

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)
        self.thawed.set()

    def wait(self):
        return self.process.wait(PATIENCE)

    def stop(self):
        if self.is_running():
            self.kill()
        self.thawed.set()
        self.log.close()


def in_parallel(work, items):
    """The results in the order of the items; as many threads as items."""
    items = list(items)
    with concurrent.futures.ThreadPoolExecutor(max(len(items), 1)) as pool:
        return list(pool.map(work, items))


def at_every_step(lanes, case):
    """Call case(lane, step) for step 0, 1, 2 ... until it says that there is no such step.

    Lanes work in parallel.  Returns what the cases returned, None left out.
    """
    results, lock = {}, threading.Lock()
    state = {"next": 0, "end": False}

    def work(lane):
        while True:
            with lock:
                if state["end"]:
                    return
                step = state["next"]
                state["next"] += 1
            result = case(lane, step)
            with lock:
                if result is None:
                    state["end"] = True
                else:
                    results[step] = result
    in_parallel(work, lanes)
    return [results[step] for step in sorted(results)]
