"""What a record looks like: topic, partition, key, headers, value; for consumers of Debezium and CloudEvents."""
import json
import random
import uuid

from kafka.target import Target, commits, failed

ID = uuid.UUID("634a77f9-ad53-4281-a536-92a75ba8376f")
HEADERS = ('{"trace": "4f\\u00e9\\ud83d\\ude00\\"\\\\\\n", "n": 5, "yes": true, "none": null, "o": {"a": [1, "}"]},'
           ' "id": "own", "Type": "own", "content_type": "own", "ce-id": "own", "idx": "kept"}').encode()
OWN = [("trace", '4fé😀"\\\n'.encode()), ("n", b"5"), ("yes", b"true"), ("none", None),
       ("o", b'{"a": [1, "}"]}'), ("idx", b"kept")]


def deliver(events, target=None, **options):
    t = target or Target()
    w = t.start(**options)
    batch, _ = w.events(events)
    commits(w, batch, len(events))
    w.close()
    return t.read()


def test_debezium():
    """What the outbox event router writes with string converters, read with both of Connect's converters."""
    payload = '{"total": 99, "é": [1.50, null]}'.encode()
    [r] = deliver([{"id": ID, "key": "A-7", "type": "Stocked", "headers": HEADERS, "payload": payload}])
    assert (r["key"], r["value"], r["timestamp"]) == (b"A-7", payload, 1795248000000), r
    assert r["headers"] == OWN + [("id", str(ID).encode()), ("type", b"Stocked")], r["headers"]
    assert r["string"] == [b"A-7", payload], "the string converter"
    assert r["json"][1] == "{total=99, é=[1.5, null]}".encode(), "the JSON converter"


def test_json_key():
    """Escaped as Connect's JsonConverter does it: other bytes would go to another partition."""
    for key, written in (('A"7', b'"A\\"7"'), ("é/\x7f😀", '"é/\x7f\\uD83D\\uDE00"'.encode()),
                         ("\\\b\t\n\f\r\x01\x1f", rb'"\\\b\t\n\f\r\u0001\u001F"')):
        [r] = deliver([{"key": key}], key_format="json")
        assert r["key"] == written and r["json"][0] == key.encode(), r


def test_bytes_and_tombstones():
    events = [{"id": uuid.uuid4(), "key": k, "payload": p, "json": j, "content_type": c} for k, p, j, c in (
        ("bytes", bytes(range(256)), False, "image/png"), ("empty", b"", False, ""), ("null", b"null", True, ""))]
    r = {r["key"]: r for r in deliver(events)}
    assert r[b"bytes"]["value"] == bytes(range(256)) and ("content-type", b"image/png") in r[b"bytes"]["headers"], r
    assert r[b"empty"]["value"] == b"" and r[b"null"]["value"] is None, r
    [r] = deliver([{"payload": b"null"}], tombstones="off")
    assert r["value"] == b"null", r


def test_cloudevents_binary():
    [r] = deliver([{"id": ID, "key": "A-7", "type": "Stocked", "headers": b'{"trace": "t"}', "payload": b'{"a": 1}'}],
                  format="cloudevents_binary", source="/shop/{aggregate_type}/{relay}")
    assert r["headers"] == [
        ("trace", b"t"), ("ce_specversion", b"1.0"), ("ce_id", str(ID).encode()), ("ce_source", b"/shop/order/orders"),
        ("ce_type", b"Stocked"), ("ce_subject", b"A-7"), ("ce_time", b"2026-11-21T08:00:00.000001Z"),
        ("ce_partitionkey", b"A-7"), ("content-type", b"application/json")], r["headers"]
    assert (r["key"], r["value"]) == (b"A-7", b'{"a": 1}'), r


def test_cloudevents_structured():
    events = [{"id": ID, "key": 'A"7', "type": "Stocked", "payload": b'{"a": 1}'},
              {"id": ID, "key": "b", "payload": b"\0\xff\x10\x80", "json": False, "content_type": "image/png"},
              {"id": ID, "key": "c", "payload": b"null"}]
    r = {r["key"]: r for r in deliver(events, format="cloudevents_structured")}
    first, second, third = r[b'A"7'], r[b"b"], r[b"c"]
    assert ("content-type", b"application/cloudevents+json; charset=UTF-8") in first["headers"], first
    assert json.loads(first["value"]) == {
        "specversion": "1.0", "id": str(ID), "source": "/idempotency/orders", "type": "Stocked", "subject": 'A"7',
        "time": "2026-11-21T08:00:00.000001Z", "partitionkey": 'A"7', "datacontenttype": "application/json",
        "data": {"a": 1}}, first["value"]
    assert json.loads(second["value"])["data_base64"] == "AP8QgA==", second["value"]
    assert json.loads(second["value"])["datacontenttype"] == "image/png"
    assert third["value"] is None and ("ce_specversion", b"1.0") in third["headers"], third


def test_partitions_of_java():
    """The partition is the one that Java's producer chooses for the key."""
    t = Target(partitions=7)
    draw = random.Random(7)
    keys = ["", "a", "A-7", "é"] + ["".join(chr(draw.choice([65, 97, 233, 0x4e2d, 0x1f600]))
                                            for _ in range(draw.randrange(1, 20))) for _ in range(60)]
    for r in deliver([{"key": k} for k in keys], target=t):
        assert [str(r["partition"])] == t.b.ask("partition", r["key"].decode(), 7), r


def test_topics():
    t = Target()
    for name in ("order", "Paid", "eu"):
        t.b.topic(f"{t.topic}.{name}", 1)
    for template, topic in (("{aggregate_type}", "order"), ("{event_type}", "Paid"), ("{header:region}", "eu")):
        w = t.start(topic=f"{t.topic}.{template}")
        batch, _ = w.events([{"type": "Paid", "headers": b'{"region": "eu"}'}])
        commits(w, batch, 1)
        w.close()
        assert len(t.b.read(f"{t.topic}.{topic}")) == 1, template


def test_topics_that_cannot_be():
    t = Target()
    w = t.start(topic=t.topic + ".{header:region}")
    batch, _ = w.events([{"key": "a"}, {"key": "b", "headers": b'{"region": "a b"}'},
                         {"key": "c", "headers": b'{"region": "%s"}' % (b"x" * 250)},
                         {"key": "d", "headers": b'{"region": "none"}'}])
    assert w.outcomes(batch, 4) == ["impossible"] * 3 + ["rejected"], w.notes
    assert [w.notes[i][0] for i in range(4)] == ["22023", "22023", "22023", "42704"], w.notes
    assert t.topic + ".none" in w.notes[3][1], w.notes
    w.send("SETTLE", batch=batch)
    w.expect("VERDICT", batch=batch, kind=1)
    w.close()


def test_bad_options():
    t = Target()
    for options, text in ((dict(topic="a{b}"), "placeholder"), (dict(topic="a}"), "brace"), (dict(topic="a b"), "topic"),
                          (dict(position_topic="{relay} x"), "position_topic"), (dict(brokers=None), "brokers"),
                          (dict(user="u"), "security_protocol"), (dict(security_protocol="sasl_ssl"), "sasl_mechanism"),
                          (dict(sslcert=__file__), "sslkey")):
        f = failed(t.start(hello=False, **options))
        assert f["outcome"] == "rejected" and text in f["message"], (options, f)
