"""What test/setup/http.sh fetches.  What cannot be fetched fails the test, or, with ALLOW_OFFLINE, is not run."""
import functools
import importlib
import os
import pathlib
import subprocess

from notrun import NotRun

TOP = pathlib.Path(__file__).resolve().parents[3]


@functools.cache
def fetched(what):
    """The directory."""
    done = subprocess.run([TOP / "test/setup/http.sh", what], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return pathlib.Path(done.stdout.strip().split("\n")[-1])
    text = f"{what} cannot be fetched: {done.stderr[-300:]}"
    raise (NotRun if "ALLOW_OFFLINE" in os.environ else RuntimeError)(text)


def library(name):
    """A module of requirements.txt."""
    try:
        return importlib.import_module(name)
    except ImportError:
        fetched("python")       # says why not
        raise
