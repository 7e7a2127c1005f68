"""The worker's side of a relay: batches that are sent again until their verdict, and the judgement of the topic."""
import time
import uuid

from kafka.target import OUTCOMES, until
from sinklib import codec

LARGE = b'"' + b"x" * 30000 + b'"'
LARGEST = 20000         # max.message.bytes of a topic that refuses LARGE


class Batch:
    def __init__(self, row_id, events):
        self.row_id = row_id
        self.events = events

    def good(self):
        """The events that the brokers take."""
        return [e for e in self.events if e["payload"] is not LARGE]


class Journal:
    """Batches into a target.  The events of a key are counted, so that their order can be judged."""

    def __init__(self, target, **options):
        self.t = target
        self.options = options
        self.batches = []
        self.counts = {}
        self.starts = 0
        self.foreign = set()    # keys of the records of others
        self.told = 0           # the last batch that a program said was committed

    def add(self, batches=1, events=20, large=False, size=0):
        for _ in range(batches):
            made = []
            for i in range(events):
                key = str(i % 5)
                n = self.counts[key] = self.counts.get(key, 0) + 1
                payload = b'{"n": %d, "x": "%s"}' % (n, b"x" * size)
                made.append({"id": uuid.uuid4(), "key": key, "payload": payload})
            if large:
                made.insert(events // 2, {"id": uuid.uuid4(), "key": "large", "payload": LARGE})
            self.batches.append(Batch(len(self.batches) + 1, made))

    def launch(self, **options):
        """A program that was sent HELLO."""
        self.starts += 1
        return self.t.start(hello=False, incarnation=f"log-{self.starts}", **{**self.options, **options})

    def start(self, within=180, **options):
        """A program that is ready.  Outages at its start pass: the worker starts it again, too."""
        deadline = time.monotonic() + within
        while True:
            w = self.launch(**options)
            end = self.greet(w)
            if end == "ready":
                return w
            assert end != "end" and OUTCOMES[end["outcome"]] == "outage", f"{end} {w.stderr()}"
            assert time.monotonic() < deadline, end
            self.reap(w)

    def greet(self, w, stop=None, timeout=120):
        """The answer to HELLO: "ready", "stopped": stop() holds, "end": the program died, or the fields of FAILED."""
        name, fields = self._next(w, stop, timeout)
        if name != "READY":
            return fields
        w.ready = fields
        w.open = {}
        w.results = {}
        w.fed = self.position(w)
        return "ready"

    @staticmethod
    def position(w):
        return w.ready["row_id"] if w.ready["has_position"] else 0

    def feed(self, w):
        """Send the batches that the program lacks and was not sent."""
        for b in self.batches[w.fed:]:
            w.fed = b.row_id
            w.open[w.batch + 1] = b
            w.results[w.batch + 1] = {}
            try:
                w.events(b.events, row_id=b.row_id)
            except (BrokenPipeError, ConnectionResetError):
                break           # what it said before can still be read

    def follow(self, w, stop=None, timeout=120):
        """Take answers until there are no more batches to be answered.

        "done", "stopped": stop() holds, "end": the program died, or the fields of FAILED.
        """
        once = w.ready["capabilities"] & codec.TRANSACTIONAL
        while w.open:
            name, f = self._next(w, stop, timeout)
            if name == "RESULT":
                if self._result(w, f) and not once:
                    del w.open[f["batch"]]
            elif name == "VERDICT":
                b = w.open.pop(f["batch"])
                assert f["kind"] == codec.VERDICTS["committed"] and len(w.results[f["batch"]]) == len(b.events), f
                self.told = max(self.told, b.row_id)
            else:
                assert name in (None, "FAILED"), name
                return f
        return "done"

    def _result(self, w, f):
        """Note the results; true if the batch has all of them."""
        events = w.open[f["batch"]].events
        results = w.results[f["batch"]]
        for i in range(f["first"], f["last"] + 1):
            assert i not in results, "a second result"
            results[i] = OUTCOMES[f["outcome"]]
        if len(results) < len(events):
            return False
        expected = ["rejected" if e["payload"] is LARGE else "acked" for e in events]
        assert [results[i] for i in range(len(expected))] == expected, results
        if "rejected" in expected:
            try:
                w.send("SETTLE", batch=f["batch"])
            except (BrokenPipeError, ConnectionResetError):
                pass
        return True

    @staticmethod
    def _next(w, stop, timeout):
        """The next frame but LOG and CREDIT; None and "stopped" or "end"."""
        deadline = time.monotonic() + timeout
        while True:
            if stop and stop():
                return None, "stopped"
            try:
                got = w.recv(0.05)
            except TimeoutError:
                assert time.monotonic() < deadline, "no answer"
                continue
            if got is None:
                return None, "end"
            if got[0] not in ("LOG", "CREDIT"):
                return got

    def farewell(self, w, timeout=120):
        """How a program ends that was sent nothing more: "end", or the fields of FAILED."""
        name, fields = self._next(w, None, timeout)
        assert name in (None, "FAILED"), name
        return fields

    @staticmethod
    def reap(w):
        """Wait until the program is gone, whatever ended it."""
        w.proc.wait(60)
        w.sock.close()

    def finish(self, timeout=300, **options):
        """Deliver what is left, over outages; then judge."""
        deadline = time.monotonic() + timeout
        while True:
            w = self.start(**options)
            self.judge(self.position(w))
            self.feed(w)
            end = self.follow(w)
            if end == "done":
                break
            assert end != "end" and OUTCOMES[end["outcome"]] == "outage", end
            assert time.monotonic() < deadline, end
            self.reap(w)
        w.close()
        self.judge(len(self.batches))

    def judge(self, position, exactly=True):
        """The topic has the events up to this batch: each once, and those of a key in their order."""
        assert position >= self.told, f"batch {self.told} was told committed, the position is {position}"
        expected = {e["id"].hex for b in self.batches[:position] for e in b.good()}
        records = []

        def there():
            # a reader sees a transaction some time after its commit was answered
            records[:] = [r for r in self.t.read() if r["key"] not in self.foreign]
            return len(self._ids(records) & expected) == len(expected)
        until(lambda: f"{len(expected)} records up to batch {position}; there are {len(records)}", there)
        if exactly:
            assert self._ids(records) == expected, f"{len(self._ids(records) - expected)} records behind batch {position}"
            assert len(records) == len(expected), f"{len(records) - len(expected)} records are doubled"
            self._judge_order(records)

    @staticmethod
    def _ids(records):
        return {dict(r["headers"])["id"].decode().replace("-", "") for r in records}

    @staticmethod
    def _judge_order(records):
        last = {}
        for r in sorted(records, key=lambda r: (r["partition"], r["offset"])):
            n = int(r["value"].split(b":")[1].split(b",")[0])
            assert n == last.get(r["key"], 0) + 1, f"key {r['key']}: {n} behind {last.get(r['key'])}"
            last[r["key"]] = n
