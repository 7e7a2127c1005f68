#!/usr/bin/env python3
"""Drive the redis sink against a throw-away server: what it writes, that it is there once, and answers
that make no sense.

usage: redis_test.py [test...]

redis/run.sh has the other tests.
"""
import sys

from redis import delivery_test, fuzz_test
from redis.server import stop_servers
from sinklib import run_tests


if __name__ == "__main__":
    try:
        status = run_tests([test for module in (delivery_test, fuzz_test) for name, test in vars(module).items()
                            if name.startswith("test_")])
    finally:
        stop_servers()
    sys.exit(status)
