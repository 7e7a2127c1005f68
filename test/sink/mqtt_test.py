#!/usr/bin/env python3
"""A few tests of the mqtt sink against Debian's mosquitto and against brokers that lie, for make check-sink; mqtt/ has them all."""
import sys

sys.dont_write_bytecode = True

from mqtt import delivery_test, failure_test, fuzz_test, protocol_test  # noqa: E402
from mqtt.target import stop_servers  # noqa: E402
from sinklib import run_tests  # noqa: E402

SMOKE = [delivery_test.test_message, delivery_test.test_qos_2_and_retain, delivery_test.test_golden, delivery_test.test_refused_events,
         delivery_test.test_reason_codes, delivery_test.test_window, delivery_test.test_one_of_a_key, delivery_test.test_bad_options,
         failure_test.test_twin, failure_test.test_refused_topic, fuzz_test.test_fuzz_topics, fuzz_test.test_fuzz_answers,
         *(getattr(protocol_test, f"test_{name}") for name in ("refuses_unknown_option", "dies_of_broken_frames", "keeps_key_order", "extends_the_block"))]

if __name__ == "__main__":
    try:
        status = run_tests(SMOKE)
    finally:
        stop_servers()
    sys.exit(status)
