"""What a test raises that cannot run on this machine."""


class NotRun(Exception):
    """The machine cannot do what the test needs."""
