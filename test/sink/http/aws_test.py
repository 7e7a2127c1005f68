"""SQS, SNS and EventBridge: signatures at moto, FIFO queues at ElasticMQ, refusals at a server of our own."""
import base64
import contextlib
import functools
import hashlib
import hmac
import json
import re
import urllib.parse

from aws import REGION, ElasticMQ, Moto
from receiver import Receiver, Reply
from sinklib import look
from target import LOOPBACK, SINK, Ended, fate, start

KEYS = 7


@contextlib.contextmanager
def strict_moto(make):
    """moto with what make(moto) makes, and only signed requests from then on."""
    with Moto() as moto:
        made = make(moto)
        moto.strict()
        yield moto, made


@contextlib.contextmanager
def into(service, url, user, password, **options):
    w = start({"service": service, "url": url, "region": REGION, "user": user, "password": password, **options})
    try:
        yield w
    finally:
        w.kill()


def events(count, first=0):
    return [{"key": f"k{i % KEYS}", "payload": b'{"n": %d}' % i} for i in range(first, first + count)]


def acked(w, some):
    got = w.all(some)
    assert {g.outcome for g in got} == {"acked"}, [g for g in got if g.outcome != "acked"][:3]
    return [str(i) for i in w.ids]


def attribute(m, name):
    return m["MessageAttributes"][name]["StringValue"]


def in_order(bodies):
    """[(key, n)]: those of each key rise."""
    last = {}
    for key, n in bodies:
        assert n > last.get(key, -1), (key, n, last[key])
        last[key] = n


def test_sqs():
    """100 events in batches; the messages have the event's fields, and text that no URL and no XML would leave alone."""
    with strict_moto(lambda m: m.queue("orders")) as (moto, queue), into("sqs", queue, moto.key, moto.secret) as w:
        ids = acked(w, events(100))
        found = moto.messages(queue, 100)
        assert sorted(attribute(m, "event_id") for m in found) == sorted(ids)
        assert {json.loads(m["Body"])["n"] for m in found} == set(range(100))
        in_order((attribute(m, "aggregate_id"), json.loads(m["Body"])["n"]) for m in found)
        odd = "\u20ac <a b=\"c\">&amp; + % \u00fc ' \\ \U0001f600"
        acked(w, [{"key": odd, "type": "A/b c", "aggregate_type": "order&", "payload": json.dumps({"t": odd}).encode(),
                   "headers": json.dumps({"x": odd}).encode()}])
        [m] = moto.messages(queue, 1)
        assert json.loads(m["Body"]) == {"t": odd} and attribute(m, "aggregate_id") == odd, m
        assert attribute(m, "event_type") == "A/b c" and attribute(m, "aggregate_type") == "order&"
        # bytes are no text
        acked(w, [{"payload": bytes(range(256)), "json": False}])
        [m] = moto.messages(queue, 1)
        assert base64.b64decode(m["Body"]) == bytes(range(256)), m
        # empty fields: SQS takes no empty attribute
        acked(w, [{"key": "", "type": "", "aggregate_type": "", "payload": b"1"}])


def test_sqs_large_messages():
    """No request is larger than SQS takes; one that no request can take is refused alone."""
    with strict_moto(lambda m: m.queue("orders")) as (moto, queue), into("sqs", queue, moto.key, moto.secret) as w:
        big = [{"key": str(i), "payload": b'"' + b"x" * 100000 + b'"'} for i in range(20)]
        acked(w, big)
        assert len(moto.messages(queue, 20)) == 20
        got = w.all([{"key": "a"}, {"key": "b", "payload": b'"' + b"x" * (2 << 20) + b'"'}, {"key": "c"}])
        assert [g.outcome for g in got] == ["acked", "rejected", "acked"], got


def test_logins():
    """Wrong keys and tokens are the relay's, and no event's; no message has them."""
    with strict_moto(lambda m: m.queue("orders")) as (moto, queue):
        good = {"service": "sqs", "url": queue, "region": REGION, "user": moto.key, "password": moto.secret}
        assert fate(**{**good, **moto.session}).outcome == "acked"
        found, status = look(SINK, {"allowed_addresses": LOOPBACK, **good})
        assert status == 0 and found["connection"][0], found
        for wrong in ({"password": "wr0ng/secret+"}, {"user": "AKIAXXXXXXXXXXXXXXXX"}, {**moto.session, "session_token": "wr0ng/secret+"},
                      {"region": "us-east-1", "password": "wr0ng/secret+"}):
            got = fate(**{**good, **wrong})
            assert got.outcome == "rejected" and got.sqlstate in ("28000", "08004"), (wrong, got)
            assert isinstance(got, Ended), "an event is blamed for the login"
            assert "wr0ng" not in got.message and moto.secret not in got.message, got
        assert len(moto.messages(queue, 10)) == 1


def test_queue_that_is_not_there():
    with strict_moto(lambda m: m.queue("orders")) as (moto, queue):
        got = fate(service="sqs", url=queue + "x", region=REGION, user=moto.key, password=moto.secret)
        assert isinstance(got, Ended) and got.outcome == "rejected", got


def fifo(peer, queue):
    """Groups are keys, the deduplication id is the event's id, and a repeat is no message."""
    with into("sqs", queue, peer.key, peer.secret) as w:
        some = [{**e, "id": None} for e in events(60)]
        ids = acked(w, some)
        for e, i in zip(some, w.ids):
            e["id"] = i
    # another program sends them all again
    with into("sqs", queue, peer.key, peer.secret) as w:
        acked(w, some)
        acked(w, events(30, 60))
        ids += [str(i) for i in w.ids]
    found = peer.messages(queue, 200)
    assert len(found) == 90, f"{len(found)} messages of 90 events"
    assert {m["Attributes"]["MessageDeduplicationId"] for m in found} == set(ids)
    groups = {}
    for m in found:
        groups.setdefault(m["Attributes"]["MessageGroupId"], set()).add(attribute(m, "aggregate_id"))
    assert len(groups) == KEYS and all(len(keys) == 1 for keys in groups.values()), groups
    in_order((m["Attributes"]["MessageGroupId"], json.loads(m["Body"])["n"]) for m in found)


def test_fifo_at_moto():
    with strict_moto(lambda m: m.queue("orders.fifo", FifoQueue="true")) as (moto, queue):
        fifo(moto, queue)


def test_fifo_at_elasticmq():
    with ElasticMQ() as peer:
        queue = peer.queue("orders.fifo", FifoQueue="true")
        fifo(peer, queue)
        # long and odd keys
        with into("sqs", queue, peer.key, peer.secret) as w:
            odd = ["k" * 300, "k" * 299 + "x", "a b", "\u20ac", "", "a" * 128]
            acked(w, [{"key": k, "payload": b'{"n": 1}'} for k in odd])
        found = peer.messages(queue, 20)
        assert len({m["Attributes"]["MessageGroupId"] for m in found}) == len(odd), "two keys share a group"
        assert all(re.fullmatch(r"[!-~]{1,128}", m["Attributes"]["MessageGroupId"]) for m in found)


def test_sqs_at_elasticmq():
    with ElasticMQ() as peer:
        queue = peer.queue("orders")
        with into("sqs", queue, peer.key, peer.secret) as w:
            ids = acked(w, events(50))
        assert sorted(attribute(m, "event_id") for m in peer.messages(queue, 50)) == sorted(ids)


def topic(moto, name, topics={}, queues={}):
    """(topic, queue that is subscribed to it), with these attributes."""
    arn = moto.call("sns", "create_topic", Name=name, Attributes=topics)["TopicArn"]
    queue = moto.queue(name, **queues)
    there = moto.call("sqs", "get_queue_attributes", QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    moto.call("sns", "subscribe", TopicArn=arn, Protocol="sqs", Endpoint=there, Attributes={"RawMessageDelivery": "true"})
    return arn, queue


def test_sns():
    with strict_moto(lambda m: topic(m, "orders")) as (moto, (arn, queue)), \
            into("sns", f"{moto.url}/{arn}", moto.key, moto.secret) as w:
        ids = acked(w, events(50))
        found = moto.messages(queue, 50)
        assert sorted(attribute(m, "event_id") for m in found) == sorted(ids)
        odd = "\u20ac <a b=\"c\">&amp; + % \u00fc ' ~*-_."
        acked(w, [{"key": odd, "payload": json.dumps({"t": odd}).encode()}])
        [m] = moto.messages(queue, 1)
        assert json.loads(m["Body"]) == {"t": odd} and attribute(m, "aggregate_id") == odd, m


def test_sns_fifo():
    with strict_moto(lambda m: topic(m, "orders.fifo", {"FifoTopic": "true"}, {"FifoQueue": "true"})) as (moto, (arn, queue)), \
            into("sns", f"{moto.url}/{arn}", moto.key, moto.secret) as w:
        ids = acked(w, events(30))
        found = moto.messages(queue, 30)
        assert {attribute(m, "event_id") for m in found} == set(ids)
        assert {m["Attributes"]["MessageDeduplicationId"] for m in found} == set(ids)


def test_eventbridge():
    def make(moto):
        moto.call("events", "create_event_bus", Name="shop")
        queue = moto.queue("orders")
        there = moto.call("sqs", "get_queue_attributes", QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        moto.call("events", "put_rule", Name="all", EventBusName="shop", EventPattern=json.dumps({"detail-type": ["T"]}))
        moto.call("events", "put_targets", Rule="all", EventBusName="shop", Targets=[{"Id": "1", "Arn": there}])
        return queue
    with strict_moto(make) as (moto, queue), into("eventbridge", f"{moto.url}/shop", moto.key, moto.secret) as w:
        ids = acked(w, events(40))
        found = [json.loads(m["Body"]) for m in moto.messages(queue, 40)]
        assert sorted(r for m in found for r in m["resources"]) == sorted(f"urn:uuid:{i}" for i in ids), found[:1]
        assert {m["detail"]["n"] for m in found} == set(range(40)) and {m["detail-type"] for m in found} == {"T"}
        # EventBridge takes objects only
        assert w.one(payload=b"[1]").outcome == "impossible"


# Refusals of some messages of a request, which the mocks do not make.

def sqs_answer(decide):
    def answer(r):
        body = r.json()
        assert r.header("x-amz-target") == "AmazonSQS.SendMessageBatch" and len(body["Entries"]) <= 10
        assert len({attribute(e, "aggregate_id") for e in body["Entries"]}) == len(body["Entries"]), "two of a key in a request"
        good, bad = [], []
        for e in body["Entries"]:
            said = decide(e)
            if said is None:
                good.append({"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": "x"})
            elif said:
                bad.append({"Id": e["Id"], "Code": said[0], "SenderFault": said[1], "Message": "because"})
        return Reply(200, {"Successful": good, "Failed": bad}, "Content-Type: application/x-amz-json-1.0")
    return answer


LOGIN = {"user": "AKIAIOSFODNN7EXAMPLE", "password": "secret", "region": REGION}


def sent(answer, service="sqs", path="/0/orders", **more):
    with Receiver(answer) as there:
        w = start({"service": service, "url": there.url + path, **LOGIN, **more})
        try:
            got = w.all([{"key": str(i), "payload": b'{"n": %d}' % i} for i in range(10)])
        except Ended as ended:
            got = ended
        finally:
            w.kill()
        return got, there


def test_partial_failures():
    """Each event has the verdict of its own entry; one that no entry names is not acked."""
    verdicts = {2: ("InvalidMessageContents", True), 4: ("InternalError", False), 6: (), 8: ("Throttled", False)}
    got, there = sent(sqs_answer(lambda e: verdicts.get(json.loads(e["MessageBody"])["n"])))
    outcomes = [g.outcome for g in got]
    assert outcomes[2] == "rejected" and outcomes[4] == outcomes[8] == "retry" and outcomes[6] in ("retry", "unknown"), outcomes
    assert [o for i, o in enumerate(outcomes) if i % 2 or not i] == ["acked"] * 6, outcomes
    assert "InvalidMessageContents" in got[2].message and "because" in got[2].message


def test_answers_that_are_none():
    """A 2xx without entries acknowledges nothing."""
    for body in (b"", b"{}", b"[]", b"null", b"<html>ok</html>", b'{"Successful": [', b'{"Successful": null}',
                 b'{"Successful": [{"Id": "99"}]}', b'{"Successful": [{"Id": 0}]}', b'{"Successful": "0"}', b'{"Successful": [null]}',
                 b'{"Successful": [{"Id": "-1"}]}', b'{"Successful": [{"id": "0"}]}',
                 b'{"Successful": [{"Id": "4294967296"}]}', b"\xff" * 100, b'{"Failed": [{"Id": "0"}]}'):
        got, _ = sent(Reply(200, body))
        outcomes = [g.outcome for g in got] if not isinstance(got, Ended) else [got.outcome]
        assert set(outcomes) <= {"retry", "unknown", "outage", "rejected"}, (body, outcomes)
    # the same entry twice, in both lists
    got, _ = sent(Reply(200, b'{"Successful": [{"Id": "0"}, {"Id": "0"}], "Failed": [{"Id": "0", "Code": "x", "SenderFault": true}]}'))
    assert got[0].outcome in ("acked", "rejected", "retry") and {g.outcome for g in got[1:]} <= {"retry", "unknown"}, got


def test_errors_of_aws():
    """By the error's name: throttling is for later, a missing queue or a bad signature is the relay's."""
    for status, kind, outcomes, ends in (
            (400, "com.amazonaws.sqs#RequestThrottled", {"retry"}, False), (400, "ThrottlingException", {"retry"}, False),
            (503, "ServiceUnavailable", {"retry"}, False), (500, "InternalFailure", {"retry"}, False),
            (403, "com.amazon.coral.service#AccessDeniedException", {"rejected"}, True),
            (403, "SignatureDoesNotMatch", {"rejected"}, True), (400, "com.amazonaws.sqs#QueueDoesNotExist", {"rejected"}, True),
            (403, "InvalidClientTokenId", {"rejected"}, True)):
        got, _ = sent(Reply(status, {"__type": kind, "message": "because"}, "Content-Type: application/x-amz-json-1.0"))
        if ends:
            assert isinstance(got, Ended) and {got.outcome} == outcomes, (kind, got)
        else:
            assert not isinstance(got, Ended) and {g.outcome for g in got} == outcomes, (kind, got)


def test_sns_partial_failures():
    def answer(r):
        ids = [v for k, v in r.form.items() if k.endswith(".Id")]
        assert r.form["Action"] == "PublishBatch" and r.form["TopicArn"] == "arn:aws:sns:eu-central-1:0:orders"
        good = "".join(f"<member><Id>{i}</Id><MessageId>m</MessageId></member>" for i in ids if i not in ("1", "3"))
        bad = "<member><Id>1</Id><Code>InvalidParameter</Code><SenderFault>true</SenderFault><Message>because</Message></member>"
        return Reply(200, (f"<PublishBatchResponse><PublishBatchResult><Successful>{good}</Successful><Failed>{bad}</Failed>"
                           "</PublishBatchResult></PublishBatchResponse>").encode(), "Content-Type: text/xml")
    got, _ = sent(answer, "sns", "/arn:aws:sns:eu-central-1:0:orders", concurrency=1)
    outcomes = [g.outcome for g in got]
    assert outcomes[1] == "rejected" and outcomes[3] in ("retry", "unknown") and outcomes.count("acked") == 8, outcomes


def test_eventbridge_partial_failures():
    def answer(r):
        entries = [{"EventId": "e"} for _ in r.json()["Entries"]]
        entries[1] = {"ErrorCode": "ThrottlingException", "ErrorMessage": "later"}
        entries[3] = {"ErrorCode": "MalformedDetail", "ErrorMessage": "because"}
        return Reply(200, {"FailedEntryCount": 2, "Entries": entries}, "Content-Type: application/x-amz-json-1.1")
    got, _ = sent(answer, "eventbridge", "/shop", concurrency=1)
    outcomes = [g.outcome for g in got]
    assert outcomes[1] == "retry" and outcomes[3] == "rejected" and outcomes.count("acked") == 8, outcomes


def test_signature_covers_what_is_sent():
    """By Amazon's own algorithm, over the request that came: each header that is named, path, query, body."""
    seen = []

    def answer(r):
        seen.append(r)
        return sqs_answer(lambda e: None)(r)
    sent(answer, session_token="token/+=")
    [r] = seen[:1]
    text = r.header("authorization")
    assert text.startswith("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"), text
    names = re.search("SignedHeaders=([^,]+)", text)[1].split(";")
    assert "host" in names and "x-amz-date" in names and "x-amz-security-token" in names and names == sorted(names), names
    assert r.header("x-amz-security-token") == "token/+=" and all(r.header(n) is not None for n in names)
    assert signature(r, names) == re.search("Signature=([0-9a-f]+)", text)[1]


def signature(r, names):
    """Signature Version 4, from its description."""
    day, region, service, _ = re.search(r"Credential=[^/]+/([^,]+),", r.header("authorization"))[1].split("/")
    lines = [f"{n}:{' '.join(r.header(n).split())}" for n in names]
    # services but S3 encode the path twice
    path = "/".join(urllib.parse.quote(p, safe="-_.~") for p in r.path.split("/"))
    canonical = "\n".join([r.method, path, r.target.partition("?")[2], *lines, "", ";".join(names), hashlib.sha256(r.body).hexdigest()])
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", r.header("x-amz-date"), scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = functools.reduce(lambda k, part: hmac.new(k, part.encode(), hashlib.sha256).digest(),
                           (day, region, service, "aws4_request"), b"AWS4" + LOGIN["password"].encode())
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
