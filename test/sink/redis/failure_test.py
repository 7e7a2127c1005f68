"""Servers that are down, full, slow, replicas, or refuse: to whom the redis sink gives the blame."""
import contextlib
import tempfile
import threading

from redis.server import Client, Refused, Server, until
from redis.target import OUTCOMES, SINK, Target, commits, failed
from sinklib import Worker, codec


@contextlib.contextmanager
def setting(server, name, value):
    before = server.ask("CONFIG", "GET", name)[1]
    server.ask("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        server.ask("CONFIG", "SET", name, before)


def test_down():
    server = Server()
    t = Target(server)
    server.kill()
    f = t.refused()
    assert f["outcome"] == "outage" and "refused" in f["message"], f
    server.start()
    w = t.start()
    commits(w, [{}])
    server.kill()
    w.events([{}])
    assert failed(w)["outcome"] == "outage"


def test_slow():
    server = Server()
    t = Target(server, timeout=1000)
    with server.stopped():
        assert t.refused()["outcome"] == "outage"
    w = t.start()
    commits(w, [{}])
    with server.stopped():
        w.events([{}])
        w.send("PING", nonce=5)
        w.expect("PONG", nonce=5)
        assert failed(w)["outcome"] == "outage"
    # the server may have run the script since, and nothing else
    w = t.start(incarnation="log-2")
    assert len(t.ids()) == w.ready["row_id"]
    w.close()


def test_full():
    server = Server()
    t = Target(server)
    w = t.start()
    ids = commits(w, [{}])
    with setting(server, "maxmemory", "1"):
        w.events([{}] * 3)
        f = failed(w)
        assert f["outcome"] == "outage" and "OOM" in f["message"], f
        assert t.ids() == ids and t.stored()["row_id"] == "1"
    w = t.start()
    commits(w, [{}])
    w.close()


def test_too_few_replicas():
    server = Server()
    t = Target(server)
    w = t.start()
    with setting(server, "min-replicas-to-write", "1"):
        w.events([{}])
        f = failed(w)
        assert f["outcome"] == "outage" and "NOREPLICAS" in f["message"], f
        assert t.ids() == []


def test_busy():
    server = Server(**{"busy-reply-threshold": "10"})
    t = Target(server)
    w = t.start()
    other = Client(server.port)
    other.send("EVAL", "while true do end", "0")

    def busy():
        try:
            server.ask("PING")
            return False
        except Refused as e:
            return str(e).startswith("BUSY")
    until("the server is busy", busy)
    w.events([{}])
    f = failed(w)
    assert f["outcome"] == "outage" and "BUSY" in f["message"], f
    server.ask("SCRIPT", "KILL")
    until("the script has ended", lambda: not busy())
    assert t.ids() == []


def test_replica():
    """A replica is passed over; a primary that becomes one in the middle of work is left."""
    one, two = Server(), Server()
    two.ask("REPLICAOF", "127.0.0.1", one.port)
    until("the replica is there", lambda: b"master_link_status:up" in two.ask("INFO", "replication"))
    t = Target(one)
    w = t.start(servers=f"{two.address},{one.address}")
    ids = commits(w, [{}])
    until("it is replicated", lambda: two.ids(t.stream) == ids)
    two.ask("REPLICAOF", "NO", "ONE")
    one.ask("REPLICAOF", "127.0.0.1", two.port)
    ids += commits(w, [{}])
    assert two.ids(t.stream) == ids
    w.close()
    f = t.refused()
    assert f["outcome"] == "outage" and "READONLY" in f["message"], f


def test_wait_replicas():
    one, two = Server(), Server()
    two.ask("REPLICAOF", "127.0.0.1", one.port)
    until("the replica is there", lambda: b"state=online" in one.ask("INFO", "replication"))
    t = Target(one, wait_replicas=1, timeout=3000)
    w = t.start()
    ids = commits(w, [{}])
    assert two.ids(t.stream) == ids, "acknowledged before the replica had it"
    with two.stopped():
        w.events([{}])
        # the batch is in the server, but has no verdict
        f = failed(w)
        assert f["outcome"] == "outage" and "0 of 1 replicas" in f["message"], f
        assert t.refused()["outcome"] == "outage", "READY before the replica had the position"
    w = t.start(incarnation="log-2")
    assert w.ready["row_id"] == 2 and len(t.ids()) == 2
    w.close()


def test_many_batches_before_one_wait():
    one, two = Server(), Server()
    two.ask("REPLICAOF", "127.0.0.1", one.port)
    until("the replica is there", lambda: b"state=online" in one.ask("INFO", "replication"))
    t = Target(one, wait_replicas=1)
    w = t.start()
    waits = _calls(one, b"wait")
    with w.in_one_piece():
        batches = [w.events([{}] * 10)[0] for _ in range(20)]
    for batch in batches:
        assert w.outcomes(batch, 10) == ["acked"] * 10
        # results may come before the verdicts of earlier batches
    assert len(t.ids()) == 200 and _calls(one, b"wait") - waits < 20
    w.close()


def _calls(server, command):
    stats = server.ask("INFO", "commandstats")
    at = stats.find(b"cmdstat_" + command + b":calls=")
    return int(stats[at:].split(b"=")[1].split(b",")[0]) if at >= 0 else 0


def _has_waitaof(server):
    return server.ask("COMMAND", "INFO", "WAITAOF")[0] is not None


def test_wait_aof():
    server = Server()
    t = Target(server)
    if _has_waitaof(server):
        w = t.start(wait_aof="on")
        commits(w, [{}])
        assert _calls(server, b"waitaof") >= 2
        w.close()
        server.ask("CONFIG", "SET", "appendonly", "no")
    f = t.refused(wait_aof="on")
    assert f["outcome"] == "rejected" and "WAITAOF" in f["message"], f
    w = t.start(hello=False, wait_aof="auto")
    assert "WAITAOF" in w.expect("LOG")["message"]
    w.hello()
    commits(w, [{}])
    w.close()
    asked = _calls(server, b"waitaof")
    w = t.start(wait_aof="off")
    commits(w, [{}])
    w.close()
    assert _calls(server, b"waitaof") == asked


def test_login():
    server = Server()
    t = Target(server)
    rights = ["on", ">s3cret", f"~{t.stream}", "+eval", "+evalsha", "+type", "+xadd", "+xdel", "+xtrim", "+wait"]
    server.ask("ACL", "SETUSER", "sink", *rights, f"~{t.position}", "+hget", "+hmget", "+hset")
    server.ask("ACL", "SETUSER", "default", "off")
    login = {"user": "sink", "password": "s3cret"}
    f = t.refused()
    assert f["outcome"] == "rejected" and "NOAUTH" in f["message"], f
    f = t.refused(user="sink", password="s3cretive")
    assert f["outcome"] == "rejected" and "WRONGPASS" in f["message"], f
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("s3cret\nnot this\n")
        secret.flush()
        w = t.start(user="sink", secret_file=secret.name)
        commits(w, [{}])
        w.close()
        assert t.refused(secret_file=secret.name, **login)["outcome"] == "rejected"
    # rights that are missing are found before the first batch, or by it, which has no effect
    admin = Client(server.port)
    admin("AUTH", "sink", "s3cret")
    assert t.refused(user="sink")["sqlstate"] == "HV00B"
    assert t.refused(flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD)["sqlstate"] == "2F003"
    admin.close()


def _denied(t, what):
    """The program is refused, at its start or with its first batch."""
    w = t.start(hello=False)
    while (got := w.recv())[0] not in ("READY", "FAILED"):
        assert got[0] == "LOG", (what, got)
    if got[0] == "READY":
        w.events([{}] * 2)
        got = "FAILED", failed(w)
    else:
        got[1]["outcome"] = OUTCOMES[got[1]["outcome"]]
    assert got[1]["sqlstate"] == "42501" and got[1]["outcome"] == "rejected", (what, got)


def test_rights():
    server = Server()
    t = Target(server, user="sink", password="s3cret")
    commands = {"eval", "evalsha", "type", "xadd", "xdel", "xtrim", "wait", "hget", "hmget", "hset"}

    def allow(allowed, *keys):
        server.ask("ACL", "SETUSER", "sink", "reset", "on", ">s3cret", *(f"~{k}" for k in keys), *(f"+{c}" for c in sorted(allowed)))
    allow(commands, t.stream, t.position)
    w = t.start()
    ids = commits(w, [{}])
    w.close()
    for command in sorted(commands - {"xtrim", "wait", "evalsha"}):
        allow(commands - {command}, t.stream, t.position)
        _denied(t, command)
        assert t.ids() == ids, command
    for keys in ([t.stream], [t.position]):
        allow(commands, *keys)
        _denied(t, keys)
        assert t.ids() == ids, keys


def test_right_to_trim_is_missing():
    server = Server()
    t = Target(server, user="sink", password="s3cret", maxlen=1)
    server.ask("ACL", "SETUSER", "sink", "on", ">s3cret", "~*", "+@all", "-xtrim")
    w = t.start()
    batch, _ = w.events([{}] * 2)
    assert "trim" in w.expect("LOG")["message"]
    assert w.outcomes(batch, 2) == ["acked"] * 2
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def test_cluster():
    one, two = Server(**{"cluster-enabled": "yes"}), Server(**{"cluster-enabled": "yes"})
    one.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    two.ask("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
    two.ask("CLUSTER", "SET-CONFIG-EPOCH", 2)
    one.ask("CLUSTER", "MEET", "127.0.0.1", two.port, two.settings["cluster-port"])
    for server in (one, two):
        until("the cluster is up", lambda server=server: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
    t = Target(one)
    t.stream, t.position = "outbox.{relay}.{aggregate_type}", "position.{relay}"
    seen = set()
    for relay in ("orders", "stock", "c", "d"):
        home = two if one.ask("CLUSTER", "KEYSLOT", "{%s}" % relay) > 8191 else one
        seen.add(home)
        for servers in (one.address, two.address):
            w = t.start(relay=relay, servers=servers)
            w.batch = int(w.ready["row_id"])
            commits(w, [{"aggregate_type": "a"}, {"aggregate_type": "b"}])
            w.close()
        assert len(home.ids("outbox.{%s}.a" % relay, "outbox.{%s}.b" % relay)) == 4
    assert len(seen) == 2, "one server has all relays"
    w = t.start(stream="elsewhere", relay="orders")
    w.events([{}])
    f = failed(w)
    assert f["outcome"] == "rejected" and "{relay}" in f["message"], f
    assert t.refused(database=1)["outcome"] == "rejected"


def test_options():
    t = Target()
    for options, word in (({"servers": "::1"}, "servers"), ({"servers": "a:b"}, "servers"), ({"servers": "a:1,"}, "servers"),
                          ({"servers": "h:70000"}, "servers"), ({"stream": "x", "position_key": "x"}, "same key"),
                          ({"sslrootcert": __file__}, "tls"), ({"database": "9999"}, "DB index"),
                          ({"wait_aof": "maybe"}, "wait_aof")):
        f = t.refused(**options)
        assert f["outcome"] == "rejected" and word in f["message"], (options, f)
    assert t.refused(flags=0)["outcome"] == "rejected"
    w = t.start(database=3, servers=f"127.0.0.1:1, {t.server.address}")
    commits(w, [{}])
    w.close()
    c = Client(t.server.port)
    c("SELECT", 3)
    assert c("XLEN", t.stream) == 1
    c.close()


def test_answers_that_make_no_sense():
    """What is no server of Redis, or a server that lies."""
    import socket
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*1\r\n", b"$-5\r\n", b"*-1\r\n", b":1\r\n", b"+OK\r\n", b"*2\r\n$7\r\nversion\r\n:7\r\n",
                   b"-ERR unknown command 'HELLO', with args beginning with: '2' 'AUTH' 'u' 's3cret-s3cret'\r\n", b"-\r\n",
                   b"*2\r\n$7\r\nversion\r\n$5\r\n6.0.1\r\n", b"*2\r\n$7\r\nversion\r\n$1\r\n7\r\n*1\r\n$-1\r\n", b""):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve(listener=listener, answer=answer):
            with contextlib.suppress(OSError):
                while True:
                    c = listener.accept()[0]
                    c.recv(1000)
                    c.sendall(answer)
                    c.shutdown(socket.SHUT_WR)
        threading.Thread(target=serve, daemon=True).start()
        t = Target(servers="127.0.0.1:%d" % listener.getsockname()[1], user="u", password="s3cret-s3cret")
        f = t.refused()
        assert f["outcome"] in ("outage", "rejected"), (answer, f)
        listener.close()


def test_look():
    """What LOOK finds wrong; it writes nothing."""
    server = Server()
    t = Target(server)

    def look(**options):
        w = Worker(SINK, hello=False)
        w.send("LOOK", version=codec.VERSION, flags=codec.WANT_POSITION, relay="orders", incarnation="log-1",
               options=list(t.options(**options).items()))
        found = []
        while (got := w.recv()) is not None:
            found += [(got[1]["ok"], got[1]["problem"])] if got[0] == "FOUND" else []
        assert w.exit_status() == 0
        w.sock.close()
        return found
    assert [ok for ok, _ in look()] == [1, 1]
    assert server.ask("DBSIZE") == 0
    assert look(servers="127.0.0.1:1")[1][0] == 0
    assert "WRONGPASS" in look(user="u", password="s3cret")[1][1]
    assert "same key" in look(stream="x", position_key="x")[0][1]
    server.ask("SET", t.position, "x")
    assert "not a hash" in look()[1][1]
