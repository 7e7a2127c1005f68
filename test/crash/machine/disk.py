"""A disk that can lose its power or fill up: a file system in a file.

The mount ends with the namespace (inside.sh), the loop device ends with the mount.
"""
import os
import subprocess

from server import Finding, run, wait_until


class Disk:
    """An XFS of the least possible size, on a loop device."""
    SIZE = 320 << 20

    def __init__(self, lab, name):
        self.lab = lab
        self.image = lab.work / f"{name}.img"
        self.path = lab.work / name
        self.path.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(self.SIZE)
        run("mkfs.xfs", "-q", "-f", self.image)
        self.mount()
        os.chown(self.path, lab.uid, lab.gid)

    def mount(self):
        run("mount", "-o", "loop", self.image, self.path)

    def unmount(self):
        # A process that was killed may not have ended yet.
        wait_until(f"{self.path} can be unmounted",
                   lambda: subprocess.run(["umount", str(self.path)], check=False,
                                          capture_output=True).returncode == 0)

    def sync(self):
        run("sync", "-f", self.path)

    def cut_power(self):
        """Lose the data that was not synced; all access fails from now on."""
        (self.path / "unsynced").write_bytes(b"x" * 65536)
        run("xfs_io", "-x", "-c", "shutdown", self.path)

    def power_up(self):
        self.unmount()
        self.mount()
        unsynced = self.path / "unsynced"
        if unsynced.exists() and unsynced.read_bytes().strip(b"\0"):
            raise Finding("the power cut was none: what was not synced is there")
        unsynced.unlink(missing_ok=True)

    def ballast(self):
        return self.path / "ballast"

    def fill(self):
        """Fill the disk; only the space that is allocated already can be written."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        size = self.ballast().stat().st_size if self.ballast().exists() else 0
        step = 1 << 20
        while step >= 4096:
            while free >= step and self.grow(size + step):
                size += step
                free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
            step >>= 2

    def grow(self, size):
        fd = os.open(self.ballast(), os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def free(self):
        self.ballast().unlink(missing_ok=True)
