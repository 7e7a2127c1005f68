"""Kafka Connect with Debezium's connector of Maven Central, as its users run it."""
import json
import subprocess
import time
import urllib.error
import urllib.request

from kafka.broker import JAVA, TOP, free_ports, unprivileged

WORKER = """
bootstrap.servers={brokers}
listeners=http://127.0.0.1:{port}
plugin.path={plugins}
plugin.discovery=service_load
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={dir}/offsets
offset.flush.interval.ms=1000
"""


class Connect:
    """A worker of Kafka Connect in a process of its own, without a connector to begin with."""

    def __init__(self, broker):
        self.broker = broker
        self.dir = broker.dir / "connect"
        plugins = self.dir / "plugins"
        plugins.mkdir(parents=True)
        jars = subprocess.check_output([TOP / "test/setup/kafka.sh", "debezium"], text=True).strip()
        subprocess.run(["cp", "-r", jars, plugins / "debezium"], check=True)
        [self.port] = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        (self.dir / "worker.properties").write_text(
            WORKER.format(brokers=broker.address, port=self.port, plugins=plugins, dir=self.dir))
        if unprivileged():
            subprocess.run(["chown", "-R", "nobody:nogroup", self.dir], check=True)
        self.log = self.dir / "log"
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(
                [*JAVA, "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{broker.jars}/*",
                 "org.apache.kafka.connect.cli.ConnectStandalone", self.dir / "worker.properties"],
                cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **unprivileged())
        self._await(lambda: self.ask("connectors") is not None)

    def _await(self, condition, timeout=180):
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.proc.poll() is None and time.monotonic() < deadline, self.tail()
            time.sleep(0.1)

    def tail(self):
        return self.log.read_text(errors="replace")[-4000:]

    def ask(self, path, method="GET", document=None):
        """What the worker answers; None while it does not."""
        request = urllib.request.Request(
            f"http://{self.address}/{path}", method=method, headers={"Content-Type": "application/json"},
            data=None if document is None else json.dumps(document).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null") or {}
        except urllib.error.HTTPError as e:
            if e.code in (404, 409, 500, 503):      # not yet
                return None
            raise AssertionError(f"{method} {path}: {e.read()}") from e
        except OSError:
            return None

    def is_running(self, connector):
        status = self.ask(f"connectors/{connector}/status")
        if not status:
            return False
        tasks = status["tasks"]
        assert all(t["state"] != "FAILED" for t in tasks), tasks
        return bool(tasks) and all(t["state"] == "RUNNING" for t in tasks)

    def start(self, connector, **config):
        """Make the connector, and wait until it runs."""
        config = {k.replace("__", "-").replace("_", "."): str(v) for k, v in config.items()}
        assert self.ask("connectors", "POST", {"name": connector, "config": config}) is not None, self.tail()
        self._await(lambda: self.is_running(connector))

    def remove(self):
        self.proc.kill()
        self.proc.wait()
