#!/usr/bin/env python3
"""Drive the postgres sink against a throw-away server.

usage: postgres_test.py [test...]

The server is started with test/setup/server.sh and stopped at the end, unless
SINK_SERVER names the directory of a running one.
"""
import importlib
import sys

from postgres.target import stop_server
from sinklib import HERE, run_tests


def tests():
    """The functions test_... of all modules *_test.py in postgres/, by module and line."""
    for path in sorted((HERE / "postgres").glob("*_test.py")):
        module = importlib.import_module(f"postgres.{path.stem}")
        for name, function in list(vars(module).items()):
            if name.startswith("test_"):
                yield function


if __name__ == "__main__":
    try:
        status = run_tests(tests())
    finally:
        stop_server()
    sys.exit(status)
