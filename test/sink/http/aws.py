"""Mocks of AWS on loopback: moto, which checks signatures, and ElasticMQ, which has FIFO queues."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import urllib.request

from fetched import fetched
from target import free_port, until

REGION = "eu-central-1"
EVERYTHING = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
HERE = pathlib.Path(__file__).resolve().parent
ELASTICMQ = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
aws {{ region = "eu-central-1", accountId = "000000000000" }}
"""


class Peer:
    """A server in a directory of its own, and a client that speaks to it."""

    key, secret = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

    def __init__(self, prefix):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.python = fetched("aws") / "bin/python"
        self.probe = None
        with open(self.dir / "log", "ab") as log:
            self.proc = subprocess.Popen(self.command(), cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env())
        until(lambda: (self.dir / "log").read_text()[-2000:], self.answers)

    def env(self):
        return os.environ

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            assert self.proc.poll() is None, (self.dir / "log").read_text()[-2000:]
            return False

    def call(self, service, call, token=None, key=None, secret=None, **arguments):
        if self.probe is None:
            self.probe = subprocess.Popen([self.python, "-B", HERE / "aws_probe.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True)
        q = {"endpoint": self.url, "service": service, "call": call, "arguments": arguments, "region": REGION,
             "key": key or self.key, "secret": secret or self.secret, "token": token}
        self.probe.stdin.write(json.dumps(q) + "\n")
        self.probe.stdin.flush()
        answer = json.loads(self.probe.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def queue(self, name, **attributes):
        """The URL of a new queue."""
        return self.call("sqs", "create_queue", QueueName=name, Attributes=attributes)["QueueUrl"]

    def messages(self, queue, count):
        """So many messages of a queue, which are deleted; fewer if there are no more."""
        found = []
        for _ in range(20 + count):
            got = self.call("sqs", "receive_message", QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
                            AttributeNames=["All"], WaitTimeSeconds=0).get("Messages", [])
            for m in got:
                self.call("sqs", "delete_message", QueueUrl=queue, ReceiptHandle=m["ReceiptHandle"])
            found += got
            if len(found) >= count or not got:
                break
        return found

    def stop(self):
        for proc in (self.probe, self.proc):
            if proc:
                proc.kill()
                proc.wait()
        if "KEEP" not in os.environ:
            shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Moto(Peer):
    """It lets everything pass until strict() is called; then signatures and rights have to be good."""

    def __init__(self):
        super().__init__("idem-http-moto.")

    def command(self):
        return [self.python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def env(self):
        return {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "100000", "AWS_DEFAULT_REGION": REGION}

    def strict(self):
        """From now on only a user who may do everything, and a role of which a session has the rights."""
        self.call("iam", "create_user", UserName="relay")
        self.call("iam", "put_user_policy", UserName="relay", PolicyName="all", PolicyDocument=EVERYTHING)
        made = self.call("iam", "create_access_key", UserName="relay")["AccessKey"]
        trust = EVERYTHING.replace('"Resource": "*"', '"Principal": {"AWS": "*"}')
        self.call("iam", "create_role", RoleName="relay", AssumeRolePolicyDocument=trust)
        self.call("iam", "put_role_policy", RoleName="relay", PolicyName="all", PolicyDocument=EVERYTHING)
        session = self.call("sts", "assume_role", RoleArn="arn:aws:iam::123456789012:role/relay", RoleSessionName="test")["Credentials"]
        self.session = {"user": session["AccessKeyId"], "password": session["SecretAccessKey"], "session_token": session["SessionToken"]}
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})).close()
        self.key, self.secret = made["AccessKeyId"], made["SecretAccessKey"]


class ElasticMQ(Peer):
    def __init__(self):
        super().__init__("idem-http-elasticmq.")

    def command(self):
        (self.dir / "queues.conf").write_text(ELASTICMQ.format(port=self.port))
        return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", f"-Dconfig.file={self.dir}/queues.conf",
                "-cp", f"{fetched('elasticmq')}/*", "org.elasticmq.server.Main"]
