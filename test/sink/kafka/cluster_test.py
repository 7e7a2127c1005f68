"""Clusters that change, disks that fill, clocks that jump: nothing is lost, nothing is doubled."""
import shutil

from kafka.broker import Broker
from kafka.journal import Journal
from kafka.target import OUTCOMES, Target, faulty, transaction, until


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
            until("the node leads again", leads_again, 120)
        j.add(2)
        j.finish()
    finally:
        b.remove()


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
