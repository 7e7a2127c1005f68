#!/usr/bin/env python3
"""Make the version after the tree's own, out of a copy of the tree.

    next.py TOP

The copy in TOP, whose version is frozen, gets a version of its own with what an update
has to cope with: a column, a default, a constraint, a table, an enum's label, a view's
column, a function with other columns, a new kind of role.  Its update script is written
as sql/release/README.md says, from the same pieces as its install script.
"""
import os
import re
import sys

SOURCE = 'src/relay/api/statistics.c'
RELAYS = 'sql/install/60_relay.sql'
GRANTS = 'sql/install/90_grants.sql'


class File:
    """A file of the copy."""

    def __init__(self, top, name):
        self.path = os.path.join(top, name)
        with open(self.path, encoding='utf-8') as file:
            self.text = file.read()

    def save(self):
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write(self.text)

    def replace(self, old, new):
        """What is replaced stands there once: else the tree has changed, and this script has to."""
        if self.text.count(old) != 1:
            sys.exit('next.py: %d times in %s: %s' % (self.text.count(old), self.path, old))
        self.text = self.text.replace(old, new)

    def piece(self, pattern):
        """The one part of the text that a pattern fits."""
        found = re.findall(pattern, self.text, re.M | re.S)
        if len(found) != 1:
            sys.exit('next.py: %d times in %s: %s' % (len(found), self.path, pattern))
        return found[0]


def next_version(version):
    parts = version.split('.')
    return '.'.join(parts[:-1] + [str(int(parts[-1]) + 1)])


def change_control(top):
    control = File(top, 'idempotency.control')
    old = control.piece(r"^default_version = '([^']*)'$")
    new = next_version(old)
    control.replace("default_version = '%s'" % old, "default_version = '%s'" % new)
    control.save()
    return old, new


def change_source(top, symbol):
    """A function whose columns change gets a symbol of its own; the former symbol stays."""
    source = File(top, SOURCE)
    body = source.piece(r'^Datum\nidem_stat_relay_source_fn\(PG_FUNCTION_ARGS\)\n\{.*?^\}\n')
    changed = body.replace('idem_stat_relay_source_fn', symbol).replace(', o.oldest"', ', o.oldest, r.note"')
    if changed.count('r.note') != 1:
        sys.exit('next.py: idem_stat_relay_source_fn has changed')
    source.replace(body, body + '\n' + changed)
    source.replace('PG_FUNCTION_INFO_V1(idem_stat_relay_source_fn);\n',
                   'PG_FUNCTION_INFO_V1(idem_stat_relay_source_fn);\nPG_FUNCTION_INFO_V1(%s);\n' % symbol)
    source.save()


NOTES = """CREATE TABLE idempotency_data.relay_notes (
    relay_id int PRIMARY KEY,
    noted_at timestamptz NOT NULL DEFAULT pg_catalog.now()
) WITH (fillfactor = 90);
COMMENT ON TABLE idempotency_data.relay_notes IS
    'When a relay got its note.';
SELECT pg_catalog.pg_extension_config_dump('idempotency_data.relay_notes', '');
"""
COLUMN_COMMENT = """COMMENT ON COLUMN idempotency_data.relays.note IS
    'What an operator noted.';
"""
VIEW_COMMENT = "COMMENT ON COLUMN @extschema@.stat_relay.note IS 'What an operator noted.';\n"
KIND = """	WHEN 'watcher' THEN
		functions := '{}';
		relations := ARRAY['stat_relay'];
"""


def change_install(top, symbol):
    """The install script of the next version: each new thing stands where a fresh install has it."""
    relays = File(top, RELAYS)
    relays.replace("    replay_seq bigint,\n    CONSTRAINT sound CHECK (\n",
                   "    replay_seq bigint,\n    note text DEFAULT 'none',\n    CONSTRAINT sound CHECK (\n"
                   "        octet_length(note) <= 1000 AND\n")
    relays.replace("COMMENT ON COLUMN idempotency_data.relays.owner IS\n",
                   COLUMN_COMMENT + "COMMENT ON COLUMN idempotency_data.relays.owner IS\n")
    relays.replace("ENUM ('retry', 'waiting', 'dead', 'in_flight');", "ENUM ('retry', 'waiting', 'dead', 'in_flight', 'given back');")
    relays.replace("OUT retrying bigint, OUT in_flight bigint, OUT oldest timestamptz) RETURNS SETOF record\n"
                   "    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'idem_stat_relay_source_fn';",
                   "OUT retrying bigint, OUT in_flight bigint, OUT oldest timestamptz, OUT note text) RETURNS SETOF record\n"
                   "    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', '%s';" % symbol)
    relays.replace("s.sink_pid\n  FROM idempotency_data.stat_relay_source() r",
                   "s.sink_pid, r.note\n  FROM idempotency_data.stat_relay_source() r")
    relays.replace("COMMENT ON COLUMN @extschema@.stat_relay.relay IS",
                   VIEW_COMMENT + "COMMENT ON COLUMN @extschema@.stat_relay.relay IS")
    relays.text += '\n' + NOTES
    relays.save()
    grants = File(top, GRANTS)
    grants.replace("	WHEN 'backup' THEN\n", KIND + "	WHEN 'backup' THEN\n")
    grants.save()
    return relays, grants


def update_script(relays, grants):
    """From the version before: the same pieces, without what stands already."""
    source = relays.piece(r'^CREATE FUNCTION idempotency_data\.stat_relay_source\(.*?;\n'
                          r'COMMENT ON FUNCTION idempotency_data\.stat_relay_source\(\) IS.*?;\n')
    view = relays.piece(r'^CREATE (VIEW @extschema@\.stat_relay AS.*?;\n)')
    sound = relays.piece(r'^CREATE TABLE idempotency_data\.relays \(.*?^    (CONSTRAINT sound CHECK .*?)\n\);')
    kinds = grants.piece(r'^CREATE (FUNCTION @extschema@\.grant_role\(.*?^\$\$;\n)')
    revoke = grants.piece(r'^-- Only the owner keeps privileges\..*?^DO \$\$\n(.*?^\$\$;\n)')
    of_new = ("AND e.extname = 'idempotency'\n"
              "			   AND d.objid IN ('idempotency_data.relay_notes'::pg_catalog.regclass,"
              " 'idempotency_data.stat_relay_source()'::pg_catalog.regprocedure)\n")
    return ''.join([
        '\\echo Use "ALTER EXTENSION idempotency UPDATE" to load this file. \\quit\n\n',
        'SET LOCAL search_path = pg_catalog, pg_temp;\n\n',
        "ALTER TYPE @extschema@.parked_state ADD VALUE 'given back';\n",
        "ALTER TABLE idempotency_data.relays ADD COLUMN note text DEFAULT 'none',\n"
        "    DROP CONSTRAINT sound, ADD %s;\n" % sound,
        COLUMN_COMMENT, NOTES,
        'ALTER FUNCTION idempotency_data.stat_relay_source() RENAME TO stat_relay_source_former;\n',
        source, 'CREATE OR REPLACE ', view, VIEW_COMMENT,
        'DROP FUNCTION idempotency_data.stat_relay_source_former();\n',
        'CREATE OR REPLACE ', kinds,
        'DO $$\n', revoke.replace("AND e.extname = 'idempotency'\n", of_new),
        'GRANT EXECUTE ON FUNCTION idempotency_data.stat_relay_source() TO pg_monitor;\n'])


def main(top):
    old, new = change_control(top)
    symbol = 'idem_stat_relay_source_%s_fn' % new.replace('.', '_')
    change_source(top, symbol)
    relays, grants = change_install(top, symbol)
    with open(os.path.join(top, 'sql/release/idempotency--%s--%s.sql' % (old, new)), 'w', encoding='utf-8') as file:
        file.write(update_script(relays, grants))


main(*sys.argv[1:])
