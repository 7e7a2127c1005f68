"""The armed fault points of a server, and the processes that reached them: files in its data directory."""


class Armed:
    def __init__(self, data):
        self.armed = data / "idempotency_fault" / "armed"
        self.hits = data / "idempotency_fault" / "hit"
        self.armed.mkdir(parents=True)
        self.hits.mkdir()

    def arm(self, point, action, skip=0):
        """Arm a point.  The file is moved into place, so that no process reads an incomplete file."""
        name = self.armed.parent / "arming"
        name.write_text(f"{action} {skip}\n")
        name.rename(self.armed / point)

    def disarm(self, point):
        """Disarm the point; true if a process had reached it."""
        (self.armed / point).unlink(missing_ok=True)
        return self.release(point)

    def is_hit(self, point):
        return (self.hits / point).exists()

    def hit_by(self, point):
        """The process that reached the point; None if no process did, or if it was released."""
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
