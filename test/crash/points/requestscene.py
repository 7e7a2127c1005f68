"""Requests under faults: the work of the scene "requests", and whether its answers are right.

The effect of a request is a row of the table "effects", which commits with the answer; so a
request has one effect in the end, and its answer is its key.  A client that was told that
its COMMIT succeeded has the answer for ever; so has a client that was given an answer.
"""
import psycopg2

ASK = ("SELECT result::text, token, convert_from(body, 'UTF8')"
       " FROM idempotency.claim_request(%s, 's', convert_to(%s, 'UTF8'), 'req', %s::interval)")
COMPLETE = ("SELECT idempotency.complete_request(%s, 's', 200, '{\"A\": \"x\"}', convert_to(%s, 'UTF8'), 'req', %s)")


class Requests:
    """The keys of a step, and the answers that bind the server."""

    def __init__(self):
        self.keys = set()
        self.binding = set()
        self.problems = []


def of(lane):
    """The requests of the lane's present step."""
    if getattr(lane, "requests_of", None) is None or lane.requests_of[0] != lane.first:
        lane.requests_of = (lane.first, Requests())
    return lane.requests_of[1]


def ask(session, key, lease=None):
    requests = of(session.lane)
    requests.keys.add(key)
    ((result, token, body),) = session.run(ASK, key, key, lease)
    if result == "replay":
        requests.binding.add(key)
        if body != key:
            requests.problems.append(f"request {key} is answered {body}")
    if result in ("mismatch", "dead"):
        requests.problems.append(f"request {key} is {result}")
    return result, token


def finish(session, key, how, token=None):
    """End an execution: with its effect, or without."""
    if how == "complete":
        session.run("INSERT INTO effects (id) VALUES (%s)", key)
        session.run(COMPLETE, key, key, token)
    elif how == "fail":
        session.run("SELECT idempotency.fail_request(%s, 's', 'e', 'req', %s, '0')", key, token)
    else:
        session.run("SELECT idempotency.release_request(%s, 's', 'req', %s)", key, token)


def execute(session, key, how="complete", end="COMMIT"):
    """A request in one transaction."""
    if end == "PREPARE":
        end = f"PREPARE TRANSACTION '{key}-{session.lane.ledger.new_id('g')}'"
    completed = False
    with session.transaction(end) as known:
        if ask(session, key)[0] == "started":
            finish(session, key, how)
            completed = how == "complete"
    if known["told"] == "committed" and completed:
        of(session.lane).binding.add(key)


def execute_in_phases(session, key, how="complete"):
    """A request with a lease: a phase, and then its end."""
    token = None
    with session.transaction() as known:
        result, token = ask(session, key, "1 us")
    if known["told"] != "committed" or result != "started":
        return
    with session.transaction() as known:
        session.run("SELECT idempotency.advance_request(%s, 's', %s, 'half', 'req', '{}', '1 us')", key, token)
    if known["told"] != "committed":
        return
    with session.transaction() as known:
        finish(session, key, how, token)
    if known["told"] == "committed" and how == "complete":
        of(session.lane).binding.add(key)


def work(session, other):
    """A round of requests, each repeated by another client."""
    new_id = session.lane.ledger.new_id
    for run, how, end in ((execute, "complete", "COMMIT"), (execute, "complete", "ROLLBACK"), (execute, "complete", "PREPARE"),
                          (execute, "fail", "COMMIT"), (execute, "release", "COMMIT")):
        key = new_id("r")
        run(session, key, how, end)
        run(other, key)
    for how in ("complete", "fail", "release"):
        key = new_id("r")
        execute_in_phases(session, key, how)
        execute_in_phases(other, key)
        execute(session, key)


def judge(lane):
    """The contradictions, as lines: what binds is answered, and then each request is executed once."""
    requests = of(lane)
    keys = sorted(requests.keys)
    problems = list(requests.problems)
    if not keys:
        return problems
    effects = lane.ledger.count("effects", keys)
    problems += [f"request {key} was completed, and its effect is gone"
                 for key in sorted(requests.binding) if effects[key] == 0]
    connection = lane.source.connect(autocommit=False)
    try:
        with connection.cursor() as cur:
            for key in keys:
                problems += last_try(connection, cur, key)
    except psycopg2.Error as e:
        problems.append(f"request {key}: {e}")
    finally:
        connection.close()
    effects = lane.ledger.count("effects", keys)
    return problems + [f"request {key} has {effects[key]} effects" for key in keys if effects[key] != 1]


def last_try(connection, cur, key):
    """Execute a request that is not completed, and ask for the answer of one that is."""
    problems = []
    cur.execute(ASK, (key, key, None))
    result, _, body = cur.fetchone()
    if result == "started":
        cur.execute("INSERT INTO effects (id) VALUES (%s)", (key,))
        cur.execute(COMPLETE, (key, key, None))
    elif result != "replay" or body != key:
        problems.append(f"request {key} is {result} {body} in the end")
    connection.commit()
    cur.execute(ASK, (key, "another payload", None))
    if cur.fetchone()[0] != "mismatch":
        problems.append(f"request {key} forgot its fingerprint")
    connection.rollback()
    return problems
