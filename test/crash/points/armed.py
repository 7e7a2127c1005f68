"""The fault points of a server that are armed, and who has reached them: files in its data directory."""


class Armed:
    def __init__(self, data):
        self.armed = data / "idempotency_fault" / "armed"
        self.hits = data / "idempotency_fault" / "hit"
        self.armed.mkdir(parents=True)
        self.hits.mkdir()

    def arm(self, point, action, skip=0):
        """Moved into place as a whole, so that nobody reads half of it."""
        name = self.armed.parent / "arming"
        name.write_text(f"{action} {skip}\n")
        name.rename(self.armed / point)

    def disarm(self, point):
        """True if it had been reached."""
        (self.armed / point).unlink(missing_ok=True)
        return self.release(point)

    def is_hit(self, point):
        return (self.hits / point).exists()

    def hit_by(self, point):
        """The process that reached it; None if nobody did, or it was released."""
        try:
            return int((self.hits / point).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def release(self, point):
        """Let a stalled process go on."""
        try:
            (self.hits / point).unlink()
            return True
        except FileNotFoundError:
            return False
