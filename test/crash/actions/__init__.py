"""Faults, one module per family.

A fault is a function (context, rng) registered under a name.  It returns when
what it did is done; the runner then waits until the system is whole again.  It
raises Finding for what must not happen, and Skip where there was nothing to do it to.
"""
import importlib

FAMILIES = ("process", "session", "ddl")
ACTIONS = {}


class Skip(Exception):
    """Nothing to do it to right now: drawn again later."""


class Action:
    def __init__(self, name, run, weight, kind):
        self.name, self.run, self.weight, self.kind = name, run, weight, kind


def action(name, weight=1, kind="other"):
    """kind: crash (of a server, by SIGKILL of a backend, a relay's worker or the
    launcher), auxiliary (by that of another of its processes), postmaster, sink (a
    sink program dies), other."""
    def register(run):
        ACTIONS[name] = Action(name, run, weight, kind)
        return run
    return register


def load():
    """The faults of the families above, by name."""
    for module in FAMILIES:
        importlib.import_module(f"actions.{module}")
    return ACTIONS
