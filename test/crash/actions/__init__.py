"""Faults, one module per family.

A fault is a function (context, rng) that is registered under a name.  It returns when
the fault has happened; the runner then waits until the system works again.  The function
raises Finding for an event that must not happen, and Skip if it found nothing to break.
"""
import importlib

FAMILIES = ("process", "session", "ddl")
ACTIONS = {}


class Skip(Exception):
    """The fault finds nothing to break now; it is drawn again later."""


class Action:
    def __init__(self, name, run, weight, kind):
        self.name, self.run, self.weight, self.kind = name, run, weight, kind


def action(name, weight=1, kind="other"):
    """kind: crash (a server crashes by SIGKILL of a backend, of a relay's worker or of
    the launcher), auxiliary (by SIGKILL of another of its processes), postmaster, sink (a
    sink program dies), other."""
    def register(run):
        ACTIONS[name] = Action(name, run, weight, kind)
        return run
    return register


def load():
    """The faults of the modules above, by name."""
    for module in FAMILIES:
        importlib.import_module(f"actions.{module}")
    return ACTIONS
