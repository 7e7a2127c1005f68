#!/usr/bin/env python3
"""Drive the postgres sink against a throw-away server.

usage: postgres_test.py [test...]

The server is started with test/setup/server.sh and stopped at the end, unless
SINK_SERVER names the directory of a running one.
"""
import sys

from postgres.target import stop_server
from sinklib import module_tests, run_tests


if __name__ == "__main__":
    try:
        status = run_tests(module_tests("postgres"))
    finally:
        stop_server()
    sys.exit(status)
