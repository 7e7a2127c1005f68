"""Arguments for the SQL fuzzer: by type, the values that break things.

A value is text that the type's input function reads; None is NULL.
"""

LONG = 10 ** 6


def text(rng):
    """Ids of all lengths and kinds."""
    return rng.choice([
        lambda: None,
        lambda: '',
        lambda: 'evt-%d' % rng.randrange(20),
        lambda: 'x' * rng.choice([1, 63, 64, 254, 255, 256, 2700, 8191]),
        lambda: 'x' * (LONG if rng.random() < 0.1 else 300),
        lambda: '\u00e9' * rng.choice([127, 128, 5000]),
        lambda: '\U0001f980' * rng.choice([1, 63, 64]),
        lambda: rng.choice(['default', '@relay', '@', 'billing', 'postgres', 'PUBLIC',
                            'r0', 'r1', 'r2', 's0', 's1', 's2', 's3', 'none']),
        lambda: rng.choice(["'; DROP TABLE x; --", '"', "\\", '%s%n%d', '\n', '\t', ' ',
                            '\x01', '\x7f', '\u202e', '\ufffd', 'a\u0300', '$1', '{}']),
        lambda: rng.choice(['/', '/a', '/a/0', '/a/b~1c', '/0/0', '/a/-', '/a/01', '~', '/~', '/a~2', '//',
                            '/4294967295', '/18446744073709551616', '/\U0001f980']),
        lambda: rng.choice(['1MB', '-1', '0', '1kB', '9223372036854775807 TB', '1e300GB',
                            'MB', '1 MB', ' 1MB ', '16TB', '2147483648', 'nan']),
        lambda: ''.join(chr(rng.choice([rng.randrange(1, 128), rng.randrange(0xa0, 0x2000)]))
                        for _ in range(rng.randrange(300))),
    ])()


def name(rng):
    return rng.choice([None, '', 'postgres', 'fuzz_plain', 'nobody_there', 'public',
                       'x' * 63, 'x' * 64, '"', 'pg_monitor'])


def uuid(rng):
    return rng.choice([None, '00000000-0000-0000-0000-000000000000',
                       'ffffffff-ffff-ffff-ffff-ffffffffffff',
                       '%032x' % rng.getrandbits(128), '%032x' % rng.randrange(20)])


def jsonb(rng):
    return rng.choice([
        lambda: None,
        lambda: 'null',
        lambda: '{}',
        lambda: '[]',
        lambda: '"' + 'x' * rng.choice([0, 10, 10, 10, 2000, 5000, LONG, 3 * LONG]) + '"',
        lambda: '[' * 1000 + ']' * 1000,
        lambda: '1e1000',
        lambda: '{"a": "\\u00e9\\"\\\\", "\\u2028": null}',
        lambda: '{"%s": 1}' % ('k' * rng.choice([1, 5000])),
        lambda: '[%s]' % ','.join(['1.5'] * rng.randrange(1, 3000)),
        lambda: 'true',
        lambda: _number(rng),
        lambda: '{"a": {"b/c": [%s], "": %s}, "\U0001f980": 1, "\uffff": 2, "\uff5e": 3}' % (_number(rng), _number(rng)),
        lambda: '[%s]' % ','.join(['1e131071', '-1e-16383'] * rng.randrange(1, 20)),
        lambda: '9' * 131072 + '.' + '9' * 16383,
        lambda: '{"a":' * 500 + '[{}]' + '}' * 500,
    ])()


def _number(rng):
    """A JSON number of any size and form."""
    digits = str(rng.getrandbits(rng.choice([1, 10, 53, 54, 64, 200, 5000])))
    fraction = '.%s' % digits[::-1] if rng.random() < 0.5 else ''
    exponent = '%s%d' % (rng.choice(['e', 'E', 'e+', 'e-']), rng.choice([0, 1, 7, 21, 308, 400, 10000]))
    return rng.choice(['', '-']) + digits + fraction + rng.choice(['', exponent])


def bytea(rng):
    return rng.choice([None, '', '\\x', '\\x00', '\\x' + 'ff' * rng.choice([1, 8191, LONG]),
                       '\\x%04x' % rng.getrandbits(16)])


def interval(rng):
    return rng.choice([None, '0', '1 ms', '20 ms', '-1 s', '1 month', '-178000000 years',
                       '178000000 years', '1 day -24 hours', '1 us', '1 ms', '1 min',
                       '2147483647 days', '2562047788 hours', '0.000001 s'])


def timestamptz(rng):
    return rng.choice([None, 'infinity', '-infinity', 'now', 'epoch', '4713-01-01 BC',
                       '294276-12-31 23:59:59.999999', '2000-01-01', 'tomorrow'])


def int4(rng):
    return rng.choice([None, '0', '1', '-1', '2147483647', '-2147483648', '7', '8', '1000',
                       str(rng.randrange(-100, 100)), '100000', '32768'])


def int8(rng):
    return rng.choice([None, '0', '1', '-1', '9223372036854775807', '-9223372036854775808',
                       str(rng.getrandbits(40))])


def numeric(rng):
    return rng.choice([None, '0', '1', '-1', '0.5', 'NaN', 'Infinity', '1e1000', '1e-1000', '9' * 100])


def regrole(rng):
    return rng.choice([None, '-', '0', '4294967295', 'postgres', 'fuzz_plain', 'pg_monitor'])


def boolean(rng):
    return rng.choice([None, 'true', 'false'])


def oid(rng):
    return rng.choice([None, '0', '1417', '1418', '4294967295', '2328', '16384'])


def _option(rng):
    return '%s=%s' % (rng.choice(['host', 'port', 'function', 'table', 'password', 'x', '',
                                  'statement_timeout', 'stats_interval', 'sslmode', 'program']),
                      rng.choice(['', '0', 'app.f', '"a"."b"', 'on', 'require', '-1', 'x' * 2000]))


SCALARS = {
    'text': text, 'name': name, 'uuid': uuid, 'jsonb': jsonb, 'bytea': bytea,
    'interval': interval, 'timestamp with time zone': timestamptz, 'integer': int4,
    'bigint': int8, 'boolean': boolean, 'oid': oid,
    'numeric': numeric, 'regrole': regrole,
}


def _quoted(value):
    if value is None:
        return 'NULL'
    return '"' + value.replace('\\', '\\\\').replace('"', '\\"') + '"'


def array(rng, element):
    """An array literal: empty, with NULLs, of odd shapes and bounds, or large."""
    if rng.random() < 0.1:
        return None
    shape = rng.randrange(8)
    if shape == 0:
        return '{}'
    if shape == 1:
        count = rng.choice([20, 100, 2000])
        some = [_short(rng, element) for _ in range(5)]
        return '{' + ','.join(rng.choice(some) for _ in range(count)) + '}'
    items = [_short(rng, element) for _ in range(rng.randrange(1, 5))]
    if shape == 2:
        return '{{' + ','.join(items) + '},{' + ','.join(items) + '}}'
    if shape == 3:
        low = rng.choice([-2147483648, -1, 0, 2, 2147483640])
        return '[%d:%d]={%s}' % (low, low + len(items) - 1, ','.join(items))
    if shape == 4:
        return '{{{{{{' + items[0] + '}}}}}}'
    return '{' + ','.join(items) + '}'


def _short(rng, element):
    """One that does not make an array of it too large to try many."""
    while True:
        value = element(rng)
        if value is None or len(value) < 3000:
            return _quoted(value)


def make(rng, type_name, labels):
    """A value of a type; labels are those of the enums, by type name."""
    if type_name.endswith('[]'):
        base = type_name[:-2]
        if base == 'text' and rng.random() < 0.1:
            return array(rng, _option)
        return array(rng, SCALARS[base])
    if type_name in labels:
        return rng.choice([None] + labels[type_name])
    return SCALARS[type_name](rng)
