#!/usr/bin/env python3
"""Drive the mqtt sink against real brokers.

usage: tests.py [test...]
"""
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)
sys.path.append(str(HERE.parent.parent / "python"))

from mqtt.target import stop_brokers  # noqa: E402
from sinklib import module_tests, run_tests  # noqa: E402


if __name__ == "__main__":
    try:
        status = run_tests(module_tests("mqtt"))
    finally:
        stop_brokers()
    sys.exit(status)
