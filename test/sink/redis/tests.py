#!/usr/bin/env python3
"""Drive the redis sink against throw-away servers.

usage: tests.py [test...]

REDIS_SERVER names another server program than the redis-server of the path.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)
sys.path.append(str(HERE.parent.parent / "python"))

from redis.server import stop_servers  # noqa: E402
from sinklib import module_tests, run_tests  # noqa: E402


if __name__ == "__main__":
    try:
        status = run_tests(module_tests("redis"))
    finally:
        stop_servers()
    sys.exit(status)
