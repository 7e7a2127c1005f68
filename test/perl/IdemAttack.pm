
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemAttack - a server with something to attack, and what every login tries

=head1 SYNOPSIS

  use IdemAttack;

  my $node = IdemAttack::victim('producer', 'mallory');  # mallory has that kind
  IdemAttack::refused($node, 'mallory', 'SELECT ...', qr/permission denied/, 'what');
  my $session = IdemAttack::session($node, 'mallory');   # stays open
  IdemAttack::alive($node, 'what was tried');            # events and claims go on
  IdemAttack::common($node, 'mallory', 'producer');      # lock, read, stop, learn

=head1 DESCRIPTION

The victims: role shop enqueues orders, which relay "orders" gives to app.handle
and relay "copies" to the null sink; role billing claims.  Relay "cards" has a dead
letter whose error quotes its payload.  What nobody may read contains "s3cret".

=cut

package IdemAttack;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;

use IdemTest;

my $top = dirname(abs_path(__FILE__)) . '/../..';
my $fresh = 0;

sub victim
{
	my ($kind, $role, %opt) = @_;
	my $node = IdemTest::cluster($kind, conf => $opt{conf});

	$node->safe_psql('postgres', <<"END");
CREATE ROLE shop LOGIN;
CREATE ROLE billing LOGIN;
CREATE ROLE $role LOGIN;
SELECT idempotency.grant_role('producer', 'shop'), idempotency.grant_role('consumer', 'billing');
SELECT idempotency.grant_role('$kind', '$role');
SELECT idempotency.consumer_create('vault', private_locks => true);
CREATE SCHEMA app;
CREATE TABLE app.got (event_id uuid, aggregate_id text, payload jsonb);
CREATE TABLE app.shipped (event_id text);
GRANT USAGE ON SCHEMA app TO billing;
GRANT INSERT ON app.shipped TO billing;
CREATE FUNCTION app.handle(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql AS
	'INSERT INTO app.got VALUES (event_id, aggregate_id, payload)';
CREATE FUNCTION app.quote(event_id uuid, payload jsonb) RETURNS void LANGUAGE plpgsql AS
	'BEGIN RAISE EXCEPTION ''no such card: %'', payload; END';
CREATE SERVER orders FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
CREATE SERVER copies FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER cards FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.quote');
CREATE SERVER elsewhere FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '/nowhere', dbname 'elsewhere', function 'app.handle');
CREATE USER MAPPING FOR CURRENT_USER SERVER elsewhere OPTIONS (user 'relay', password 's3cret of the mapping');
SELECT idempotency.relay_create('orders', 'orders', aggregate_types => '{order}');
SELECT idempotency.relay_create('copies', 'copies', aggregate_types => '{order}');
SELECT idempotency.relay_create('cards', 'cards', aggregate_types => '{card}', max_attempts => 1);
SELECT idempotency.relay_create('elsewhere', 'elsewhere', aggregate_types => '{none}');
SELECT idempotency.outbox_enqueue('card', '1', 'Created', '"s3cret of the payload"');
BEGIN;
SELECT idempotency.claim_event('paid', 'billing');
SELECT idempotency.complete_event('paid', 'billing', result => '"s3cret of the result"');
COMMIT;
END
	IdemTest::wait_for($node, q{SELECT dead = 1 FROM idempotency.stat_relay WHERE relay = 'cards'});
	alive($node, 'before any attack');
	return $node;
}

sub sql
{
	my ($node, $role, $query) = @_;

	return $node->safe_psql('postgres', $query, extra_params => [ '-U', $role ]);
}

# Output and errors of statements of which each is tried, whatever became of the others.
sub try
{
	my ($node, $role, $query) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $query, on_error_stop => 0,
		extra_params => [ '-U', $role, '-v', 'VERBOSITY=sqlstate' ]);

	return "$out\n$err";
}

# A statement has to fail like that.
sub refused
{
	my ($node, $role, $query, $error, $what) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $query, extra_params => [ '-U', $role ]);

	return like($rc == 0 ? "not refused: $out" : $err, $error, $what // $query);
}

sub session
{
	my ($node, $role) = @_;

	return $node->background_psql('postgres', extra_params => [ '-U', $role ], on_error_stop => 0);
}

# An order arrives at both relays, and an event is claimed and completed, in the
# time that any test waits for a condition.
sub alive
{
	my ($node, $what) = @_;
	my $id = 'alive-' . ++$fresh;
	my $event = sql($node, 'shop', "SELECT idempotency.outbox_enqueue('order', '$id', 'Placed', '1')");
	my $ready = $node->poll_query_until('postgres', <<"END");
SELECT EXISTS (SELECT FROM app.got WHERE event_id = '$event')
   AND (SELECT state = 'streaming' AND lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'copies')
END
	my $verdicts = sql($node, 'billing', <<"END");
SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';
BEGIN;
SELECT idempotency.claim_event('$id', 'billing'), idempotency.claim_event('$id', 'vault');
INSERT INTO app.shipped VALUES ('$id');
SELECT idempotency.complete_event('$id', 'billing'), idempotency.complete_event('$id', 'vault');
COMMIT;
SELECT idempotency.claim_event('$id', 'billing');
END

	return ok($ready && $verdicts =~ /\Aclaimed\|claimed\n\|?\nduplicate\z/, "relays and claims go on: $what")
	  || diag("relays: $ready, claims: $verdicts");
}

# The tables of the extension that a process has locked.
sub table_locks
{
	my ($pid) = @_;

	return qq{SELECT string_agg(DISTINCT c.relname, ' ') FROM pg_locks l
		JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r' AND l.mode <> 'SIReadLock'
		JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
		JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' WHERE l.pid = $pid};
}

# What the row of a kind in the documents allows, as two sorted lists.
sub documented
{
	my ($kind) = @_;
	my $page = slurp_file("$top/doc/reference/roles.md");
	my ($calls, $reads) = $page =~ /^\| `$kind` \|([^|]*)\|([^|]*)\|/m or die "no row of $kind";

	return map { join ' ', sort /`(\w+)`/g } $calls, $reads;
}

# A role of the kind may do what stands there, and no more.
sub rights
{
	my ($node, $role, $kind) = @_;
	my ($calls, $reads) = documented($kind);
	my $members = q{pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
		AND d.deptype = 'e' AND e.extname = 'idempotency'};
	my $sorted = sub { join ' ', sort split / /, shift };
	my $may_call = $node->safe_psql('postgres', qq{
		SELECT string_agg(DISTINCT p.proname, ' ') FROM $members JOIN pg_proc p ON p.oid = d.objid
		 WHERE d.classid = 'pg_proc'::regclass AND has_function_privilege('$role', p.oid, 'EXECUTE')
		   AND has_schema_privilege('$role', p.pronamespace, 'USAGE')});
	my $may_read = $node->safe_psql('postgres', qq{
		SELECT string_agg(DISTINCT c.relname, ' ') FROM $members JOIN pg_class c ON c.oid = d.objid
		 WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
		   AND has_any_column_privilege('$role', c.oid, 'SELECT')});
	my $may_write = $node->safe_psql('postgres', qq{
		SELECT count(*) FROM $members JOIN pg_class c ON c.oid = d.objid
		 WHERE d.classid = 'pg_class'::regclass AND CASE c.relkind
			WHEN 'S' THEN has_sequence_privilege('$role', c.oid, 'USAGE, SELECT, UPDATE')
			ELSE has_table_privilege('$role', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') END});

	is($sorted->($may_call), $calls, "$role may call what is documented") if $kind =~ /producer|consumer|monitor/;
	is($sorted->($may_read), $reads, "$role may read what is documented");
	is($may_write, '0', "$role may write to no relation");
	return;
}

# Lock what any login can lock, and hold it.
sub lock_what_can_be_locked
{
	my ($node, $role) = @_;
	my $holder = session($node, $role);

	# Keys of claims to come, and every key that a lock of ours has at the moment
	$holder->query(q{SELECT pg_advisory_lock(k.classid::bigint << 32 | k.objid::bigint), pg_advisory_lock(k.classid::int, k.objid::int)
		FROM pg_locks k WHERE k.locktype = 'advisory' AND k.classid < 2147483648 AND k.objid < 2147483648});
	$holder->query('SELECT pg_advisory_lock(i), pg_advisory_lock(0, i), pg_advisory_lock(i, 0) FROM generate_series(0, 300) i');
	$holder->query('SELECT pg_advisory_lock(c.oid::bigint), pg_advisory_lock(c.oid::int, 0) FROM pg_class c');
	foreach my $id (map { 'alive-' . ($fresh + $_) } 1 .. 3)
	{
		my $key = $node->safe_psql('postgres', "SELECT idempotency.lock_key('$id', 'vault')");

		$holder->query("SELECT pg_advisory_lock($key), pg_advisory_lock(($key >> 32)::int, ($key << 32 >> 32)::int)");
	}
	alive($node, "$role holds advisory locks with the numbers of private ones");

	# The extension as an object, its types, its functions; one after the other, in one transaction
	$holder->query('BEGIN');
	foreach my $statement (
		q{CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'},
		'ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION idempotency',
		'CREATE TEMPORARY TABLE t (a idempotency.claim_result, b idempotency.relay_start)',
		'CREATE TEMPORARY VIEW v AS SELECT idempotency.outbox_mend_seq()',
		'LISTEN idempotency', q{NOTIFY idempotency, 'x'}, 'SELECT pg_current_xact_id()')
	{
		$holder->query('SAVEPOINT s');
		$holder->query($statement);
		$holder->query('ROLLBACK TO s') if $statement =~ /VIEW/;
	}
	is($holder->query('SELECT count(*) > 0 FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = \'object\''),
		't', "$role holds locks on objects");
	alive($node, "$role holds locks on the extension, on types and functions, and a snapshot");
	$node->safe_psql('postgres', <<'END');
SET lock_timeout = '10s';
CREATE SERVER more FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('more', 'more');
SELECT idempotency.relay_alter('more', batch_events => 10), idempotency.relay_pause('more'), idempotency.relay_resume('more');
SELECT idempotency.relay_drop('more');
DROP SERVER more;
END
	$holder->query('ROLLBACK; SELECT pg_advisory_unlock_all()');
	$holder->quit;

	# Commands that lock an object before they ask whose it is: no answer waits, and all are refused.
	foreach my $command (
		'COMMENT ON EXTENSION idempotency IS NULL', 'ALTER EXTENSION idempotency UPDATE',
		'ALTER EXTENSION idempotency DROP FUNCTION idempotency.claim_events(text[], text)', 'DROP EXTENSION idempotency CASCADE',
		'ALTER EXTENSION idempotency SET SCHEMA public',
		'COMMENT ON SCHEMA idempotency IS NULL', 'ALTER SCHEMA idempotency RENAME TO x', 'CREATE TABLE idempotency.x ()',
		q{CREATE FUNCTION idempotency.x() RETURNS int LANGUAGE sql AS 'SELECT 1'},
		"ALTER TYPE idempotency.claim_result ADD VALUE 'x'", 'ALTER TYPE idempotency.claim_result OWNER TO CURRENT_USER',
		'ALTER FUNCTION idempotency.claim_events(text[], text) OWNER TO CURRENT_USER',
		'ALTER FUNCTION idempotency.claim_events(text[], text) DEPENDS ON EXTENSION plpgsql',
		'ALTER FUNCTION idempotency.claim_events(text[], text) SECURITY DEFINER',
		'DROP FUNCTION idempotency.outbox_mend_seq() CASCADE',
		'COMMENT ON SERVER orders IS NULL', 'DROP SERVER orders CASCADE', "ALTER SERVER orders OPTIONS (SET function 'x.y')",
		'ALTER SERVER orders OWNER TO CURRENT_USER', 'CREATE USER MAPPING FOR PUBLIC SERVER elsewhere',
		'ALTER FOREIGN DATA WRAPPER idempotency_null NO VALIDATOR',
		q{CREATE OR REPLACE FUNCTION app.handle(event_id uuid, aggregate_id text, payload jsonb) RETURNS void LANGUAGE sql AS ''},
		'DROP FUNCTION app.handle', 'BEGIN; LOCK TABLE app.got', 'SET ROLE shop',
		'CREATE EVENT TRIGGER x ON ddl_command_end EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()',
		'CREATE PUBLICATION p FOR ALL TABLES', "SELECT pg_create_logical_replication_slot('x', 'pgoutput')")
	{
		my $error = try($node, $role, "SET lock_timeout = '5s'; $command");

		like($error, qr/ERROR:\s+(42501|55000|42939|0A000|22023)/, "$role: $command");
	}
	return;
}

# Look for a secret wherever a login may look.
sub read_what_can_be_read
{
	my ($node, $role, $secret, @more) = @_;

	foreach my $query (
		'SELECT * FROM pg_catalog.pg_user_mappings', 'SELECT * FROM pg_catalog.pg_user_mapping',
		'SELECT * FROM information_schema.user_mapping_options', 'SELECT * FROM pg_catalog.pg_foreign_server',
		'SELECT * FROM information_schema.foreign_server_options', 'SELECT * FROM pg_catalog.pg_foreign_table',
		'SELECT * FROM pg_catalog.pg_stat_activity', 'SELECT * FROM pg_catalog.pg_stats', 'SELECT * FROM pg_catalog.pg_statistic',
		'SELECT * FROM pg_catalog.pg_stats_ext_exprs', 'SELECT * FROM pg_catalog.pg_prepared_statements',
		'SELECT * FROM pg_catalog.pg_cursors', 'SELECT * FROM pg_catalog.pg_prepared_xacts',
		'SELECT * FROM pg_catalog.pg_seclabels', 'SELECT * FROM pg_catalog.pg_shseclabel', 'SELECT * FROM pg_catalog.pg_largeobject',
		'SELECT * FROM pg_catalog.pg_settings', 'SELECT pg_catalog.pg_read_file(pg_current_logfile())',
		q{SELECT pg_catalog.pg_read_file('postgresql.conf')}, q{SELECT pg_catalog.pg_ls_dir('.')},
		q{COPY (SELECT 1) TO PROGRAM 'cat'}, q{CREATE TEMPORARY TABLE x (l text); COPY x FROM '/proc/self/environ'},
		q{SELECT pg_catalog.lo_import('/etc/passwd')}, q{SELECT pg_catalog.query_to_xml('TABLE idempotency.dead_letters', true, true, '')},
		q{SELECT pg_catalog.schema_to_xml('idempotency', true, true, '')},
		q{SELECT pg_catalog.schema_to_xml('idempotency_data', true, true, '')},
		q{SELECT pg_catalog.database_to_xml(true, true, '')},
		q{SELECT idempotency.sink_setup_sql('elsewhere')},
		q{SELECT * FROM idempotency.stat_relay}, q{SELECT * FROM idempotency_data.relay_status()}, @more)
	{
		my $seen = try($node, $role, $query);

		unlike($seen, $secret, "$role finds nothing by: $query");
	}
	return;
}

# Signals, settings, objects of the same names.
sub stop_what_can_be_stopped
{
	my ($node, $role) = @_;

	# A worker that had nothing left to do has ended, and gets no signal: false.
	foreach my $worker (split /\n/, $node->safe_psql('postgres',
		q{SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'}))
	{
		my ($pid, $type) = split /\|/, $worker;
		my $gone = $type =~ /launcher|relay/ ? '' : '|^not refused: f$';

		refused($node, $role, "SELECT $_($pid)", qr/must be a superuser|[Pp]ermission denied|Only roles with$gone/, "$role: $_ of $type")
		  foreach 'pg_cancel_backend', 'pg_terminate_backend';
	}
	foreach my $command (
		'SELECT pg_reload_conf()', 'SELECT pg_promote()', 'SELECT pg_switch_wal()', 'CHECKPOINT', 'SELECT pg_stat_reset()',
		"ALTER SYSTEM SET idempotency.publish_as = 'x'", 'ALTER DATABASE postgres SET statement_timeout = 1',
		'ALTER ROLE shop SET statement_timeout = 1', 'DROP ROLE shop', 'DROP DATABASE postgres', 'CREATE DATABASE copy TEMPLATE postgres',
		'SET session_replication_role = replica', 'SET idempotency.max_payload_size = 1024', 'SET idempotency.outbox_retention = 0',
		"SET idempotency.sink_directory = '/tmp'", "SET idempotency.publish_witness = '/bin/true'", 'SET idempotency.max_parked = 1',
		'SET debug_io_direct = x', "LOAD 'idempotency'; SELECT idempotency.test_fault()")
	{
		like(try($node, $role, $command), qr/ERROR:/, "$role: $command");
	}
	try($node, $role, <<'END');
ALTER ROLE CURRENT_USER SET statement_timeout = 1;
ALTER ROLE CURRENT_USER SET default_transaction_read_only = on;
ALTER ROLE CURRENT_USER SET search_path = pg_temp;
ALTER ROLE CURRENT_USER SET idempotency.uncompleted_claims = keep;
CREATE TEMPORARY TABLE relays (a int);
CREATE TEMPORARY TABLE processed (a int);
CREATE TYPE pg_temp.claim_result AS ENUM ('duplicate');
CREATE FUNCTION pg_temp.jsonb_out(jsonb) RETURNS cstring LANGUAGE internal AS 'jsonb_out';
DROP OWNED BY CURRENT_USER;
END
	alive($node, "$role has set what it may set, and dropped what it owns");
	$node->safe_psql('postgres', "ALTER ROLE \"$role\" RESET ALL");
	return;
}

# DROP OWNED takes the grants, too: they come back.
sub common
{
	my ($node, $role, $kind) = @_;

	rights($node, $role, $kind);
	lock_what_can_be_locked($node, $role);
	# Operators read events and results, by the documents.
	read_what_can_be_read($node, $role, $kind eq 'operator' ? qr/s3cret of the mapping/ : qr/s3cret/);
	stop_what_can_be_stopped($node, $role);
	$node->safe_psql('postgres', "SELECT idempotency.grant_role('$kind', '$role')");
	return;
}

1;
