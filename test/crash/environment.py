#!/usr/bin/python3
"""Run one scenario of the machine's faults.

    environment.py --list
    environment.py NAME SEED WORK BINDIR EXTENSION_CONF USER

Runs as root, in namespaces of its own (inside.sh).  The last line is "ok NAME ..." or
"NOT OK NAME", and the exit status says the same.
"""
import importlib
import pathlib
import random
import sys
import time
import traceback

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

from machine.lab import Lab  # noqa: E402
from machine.scenario import SCENARIOS  # noqa: E402
from server import Finding  # noqa: E402

MODULES = ("power", "space", "clock", "failover", "copies", "network", "first", "shortage", "upgrade", "pooler")


def main():
    for module in MODULES:
        importlib.import_module(f"scenarios.{module}")
    if sys.argv[1:] == ["--list"]:
        print("\n".join(SCENARIOS))
        return 0
    name, seed, work, bindir, conf, user = sys.argv[1:]
    lab = Lab(work, bindir, conf, user)
    began = time.monotonic()
    try:
        said = SCENARIOS[name](lab, random.Random(f"{seed}/{name}"))
        lab.judge()
    except Exception as error:
        if not isinstance(error, Finding):
            traceback.print_exc()
        print(error)
        for server in lab.servers:
            if server.log.exists():
                print(f"-- the last lines of {server.name}'s log\n{server.tail(25)}")
        print(f"NOT OK {name} (seed {seed}, {time.monotonic() - began:.0f} s)", flush=True)
        return 1
    finally:
        lab.end()
    print(f"ok {name} ({said}; {time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
