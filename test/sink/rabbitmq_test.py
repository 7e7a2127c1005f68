#!/usr/bin/env python3
"""Drive the rabbitmq sink against a server that a test speaks for, and against a throw-away server: what
it sends, byte for byte, and what becomes of answers of all kinds.

usage: rabbitmq_test.py [test...]

rabbitmq/run.sh has the other tests.
"""
import sys

from rabbitmq import answers_test, delivery_test
from rabbitmq.server import stop_servers
from sinklib import run_tests

# with a server of the Debian package; those that start another one take ten seconds more
REAL = ("test_message", "test_unroutable", "test_key_order", "test_exchange_of_an_event_is_missing")


if __name__ == "__main__":
    tests = [test for name, test in vars(answers_test).items() if name.startswith("test_")]
    try:
        status = run_tests(tests + [getattr(delivery_test, name) for name in REAL])
    finally:
        stop_servers()
    sys.exit(status)
