#!/usr/bin/python3
"""The lists that stand once in C agree with the install script.

The options of relays: IDEM_RELAY_ARGUMENTS of src/relay/row.h.  Why relays halt:
idem_relay_halts of src/relay/row.c.  The kinds of sink: IDEM_SINK_KINDS of
src/relay/kind.h, and the folders of src/sink.
"""
import pathlib
import re
import sys

TYPES = {'names': 'text[]', 'count': 'int', 'size': 'bigint', 'interval': 'interval', 'period': 'interval'}
faults = []


def read(path):
    with open(path) as file:
        return file.read()


def same(what, here, there):
    """Complain if two lists of what should be one differ."""
    if here != there:
        faults.append(f'{what}: {here} in C, {there} elsewhere')


def macro(text, name):
    """The lines of an X-macro, each as its kind and a list of arguments."""
    body = re.search(rf'#define {name}\(.*?\) \\\n((?:.*\\\n)*.*\n)', text).group(1)
    return [(kind, [quoted or plain for quoted, plain in re.findall(r'"(.*?)"|([^\s,"][^,"]*)', rest)])
            for kind, rest in re.findall(r'^\t(\w+)\((.*)\)(?: \\)?$', body, re.M)]


def parts(text):
    """Split at commas outside of parentheses."""
    return [part.strip() for part in re.split(r',(?![^()]*\))', text) if part.strip()]


def relay_options(sql):
    header = read('src/relay/row.h')
    numbers = dict(re.findall(r'#define (\w+) (\d+)\n', header), PG_INT64_MAX=str(2**63 - 1))
    lines = macro(header, 'IDEM_RELAY_ARGUMENTS')
    names = [args[0] for _, args in lines]
    for function in ('relay_create', 'relay_alter'):
        declared = parts(re.search(rf'CREATE FUNCTION @extschema@\.{function}\((.*?)\) RETURNS', sql, re.S).group(1))
        same(f'arguments of {function}', names, [d.split()[0] for d in declared])
        for (kind, args), text in list(zip(lines, declared))[1:]:
            default = not text.endswith('DEFAULT NULL')
            if function == 'relay_alter' or kind == 'LATER':
                same(f'{function}: has {args[0]} a default', False, default)
            elif args[{'OPTION': 3, 'PLAIN': 1}[kind]] == 'true':
                same(f'{function}: has {args[0]} a default', True, default)

    table = re.search(r'CREATE TABLE idempotency_data\.relays \((.*?)\n\);', sql, re.S).group(1)
    check = ' '.join(table[table.index('CONSTRAINT sound'):].split())
    declared = dict(re.findall(r'^    ([a-z_]+) (.*?),?$', table[:table.index('CONSTRAINT sound')], re.M))
    options = [args for kind, args in lines if kind == 'OPTION']
    columns = list(declared)
    first = columns.index(options[0][0])
    same('columns of relays from the first option on', [o[0] for o in options], columns[first:first + len(options)])
    for name, _, kind, needed, least, most, *text in options:
        least, most = (numbers.get(n, n) for n in (least, most))
        same(f'NOT NULL of {name}', needed == 'true', declared[name].endswith('NOT NULL'))
        if kind == 'label':
            labels = re.search(rf"CREATE TYPE @extschema@\.relay_{name} AS ENUM \((.*?)\)", sql).group(1)
            same(f'labels of {name}', text[0].split(','), re.findall(r"'(\w+)'", labels))
            same(f'type of {name}', f'@extschema@.relay_{name}', declared[name].split()[0])
            continue
        same(f'type of {name}', TYPES[kind], declared[name].split()[0])
        wanted = {
            'names': f'array_position({name}, NULL) IS NULL AND coalesce(array_ndims({name}), 1) = 1',
            'period': f'extract(epoch FROM {name}) * 1000.0 BETWEEN 0.0 AND {most}.0',
            'interval': f'extract(epoch FROM {name}) * 1000.0 BETWEEN {least}.0 AND {most}.0',
        }.get(kind, f'{name} BETWEEN {least} AND {most}')
        if not re.search(rf'(\(|AND ) ?{re.escape(wanted)}( AND|\))', check):
            faults.append(f'the CHECK "sound" of relays lacks "{wanted}"')


def halts(sql):
    labels = re.search(r"CREATE TYPE @extschema@\.relay_halt AS ENUM \((.*?)\)", sql).group(1)
    same('labels of relay_halt', re.findall(r'^\t\[IDEM_HALT_\w+\] = \{"(\w+)"', read('src/relay/row.c'), re.M),
         re.findall(r"'(\w+)'", labels))


def sink_kinds(sql):
    lines = [args for _, args in macro(read('src/relay/kind.h'), 'IDEM_SINK_KINDS')]
    loop = re.search(r'FOR kind, note IN VALUES\n(.*?)\tLOOP', sql, re.S).group(1)
    same('wrappers', [args[0] for args in lines], re.findall(r"^\t\t\('(\w+)', '", loop, re.M))
    same('programs', sorted(args[0] for args in lines if 'IDEM_KIND_HAS_PROGRAM' in args[2]),
         sorted({path.parent.name for path in pathlib.Path('src/sink').glob('*/*.c')} - {'protocol', 'common', 'build'}))


install = read('sql/install/60_relay.sql')
relay_options(install)
halts(install)
sink_kinds(install)
print(*faults, sep='\n', end='\n' if faults else '')
sys.exit(bool(faults))
