#!/usr/bin/env python3
"""Drive a sink against real servers.

usage: tests.py kafka|nats|redis|rabbitmq|mqtt [test...]
"""
import importlib
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from sinklib import module_tests, run_tests  # noqa: E402


if __name__ == "__main__":
    package = sys.argv.pop(1)
    target = importlib.import_module(f"{package}.target")
    try:
        status = run_tests(module_tests(package))
    finally:
        target.stop_servers()
    sys.exit(status)
