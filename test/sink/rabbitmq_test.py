#!/usr/bin/env python3
"""Drive the rabbitmq sink against a server that a test speaks for, and against a throw-away server: what
it sends, byte for byte, and what becomes of answers of all kinds.

usage: rabbitmq_test.py [test...]

rabbitmq/run.sh has the other tests.
"""
import sys

from rabbitmq import answers_test, delivery_test, stream_answers_test, stream_test
from rabbitmq.server import stop_servers
from sinklib import run_tests

# with a server of the Debian package; those that start another one take ten seconds more
REAL = ("test_message", "test_unroutable", "test_key_order", "test_exchange_of_an_event_is_missing")
REAL_STREAMS = ("test_stream_message", "test_stream_batch_comes_late", "test_stream_confirm_is_lost", "test_stream_frames")


if __name__ == "__main__":
    tests = [test for module in (answers_test, stream_answers_test) for name, test in vars(module).items() if name.startswith("test_")]
    tests += [getattr(delivery_test, name) for name in REAL] + [getattr(stream_test, name) for name in REAL_STREAMS]
    try:
        status = run_tests(tests)
    finally:
        stop_servers()
    sys.exit(status)
