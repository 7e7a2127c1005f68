"""Which requests are under way together."""
import random
import threading

import misbehave
from receiver import Receiver, Reply
from sinklib import PATIENCE, codec
from target import sink, until


def test_one_of_a_key():
    """Never two of one key; the other keys go on; those of a key in their order."""
    rng = random.Random(4711)

    def answer(r):
        return misbehave.after(rng.random() * 0.01)
    with Receiver(answer) as there, sink(there, concurrency=16) as w:
        events = [{"key": str(rng.randrange(8)), "payload": b'{"n": %d}' % i} for i in range(1500)]
        batches = [w.events(events[at:at + 100])[0] for at in range(0, 800, 100)]
        for batch in batches:
            assert {g.outcome for g in w.results(batch, 100)} == {"acked"}
        w.all(events[800:])
        assert not there.overlaps, there.overlaps[:5]
        assert there.most > 4, there.most
        order = {}
        for r in there.requests:
            order.setdefault(r.key, []).append(r.json()["n"])
        assert all(numbers == sorted(numbers) for numbers in order.values())
        assert sum(map(len, order.values())) == 1500


def test_same_id_of_two_types():
    """The key is type and id together."""
    barrier = threading.Barrier(2)

    def answer(r):
        async def wait(c, r):
            loop = there.loop
            await loop.run_in_executor(None, barrier.wait, 5)
            await c.send(Reply(200).bytes())
        return wait
    with Receiver(answer) as there, sink(there) as w:
        got = w.all([{"aggregate_type": t, "key": "1"} for t in ("order", "invoice")])
        assert [g.outcome for g in got] == ["acked"] * 2


def test_concurrency_is_bounded():
    for bound in (1, 3, 40):
        with Receiver(lambda r: misbehave.after(0.05)) as there, sink(there, concurrency=bound) as w:
            w.all([{"key": str(i)} for i in range(120)])
            assert there.most == bound, (bound, there.most)
            assert there.connections <= bound, (bound, there.connections)


def test_concurrency_by_default():
    with Receiver(lambda r: misbehave.after(0.05)) as there, sink(there) as w:
        w.all([{"key": str(i)} for i in range(100)])
        assert 2 <= there.most <= 32, there.most


def test_a_slow_key_holds_no_other():
    def answer(r):
        return misbehave.after(10) if r.key == "slow" and [x.key for x in there.requests].count("slow") <= 1 else 200

    with Receiver(answer) as there, sink(there, concurrency=4) as w:
        batch, _ = w.events([{"key": "slow"}] * 2 + [{"key": f"k{i}"} for i in range(200)])
        until("the others arrive", lambda: len(there.requests) >= 201)
        assert [r.key for r in there.requests[:201]].count("slow") == 1, "the others waited"
        assert {g.outcome for g in w.results(batch, 202)} == {"acked"}
        assert there.ids().count(None) == 0 and [r.key for r in there.requests].count("slow") == 2
        assert not there.overlaps, "two of one key were under way"


def test_refused_key_is_blocked():
    """Events behind a refused one of their key are skipped, and not sent; other keys go on."""
    for status, outcome in ((503, "retry"), (400, "rejected")):
        with Receiver(lambda r, s=status: s if r.json().get("bad") else 200) as there, sink(there) as w:
            events = [{"key": "a"}, {"key": "a", "payload": b'{"bad": 1}'}, {"key": "a"}, {"key": "b"}, {"key": "a"}]
            got = [g.outcome for g in w.all(events)]
            assert got == ["acked", outcome, "skipped", "acked", "skipped"], got
            assert len(there.requests) == 3, there.ids()
            # all() has sent the SETTLE: the key is free again
            assert [g.outcome for g in w.all([{"key": "a"}, {"key": "b"}])] == ["acked"] * 2


def test_without_key_order():
    """Without KEY_ORDER a refused event blocks nothing."""
    with Receiver(lambda r: 503 if r.json().get("bad") else 200) as there, sink(there, flags=0) as w:
        got = [g.outcome for g in w.all([{"key": "a", "payload": b'{"bad": 1}'}, {"key": "a"}, {"key": "a"}])]
        assert got == ["retry", "acked", "acked"], got
        assert len(there.requests) == 3


def test_same_key_in_the_next_batch():
    with Receiver(lambda r: misbehave.after(0.2)) as there, sink(there) as w:
        batches = [w.events([{"key": "a"}])[0] for _ in range(5)]
        for batch in batches:
            assert w.results(batch, 1)[0].outcome == "acked"
        assert not there.overlaps and there.most == 1


def test_many_events():
    """More than the credit, at a receiver that is quick: nothing stands still."""
    with Receiver() as there, sink(there, concurrency=16) as w:
        # eight batches are the credit
        count = w.ready["credit_messages"] // 8
        batches = []
        for i in range(40):
            batches.append(w.events([{"key": str(i % 500)} for i in range(count)])[0])
            if len(batches) >= 8:
                assert {g.outcome for g in w.results(batches.pop(0), count)} == {"acked"}
        for batch in batches:
            assert {g.outcome for g in w.results(batch, count)} == {"acked"}
        assert len(set(there.ids())) == 40 * count and not there.overlaps


def test_large_payload():
    """Chunks of the protocol, and a body for which libcurl may ask to be told to go on."""
    big = b'"' + b"x" * (3 << 20) + b'"'
    for continues in (True, False):
        with Receiver(continues=continues) as there, sink(there) as w:
            assert w.one(payload=big).outcome == "acked"
            assert there.requests[0].body == big


def test_ends_while_requests_are_under_way():
    """End of file: the program ends at once, whatever it waits for."""
    with Receiver(lambda r: misbehave.after(2 * PATIENCE)) as there, sink(there, timeout=int(3000 * PATIENCE)) as w:
        w.events([{"key": str(i)} for i in range(20)])
        until("requests are there", lambda: there.requests)
        w.sock.close()
        assert w.exit_status() == 0


def test_bye():
    with Receiver() as there, sink(there) as w:
        w.one()
        w.send("BYE")
        assert w.exit_status() == 0
        assert codec and there.requests
