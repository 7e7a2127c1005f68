"""What stands in the stream: subjects, headers, bodies, positions; what is refused."""
import json
import uuid

from nats.target import Target, commits, failed

ID = uuid.UUID("634a77f9-ad53-4281-a536-92a75ba8376f")


def deliver(t, events, expected=None, **options):
    w = t.start(**options)
    batch, _ = w.events(events)
    got = w.outcomes(batch, len(events))
    if got != ["acked"] * len(events):
        w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()
    assert got == (expected or ["acked"] * len(events)), w.notes
    return w


def test_message():
    t = Target()
    headers = {"trace": "4f", "n": 5, "no": None, "Event-Id": "evil", "nats_msg_id": "evil", "Content-Type": "evil", "ce-id": "evil"}
    deliver(t, [{"id": ID, "key": "A é", "type": "Stocked", "headers": json.dumps(headers).encode(), "payload": b'{"a": 1}'},
                {"key": "b", "type": "T", "payload": b"\0\xff", "json": False, "content_type": "image/png"}])
    first, second = t.events()
    assert (first.subject, first.data) == (f"{t.name}.order.Stocked", b'{"a": 1}')
    own = [(k, v) for k, v in first.headers if not k.startswith("Nats-")]
    assert sorted(own) == sorted([
        ("trace", "4f"), ("n", "5"), ("Content-Type", "application/json"), ("Event-Id", str(ID)), ("Event-Type", "Stocked"),
        ("Aggregate-Type", "order"), ("Aggregate-Id", "A%20%C3%A9")]), own
    assert (second.data, second.header("Content-Type")) == (b"\0\xff", "image/png")


def test_cloudevents():
    event = {"id": ID, "key": "A-7", "type": "Stocked", "payload": b'{"a": 1}'}
    t = Target()
    deliver(t, [event], format="cloudevents_binary", source="/shop/{aggregate_type}/{relay}")
    deliver(t, [event], format="cloudevents_structured")
    binary, structured = t.events()
    assert (binary.header("ce-source"), binary.header("ce-subject"), binary.header("ce-id")) == ("/shop/order/orders", "A-7", str(ID))
    assert binary.data == b'{"a": 1}' and binary.header("Content-Type") == "application/json"
    ce = json.loads(structured.data)
    assert (ce["id"], ce["data"], ce["type"]) == (str(ID), {"a": 1}, "Stocked"), ce
    assert structured.header("Content-Type").startswith("application/cloudevents+json")


def test_refused_events():
    """An event is refused alone; it gets to no subject that is not its own."""
    t = Target()
    types = ["ok", "a b", "a.*", ">", "a..b", "", "dots.are.words", "x" * 600]
    outcomes = ["acked"] + ["impossible"] * 5 + ["acked", "impossible"]
    w = deliver(t, [{"key": str(i), "type": n} for i, n in enumerate(types)], outcomes, subject=t.name + ".{event_type}")
    assert {note[0] for note in w.notes.values() if note[0] != "00000"} == {"22023"}, w.notes
    types = [t.name + ".good", "$JS.API.STREAM.DELETE." + t.name, "_INBOX.x", "elsewhere", t.position, f"idempotency.position.{t.name}.other"]
    w = deliver(t, [{"key": str(i), "type": n} for i, n in enumerate(types)], ["acked", "impossible", "impossible", "rejected", "impossible", "impossible"], subject="{event_type}")
    assert [w.notes[i][0] for i in range(1, 6)] == ["22023", "22023", "42704", "42501", "42501"], w.notes
    headers = [{"a b": "1"}, {"x": "a\r\nY: 1"}, {"x": "1"}, {}]
    w = deliver(t, [{"key": str(i), "headers": json.dumps(h).encode()} for i, h in enumerate(headers)],
                ["impossible", "impossible", "acked", "impossible"], subject=t.name + ".{header:x}")
    assert sorted(m.subject[len(t.name):] for m in t.events()) == [".1", ".dots.are.words", ".good", ".ok"]


def test_too_large():
    t = Target(max_msg_size=2000)
    w = deliver(t, [{"key": "a"}, {"key": "b", "payload": b'"' + b"x" * 3000 + b'"'}, {"key": "c"}], ["acked", "impossible", "acked"])
    assert w.notes[1][0] == "54000" and len(t.events()) == 2, w.notes
    t = Target()
    w = deliver(t, [{"key": "b", "payload": b'"' + b"x" * 1048576 + b'"'}, {"key": "c"}], ["impossible", "acked"])
    assert w.notes[0][0] == "54000" and len(t.events()) == 1, w.notes


def test_larger_than_the_stream():
    """A stream that deletes the oldest takes a message that is larger than itself, and deletes it."""
    t = Target(max_bytes=5000)
    large = {"key": "a", "payload": b'"' + b"x" * 6000 + b'"'}
    w = deliver(t, [large, {"key": "b"}], ["impossible", "acked"])
    assert w.notes[0][0] == "54000" and len(t.events()) == 1, w.notes


def test_too_many_headers():
    t = Target()
    large = {"key": "a", "headers": json.dumps({f"h{i}": "x" * 20 for i in range(3000)}).encode()}
    w = deliver(t, [large, {"key": "b"}], ["impossible", "acked"])
    assert w.notes[0][0] == "54000" and len(t.events()) == 1, w.notes


def test_all_refused():
    """A batch without a message moves the position, and no more."""
    t = Target()
    deliver(t, [{"type": "a b"}], ["impossible"])
    assert t.stored()["epoch"] == 1 and t.stored()["row_id"] > 0 and not t.events()


def test_full_batch():
    """999 events and the position are the server's 1,000 messages; one position is kept."""
    t = Target()
    w = t.start()
    for _ in range(3):
        batch, _ = w.events([{"key": str(i % 7), "payload": b'{"i": %d}' % i} for i in range(999)])
        commits(w, batch, 999)
    w.close()
    assert len(t.values()) == 2997 and len(t.client.messages(t.name, t.position)) == 1
    assert [json.loads(m.data)["i"] for m in t.events()] == list(range(999)) * 3


def test_stream_of_others():
    """Others write to the stream meanwhile: neither disturbs the other."""
    t = Target()
    w = t.start()
    for i in range(20):
        t.client.store(f"{t.name}.foreign", b"%d" % i)
        batch, _ = w.events([{"key": "k"}] * 5)
        t.client.store(f"{t.name}.foreign", b"%d" % i)
        commits(w, batch, 5)
    w.close()
    assert len(t.events()) == 140 and len(t.client.messages(t.name, f"{t.name}.foreign")) == 40


def test_bad_options():
    t = Target()
    for options, text in ((dict(subject="a{b}"), "placeholder"), (dict(subject="a b"), "subject"), (dict(stream="a.b"), "stream"),
                          (dict(position_subject="{relay}..x"), "position_subject"), (dict(servers=None), "servers"),
                          (dict(servers="nats://a:s3cret@b"), "servers"), (dict(user="u"), "password"), (dict(token="s3cret", user="u", password="s3cret"), "exclude"),
                          (dict(sslrootcert=__file__), "tls"), (dict(tls="on", sslcert=__file__), "sslkey"), (dict(stream="NONE"), "stream not found")):
        f = failed(t.start(hello=False, **options))
        assert f["outcome"] == "rejected" and text in f["message"], (options, f)


def test_unfit_streams():
    """Streams that would lose what they acknowledge, or cannot hold a position, are refused."""
    for config, text in ((dict(retention="interest"), "retention"), (dict(retention="workqueue"), "retention"), (dict(no_ack=True, allow_atomic=None), "no_ack"),
                         (dict(allow_atomic=None), "allow_atomic"), (dict(allow_msg_counter=True, allow_msg_ttl=None), "allow_msg_counter"),
                         (dict(subject_transform={"src": ">", "dest": "other.>"}), "subject_transform"), (dict(subjects=["nothing.of.it"]), "does not have the subject")):
        t = Target(**config)
        f = t.refused()
        assert f["outcome"] == "rejected" and text in f["message"], (config, f)
        t.client.api(f"STREAM.DELETE.{t.name}")
    t = Target()
    t.make(subject_transform={"src": f"{t.name}.>", "dest": f"{t.name}.other.>"})
    deliver(t, [{}])
    deliver(t, [{}])
    assert len(t.events()) == 2, "a transform of events harms nothing"
    t = Target(subjects=None)
    f = t.refused(subject=t.name + ".x")
    assert "does not have the subject" in f["message"], f
