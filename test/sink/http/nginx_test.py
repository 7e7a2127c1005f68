"""Into nginx, the ordinary receiver."""
import certificates
from nginx import Nginx
from target import PATH, Ended, start, until


def options(n, way, **more):
    given = {"url": n.url + PATH, **more}
    if way != "plain":
        given.update(url=n.tls_url + PATH, sslrootcert=certificates.authority().root, http_version=way)
    return given


def deliver(w, events, rounds=50):
    """Until all are acked; how many tries failed."""
    return sum(deliver_some(w, events[at:at + 100], rounds) for at in range(0, len(events), 100))


def deliver_some(w, events, rounds):
    failed = 0
    for _ in range(rounds):
        got = w.all(events)
        assert all(g.outcome in ("acked", "retry", "unknown", "skipped") for g in got), got
        events = [e for e, g in zip(events, got) if g.outcome != "acked"]
        failed += len(events)
        if not events:
            return failed
    raise AssertionError(f"{len(events)} are left")


def test_nginx():
    """Each event once, over few connections, though nginx ends each connection after some requests."""
    for way, protocol in (("plain", "HTTP/1.1"), ("1.1", "HTTP/1.1"), ("2", "HTTP/2.0")):
        with Nginx(requests=100) as n:
            w = start(options(n, way, concurrency=8))
            try:
                events = [{"key": str(i % 40), "payload": b'{"n": %d}' % i} for i in range(1000)]
                failed = deliver(w, events)
                until("the log is written", lambda: len(n.log()) >= 1000)
                log = n.log()
                assert {line[0] for line in log} == {"204"} and {line[4] for line in log} == {protocol}, log[:3]
                assert len({line[3] for line in log}) >= 1000 and failed == 0, (way, failed)
                connections = len({line[5] for line in log})
                assert connections <= 60, (way, connections)
                print(f"# {way}: {len(log)} requests over {connections} connections")
            finally:
                w.kill()


def test_nginx_answers_before_it_reads():
    """A whole answer counts, though the server ends the stream before the body has come (RFC 9113, 8.1).

    libcurl 7.88 loses the answer if it is about to send the body just then.  How often that is depends on
    the machine; such an event is sent again.
    """
    for way in ("plain", "2"):
        with Nginx() as n:
            url = (n.url if way == "plain" else n.tls_url) + "/early/{aggregate_id}"
            w = start({**options(n, way), "url": url})
            failed = deliver(w, [{"key": str(i), "payload": b"1"} for i in range(300)])
            w.kill()
            assert len(n.log()) <= 300 + failed, (way, failed, len(n.log()))
            assert way == "2" or failed == 0, failed
            print(f"# {way}: {failed} of 300 answers are lost")


def test_nginx_reloads():
    """Workers that are replaced under load: nothing is lost, and no event is refused."""
    for way in ("plain", "2"):
        with Nginx() as n:
            w = start(options(n, way))
            try:
                for _ in range(10):
                    n.reload()
                    deliver(w, [{"key": str(k), "payload": b"1"} for k in range(50)])
                # nginx logs a request after it has answered
                until(lambda: f"{len(n.log())} requests", lambda: len({line[3] for line in n.log()}) >= 500)
            except Ended as ended:
                assert ended.outcome == "outage", ended
            finally:
                w.kill()


def test_nginx_restarts():
    with Nginx() as n:
        w = start(options(n, "plain"))
        assert w.one().outcome == "acked"
        n.stop()
        try:
            assert w.one().outcome == "outage"
        except Ended as ended:
            assert ended.outcome == "outage", ended
        w.kill()
        (n.dir / "pid").unlink(missing_ok=True)
        n.start()
        w = start(options(n, "plain"))
        assert w.one().outcome == "acked"
        w.kill()


def test_nginx_refuses():
    with Nginx() as n:
        for path, outcome, text in (("/limited/x", "rejected", "403"), ("/full/x", "retry", "503"), ("/nothing", "rejected", "404")):
            w = start({"url": n.url + path})
            got = w.one()
            w.kill()
            assert got.outcome == outcome and text in got.message, got
        # the body is larger than nginx takes: it answers before it has read it
        w = start({"url": n.url + PATH})
        got = w.one(payload=b'"' + b"x" * (2 << 20) + b'"')
        assert got.outcome == "rejected" and "413" in got.message, got
        assert w.one(key="2").outcome == "acked"
        w.kill()
