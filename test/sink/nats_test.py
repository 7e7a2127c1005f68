#!/usr/bin/env python3
"""A few tests of the nats sink against a real server, for make check-sink; nats/ has them all."""
import sys

sys.dont_write_bytecode = True

from nats import batch_test, failure_test, protocol_test  # noqa: E402
from nats.target import stop_servers  # noqa: E402
from sinklib import run_tests  # noqa: E402

SMOKE = [batch_test.test_message, batch_test.test_refused_events, batch_test.test_bad_options, failure_test.test_position, failure_test.test_twin,
         *(getattr(protocol_test, f"test_once_{name}") for name in (
             "refuses_unknown_option", "dies_of_broken_frames", "keeps_key_order", "stores_position_and_effects_together", "waits_for_settle"))]

if __name__ == "__main__":
    try:
        status = run_tests(SMOKE)
    finally:
        stop_servers()
    sys.exit(status)
