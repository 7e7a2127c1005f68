"""Clusters that change, disks that fill, clocks that jump: nothing is lost, nothing is doubled."""
import shutil
import time

from kafka.broker import Broker
from kafka.journal import LARGE, LARGEST, Journal
from kafka.target import OUTCOMES, Target, failed, faulty, paused, transaction, until
from sinklib import codec


def follow_to(j, w, batches, stop=None):
    """Until so many batches more are told to be committed, or the program ends."""
    wanted = j.told + batches
    return j.follow(w, lambda: j.told >= wanted if stop is None else stop())


def outage_or_done(j, w, end):
    assert end == "done" or (end != "end" and OUTCOMES[end["outcome"]] == "outage"), end
    w.sock.close()
    w.proc.wait(60)


def test_leader_changes_under_load():
    """The leader dies, and takes the lead again, while transactions go on."""
    b = Broker(nodes=3, broker_session_timeout_ms=6000)
    try:
        t = Target(b)
        j = Journal(t, timeout=60000, transaction_events=100)
        for _ in range(2):
            j.add(40, events=50)
            w = j.start()
            j.feed(w)
            end = follow_to(j, w, 4)
            assert end == "stopped", end
            node = b.leader(t.position)
            node.kill()
            end = j.follow(w)
            outage_or_done(j, w, end)
            node.start()
            j.add(40, events=50)
            w = j.start()
            j.feed(w)

            def leads_again():
                b.ask("elect")
                return b.leader(t.position) is node
            end = follow_to(j, w, 0, leads_again)
            if end == "stopped":
                end = j.follow(w)
            outage_or_done(j, w, end)
            until("the node leads again", leads_again)
        j.add(2)
        j.finish()
    finally:
        b.remove()


ONE_COPY = {"default_replication_factor": 1, "min_insync_replicas": 1, "transaction_state_log_replication_factor": 1,
            "transaction_state_log_min_isr": 1, "transaction_state_log_num_partitions": 1}


def topic_of(b, node, **configs):
    """A topic of one partition, which this node leads."""
    while True:
        name = b.topic(b.name("topic"), 1, **configs)
        if b.leader(name) is node:
            return name


class TwoNodes:
    """A node that refuses large events and has all that the sink needs, and a node that is stopped: topics on both."""

    def __init__(self):
        self.b = b = Broker(nodes=2, **ONE_COPY)
        first = b.topic(b.name("first"), 1)
        b.ask("open", "stranger", first)
        b.ask("end", "stranger")
        home = b.leader("__transaction_state")
        self.slow = next(n for n in b.nodes if n is not home)
        self.here = topic_of(b, home, max_message_bytes=LARGEST)
        self.there = topic_of(b, self.slow)
        self.t = Target(b, topic="{aggregate_type}", position=False)
        self.t.position = topic_of(b, home, cleanup_policy="compact")

    def events(self, w, row_id, large=False):
        """A batch with an event for each node; the first one is refused if it is large.  Returns its number."""
        extra = {"payload": LARGE} if large else {}
        return w.events([{"aggregate_type": self.here, "key": "a", **extra}, {"aggregate_type": self.there, "key": "b"}],
                        row_id=row_id)[0]

    def answered(self, w, batch, outcomes, once):
        got = w.outcomes(batch, 2)
        assert got == outcomes, (got, w.notes)
        if once:
            if "rejected" in outcomes:
                w.send("SETTLE", batch=batch)
            w.expect("VERDICT", batch=batch, kind=1)
            # so that the next transaction takes its partitions without a question to the slow node
            until("the transaction ends", lambda: transaction(self.t) == "CompleteCommit")


def test_requests_in_flight_are_awaited():
    """After a refusal, nothing goes on while another node still has a request: it could take it behind the abort."""
    two = TwoNodes()
    try:
        for delivery in ("at_least_once", "exactly_once"):
            once = delivery == "exactly_once"
            before = len(two.b.read(two.there))
            with faulty() as (armed, program):
                w = two.t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER, delivery=delivery, timeout=60000, **program)
                two.answered(w, two.events(w, 1), ["acked", "acked"], once)
                armed.arm("kafka-aborted", "stall")
                with paused(two.slow):
                    batch = two.events(w, 2, large=True)
                    time.sleep(3)
                    assert not armed.is_hit("kafka-aborted"), f"{delivery}: the attempt ended with a request in flight"
                until("the attempt ends", lambda: armed.is_hit("kafka-aborted"))
                armed.disarm("kafka-aborted")
                two.answered(w, batch, ["rejected", "acked"], once)
                w.close()
            found = len(two.b.read(two.there)) - before
            assert found == 2, f"{delivery}: {found} records of two events"
    finally:
        two.b.remove()


def test_request_in_flight_for_too_long():
    """That is an outage: there is no other attempt in this program."""
    two = TwoNodes()
    try:
        with faulty() as (armed, program):
            w = two.t.start(timeout=3000, **program)
            two.answered(w, two.events(w, 1), ["acked", "acked"], True)
            armed.arm("kafka-aborted", "stall")
            with paused(two.slow):
                two.events(w, 2, large=True)
                f = failed(w)
                assert f["outcome"] == "outage" and not armed.is_hit("kafka-aborted"), f
        w = two.t.start()
        assert w.ready["row_id"] == 1, w.ready
        two.answered(w, two.events(w, 2, large=True), ["rejected", "acked"], True)
        w.close()
        assert len(two.b.read(two.there)) == 2
    finally:
        two.b.remove()


def test_disk_full():
    """An outage, until there is room again."""
    b = Broker(disk=64, metadata_log_dir="{dir}/metadata")
    try:
        t = Target(b)
        j = Journal(t, timeout=5000)
        j.add(3)
        j.finish()
        filler = b.disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(b.disk).free - 300000))
        j.add(20, events=100, size=1000)
        w = j.start()
        j.feed(w)
        end = j.follow(w)
        assert end not in ("done", "end") and OUTCOMES[end["outcome"]] == "outage", end
        j.reap(w)
        filler.unlink()
        # a broker whose only disk has failed ends
        if b.nodes[0].is_up():
            b.kill()
        b.start()
        j.add(2)
        j.finish()
    finally:
        b.remove()


def test_clock_jumps():
    """The brokers' clock ends a transaction: that is an outage and no twin.  The program's wall clock decides nothing."""
    b = Broker(clock=True)
    try:
        t = Target(b)
        j = Journal(t, transaction_timeout=60000)
        j.add(2)
        j.finish()
        j.add(2)
        with faulty() as (armed, program):
            armed.arm("kafka-before-commit", "stall")
            w = j.start(**program)
            j.feed(w)
            assert j.follow(w, lambda: armed.is_hit("kafka-before-commit")) == "stopped"
            b.clock.set(3600)
            until("the brokers end the transaction", lambda: transaction(t) == "CompleteAbort")
            armed.release("kafka-before-commit")
            end = j.follow(w)
            assert end not in ("done", "end") and OUTCOMES[end["outcome"]] == "outage" and end["sqlstate"] == "25P04", end
            j.reap(w)
        j.finish()
        for seconds in (0, 8 * 86400):
            b.clock.set(seconds)
            j.add(2)
            j.finish()
    finally:
        b.remove()
