"""Each way in which brokers and program fail, with its verdict: nothing is lost, nothing is doubled."""
import os
import signal
import tempfile
import time

from kafka.broker import Broker, free_ports
from kafka.journal import Journal
from kafka.target import SINK, Target, begin_refused, commits, failed, faulty, paused, sanitized_program, transaction, until
from sinklib import PATIENCE, codec, look


def ids(records):
    out = [dict(r["headers"])["id"].decode().replace("-", "") for r in records]
    assert len(out) == len(set(out)), "a record is doubled"
    return set(out)


def send(w, n, timeout=PATIENCE):
    batch, sent = w.events([{"key": str(i % 10)} for i in range(n)])
    commits(w, batch, n, timeout=timeout)
    return {i.hex for i in sent}


def arrive(t, expected):
    """A reader sees a transaction some time after its commit was answered."""
    until(lambda: f"{len(expected)} records; there are {len(t.read())}", lambda: len(t.read()) >= len(expected))
    assert ids(t.read()) == expected


def after_restart(t, sent, unknown, **options):
    """What a new program says of a batch with an unknown verdict; the records must be all or none."""
    w = t.start(incarnation="log-2", **options)
    there = ids(t.read())
    committed = w.ready["has_position"] and w.ready["row_id"] == 2
    assert there == sent | (unknown if committed else set()), "position and records contradict each other"
    w.close()


def test_many_batches_share_a_transaction():
    t = Target()
    w = t.start()
    sent = set()
    batches = [w.events([{"key": str(i)} for i in range(50)]) for _ in range(8)]
    for batch, new in batches:
        commits(w, batch, 50)
        sent |= {i.hex for i in new}
    w.close()
    positions = [r for r in t.b.read(t.position) if r["key"] == b"position orders"]
    assert len(positions) < 8 and positions[-1]["value"] == b"1 8 0 log-1", positions
    arrive(t, sent)


def transactions(t):
    """The committed transactions of the position topic, each the list of its positions: an end takes an offset."""
    out, last = [], None
    for r in sorted(t.b.read(t.position), key=lambda r: r["offset"]):
        if last is None or r["offset"] != last + 1:
            out.append([])
        last = r["offset"]
        if r["key"] == b"position orders":
            out[-1].append(int(r["value"].split()[1]))
    return [each for each in out if each]


def stock(t, n, **options):
    """A program that has n batches of 10 events when it begins its first transaction."""
    with faulty() as (armed, program):
        armed.arm("kafka-begun", "stall")
        w = t.start(**program, **options)
        batches = [w.events([{"key": str(i)} for i in range(10)])[0]]
        until("the transaction is begun", lambda: armed.is_hit("kafka-begun"))
        batches += [w.events([{"key": str(i)} for i in range(10)])[0] for _ in range(n - 1)]
        armed.release("kafka-begun")
        for batch in batches:
            commits(w, batch, 10)
    return w


def test_transaction_has_its_limit():
    """A transaction is full at transaction_events.  It has the position of its first batch, and of its last."""
    t = Target()
    stock(t, 40, transaction_events=45).close()
    found = transactions(t)
    spans = [b[-1] - a[-1] for a, b in zip([[0], *found], found)]
    # the first one may have ended before all the batches were there
    assert sum(spans) == 40 and all(n == 5 for n in spans[1:-1]) and max(spans) == 5, found
    assert all(len(each) == min(2, n) and each[0] == each[-1] - n + 1 for each, n in zip(found, spans)), found


def begin_two(w):
    """Send a batch, and a batch without its end, all at once."""
    with w.in_one_piece():
        first, _ = w.events([{}])
        second, _ = w.events([{}], end=False)
    return first, second


def end(w, batch):
    w.send("END", batch=batch, count=1, row_id=batch, k=0)


def test_transaction_waits_for_a_batch_that_has_begun():
    """The worker sends to its end what it has begun, so the transaction has room for it.  The brokers are not late then."""
    t = Target()
    w = t.start(transaction_time=60000, transaction_timeout=90000, timeout=5000)
    batches = begin_two(w)
    until("the first batch is delivered", lambda: t.read(isolation="read_uncommitted"))
    try:
        raise AssertionError(f"{w.recv(7)} while another batch comes")
    except TimeoutError:
        pass
    end(w, batches[1])
    for batch in batches:
        commits(w, batch, 1)
    w.close()
    assert transactions(t) == [[1, 2]], transactions(t)


def test_transaction_waits_for_its_time():
    t = Target()
    w = t.start(transaction_time=100)
    first, second = begin_two(w)
    commits(w, first, 1)
    end(w, second)
    commits(w, second, 1)
    w.close()
    assert transactions(t) == [[1], [2]], transactions(t)


def test_transaction_time_beyond_the_timeout():
    """The brokers would abort every transaction that is full."""
    t = Target()
    for times in ({"transaction_time": 30000}, {"transaction_time": 1000, "transaction_timeout": 1000}):
        f = t.refused(**times)
        assert f["outcome"] == "rejected" and f["sqlstate"] == "HV024" and "transaction_timeout" in f["message"], f
    t.start(transaction_time=29999).close()
    t.start(transaction_time=1000, transaction_timeout=1000, delivery="at_least_once").close()


def test_transaction_that_cannot_begin():
    """Nothing was sent in it: the position of the transaction before it does not count as its own.

    The start record is the first transaction, and a batch the second one.
    """
    t = Target()
    w = t.start(env=begin_refused(3))
    sent = send(w, 3)
    sent |= send(w, 4)
    arrive(t, sent)
    assert "begin refused" in w.stderr()
    sent |= send(w, 2)
    arrive(t, sent)
    w.close()
    w = t.start(incarnation="log-2")
    assert w.ready["row_id"] == 3, w.ready
    w.close()


def test_refusal_in_a_shared_transaction():
    """The transaction is done again batch by batch; the refused event's key waits in all of them."""
    t = Target(max_message_bytes=5000)
    w = t.start(flags=codec.WANT_POSITION | codec.KEY_ORDER)
    large = b'"' + b"x" * 9000 + b'"'
    first, a = w.events([{"key": "a"}, {"key": "b"}])
    second, b = w.events([{"key": "a"}, {"key": "b", "payload": large}, {"key": "b"}])
    third, c = w.events([{"key": "a"}, {"key": "b"}])
    commits(w, first, 2)
    assert w.outcomes(second, 3) == ["acked", "rejected", "skipped"], w.notes
    assert w.notes[1][0] == "54000" and t.topic in w.notes[1][1], w.notes
    w.send("SETTLE", batch=second)
    w.expect("VERDICT", batch=second, kind=1)
    assert w.outcomes(third, 2) == ["acked", "skipped"], w.notes
    w.send("SETTLE", batch=third)
    w.expect("VERDICT", batch=third, kind=1)
    fourth, d = w.events([{"key": "b"}])
    commits(w, fourth, 1)
    arrive(t, {i.hex for i in (a[0], a[1], b[0], c[0], d[0])})
    w.close()


def test_too_large_here():
    t = Target()
    w = t.start(max_message_bytes=5000)
    batch, sent = w.events([{"key": "a"}, {"key": "b", "payload": b'"' + b"x" * 9000 + b'"'}])
    assert w.outcomes(batch, 2) == ["acked", "impossible"], w.notes
    assert w.notes[1][0] == "54000", w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    arrive(t, {sent[0].hex})
    w.close()


def requests(t):
    """How many records each request had that wrote into the topic's only partition, with the offset of its first one."""
    log = t.b.nodes[0].dir / f"data/{t.topic}-0/00000000000000000000.log"
    lines = t.b.java("kafka.tools.DumpLogSegments", "--files", log).splitlines()
    words = [line.split() for line in lines if line.startswith("baseOffset: ")]
    return [(int(each[1]), int(each[each.index("count:") + 1])) for each in words]


def test_records_share_requests_again():
    """After a request that was too large, the records of one batch go one by one, and not those of the whole backlog."""
    t = Target(partitions=1, max_message_bytes=200000)
    w = t.start(delivery="at_least_once")
    with w.in_one_piece():
        batches = [(w.events([{"key": str(i), "payload": b'"' + b"x" * 1000 + b'"'} for i in range(400)])[0], 400)]
        batches += [(w.events([{"key": str(i)} for i in range(100)])[0], 100) for _ in range(4)]
    for batch, count in batches:
        assert w.outcomes(batch, count) == ["acked"] * count, w.notes
    w.close()
    found = requests(t)
    counts = [count for offset, count in found if offset >= 400]
    assert len(found) - len(counts) > 100, "no request was too large"
    assert max(counts) > 1, f"each of {len(counts)} requests has one record"


def test_no_broker_at_start():
    [port] = free_ports(1)
    t = Target()
    f = t.refused(brokers=f"127.0.0.1:{port}", timeout=3000)
    assert f["outcome"] == "outage" and str(port) in f["message"], f


def test_topics_missing():
    t = Target()
    f = t.refused(topic=t.b.name("none"))
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42704", f
    f = t.refused(position_topic=t.b.name("none"))
    assert f["outcome"] == "rejected" and "does not exist" in f["message"], f
    assert "sink_setup" in f["message"], f


def test_look_names_missing_topics():
    """A LOOK names each topic that is missing; none is created, also where the program would."""
    t = Target()
    found, _ = look(SINK, t.options())
    assert {what: f[0] for what, f in found.items()} == dict.fromkeys(
        ("options", "connection", "topic", "position topic", "position"), 1), found
    missing = {"topic": t.b.name("none"), "position_topic": t.b.name("none")}
    for _ in range(2):
        found, status = look(SINK, t.options(**missing))
        assert status == 0 and [what for what, f in found.items() if not f[0]] == ["topic", "position topic"], found
        assert "sink_setup" in found["topic"][2] and "does not exist" in found["position topic"][1], found
        found, status = look(SINK, t.options(create_topics="on", **missing))
        assert status == 0 and all(f[0] for f in found.values()), found
        assert "does not exist yet" in found["topic"][1] and "does not exist yet" in found["position topic"][1], found
    found, _ = look(SINK, t.options(brokers="127.0.0.1:1", timeout="1000"))
    assert list(found) == ["options", "connection"] and not found["connection"][0], found


def test_position_topic_not_as_needed():
    t = Target()
    name = t.b.topic(t.b.name(), 1)
    f = t.refused(position_topic=name)
    assert f["outcome"] == "rejected" and "cleanup.policy=compact" in f["message"], f
    name = t.b.topic(t.b.name(), 1, cleanup_policy="compact,delete")
    assert t.refused(position_topic=name)["outcome"] == "rejected"
    name = t.b.topic(t.b.name(), 2, cleanup_policy="compact")
    f = t.refused(position_topic=name)
    assert f["outcome"] == "rejected" and "one partition" in f["message"], f


def test_position_topic_of_another_relay():
    """A relay that names the topic of another is refused, and the other one goes on as if nothing had been."""
    t = Target()
    w = t.start()
    for relay in ("other", "orders2"):
        # before the first position, and behind one
        before = t.b.read(t.position, isolation="read_uncommitted")
        f = failed(t.start(hello=False, relay=relay))
        assert f["outcome"] == "rejected" and f["sqlstate"] == "42710" and '"orders"' in f["message"], f
        assert t.b.read(t.position, isolation="read_uncommitted") == before, "it wrote to the topic"
        send(w, 2)
    w.close()
    w = t.start()
    assert w.ready["has_position"]
    send(w, 1)
    w.close()
    assert len(t.read()) == 5


def test_position_topic_with_records_of_others():
    """The owner names and passes what others wrote into its topic; who has no position there is refused."""
    t = Target()
    w = t.start()
    send(w, 2)
    w.close()
    for key in ("start other", "position other", "whatever"):
        t.b.ask("produce", t.position, key)
        w = t.start()
        assert w.ready["has_position"]
        send(w, 1)
        w.close()
    assert len(t.read()) == 5
    f = failed(t.start(hello=False, relay="third"))
    assert f["outcome"] == "rejected", f


def test_position_topic_deleted():
    """The sink says that it has no position: the relay is diverged then, and guesses nothing."""
    t = Target()
    w = t.start()
    send(w, 3)
    w.close()
    t.b.ask("delete", t.position)
    assert t.refused()["outcome"] == "rejected"
    t.b.position_topic(t.position)
    w = t.start()
    assert not w.ready["has_position"]
    w.close()


def test_position_topic_made_anew_meanwhile():
    t = Target()
    w = t.start()
    for _ in range(3):
        send(w, 3)
    t.b.ask("delete", t.position)
    t.b.position_topic(t.position)
    before = ids(t.read())
    w.events([{}])
    f = failed(w)
    assert f["outcome"] == "outage", f
    arrive(t, before)


def test_topic_deleted_meanwhile():
    """Its event is refused, and the others are delivered.

    The names decide which partition's error the brokers tell first, and so whether librdkafka goes on asking for the
    topic that is gone: there are several.
    """
    t = Target()
    other = t.b.name()
    t.b.topic(f"{other}.order", 1)
    names = [f"gone{i}" for i in range(4)]
    for name in names:
        t.b.topic(f"{other}.{name}", 1)
    w = t.start(topic=other + ".{aggregate_type}", timeout=9000)
    for name in names:
        batch, _ = w.events([{"aggregate_type": name}, {}])
        commits(w, batch, 2)
        t.b.ask("delete", f"{other}.{name}")
        batch, _ = w.events([{"aggregate_type": name}, {}])
        assert w.outcomes(batch, 2) == ["rejected", "acked"], w.notes
        assert w.notes[0][0] == "42704" and f"{other}.{name}" in w.notes[0][1], w.notes
        w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
    assert len(t.b.read(f"{other}.order")) == 2 * len(names)
    w.close()


def sasl(t, **more):
    return dict(brokers=f"127.0.0.1:{t.b.sasl}", security_protocol="sasl_plaintext", sasl_mechanism="PLAIN",
                user="relay", password="s3cret", **more)


def test_rights():
    """What sink_setup prints is enough, and each right that lacks is named."""
    t = Target()
    allow = t.b.ask
    f = t.refused(**sasl(t, topic=t.topic + ".{aggregate_type}"))
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and t.position in f["message"], f
    allow("allow", "relay", "TOPIC", t.position, "LITERAL", "READ", "WRITE", "DESCRIBE")
    f = t.refused(**sasl(t, topic=t.topic + ".{aggregate_type}"))
    assert f["outcome"] == "rejected" and "DESCRIBE_CONFIGS" in f["message"], f
    allow("allow", "relay", "TOPIC", t.position, "LITERAL", "DESCRIBE_CONFIGS")
    f = t.refused(**sasl(t, topic=t.topic + ".{aggregate_type}"))
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and "transactional id" in f["message"], f
    allow("allow", "relay", "TRANSACTIONAL_ID", t.position, "LITERAL", "WRITE", "DESCRIBE")
    f = t.refused(**sasl(t))
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and t.topic in f["message"], f

    t.b.topic(t.topic + ".order", 1)
    t.b.topic(t.topic + ".seen", 1)
    allow("allow", "relay", "TOPIC", t.topic + ".seen", "LITERAL", "DESCRIBE")
    allow("allow", "relay", "TOPIC", t.topic + ".order", "LITERAL", "WRITE", "DESCRIBE")
    w = t.start(**sasl(t, topic=t.topic + ".{aggregate_type}"))
    batch, _ = w.events([{"aggregate_type": "seen"}, {}, {"aggregate_type": "hidden"}])
    assert w.outcomes(batch, 3) == ["rejected", "acked", "rejected"], w.notes
    assert w.notes[0][0] == "42501" and t.topic + ".seen" in w.notes[0][1], w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert len(t.b.read(t.topic + ".order")) == 1
    w.close()
    # at least once, the rights on the topics of events are enough
    t = Target(topic=t.topic + ".order", position=False)
    w = t.start(**sasl(t, delivery="at_least_once"))
    assert w.outcomes(w.events([{}])[0], 1) == ["acked"], w.notes
    w.close()


def test_right_to_write_nothing():
    """At least once, the brokers give a user without any right to write no producer id."""
    t = Target()
    t.b.ask("allow", "reader", "TOPIC", t.topic, "LITERAL", "DESCRIBE")
    w = t.start(**dict(sasl(t, delivery="at_least_once"), user="reader"))
    w.events([{}])
    f = failed(w)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and "authorization" in f["message"], f


def test_refused_topic_beside_a_refused_event():
    """Where each topic is tried alone, events that are refused already hide no other refusal.

    The program has the sanitizers: the topic of an event that was refused has gone with the former producer.
    """
    t = Target()
    t.b.topic(t.topic + ".order", 1)
    t.b.topic(t.topic + ".seen", 1)
    t.b.topic(t.topic + ".fresh", 1, message_timestamp_before_max_ms=1000)
    for kind, name, *rights in (("TOPIC", t.topic + ".seen", "DESCRIBE"),
                                ("TOPIC", t.topic + ".fresh", "WRITE", "DESCRIBE"),
                                ("TOPIC", t.topic + ".order", "WRITE", "DESCRIBE"),
                                ("TOPIC", t.position, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"),
                                ("TRANSACTIONAL_ID", t.position, "WRITE", "DESCRIBE")):
        t.b.ask("allow", "relay", kind, name, "LITERAL", *rights)
    w = t.start(program=sanitized_program(), **sasl(t, topic=t.topic + ".{aggregate_type}", max_message_bytes=5000))
    batch, sent = w.events([{"payload": b'"' + b"x" * 9000 + b'"'}, {"aggregate_type": "seen"}, {"aggregate_type": "fresh"}, {}])
    assert w.outcomes(batch, 4) == ["impossible", "rejected", "rejected", "acked"], w.notes
    assert [w.notes[i][0] for i in range(3)] == ["54000", "42501", "22023"], w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    assert ids(t.b.read(t.topic + ".order")) == {sent[3].hex}
    w.close()


def test_rights_withdrawn():
    """A right that is taken away stops its event, or the relay; nothing is lost when it is back."""
    t = Target()
    j = Journal(t, **sasl(t))

    def allow(kind, name, *rights):
        t.b.ask("allow", "relay", kind, name, "LITERAL", *rights)
    everything = {("TOPIC", t.topic): ("WRITE", "DESCRIBE"),
                  ("TOPIC", t.position): ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"),
                  ("TRANSACTIONAL_ID", t.position): ("WRITE", "DESCRIBE")}
    for (kind, name), rights in everything.items():
        allow(kind, name, *rights)
    j.add()
    j.finish()
    for kind, name in (("TOPIC", t.position), ("TRANSACTIONAL_ID", t.position)):
        w = j.start()
        t.b.ask("revoke", "relay", kind, name, "LITERAL")
        end = "done"
        while end == "done":        # until all brokers know
            j.add()
            j.feed(w)
            end = j.follow(w)
        assert end["outcome"] in (codec.OUTCOMES["rejected"], codec.OUTCOMES["outage"]), (kind, end)
        j.reap(w)
        f = t.refused(**sasl(t))
        assert f["outcome"] == "rejected" and f["sqlstate"] == "42501" and t.position in f["message"], f
        allow(kind, name, *everything[kind, name])
        j.finish()
    w = t.start(**sasl(t), incarnation="log-9")
    t.b.ask("revoke", "relay", "TOPIC", t.topic, "LITERAL")
    got, refused = "acked", []
    while got == "acked":
        batch, new = w.events([{}], row_id=len(j.batches) + 1 + w.batch)
        [got] = w.outcomes(batch, 1)
        if got != "acked":
            refused = new
            assert got == "rejected" and w.notes[0][0] == "42501" and t.topic in w.notes[0][1], w.notes
            w.send("SETTLE", batch=batch)
        w.expect("VERDICT", batch=batch, kind=1)
    allow("TOPIC", t.topic, *everything["TOPIC", t.topic])
    assert refused[0].hex not in ids(t.read())
    w.close()


def test_logins():
    t = Target()
    t.b.ask("allow", "relay", "TOPIC", t.topic, "LITERAL", "WRITE", "DESCRIBE")
    once = dict(delivery="at_least_once")
    w = t.start(**sasl(t, **once))
    batch, _ = w.events([{}])
    assert w.outcomes(batch, 1) == ["acked"], w.notes
    w.close()
    f = t.refused(**dict(sasl(t, **once), password="wrong-s3cret"))
    assert f["outcome"] == "rejected" and f["sqlstate"] == "28000", f
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("s3cret\n")
        file.flush()
        w = t.start(**dict(sasl(t, **once), password=None, secret_file=file.name))
        w.close()
    f = t.refused(flags=codec.WANT_POSITION | codec.REQUIRE_PASSWORD)
    assert f["outcome"] == "rejected" and f["sqlstate"] == "2F003", f


def test_scram():
    """It works, or the message says that the library is too old for it."""
    t = Target()
    t.b.ask("allow", "relay", "TOPIC", t.topic, "LITERAL", "WRITE", "DESCRIBE")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        w = t.start(hello=False, **dict(sasl(t, delivery="at_least_once"), sasl_mechanism=mechanism))
        got = w.recv()
        assert got[0] == "READY" or "2.6.1" in got[1]["message"], got
        w.close() if got[0] == "READY" else w.exit_status()


def test_certificates():
    t = Target()
    d = t.b.dir
    tls = dict(brokers=f"127.0.0.1:{t.b.tls}", security_protocol="ssl", timeout=5000)
    f = t.refused(**tls)
    assert f["outcome"] == "rejected" and "certificate" in f["message"], f
    t.b.ask("allow", "CN=client", "TOPIC", t.topic, "LITERAL", "WRITE", "DESCRIBE")
    w = t.start(delivery="at_least_once", sslrootcert=d / "ca.crt", sslcert=d / "client.crt", sslkey=d / "client.key", **tls)
    batch, _ = w.events([{}])
    assert w.outcomes(batch, 1) == ["acked"], w.notes
    w.close()


def test_twin():
    """The older one is fenced at its next batch, and has no effect."""
    t = Target()
    old = t.start(incarnation="log-1")
    sent = send(old, 3)
    new = t.start(incarnation="log-2")
    sent |= send(new, 3)
    old.events([{}])
    assert failed(old)["outcome"] == "fenced"
    sent |= send(new, 3)
    arrive(t, sent)
    new.close()


def test_transaction_times_out():
    """A transaction that the brokers ended is no twin."""
    t = Target()
    w = t.start(transaction_timeout=1500, timeout=20000)
    sent = send(w, 5)
    batch, new = w.events([{"key": "a"}, {"key": "b", "payload": b'"' + b"x" * 2000000 + b'"'}])
    assert w.outcomes(batch, 2) == ["acked", "impossible"], w.notes
    until("the brokers end the transaction", lambda: transaction(t) == "CompleteAbort")
    w.send("SETTLE", batch=batch)
    f = failed(w)
    assert f["outcome"] == "outage", f
    arrive(t, sent)
    w = t.start(incarnation="log-2")
    assert w.ready["row_id"] == 1
    w.close()


def test_program_stopped_in_a_transaction():
    """It finds its transaction ended, and no twin."""
    t = Target()
    j = Journal(t, transaction_timeout=1500)
    j.add(2)
    j.finish()
    j.add(2)
    with faulty() as (armed, program):
        armed.arm("kafka-before-commit", "stall")
        w = j.start(**program)
        j.feed(w)
        assert j.follow(w, lambda: armed.is_hit("kafka-before-commit")) == "stopped"
        w.proc.send_signal(signal.SIGSTOP)
        armed.release("kafka-before-commit")
        until("the brokers end the transaction", lambda: transaction(t) == "CompleteAbort")
        j.judge(2)
        w.proc.send_signal(signal.SIGCONT)
        end = j.follow(w)
        assert end["outcome"] == codec.OUTCOMES["outage"] and end["sqlstate"] == "25P04", end
        j.reap(w)
    j.finish()


def test_idle_beyond_the_expiry_of_the_id():
    b = Broker(transactional_id_expiration_ms=3000, producer_id_expiration_ms=3000)
    try:
        t = Target(b)
        j = Journal(t)
        j.add()
        w = j.start()
        j.feed(w)
        assert j.follow(w) == "done"
        until("the brokers forget the id", lambda: transaction(t) is None)
        j.add()
        j.feed(w)
        assert j.follow(w) == "done"
        w.close()
        until("the brokers forget the id", lambda: transaction(t) is None)
        j.add()
        j.finish()
    finally:
        b.remove()


def held_transaction(point):
    """A journal of which a program was killed at the point, with an open transaction."""
    t = Target(partitions=1)
    j = Journal(t)
    j.add(2)
    j.finish()
    j.add(2)
    with faulty() as (armed, program):
        armed.arm(point, "kill")
        w = j.start(**program, transaction_timeout=1500 if point == "kafka-records-reported" else 60000)
        j.feed(w)
        assert j.follow(w) == "end"
        j.reap(w)
    t.b.ask("produce", t.topic, "other")
    assert b"other" not in [r["key"] for r in t.read()], "the open transaction does not hide what is behind it"
    return j


def others(t):
    return [r["key"] for r in t.read()].count(b"other")


def test_orphan_ends_with_the_next_start():
    """The transaction of a killed program hides the records of others until its successor is there."""
    j = held_transaction("kafka-before-commit")
    w = j.start()
    assert j.position(w) == 2
    until("the other record is there", lambda: others(j.t) == 1)
    w.close()
    j.foreign = {b"other"}
    j.finish()


def test_orphan_ends_with_its_time():
    """Without a successor the brokers end it after transaction_timeout."""
    j = held_transaction("kafka-records-reported")
    until("the other record is there", lambda: others(j.t) == 1)
    j.foreign = {b"other"}
    j.finish()


def test_open_transaction_hides_the_end():
    """The position is not read before all of it can be seen."""
    t = Target()
    j = Journal(t)
    j.add(2)
    w = j.start()
    j.feed(w)
    assert j.follow(w) == "done"
    t.b.ask("open", "stranger", t.position)
    j.add(2)
    j.feed(w)
    assert j.follow(w) == "done"
    w.close()
    f = t.refused(timeout=3000)
    assert f["outcome"] == "outage" and "has not ended" in f["message"], f
    t.b.ask("end", "stranger")
    j.add(2)
    j.finish()


def test_open_transaction_in_a_topic_of_events():
    """Nothing is written beside records whose transaction has no end: the next end would count for them, too."""
    t = Target()
    j = Journal(t)
    t.b.ask("open", "stranger", t.topic)
    j.add(2)
    w = j.start(timeout=3000)
    j.feed(w)
    f = j.follow(w)
    assert f["outcome"] == codec.OUTCOMES["outage"] and "has not ended" in f["message"], f
    assert t.topic in f["message"] and "kafka-transactions.sh abort" in f["message"], f
    j.reap(w)
    t.b.ask("end", "stranger")
    j.finish()


def kill_broker_at(b, j, point, before_release):
    """The broker dies while the program is at the point, or when it has just left it."""
    base = len(j.batches)
    j.add(3, events=200)
    with faulty() as (armed, program):
        armed.arm(point, "stall")
        w = j.start(timeout=3000, **program)
        j.judge(base)
        j.feed(w)
        assert j.follow(w, lambda: armed.is_hit(point)) == "stopped", f"the program does not pass {point}"
        if before_release:
            b.kill()
        armed.release(point)
        if not before_release:
            b.kill()
        end = j.follow(w)
        assert end == "done" or (end != "end" and end["outcome"] == codec.OUTCOMES["outage"]), end
        w.sock.close()
        w.proc.wait(60)
    b.start()
    j.finish()


def test_broker_killed_under_way():
    """At any moment: the batches are there as a whole, or not at all, and the position says which."""
    b = Broker()
    try:
        j = Journal(Target(b))
        for point in ("kafka-records-sent", "kafka-before-commit", "kafka-committed"):
            kill_broker_at(b, j, point, True)
        kill_broker_at(b, j, "kafka-before-commit", False)
    finally:
        b.remove()


def test_broker_comes_back():
    """A short outage costs nothing but time."""
    b = Broker()
    try:
        t = Target(b)
        w = t.start(timeout=60000)
        sent = send(w, 5)
        b.kill()
        batch, new = w.events([{"key": str(i)} for i in range(50)])
        b.start()
        w.outcomes(batch, 50)
        w.expect("VERDICT", batch=batch, kind=1)
        arrive(t, sent | {i.hex for i in new})
        w.close()
    finally:
        b.remove()


def test_broker_stopped():
    """A broker that does not answer is an outage, and PINGs are answered meanwhile."""
    b = Broker()
    try:
        t = Target(b)
        w = t.start(timeout=3000)
        sent = send(w, 5)
        with paused(b):
            batch, new = w.events([{}])
            w.send("PING", nonce=7)
            w.expect("PONG", 2, nonce=7)
            f = failed(w)
            assert f["outcome"] == "outage", f
            f = t.refused(timeout=3000)
            assert f["outcome"] == "outage", f
        after_restart(t, sent, {i.hex for i in new}, timeout=30000)
    finally:
        b.remove()


def test_broker_stopped_for_a_moment():
    """A pause that is shorter than the timeout costs nothing but time."""
    b = Broker()
    try:
        j = Journal(Target(b), timeout=60000)
        j.add(2)
        w = j.start()
        j.feed(w)
        assert j.follow(w) == "done"
        j.add(2)
        with paused(b):
            j.feed(w)
            w.send("PING", nonce=7)
            w.expect("PONG", 10, nonce=7)
        assert j.follow(w) == "done"
        w.close()
        j.judge(4)
    finally:
        b.remove()


def test_killed_at_any_moment():
    t = Target()
    sent = set()
    for n in range(12):
        w = t.start(incarnation=f"log-{n}")
        stored = w.ready["row_id"]
        arrive(t, sent)
        batch, new = w.events([{"key": str(i)} for i in range(500)], row_id=stored + 1)
        time.sleep(0.004 * n)
        w.kill()
        w = t.start(incarnation=f"next-{n}")
        if w.ready["row_id"] == stored + 1:
            sent |= {i.hex for i in new}
        arrive(t, sent)
        w.close()


def test_creates_topics_if_told():
    b = Broker(auto_create=True)
    try:
        for create, outcome in (("off", "rejected"), ("on", "acked")):
            t = Target(b, topic="auto.{aggregate_type}", position=create == "off")
            w = t.start(create_topics=create, timeout=20000)
            batch, _ = w.events([{}])
            assert w.outcomes(batch, 1) == [outcome], w.notes
            if outcome == "acked":
                w.expect("VERDICT", batch=batch, kind=1)
                described = b.ask("describe", t.position)
                assert "cleanup.policy=compact" in described and "partitions=1" in described, described
            w.kill()
    finally:
        b.remove()
