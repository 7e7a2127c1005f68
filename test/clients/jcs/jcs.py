"""canonical_json against a library of RFC 8785, and the checks that ../run.sh counts.

    jcs.py [SEED]

Documents are random: doubles of all sizes, integers that a double holds, keys and
strings of any characters.  Both have to write the same bytes.  What is beyond the
library, because no double holds it, has to keep all its digits.
"""

import hashlib
import json
import math
import random
import struct
import sys

import psycopg
import rfc8785

DOCUMENTS = 3000
NUMBERS = 40000
# First and last characters of the ranges in which UTF-8, UTF-16 and the escapes of
# JSON differ.
EDGES = [0x1, 0x8, 0x9, 0xa, 0xb, 0xc, 0xd, 0x1f, 0x20, 0x22, 0x2f, 0x5c, 0x7e, 0x7f, 0x80, 0x7ff, 0x800, 0x2028, 0x2029,
         0xd7ff, 0xe000, 0xfb33, 0xfeff, 0xfffd, 0xffff, 0x10000, 0x103ff, 0x1f600, 0xfffff, 0x100000, 0x10ffff]


class Maker:
    """Makes random values of JSON."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def double(self):
        """Finite; of any bits, or near a power of ten or two, or of few digits."""
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            value = struct.unpack("<d", rng.randbytes(8))[0]
        elif kind == 1:
            value = math.nextafter(float("1e%d" % rng.randint(-323, 308)), rng.choice([0.0, math.inf]))
        elif kind == 2:
            value = math.ldexp(1.0, rng.randint(-1074, 1023))
        else:
            value = rng.randrange(10 ** rng.randint(1, 17)) / 10 ** rng.randint(0, 22)
        return rng.choice([-1, 1]) * value if math.isfinite(value) else self.double()

    def integer(self):
        return self.rng.choice([-1, 1]) * self.rng.randrange(2 ** self.rng.choice([1, 8, 31, 32, 53]))

    def character(self):
        kind = self.rng.randrange(4)
        if kind == 0:
            return chr(self.rng.choice(EDGES))
        if kind == 1:
            return chr(self.rng.randrange(0x20, 0x7f))
        low, high = self.rng.choice([(0x1, 0xd7ff), (0xe000, 0xffff), (0x10000, 0x10ffff)])
        return chr(self.rng.randint(low, high))

    def string(self):
        return "".join(self.character() for _ in range(self.rng.choice([0, 1, 1, 2, 3, 20])))

    def value(self, depth):
        kind = self.rng.randrange(9 if depth > 0 else 6)
        if kind < 2:
            return self.double()
        if kind < 6:
            return [self.integer, self.string, self.string, lambda: self.rng.choice([None, True, False])][kind - 2]()
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(5))]
        return self.object(depth)

    def object(self, depth):
        return {self.string(): self.value(depth - 1) for _ in range(self.rng.randrange(8))}


def check(name, good):
    print("ok" if good else "NOT OK", name, flush=True)


def unequal(conn, values):
    """The first value whose text or hash differs from the library's, and both texts."""
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    rows = conn.execute("""
        SELECT idempotency.canonical_json(doc::jsonb), idempotency.canonical_hash(doc::jsonb)
        FROM unnest(%s::text[]) WITH ORDINALITY t (doc, n) ORDER BY n""", [texts]).fetchall()
    assert len(rows) == len(values)
    for text, (ours, digest) in zip(texts, rows):
        library = rfc8785.dumps(json.loads(text))
        if ours.encode() != library or digest != hashlib.sha256(library).digest():
            return text, ours, library
    return None


def equal(conn, name, values):
    difference = unequal(conn, values)
    if difference:
        print("document %r\nours     %r\nlibrary  %r" % difference)
    check(name, difference is None)


def pointer(name):
    return "/" + name.replace("~", "~0").replace("/", "~1")


def fields_agree(conn, maker):
    """The hash of some members, and the library's hash of the object that the reference describes."""
    for _ in range(300):
        document = {name: value for name, value in maker.object(2).items() if len(name) < 200}
        names = maker.rng.sample(sorted(document), maker.rng.randint(0, len(document)))
        if not names:
            continue
        digest, = conn.execute("SELECT idempotency.canonical_hash(%s::text::jsonb, %s::text[])",
                               [json.dumps(document), [pointer(name) for name in names]]).fetchone()
        library = rfc8785.dumps({pointer(name): document[name] for name in names})
        if digest != hashlib.sha256(library).digest():
            print("document %r\nfields   %r" % (document, names))
            return False
    return True


def digits_kept(conn, maker):
    """Integers that no double holds: the library refuses them."""
    for _ in range(300):
        number = 2 ** 53 + 1 + 2 * maker.rng.randrange(2 ** 52)
        try:
            rfc8785.dumps(number)
            return False
        except rfc8785.IntegerDomainError:
            pass
        ours, = conn.execute("SELECT idempotency.canonical_json(%s::text::jsonb)", [str(number)]).fetchone()
        if ours != str(number):
            print("number   %d\nours     %s" % (number, ours))
            return False
    return True


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(2 ** 31)
    print("seed", seed)
    maker = Maker(seed)
    conn = psycopg.connect(autocommit=True)
    equal(conn, "doubles have the text of the library", [[maker.double()] for _ in range(NUMBERS)] + [[0.0], [-0.0]])
    equal(conn, "keys have the order of the library",
          [{maker.string(): n for n in range(30)} for _ in range(DOCUMENTS // 10)] + [{chr(c): c for c in EDGES}])
    equal(conn, "documents have the text and the hash of the library",
          [maker.value(4) for _ in range(DOCUMENTS)] + [{}, [], "", None, True, 0])
    check("fields have the hash of an object with a member per pointer", fields_agree(conn, maker))
    check("an integer that the library refuses keeps its digits", digits_kept(conn, maker))


main()
