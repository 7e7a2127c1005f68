#!/usr/bin/env python3
"""Drive the http sink against real receivers.

usage: tests.py [test...]

The modules of this folder are imported by their own names: a package "http" would hide
Python's.
"""
import importlib
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[0] = str(HERE)
sys.path += [str(HERE.parent), str(HERE.parent.parent / "python")]

from sinklib import run_tests  # noqa: E402


def tests():
    """The functions test_... of all modules *_test.py, by module and line."""
    for path in sorted(HERE.glob("*_test.py")):
        for name, function in list(vars(importlib.import_module(path.stem)).items()):
            if name.startswith("test_"):
                yield function


if __name__ == "__main__":
    sys.exit(run_tests(tests()))
