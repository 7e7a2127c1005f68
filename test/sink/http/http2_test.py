"""HTTP/2: streams and connections that end under the requests."""
import time

import certificates
from http2 import CANCEL, ENHANCE_YOUR_CALM, INTERNAL_ERROR, REFUSED_STREAM, Begin, GoAway, Mute, Receiver2, Reset
from receiver import Receiver, Reply
from sinklib import PATIENCE
from target import Ended, at_once, sink, until


def tls(*protocols):
    return certificates.server(certificates.authority().issue("server"), alpn=protocols or ("h2",))


def options(**more):
    return {"http_version": "2", "sslrootcert": certificates.authority().root, "timeout": 3000, **more}


def receiver(answer=200, **kwargs):
    return Receiver2(answer, tls=tls(), **kwargs)


def test_streams_share_a_connection():
    import asyncio

    class Late(Receiver2):
        async def say_on(self, *args):
            await asyncio.sleep(0.001)
            await super().say_on(*args)
    with Late(tls=tls()) as there, sink(there, **options(concurrency=16)) as w:
        assert {g.outcome for g in w.all([{"key": str(i % 50)} for i in range(500)])} == {"acked"}
        assert there.connections <= 2, there.connections
        assert {r.version for r in there.requests} == {"2"} and not there.overlaps
        assert all(r.header("webhook-id") for r in there.requests)


def test_few_streams():
    """The receiver takes one request at a time, and refuses streams beyond that: only the relay sends their events again."""
    with receiver(streams=1) as there, sink(there, **options(concurrency=8)) as w:
        left = [{"key": str(i)} for i in range(100)]
        end = time.monotonic() + PATIENCE
        while left:
            assert time.monotonic() < end, len(left)
            got = w.all(left)
            assert {g.outcome for g in got} <= {"acked", "retry"}, {g.outcome for g in got}
            left = [e for e, g in zip(left, got) if g.outcome != "acked"]
        assert not there.overlaps


def test_verdicts():
    statuses = {201: "acked", 429: "retry", 503: "retry", 404: "rejected", 308: "rejected"}
    with receiver(lambda r: Reply(int(r.key), b"because", "Retry-After: 9")) as there, sink(there, **options()) as w:
        got = w.all([{"key": str(s)} for s in statuses])
        assert [g.outcome for g in got] == list(statuses.values()), got
        assert got[1].retry_after == 9000 and "because" in got[3].message, got


def test_what_ends_a_stream():
    """A stream or connection that ends is no answer; others go on, and the event arrives in the end."""
    def check(answer):
        bad = [0]

        def say(r):
            if r.key == "bad" and bad[0] < 1:
                bad[0] += 1
                return answer
            return 200
        with receiver(say) as there, sink(there, **options()) as w:
            left = [{"key": "bad"}, *({"key": str(i)} for i in range(10))]
            end = time.monotonic() + PATIENCE
            while left:
                try:
                    got = w.all(left)
                except Ended as ended:
                    assert ended.outcome == "outage", ended
                    return
                assert all(g.outcome in ("acked", "retry", "unknown", "skipped") for g in got), (vars(answer), got)
                left = [e for e, g in zip(left, got) if g.outcome != "acked"]
                assert time.monotonic() < end, (vars(answer), got)
            assert not there.overlaps
    at_once(check, [[a] for a in (
        Reset(), Reset(REFUSED_STREAM), Reset(INTERNAL_ERROR), Reset(ENHANCE_YOUR_CALM), Reset(0), Begin(CANCEL), Begin(), Mute(),
        GoAway(), GoAway(below=True), GoAway(below=True, close=False), GoAway(close=True, code=ENHANCE_YOUR_CALM))], 4)


def test_one_attempt_is_one_request():
    """A stream that was refused, and a connection that ends without an answer: only the relay sends the event again."""
    tls()       # the certificate is made once, not by each thread
    def check(answer, body):
        with receiver(lambda r: answer if r.key == "bad" else 200) as there, sink(there, **options()) as w:
            for attempt in range(1, 4):
                assert w.one(key="good").outcome == "acked"
                got = w.one(key="bad", payload=body)
                assert got.outcome == "retry" and got.message, (vars(answer), got)
                assert [r.key for r in there.requests].count("bad") == attempt, (vars(answer), attempt, got)
    at_once(check, [[a, body] for a in (Reset(REFUSED_STREAM), GoAway(below=True), GoAway(below=True, close=False)) for body in (b"", b"{}")], 4)


def test_without_tls():
    """A connection for each request: libcurl 7.88 fails when it uses one again."""
    with Receiver2() as there, sink(there, http_version="2") as w:
        for _ in range(3):
            assert {g.outcome for g in w.all([{"key": str(i)} for i in range(4)])} == {"acked"}
        assert {r.version for r in there.requests} == {"2"} and there.connections == 12, there.connections


def test_goaway_again_and_again():
    """A server that ends each connection after some requests, as servers do that are to be replaced."""
    def say(r):
        return GoAway(below=True, close=False) if r.number == 7 else 200
    with receiver(say) as there, sink(there, **options(concurrency=4)) as w:
        left = [{"key": str(i)} for i in range(60)]
        end = time.monotonic() + PATIENCE
        while left:
            assert time.monotonic() < end, len(left)
            got = w.all(left)
            left = [e for e, g in zip(left, got) if g.outcome != "acked"]
        assert len({r.key for r in there.requests}) == 60


def test_receiver_without_http2():
    """The receiver chooses: HTTP/1.1 does."""
    with Receiver(tls=tls("http/1.1")) as there, sink(there, **options()) as w:
        assert w.one().outcome == "acked" and there.requests[0].version == "1.1"


def test_http1_is_asked_for():
    with Receiver(tls=tls("h2", "http/1.1")) as there, sink(there, **options(http_version="1.1")) as w:
        assert w.one().outcome == "acked"


def test_slow_stream_holds_no_other():
    with receiver(lambda r: Mute() if r.key == "slow" else 200) as there, sink(there, **options(timeout=10000)) as w:
        batch, _ = w.events([{"key": "slow"}, *({"key": str(i)} for i in range(100))])
        until("the others arrive", lambda: len(there.requests) == 101)
        got = w.results(batch, 101)
        assert got[0].outcome in ("retry", "unknown") and {g.outcome for g in got[1:]} == {"acked"}
        assert all(g.at < got[0].at - 1 for g in got[1:]), "the others waited"
