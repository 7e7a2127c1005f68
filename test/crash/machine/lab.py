"""The work directory of one scenario: servers on any disk, in any namespace, under any clock."""
import os
import pathlib
import pwd

from server import Finding, Server, run

SETTINGS = """
listen_addresses = '*'
shared_buffers = 32MB
max_worker_processes = 16
max_prepared_transactions = 10
wal_level = replica
max_wal_size = 256MB
log_min_messages = warning
idempotency.sink_timeout = 3s
idempotency.claim_segment_size = 8kB
"""
TRUST = "host all all 10.0.0.0/8 trust\nhost replication all 10.0.0.0/8 trust\n"


class Lab:
    """The directories of the scenario, and the user that runs servers."""

    def __init__(self, work, bindir, extension_conf, user):
        self.work = pathlib.Path(work)
        self.bindir = pathlib.Path(bindir)
        self.settings = pathlib.Path(extension_conf).read_text() + SETTINGS
        entry = pwd.getpwnam(user)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        self.as_user = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.gid),
                        "--init-groups", "--"]
        self.env = {"LC_ALL": "C", "PATH": f"{self.bindir}:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME": str(self.work), "TMPDIR": str(self.work)}
        self.servers = []
        self.ports = iter(range(5501, 5600))
        os.chown(self.work, self.uid, self.gid)
        self.sock = self.mkdir("sock")
        self.template = None

    def mkdir(self, name):
        path = self.work / name
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, self.uid, self.gid)
        return path

    def user_run(self, *args):
        return run(*self.as_user, *args, env=self.env, cwd=self.work)

    def bare(self, name, data=None, env=None, **kwargs):
        """A server without a data directory."""
        server = Server(name, self.work, self.bindir, data, port=next(self.ports), as_user=self.as_user,
                        env=dict(self.env, **(env or {})), **kwargs)
        self.servers.append(server)
        return server

    def make(self, name, data=None):
        """A server with a new data directory."""
        server = self.bare(name, data)
        server.make(self.settings)
        with open(server.data / "pg_hba.conf", "a", encoding="utf-8") as hba:
            hba.write(TRUST)
        return server

    def server(self, name, conf="", data=None, **kwargs):
        """A new server, initialised but not started."""
        self.template = self.template or self.make("template")
        server = self.bare(name, data, **kwargs)
        server.copy_from(self.template.data)
        server.configure(conf)
        return server

    def standby_of(self, primary, name, conf=""):
        """A streaming standby of the server, started."""
        standby = self.bare(name)
        self.user_run(self.bindir / "pg_basebackup", "-D", standby.data, "-c", "fast", "-h", primary.host,
                      "-p", str(primary.port), "-U", "postgres")
        (standby.data / "standby.signal").touch()
        standby.configure(f"primary_conninfo = 'host={primary.host} port={primary.port} user=postgres'\n{conf}")
        standby.start()
        return standby

    def end(self):
        for server in self.servers:
            server.kill()

    def judge(self):
        """Check the logs for servers that crashed by themselves: a server recovers, and hides the crash."""
        found = [line for server in self.servers for line in server.deaths()]
        if found:
            raise Finding("\n".join(["died of itself:", *found[:20]]))
