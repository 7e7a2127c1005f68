
# Copyright (c) 2026, the idempotency developers

# Nobody locks the extension's tables who may not use them, and who reads a view
# keeps no lock on them.  PostgreSQL locks the table that a statement names before
# it asks for privileges on the table; so no role can name one.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('locks');

sub sql
{
	my ($query, $as) = @_;

	return $node->safe_psql('postgres', $query, $as ? (extra_params => [ '-U', $as ]) : ());
}

# Send statements one by one, and return the SQLSTATE of each.
sub sqlstates
{
	my ($as, @statements) = @_;
	my $number = 0;
	my $script = join '', "SET lock_timeout = '100ms';\n",
	  map { "$_;\n\\echo state $number :SQLSTATE\n" . ($number++, '')[1] } @statements;
	my ($rc, $out) = $node->psql('postgres', $script, on_error_stop => 0,
		extra_params => [ '-U', $as ], timeout => 600);
	my %state = $out =~ /^state (\d+) (\w+)$/mg;

	return map { $state{$_} // 'no answer' } 0 .. $#statements;
}

# A session that stays open; its lines are sent with the method query_safe.
sub session
{
	my ($as) = @_;

	return $node->background_psql('postgres', extra_params => [ '-U', $as // 'postgres' ],
		on_error_stop => 0);
}

my $superuser = sql('SELECT current_user');

sql(<<'END');
CREATE ROLE nobody LOGIN;
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE monitor LOGIN;
CREATE ROLE producer LOGIN;
CREATE ROLE consumer LOGIN;
CREATE ROLE operator LOGIN;
CREATE ROLE everything LOGIN;
CREATE ROLE dbowner LOGIN;
ALTER DATABASE postgres OWNER TO dbowner;
SELECT idempotency.grant_role(kind, kind::name) FROM unnest('{monitor,producer,consumer,operator}'::text[]) kind;
SELECT idempotency.grant_role(kind, 'everything') FROM unnest('{monitor,producer,consumer,operator}'::text[]) kind;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_null TO operator, everything;
END
sql("CREATE SERVER null_$_ FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('of $_', 'null_$_')", $_)
  foreach 'operator', 'everything';
sql(<<'END');
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.refuse');
CREATE FUNCTION public.refuse(event_id uuid) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$;
SELECT idempotency.relay_create('refuses', 'fn', max_attempts => 1);
SELECT idempotency.outbox_enqueue('t', 'k', 'E', jsonb_build_object('long', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i)));
SELECT idempotency.claim_event('e'), idempotency.complete_event('e', result => '1');
SELECT idempotency.claim_offset('c', 't', 0, 0);
SELECT idempotency.claim_sequence(producer_id, epoch, 0) FROM idempotency.register_producer('p');
END
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters});

my @roles = qw(nobody watcher monitor producer consumer operator everything dbowner);
sql(<<"END") foreach @roles;
CREATE SCHEMA $_ AUTHORIZATION $_;
SET ROLE $_;
CREATE TABLE $_.t (x int);
CREATE TABLE $_.parts (x int) PARTITION BY LIST (x);
CREATE INDEX parts_idx ON ONLY $_.parts (x);
CREATE SEQUENCE $_.s;
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER fn TO $_;
END

# Every relation of the extension, those that a later version adds included, and
# what is in the schema of its tables without being a member: indexes, anchors.
my @relations = map { [ split /\|/ ] } split /\n/, sql(<<'END');
SELECT c.oid::regclass, c.relkind, c.oid FROM pg_class c WHERE c.oid IN (
	SELECT d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
	   AND e.extname = 'idempotency'
	UNION SELECT oid FROM pg_class WHERE relnamespace = 'idempotency_data'::regnamespace)
 ORDER BY 2, 1
END
my %of_kind;
push @{ $of_kind{ $_->[1] } }, $_->[0] foreach @relations;
is(join(' ', sort keys %of_kind), 'S f i r v', 'tables, sequences, indexes, anchors, views');
is(join(' ', grep { !/^idempotency_data\./ } map { $_->[0] } grep { $_->[1] ne 'v' } @relations), '',
	'all but views are in a schema of their own');
is( sql(q{SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles
	WHERE NOT rolsuper AND has_schema_privilege(oid, 'idempotency_data', 'USAGE')}),
	'pg_read_all_data pg_write_all_data', 'nobody may use that schema but who reads or writes everything');

# What names a relation.  "%" is the name.
my @any = (
	'PREPARE p AS SELECT 1 FROM %', 'SELECT 1 FROM %', 'DECLARE c CURSOR WITH HOLD FOR SELECT 1 FROM %', 'COPY % TO STDOUT',
	'COPY (SELECT 1 FROM %) TO STDOUT', 'EXPLAIN SELECT 1 FROM %', 'INSERT INTO % DEFAULT VALUES',
	'UPDATE % SET x = 1', 'DELETE FROM %', 'MERGE INTO % AS t USING pg_class ON false WHEN NOT MATCHED THEN DO NOTHING',
	'PREPARE p AS DELETE FROM %', q{DO 'BEGIN LOCK TABLE % IN ACCESS SHARE MODE NOWAIT; END'},
	q{DO 'BEGIN LOCK TABLE % IN ACCESS EXCLUSIVE MODE; END'},
	'CREATE RULE r AS ON INSERT TO % DO INSTEAD NOTHING', 'DROP RULE r ON %',
	'CREATE TRIGGER t BEFORE INSERT ON % FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()',
	'DROP TRIGGER t ON %', 'CREATE POLICY p ON %', 'DROP POLICY p ON %', 'ALTER TABLE % ADD COLUMN x int', 'ALTER TABLE % OWNER TO nobody',
	'ALTER TABLE % RENAME TO y', 'ALTER TABLE % RENAME COLUMN xid TO y', 'ALTER TABLE % SET SCHEMA public',
	'ALTER TABLE % ENABLE ROW LEVEL SECURITY', 'ALTER TABLE % DISABLE TRIGGER ALL', q{ALTER FOREIGN TABLE % OPTIONS (ADD a '1')},
	'ALTER VIEW % SET (security_barrier)', 'ALTER SEQUENCE % RESTART', 'ALTER INDEX % RENAME TO y',
	'ALTER INDEX % SET TABLESPACE pg_default',
	'ALTER INDEX % DEPENDS ON EXTENSION plpgsql', 'ALTER MATERIALIZED VIEW % DEPENDS ON EXTENSION plpgsql',
	'ALTER TRIGGER outbox_restamp ON % RENAME TO y', 'ALTER TRIGGER outbox_restamp ON % DEPENDS ON EXTENSION plpgsql',
	'COMMENT ON TABLE % IS NULL', 'COMMENT ON COLUMN %.xid IS NULL', 'COMMENT ON TRIGGER outbox_restamp ON % IS NULL',
	'COMMENT ON INDEX % IS NULL', 'COMMENT ON SEQUENCE % IS NULL', 'COMMENT ON FOREIGN TABLE % IS NULL',
	'GRANT SELECT ON % TO nobody', 'ANALYZE %', 'VACUUM %', 'VACUUM (FULL) %', 'CLUSTER %', 'REINDEX TABLE %',
	'REINDEX INDEX %', 'REINDEX TABLE CONCURRENTLY %', 'TRUNCATE %', 'DROP TABLE %', 'DROP SEQUENCE %', 'DROP FOREIGN TABLE %',
	'DROP INDEX %', 'DROP INDEX CONCURRENTLY %', 'CREATE INDEX ON % (xid)', 'CREATE INDEX CONCURRENTLY ON % (xid)',
	'CREATE STATISTICS public.s ON xid, seq FROM %', 'CREATE TEMPORARY TABLE a (LIKE %)', 'CREATE TEMPORARY TABLE a () INHERITS (%)',
	'CREATE TEMPORARY TABLE a (x int REFERENCES %)', 'CREATE TEMPORARY VIEW a AS SELECT 1 FROM %',
	"CREATE TEMPORARY TABLE a (x int DEFAULT nextval('%'))", 'CREATE TEMPORARY TABLE a OF %',
	'CREATE FUNCTION pg_temp.f() RETURNS int BEGIN ATOMIC SELECT 1 FROM %; END', 'CREATE TEMPORARY SEQUENCE s OWNED BY %.xid',
	"SELECT nextval('%')", "SELECT currval('%')", "SELECT setval('%', 1)", "SELECT pg_relation_size('%')",
	"SELECT table_to_xml('%', true, true, '')", "SELECT table_to_xmlschema('%', true, true, '')", "SELECT '%'::regclass");
push @any, 'ALTER EXTENSION plpgsql ADD TABLE %';

# What else names a view, by whatever place in a command.  "own" is a schema of the role's.
my @on_view = (
	'CREATE TEMPORARY TABLE a PARTITION OF % DEFAULT', 'CREATE TABLE own.a PARTITION OF % FOR VALUES IN (1)',
	'CREATE TABLE own.a PARTITION OF % DEFAULT PARTITION BY LIST (x)', 'CREATE FOREIGN TABLE own.a PARTITION OF % DEFAULT SERVER fn',
	'CREATE SCHEMA AUTHORIZATION CURRENT_USER CREATE TABLE a PARTITION OF % DEFAULT', 'CREATE FOREIGN TABLE own.a () INHERITS (%) SERVER fn',
	'ALTER TABLE own.parts ATTACH PARTITION % DEFAULT', 'ALTER TABLE own.parts DETACH PARTITION %',
	'ALTER TABLE own.parts DETACH PARTITION % CONCURRENTLY', 'ALTER TABLE own.parts DETACH PARTITION % FINALIZE',
	'ALTER TABLE own.t ADD y int, ATTACH PARTITION % DEFAULT', 'ALTER INDEX own.parts_idx ATTACH PARTITION %',
	'ALTER TABLE own.t INHERIT %', 'ALTER TABLE own.t NO INHERIT %', 'ALTER TABLE own.t OF %', 'ALTER TABLE own.t ADD FOREIGN KEY (x) REFERENCES %',
	'ALTER TABLE % ATTACH PARTITION own.t DEFAULT', 'ALTER TABLE % SET UNLOGGED', 'ALTER TABLE % REPLICA IDENTITY FULL',
	'CREATE CONSTRAINT TRIGGER c AFTER INSERT ON own.t FROM % FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()',
	'CREATE EVENT TRIGGER % ON sql_drop EXECUTE FUNCTION own.f()', 'CREATE PUBLICATION p FOR TABLE %', 'ALTER PUBLICATION p ADD TABLE %',
	'ALTER SEQUENCE own.s OWNED BY %.relay', 'ALTER SEQUENCE % OWNED BY own.t.x', 'ALTER POLICY p ON % USING (true)', 'ALTER POLICY p ON % RENAME TO q',
	'COMMENT ON POLICY p ON % IS NULL', 'ALTER RULE "_RETURN" ON % RENAME TO r', 'DROP RULE "_RETURN" ON %', 'COMMENT ON RULE "_RETURN" ON % IS NULL',
	'COMMENT ON CONSTRAINT c ON % IS NULL', 'COMMENT ON VIEW % IS NULL', 'CREATE OR REPLACE RULE "_RETURN" AS ON SELECT TO % DO INSTEAD SELECT 1',
	'CREATE OR REPLACE VIEW % AS SELECT 1', 'DROP VIEW %', 'ALTER VIEW % RENAME TO y', 'ALTER VIEW % OWNER TO nobody', 'ALTER VIEW % SET SCHEMA public',
	'ALTER VIEW % ALTER x SET DEFAULT 1', 'ALTER TYPE % ADD ATTRIBUTE y int', 'ALTER TYPE % RENAME TO y', 'DROP TYPE %', 'DROP MATERIALIZED VIEW %',
	'ALTER EXTENSION plpgsql ADD VIEW %', 'ALTER EXTENSION idempotency DROP VIEW %', 'REFRESH MATERIALIZED VIEW %', 'REFRESH MATERIALIZED VIEW CONCURRENTLY %',
	'LOCK TABLE %', 'LOCK TABLE % IN ACCESS EXCLUSIVE MODE NOWAIT', 'SELECT 1 FROM % FOR UPDATE', 'SELECT 1 INTO own.b FROM %', 'TABLE %', q{COPY % FROM '/dev/null'},
	'CREATE MATERIALIZED VIEW own.m AS SELECT 1 FROM %', 'CREATE TABLE own.b AS TABLE % WITH NO DATA', 'DELETE FROM own.t USING %', 'UPDATE own.t SET x = 1 FROM %',
	'INSERT INTO own.t SELECT 1 FROM %', 'MERGE INTO own.t USING % ON false WHEN NOT MATCHED THEN DO NOTHING', 'REVOKE SELECT ON % FROM nobody',
	'SECURITY LABEL ON TABLE % IS NULL', 'CREATE INDEX CONCURRENTLY ON % ((1))', 'CREATE FUNCTION own.g(%) RETURNS int LANGUAGE sql RETURN 1',
	'DROP FUNCTION own.g(%)', 'CREATE CAST (% AS text) WITH INOUT', 'CREATE DOMAIN own.d AS %', 'CREATE TYPE own.c AS (a %)');
my ($help) = run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', '\\h *' ]);
my @commands = $help =~ /^Command:\s+(.*?)\s*$/mg;
# of newer servers, release candidates included
push @on_view, 'REPACK %', 'REPACK (CONCURRENTLY) %' if grep { $_ eq 'REPACK' } @commands;
push @on_view, 'CREATE PROPERTY GRAPH own.g VERTEX TABLES (% KEY (x))', 'ALTER PROPERTY GRAPH own.g ADD VERTEX TABLES (% KEY (x))', 'DROP PROPERTY GRAPH %'
  if grep { $_ eq 'CREATE PROPERTY GRAPH' } @commands;

# Every command of the server is among them that does not lack names of relations.
my %without = map { $_ => 1 } ((map { my $kind = $_; map { "$_ $kind" } qw(ALTER CREATE DROP) } (
	'ACCESS METHOD', 'AGGREGATE', 'COLLATION', 'CONVERSION', 'DATABASE', 'DEFAULT PRIVILEGES', 'DOMAIN', 'EVENT TRIGGER',
	'EXTENSION', 'FOREIGN DATA WRAPPER', 'GROUP', 'LANGUAGE', 'LARGE OBJECT', 'OPERATOR', 'OPERATOR CLASS',
	'OPERATOR FAMILY', 'OWNED', 'PROCEDURE', 'PUBLICATION', 'ROLE', 'ROUTINE', 'SCHEMA', 'SERVER', 'STATISTICS',
	'SUBSCRIPTION', 'SYSTEM', 'TABLESPACE', 'TEXT SEARCH CONFIGURATION', 'TEXT SEARCH DICTIONARY', 'TEXT SEARCH PARSER',
	'TEXT SEARCH TEMPLATE', 'TRANSFORM', 'USER', 'USER MAPPING')),
	'ALTER FUNCTION', 'DROP CAST', 'ABORT', 'BEGIN', 'CALL', 'CHECKPOINT', 'CLOSE', 'COMMIT', 'COMMIT PREPARED',
	'DEALLOCATE', 'DISCARD', 'END', 'EXECUTE', 'FETCH', 'IMPORT FOREIGN SCHEMA', 'LISTEN', 'LOAD', 'MOVE', 'NOTIFY',
	'PREPARE TRANSACTION', 'REASSIGN OWNED', 'RELEASE SAVEPOINT', 'RESET', 'ROLLBACK', 'ROLLBACK PREPARED',
	'ROLLBACK TO SAVEPOINT', 'SAVEPOINT', 'SET', 'SET CONSTRAINTS', 'SET ROLE', 'SET SESSION AUTHORIZATION',
	'SET TRANSACTION', 'SHOW', 'START TRANSACTION', 'UNLISTEN', 'VALUES', 'WAIT', 'WAIT FOR', 'WITH', 'DROP INDEX', 'CREATE TABLE AS',
	'SELECT INTO');
ok(@commands > 150, 'psql knows the commands of the server');
my @statements = map { s/\b(?:TEMPORARY|OR REPLACE|CONSTRAINT(?= TRIGGER)) //gr } @any, @on_view;
is(join(', ', grep { my $command = $_; !$without{$command} && !grep { /^\Q$command\E\b/ } @statements } @commands), '',
	'a statement of each command that may name a relation');

# Whatever a superuser's transaction has locked: the answer does not wait for it.
my $holder = session($superuser);
$holder->query_safe("BEGIN; SET LOCAL client_min_messages = error; SET LOCAL allow_system_table_mods = on");
$holder->query_safe("LOCK TABLE $_ IN ACCESS EXCLUSIVE MODE") foreach @{ $of_kind{r} };
$holder->query_safe("ALTER SEQUENCE $_ CACHE 1") foreach @{ $of_kind{S} };
$holder->query_safe("ALTER INDEX $_ SET (fillfactor = 90)") foreach @{ $of_kind{i} };
$holder->query_safe("ALTER FOREIGN TABLE $_ ADD COLUMN x int") foreach @{ $of_kind{f} };

my @named = map { my $name = $_->[0]; map { s/%/$name/gr } @any } grep { $_->[1] ne 'v' } @relations;
foreach my $role (@roles)
{
	my @states = sqlstates($role, @named);

	is(join("\n", map { "$states[$_] $named[$_]" } grep { $states[$_] ne '42501' } 0 .. $#named), '',
		"$role can name no relation: " . @named . ' statements');
}

# A statement that is prepared over a view waits for no table.
my @prepared = map { ("PREPARE p AS SELECT * FROM $_", 'DEALLOCATE p', "SELECT pg_get_viewdef('$_'::regclass)") } @{ $of_kind{v} };
foreach my $role (grep { !/nobody|dbowner/ } @roles)
{
	my @states = sqlstates($role, @prepared);

	is(join("\n", map { "$states[$_] $prepared[$_]" } grep { $states[$_] ne '00000' } 0 .. $#prepared), '',
		"$role prepares statements over views while all tables are locked");
}

# Who may not read a view is told so before a table is opened; nobody can name its functions.
my @sources = split /\n/, sql(q{SELECT p.oid::regproc FROM pg_proc p WHERE p.pronamespace = 'idempotency_data'::regnamespace
	AND p.proname LIKE '%\_source' ORDER BY 1});
ok(@sources >= 4, 'views have functions as their sources');
foreach my $role (@roles)
{
	my @calls = map { ("SELECT $_()", "SELECT * FROM $_()", "PREPARE p AS SELECT $_()", "SELECT '$_'::regproc") } @sources;
	my @states = sqlstates($role, @calls);

	is(join("\n", map { "$states[$_] $calls[$_]" } grep { $states[$_] ne '42501' } 0 .. $#calls), '',
		"$role can name no source of a view");
}
foreach my $role (qw(nobody dbowner producer consumer))
{
	my $own = $role eq 'consumer' ? qr/\.(cursors|leases|requests)$/ :
	  $role eq 'producer' ? qr/\.producers$/ : qr/^$/;
	my @read = map { ("SELECT * FROM $_", "COPY (SELECT * FROM $_) TO STDOUT") } grep { !/$own/ } @{ $of_kind{v} };
	my @states = sqlstates($role, @read);

	is(join("\n", map { "$states[$_] $read[$_]" } grep { $states[$_] ne '42501' } 0 .. $#read), '',
		"$role reads no view");
}
$holder->query_safe('ROLLBACK');
$holder->quit;

# The attack that stopped everything: an open transaction with prepared statements,
# and a rule that waits for it.
my $our_locks = q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode <> 'SIReadLock' AND relation IN (
	SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'idempotency_data'
	UNION SELECT c.reltoastrelid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'idempotency_data')};
my $attacker = session('watcher');
$attacker->query('BEGIN');
my $savepoint = 0;
foreach my $relation (@relations)
{
	$attacker->query("SAVEPOINT s");
	$attacker->query("PREPARE p" . $savepoint++ . " AS SELECT 1 FROM $relation->[0]");
	$attacker->query("ROLLBACK TO s") if $relation->[1] ne 'v';
}
is($attacker->query($our_locks), '0', 'statements that are prepared hold no lock on a table');
is(join(' ', sqlstates('watcher', map { "CREATE RULE r AS ON INSERT TO $_ DO INSTEAD NOTHING" } @{ $of_kind{r} })),
	join(' ', ('42501') x @{ $of_kind{r} }), 'and no rule waits');

# Nor does anything wait for the views, which everybody with USAGE on their schema can name.
foreach my $role (@roles)
{
	my @on_views = map { my $name = $_; map { s/%/$name/gr =~ s/\bown\./$role./gr } @any, @on_view } @{ $of_kind{v} };
	my @states = sqlstates($role, @on_views);

	is(join("\n", map { "$states[$_] $on_views[$_]" } grep { $states[$_] =~ /55P03|no answer/ } 0 .. $#on_views), '',
		"$role waits for no lock on a view: " . @on_views . ' statements');
}

# By OID a sequence can be locked, in any schema, and nothing waits for such a lock.
foreach my $sequence (grep { $_->[1] eq 'S' } @relations)
{
	$attacker->query('SAVEPOINT s');
	$attacker->query("SELECT $_") foreach "nextval($sequence->[2])", "pg_sequence_last_value($sequence->[2])";
	$attacker->query('ROLLBACK TO s');
}
is(join(' ', sqlstates($superuser, "SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')",
		"SELECT idempotency.claim_event('f'), idempotency.complete_event('f')",
		"SELECT idempotency.lease_event('g')",
		"SELECT idempotency.claim_offset('c', 't', 0, 1)", "SELECT idempotency.claim_sequence(producer_id, epoch, 0) FROM idempotency.register_producer('p')",
		'SELECT * FROM idempotency.stat_relay', 'SELECT * FROM idempotency.outbox_events',
		"SELECT idempotency.relay_create('made', 'fn')", "SELECT idempotency.relay_drop('made')")),
	join(' ', ('00000') x 9), 'enqueue, claims, leases, the views and relay_create work meanwhile');
$attacker->query('ROLLBACK');
$attacker->quit;

# By OID a role can name what it cannot name by name: as the type of a parameter, which only the
# protocol can give, and as a constant of type regclass or regtype.  A column of a table's row type
# would make ALTER TABLE fail, and any dependency DROP EXTENSION.
my $parameter = <<'END';
import ctypes, sys
pq = ctypes.CDLL('libpq.so.5')
pq.PQconnectdb.restype = pq.PQexecParams.restype = pq.PQexec.restype = pq.PQprepare.restype = ctypes.c_void_p
pq.PQresultErrorField.restype = ctypes.c_char_p
pq.PQresultErrorField.argtypes = [ctypes.c_void_p, ctypes.c_int]
pq.PQexecParams.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int] + 4 * [ctypes.c_void_p] + [ctypes.c_int]
pq.PQprepare.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
pq.PQexec.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
conn = pq.PQconnectdb(sys.argv[1].encode())

def state(result):
	return (pq.PQresultErrorField(result, ord('C')) or b'00000').decode()

for oid in sys.argv[2:]:
	types, values = (ctypes.c_uint * 1)(int(oid)), (ctypes.c_char_p * 1)(None)
	pq.PQexec(conn, b'DEALLOCATE ALL')
	prepared = state(pq.PQprepare(conn, b'p', b'SELECT $1 AS a', 1, types))
	print(*[state(pq.PQexecParams(conn, b'CREATE TABLE by_' + name + b' ' + query, 1, types, values, None, None, 0))
		for name, query in ((b'query', b'AS SELECT $1 AS a'), (b'array', b'AS SELECT ARRAY[$1] AS a'))],
		prepared, state(pq.PQexec(conn, b'CREATE TABLE by_execute AS EXECUTE p(NULL)')))
	pq.PQexec(conn, b'DROP TABLE IF EXISTS by_query, by_array, by_execute')
END
my %type = map { split /\|/ } split /\n/, sql(q{SELECT relname, reltype FROM pg_class WHERE reltype <> 0
	AND (relnamespace = 'idempotency_data'::regnamespace OR oid = 'watcher.t'::regclass)});
my @types = map { $type{$_} } sort grep { $_ ne 't' } keys %type;
my $as_watcher = $node->connstr('postgres') . " user=watcher options='-c search_path=watcher'";
like((run_command([ '/usr/bin/python3', '-c', $parameter, $as_watcher, $type{t} ]))[0],
	qr/^00000 00000 00000 00000$/, 'a role can give the type of a parameter by its OID');
is((run_command([ '/usr/bin/python3', '-c', $parameter, $as_watcher, @types ]))[0],
	join("\n", ('42501 42501 00000 42501') x @types), 'but makes no column of the row type of a table: ' . @types . ' tables');

my @by_oid = map { my $oid = $_->[2]; map { s/%/$oid/gr } (
	"CREATE TABLE watcher.o_d (a regclass DEFAULT '%'::regclass)", "ALTER TABLE watcher.t ALTER x SET DEFAULT '%'::regclass::oid",
	"ALTER TABLE watcher.t ADD CHECK (x <> '%'::regclass::oid)", "CREATE VIEW watcher.o_v AS SELECT '%'::regclass",
	"CREATE MATERIALIZED VIEW watcher.o_m AS SELECT '%'::regclass", "CREATE INDEX ON watcher.t ((x + '%'::regclass::oid::int))",
	"CREATE FUNCTION watcher.o_f(a regclass DEFAULT '%'::regclass) RETURNS int LANGUAGE sql AS 'SELECT 1'",
	"CREATE FUNCTION watcher.o_f() RETURNS regclass LANGUAGE sql RETURN '%'::regclass", "CREATE DOMAIN watcher.o_d AS regclass DEFAULT '%'::regclass",
	"CREATE POLICY p ON watcher.t USING (x <> '%'::regclass::oid)", "CREATE RULE r AS ON INSERT TO watcher.t DO ALSO SELECT '%'::regclass",
	"CREATE TRIGGER g BEFORE INSERT ON watcher.t FOR EACH ROW WHEN (NEW.x <> '%'::regclass::oid) EXECUTE FUNCTION suppress_redundant_updates_trigger()",
	"CREATE STATISTICS watcher.o_s ON x, (x <> '%'::regclass::oid) FROM watcher.t",
	"CREATE TABLE watcher.o_p (x oid) PARTITION BY LIST ((x <> '%'::regclass::oid))",
	"CREATE PUBLICATION o_p FOR TABLE watcher.t WHERE (x <> '%'::regclass::oid)") }
  grep { $_->[0] =~ /_data\.(?:store_segment_0|consumers|outbox_seq|store_keys_0|lease_log_0_key)$/ } @relations;
sql('GRANT CREATE ON DATABASE postgres TO watcher');
my @states_by_oid = sqlstates('watcher', @by_oid);
sql('REVOKE CREATE ON DATABASE postgres FROM watcher');
is(join("\n", map { "$states_by_oid[$_] $by_oid[$_]" } grep { $states_by_oid[$_] ne '42501' } 0 .. $#by_oid), '',
	'nothing that a role makes depends on a table, a sequence or an index: ' . @by_oid . ' statements');
is(join(' ', sqlstates('watcher', 'CREATE VIEW watcher.o_v AS SELECT state FROM idempotency.stat_relay', 'DROP VIEW watcher.o_v',
		"CREATE TABLE watcher.o_d (a regclass DEFAULT 'watcher.t'::regclass)", 'DROP TABLE watcher.o_d')),
	join(' ', ('00000') x 4), 'what a role makes may depend on the views that it reads, and on its own');

# Whoever has read everything and leaves the transaction open keeps nothing locked:
# segments and position logs are emptied.
my $reader = session('everything');
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	$reader->query_safe("BEGIN ISOLATION LEVEL $level");
	$reader->query_safe("SELECT * FROM $_") foreach @{ $of_kind{v} };
	$reader->query_safe("SELECT * FROM $_ LIMIT 1") foreach @{ $of_kind{v} };
	$reader->query_safe('SAVEPOINT s; DECLARE c CURSOR FOR SELECT * FROM idempotency.outbox_events');
	like($reader->query_safe('FETCH 1 c'), qr/"long"/, "$level: a cursor reads an event with a long payload");
	is($reader->query_safe($our_locks), '1', "$level: it has one segment locked until it is closed");
	$reader->query_safe('CLOSE c');
	is($reader->query_safe($our_locks), '0', "$level: an open transaction that has read all views has nothing locked");
	my @free = sqlstates($superuser, 'BEGIN', (map { "LOCK TABLE $_ IN ACCESS EXCLUSIVE MODE" } @{ $of_kind{r} }), 'ROLLBACK');
	is(join(' ', grep { $_ ne '00000' } @free), '', "$level: all tables can be emptied meanwhile");
	$reader->query_safe('COMMIT');
}
$reader->quit;

# The owner of an anchor cannot name it, and it is his.
is(sql('SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relkind = \'f\' AND pg_get_userbyid(relowner) = \'operator\''),
	'operator', 'the anchor of a relay is its owner\'s');
sql('REASSIGN OWNED BY operator TO everything; DROP OWNED BY everything CASCADE');
is(sql('SELECT string_agg(relay, \' \') FROM idempotency.stat_relay'), 'refuses',
	'REASSIGN OWNED and DROP OWNED take relays along');

$node->stop;
done_testing();
