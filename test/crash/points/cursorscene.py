"""Offsets and sequences under faults: the work of the scene "cursors", and whether its effects are right.

A claim writes what it claimed into the table "reads", which commits with it.  So the rows of a partition follow each
other without a gap and without an overlap, and the last one ends where the next claim begins.
"""
import psycopg2

READ = """WITH c AS (SELECT * FROM idempotency.claim_offset('reader', 'stream', %s, %s, %s))
INSERT INTO reads SELECT 'o' || %s, new_from, %s FROM c WHERE result = 'claimed'"""
WRITE = """WITH c AS (SELECT * FROM idempotency.claim_sequence(%s, %s, %s, 'stream', 0, 2))
INSERT INTO reads SELECT 's' || %s, record_number, record_number + 2 FROM c WHERE result = 'accepted'"""
# What is wrong: a row each
WRONG = """
SELECT format('%s: %s to %s after %s', stream, first, next, coalesce(former, 0)) FROM (
    SELECT *, lag(next) OVER (PARTITION BY stream ORDER BY first) AS former FROM reads) AS r
WHERE first <> coalesce(former, 0)
UNION ALL
SELECT format('partition %s: next offset %s, read up to %s', c.partition, c.next_offset, max(r.next))
FROM idempotency.cursors AS c LEFT JOIN reads AS r ON r.stream = 'o' || c.partition
WHERE c.consumer = 'reader' GROUP BY c.partition, c.next_offset HAVING c.next_offset IS DISTINCT FROM max(r.next)
UNION ALL
SELECT format('producer %s: %s records, effects of %s', c.producer, c.records, max(r.next))
FROM idempotency.cursors AS c LEFT JOIN reads AS r ON r.stream = 's' || c.producer
WHERE c.producer IS NOT NULL GROUP BY c.producer, c.records HAVING c.records IS DISTINCT FROM max(r.next)
"""


def read(session, partition, end="COMMIT"):
    """Resume, and claim the next offsets, some of them again."""
    with session.transaction():
        ((result, following),) = session.run(
            "SELECT result::text, next_offset FROM idempotency.resume_offset('reader', 'stream', %s, 1, '0')", partition)
    if result != "claimed":
        return
    following = following or 0
    if end == "PREPARE":
        end = f"PREPARE TRANSACTION 'o{partition}-{session.lane.ledger.new_id('g')}'"
    with session.transaction(end):
        session.run(READ, partition, max(0, following - 2), following + 5, partition, following + 5)


def write(session, producer):
    """Register, and send records, each twice."""
    with session.transaction():
        ((producer_id, epoch),) = session.run("SELECT * FROM idempotency.register_producer(%s)", producer)
    for sequence in (0, 0, 2, 2):
        with session.transaction():
            session.run(WRITE, producer_id, epoch, sequence, producer)


def work(session, other):
    """A round of reads and writes, and so many claims that the tables of the log take turns."""
    partition = session.lane.number_of_stream = getattr(session.lane, "number_of_stream", 0) + 1
    for end in ("COMMIT", "ROLLBACK", "PREPARE"):
        read(session, partition, end)
    read(other, partition)
    session.lane.finish_prepared()
    read(other, partition)
    producer = session.lane.ledger.new_id("p")
    write(session, producer)
    write(other, producer)
    with session.transaction():
        session.run("""SELECT count(*) FROM generate_series(1, 400) AS g,
            LATERAL idempotency.claim_offset('filler', 'stream', %s, g)""", partition)


def judge(lane):
    try:
        return [row[0] for row in lane.source.try_rows(WRONG)]
    except psycopg2.Error as e:
        return [str(e)]
