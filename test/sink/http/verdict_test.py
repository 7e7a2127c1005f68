"""What each answer of the receiver does to the event, and to the relay."""
import contextlib
import email.utils
import socket
import time

import misbehave
from misbehave import head, raw
from receiver import Receiver, Reply
from sinklib import PATIENCE, look
from target import LOOPBACK, SINK, Ended, at_once, fate, free_port, once, refused, sink, until

SECOND = 1000
ACKED = (200, 201, 202, 203, 204, 205, 206, 226, 299)
RETRIED = (408, 425, 429, 500, 501, 502, 503, 504, 507, 599)
REJECTED = (300, 301, 302, 303, 304, 305, 307, 308, 399, 400, 401, 402, 403, 404, 405, 406, 407, 409, 411, 412, 413, 414, 415,
            417, 418, 421, 422, 423, 424, 426, 428, 431, 451, 499)


def test_status_acked():
    with Receiver(lambda r: Reply(int(r.key))) as there, sink(there) as w:
        got = w.all([{"key": str(s)} for s in ACKED])
        assert [g.outcome for g in got] == ["acked"] * len(ACKED), got
        assert sorted(there.ids()) == sorted(str(i) for i in w.ids), there.ids()


def test_look_connects_and_asks_nothing():
    with Receiver(lambda r: 200) as there:
        found, status = look(SINK, {"url": there.url + "/{id}", "allowed_addresses": LOOPBACK})
        assert status == 0 and found == {"options": (1, "", ""), "connection": (1, "", "")}, found
        found, _ = look(SINK, {"url": there.url})
        assert not found["connection"][0] and "loopback address" in found["connection"][1], found
        found, _ = look(SINK, {"url": there.url, "allowed_addresses": LOOPBACK, "auth": "bearer"})
        assert list(found) == ["options"] and not found["options"][0], found
        assert not there.requests, "it sent a request"
    found, _ = look(SINK, {"url": f"http://127.0.0.1:{free_port()}/", "allowed_addresses": LOOPBACK})
    assert not found["connection"][0] and "refused" in found["connection"][1], found


def test_status_retried():
    with Receiver(lambda r: Reply(int(r.key), b"busy now")) as there, sink(there) as w:
        got = dict(zip(RETRIED, w.all([{"key": str(s)} for s in RETRIED])))
        for status, g in got.items():
            assert g.outcome == "retry" and str(status) in g.message, (status, g)
        assert len(there.requests) == len(RETRIED), "the program tried again by itself"


def test_status_rejected():
    with Receiver(lambda r: Reply(int(r.key), b"not this one", "Location: /elsewhere")) as there, sink(there) as w:
        got = dict(zip(REJECTED, w.all([{"key": str(s)} for s in REJECTED])))
        for status, g in got.items():
            assert g.outcome == "rejected" and str(status) in g.message, (status, g)
        assert len(there.requests) == len(REJECTED), "a redirect was followed"
        assert "not this one" in got[400].message, got[400]


def test_gone_halts():
    """410: the receiver wants no more.  The events behind are not sent."""
    with Receiver(lambda r: Reply(410, b"unsubscribed") if r.key == "gone" else 200) as there, sink(there, concurrency=1) as w:
        assert w.one(key="a").outcome == "acked"
        w.events([{"key": "gone"}, {"key": "b"}, {"key": "c"}])
        try:
            got = w.results(2, 3)
        except Ended as ended:
            assert "410" in ended.message and "unsubscribed" in ended.message, ended
            assert ended.outcome != "outage", ended
        else:
            raise AssertionError(f"it goes on: {got}")
        assert len(there.requests) <= 3, there.ids()


def retry_after(status, value, timeout=PATIENCE):
    got, _ = once(Reply(status, b"", *([f"Retry-After: {value}"] if value is not None else [])), timeout=timeout)
    assert got.outcome == "retry", (status, value, got)
    return got.retry_after


def test_retry_after():
    def date(seconds):
        return email.utils.formatdate(time.time() + seconds, usegmt=True)

    def check(status, value, least, most):
        after = retry_after(status, value)
        assert least <= after <= most, (status, value, after)
    at_once(check, [
        (503, "7", 7 * SECOND, 7 * SECOND), (429, "0", 0, 0), (429, "120", 120 * SECOND, 120 * SECOND),
        (408, "3", 3 * SECOND, 3 * SECOND), (425, "3", 3 * SECOND, 3 * SECOND), (500, "3", 3 * SECOND, 3 * SECOND),
        (503, None, 0, 0),
        # a date has whole seconds
        (503, date(60), 57 * SECOND, 61 * SECOND), (503, date(-60), 0, 0),
        # more than a day is a day, however many digits it has
        *((503, value, 86400 * SECOND, 86400 * SECOND) for value in ("86400", "999999999", "9223372036854775807",
                                                                     "99999999999999999999999999", date(10 * 86400))),
        (503, "00000000000000000000000007", 7 * SECOND, 7 * SECOND),
        # other values are none
        (503, "soon", 0, 0), (503, "-5", 0, 0), (503, "", 0, 0), (503, "0x10", 0, 0),
    ])
    # the obsolete forms of dates
    then = time.gmtime(time.time() + 60)
    for text in (time.strftime("%A, %d-%b-%y %H:%M:%S GMT", then), time.strftime("%a %b %e %H:%M:%S %Y", then)):
        check(503, text, 57 * SECOND, 61 * SECOND)


def test_an_empty_answer_leaves_no_colon():
    for status in (400, 429, 503):
        assert once(Reply(status))[0].message == f"HTTP {status}", status
        assert once(Reply(status, b"no"))[0].message == f"HTTP {status}: no", status
    got, _ = once(Reply(410))
    assert got.message.endswith("it wants no more events"), got


def test_retry_after_of_a_refusal():
    """Retry-After delays no dead letter."""
    got, _ = once(Reply(400, b"", "Retry-After: 100"))
    assert got.outcome == "rejected", got


def test_broken_answers():
    """Nothing that is no answer counts as one; the program lives, and the next event arrives."""
    def check(name, answer):
        with Receiver(lambda r: answer if r.key == "bad" else 200) as there, sink(there, timeout=1500, connect_timeout=1000) as w:
            # an outage would hold all keys back for as long as the receiver answers this one so
            got = w.one(key="bad")
            assert got.outcome in ("retry", "unknown"), (name, got)
            assert got.message, (name, got)
            w.is_awake()
            assert w.one(key="good").outcome == "acked", name
    at_once(check, misbehave.BROKEN.items())


def test_odd_answers_that_are_answers():
    def check(answer, outcome, ends=False):
        with Receiver(lambda r: answer) as there, sink(there, timeout=60000) as w:
            for key in "ab":
                got = w.one(key=key)
                assert got.outcome == outcome, (outcome, got)
                if ends:
                    # a request that passes the end of its connection has no answer
                    until(lambda: there.open, lambda: there.open == 0)
    at_once(check, [
        (misbehave.continues(1), "acked"), (misbehave.continues(5), "acked"), (misbehave.continues(1, 503), "retry"),
        (misbehave.continues(2, 200, 103), "acked"), (misbehave.continues(1, 400), "rejected"),
        (misbehave.after(1), "acked"), (misbehave.trickle(200, 0.0005), "acked"),
        (misbehave.closed_behind(), "acked", True), (misbehave.closed_behind(503), "retry", True),
        # no Connection: close, and no length: the body ends with the connection
        (raw(head(200) + b"delivered", end="close"), "acked", True),
        (raw(head(200, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"), "acked"),
        (raw(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), "acked"),
        (raw(head(200, *(f"X-{i}: {'x' * 100}" for i in range(100)), "Content-Length: 0")), "acked"),
        (raw(head(200, "Set-Cookie: a=b; Path=/", "Alt-Svc: h3=\":1\"", "Strict-Transport-Security: max-age=9",
                  "Content-Length: 0")), "acked"),
    ])


def test_cookies_are_not_kept():
    with Receiver(Reply(200, b"", "Set-Cookie: a=b; Path=/")) as there, sink(there) as w:
        for key in "ab":
            w.one(key=key)
        assert all(r.header("cookie") is None for r in there.requests)


def test_more_than_the_length():
    """What comes behind an answer is no answer to the next request."""
    with Receiver(lambda r: misbehave.too_much(503) if r.key == "bad" else 200) as there, sink(there, concurrency=1) as w:
        for _ in range(3):
            assert w.one(key="bad").outcome in ("retry", "unknown", "outage")
        assert w.one(key="good").outcome == "acked"
        assert [r.key for r in there.requests].count("good") == 1, there.ids()


def test_body_of_another_request_is_not_read():
    """A 200 that was smuggled behind a 503 acknowledges nothing."""
    two = raw(head(503, "Content-Length: 0") + head(200, "Content-Length: 0"))
    with Receiver(lambda r: two if r.key == "bad" else 503) as there, sink(there, concurrency=1) as w:
        assert w.one(key="bad").outcome == "retry"
        assert w.one(key="next").outcome in ("retry", "unknown"), "the answer before its request counted"


def test_keepalive():
    """Requests share connections, one after the other."""
    with Receiver() as there, sink(there, concurrency=2) as w:
        for _ in range(10):
            w.all([{"key": str(i)} for i in range(20)])
        assert there.connections <= 2, there.connections


def test_keepalive_closed_under_the_request():
    """The receiver closes what it promised to keep; each event arrives in the end."""
    with Receiver(lambda r: misbehave.closed_under(2)) as there, sink(there, concurrency=1) as w:
        left = [{"key": str(i), "id": None} for i in range(10)]
        deadline = time.monotonic() + PATIENCE
        done = 0
        while left:
            assert time.monotonic() < deadline
            got = w.all(left)
            assert all(g.outcome in ("acked", "retry", "unknown", "skipped") for g in got), got
            done += sum(g.outcome == "acked" for g in got)
            left = [e for e, g in zip(left, got) if g.outcome != "acked"]
        assert done == 10


def test_one_attempt_is_one_request():
    """The receiver reads a request and closes, on connections that were kept, and on new ones.  Nothing repeats it but the relay."""
    def check(body):
        def answer(r):
            # all connections are open at once before one of them ends
            return misbehave.raw(end="close") if r.key == "bad" else misbehave.after(0.2)
        with Receiver(answer) as there, sink(there, concurrency=8) as w:
            for attempt in range(1, 4):
                w.all([{"key": str(i)} for i in range(8)])
                got = w.one(key="bad", payload=body)
                assert got.outcome == "retry" and got.message, got
                assert [r.key for r in there.requests].count("bad") == attempt, (body, attempt, got)
            assert w.one(key="good").outcome == "acked"
    at_once(check, [[b""], [b"{}"], [b'"' + b"x" * 500000 + b'"']])


def test_idle_connections_are_not_used_again():
    """Not after 4 s: a receiver may close its end just then."""
    with Receiver() as there, sink(there) as w:
        assert w.one(key="a").outcome == "acked" and w.one(key="b").outcome == "acked" and there.connections == 1
        time.sleep(5.5)
        assert w.one(key="c").outcome == "acked" and there.connections == 2


def test_idle_connections_that_close():
    with Receiver() as there, sink(there) as w:
        assert w.one(key="a").outcome == "acked"
        for task in list(there.tasks):
            there.loop.call_soon_threadsafe(task.cancel)
        until("the connection is closed", lambda: there.open == 0)
        assert w.one(key="b").outcome == "acked"
        assert there.connections == 2


def test_timeout():
    """The whole request has the time, not each part of it.  A timeout counts as an attempt, and others go on."""
    with Receiver(lambda r: misbehave.raw(end="hang") if r.key == "slow" else 200) as there, sink(there, timeout=5000) as w:
        began = time.monotonic()
        got = w.all([{"key": "slow"}, *({"key": str(i)} for i in range(20))])
        assert [g.outcome for g in got] == ["retry"] + ["acked"] * 20, got
        assert got[0].at - began > 4.9, got[0].at - began
        assert "5000 ms" in got[0].message or "5 s" in got[0].message or "timed out" in got[0].message.lower() \
            or "timeout" in got[0].message.lower(), got[0]
        # the answers of the others did not wait for it
        assert all(g.at < got[0].at - 1 for g in got[1:])


def test_timeout_while_pings_come():
    with Receiver(lambda r: misbehave.after(5)) as there, sink(there, timeout=60000) as w:
        batch, _ = w.events([{"key": "a"}])
        until("the request is there", lambda: there.requests)
        w.is_awake()
        assert w.results(batch, 1)[0].outcome == "acked"


def test_outages():
    """Nobody listens, no such name, no TLS: the event is not to blame."""
    # a server that takes connections and says nothing of TLS, and one that speaks none
    with socket.create_server(("127.0.0.1", 0)) as mute, Receiver() as plain:
        def check(url):
            got = fate(url=url, connect_timeout=1500, timeout=4000)
            assert got.outcome == "outage" and got.sqlstate.startswith("08"), (url, got)
        at_once(check, [[f"http://127.0.0.1:{free_port()}/"], [f"https://127.0.0.1:{free_port()}/"],
                        ["http://no-such-name.invalid/"], [f"https://127.0.0.1:{mute.getsockname()[1]}/"],
                        [f"https://127.0.0.1:{plain.port}/"]])


def test_outage_ends():
    """The relay starts the program again, and it delivers."""
    with Receiver() as there:
        port = there.port
        with sink(there) as w:
            assert w.one(key="a").outcome == "acked"
            there.stop()
            with contextlib.suppress(Ended):
                got = w.one(key="b")
                assert got.outcome == "outage", got
            w.kill()
    with Receiver(port=port) as there, sink(there) as w:
        assert w.one(key="b").outcome == "acked"


def test_options_that_are_refused():
    cases = [("url", {"url": url}) for url in (
        "ftp://127.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1:70/", "127.0.0.1", "", "http://", "javascript:1",
        "http://a b/", "http://127.0.0.1/\r\nX: y", "http://127.0.0.1/{nothing}", "http://127.0.0.1/{header:}", "http://[::1",
        "http://{aggregate_type}/", "http://127.0.0.1:{aggregate_id}/", "dict://127.0.0.1/", "unix:///tmp/x",
        "http://127.0.0.1/{aggregate_id")]
    good = {"url": "http://127.0.0.1/"}
    cases += [(name, {**good, name: value}) for name, value in (
        ("headers", "no colon"), ("headers", "X Y: 1"), ("headers", "X: {nothing}"), ("headers", "Content-Length: 1"),
        ("headers", "Transfer-Encoding: chunked"), ("headers", "Host: elsewhere"), ("headers", "webhook-id: 1"),
        ("allowed_addresses", "everything"), ("allowed_addresses", "127.0.0.0/33"), ("allowed_addresses", "10.0.0.0/8 or so"),
        ("signing_secrets", "whsec_!!!"), ("auth", "basic"), ("auth", "bearer"), ("auth", "oauth2"),
        ("service", "sqs"), ("content_type", "a\nb"))]

    def check(name, options):
        f = refused(**options)
        assert f.outcome == "rejected", (options, f)
    at_once(check, cases)
