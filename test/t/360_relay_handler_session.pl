
# Copyright (c) 2026, the idempotency developers

# Whose session a handler runs in: its owner's, in whatever way it tries to
# become somebody else, and also where its code runs last, before the commit.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', conf => "max_worker_processes = 20\n");
my $parallel = $node->safe_psql('postgres', q{SELECT name FROM pg_settings
	WHERE name IN ('force_parallel_mode', 'debug_parallel_query')});

# What others built on session_user: whom does the gate let through?
$node->safe_psql('postgres', <<'END');
CREATE ROLE tenant;
SELECT idempotency.grant_role('operator', 'tenant');
CREATE SCHEMA app AUTHORIZATION tenant;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO tenant;
CREATE FUNCTION public.gate(OUT who name, OUT super text, OUT pid int) LANGUAGE plpgsql SECURITY DEFINER PARALLEL SAFE
	SET search_path = pg_catalog AS $$
BEGIN
	who := session_user;
	super := current_setting('is_superuser');
	pid := pg_backend_pid();
END $$;
CREATE FUNCTION public.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF tg_tag = 'CREATE TABLE' THEN
		PERFORM app.note('event trigger', tg_tag);
	END IF;
END $$;
SET ROLE tenant;
CREATE TABLE app.seen (way text, outcome text, current_name name DEFAULT current_user, session_name name DEFAULT session_user,
	gate name DEFAULT (public.gate()).who, super text DEFAULT current_setting('is_superuser'),
	gate_super text DEFAULT (public.gate()).super);
CREATE FUNCTION app.note(way text, outcome text) RETURNS void LANGUAGE sql
	AS 'INSERT INTO app.seen VALUES (way, outcome)';
CREATE FUNCTION app.definer(q text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN EXECUTE q; END $$;

-- What is deferred would run at COMMIT, in the rights of the worker; so a trigger defers another.
CREATE TABLE app.first (n int);
CREATE TABLE app.second (n int);
CREATE FUNCTION app.on_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM app.note('deferred trigger', '');
	BEGIN
		SET CONSTRAINTS ALL DEFERRED;
		INSERT INTO app.second VALUES (new.n);
	EXCEPTION WHEN OTHERS THEN
		PERFORM app.note('defer in deferred trigger', SQLSTATE);
	END;
	RETURN NULL;
END $$;
CREATE FUNCTION app.on_second() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM app.note('chained trigger', '');
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON app.first DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.on_first();
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON app.second DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.on_second();

-- An expression of an index, and a function with settings of its own.
CREATE FUNCTION app.expr(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM app.note('index expression', ''); RETURN n; END $$;
CREATE TABLE app.indexed (n int);
CREATE INDEX ON app.indexed (app.expr(n));
CREATE FUNCTION app.as_role() RETURNS void LANGUAGE plpgsql SET role = 'tenant' AS 'BEGIN END';
CREATE FUNCTION app.as_session() RETURNS void LANGUAGE plpgsql SET session_authorization = 'tenant' AS 'BEGIN END';
CREATE PROCEDURE app.commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; RESET ROLE; END $$;
CREATE FUNCTION app.gates() RETURNS TABLE (who name, super text, pid int) LANGUAGE plpgsql AS $$
BEGIN RETURN QUERY SELECT * FROM public.gate(); END $$;
CREATE FUNCTION app.parallel() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	g record;
BEGIN
	SELECT * INTO g FROM app.gates();
	INSERT INTO app.seen (way, outcome, gate, gate_super)
		VALUES ('gate in parallel', CASE WHEN g.pid = pg_backend_pid() THEN 'leader' ELSE 'worker' END, g.who, g.super);
END $$;
CREATE FUNCTION app.handle(event_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	outcome text := 'done';
BEGIN
	BEGIN
		EXECUTE payload->>'sql';
	EXCEPTION WHEN OTHERS THEN
		outcome := SQLSTATE;
	END;
	PERFORM app.note(event_type, outcome);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
SELECT idempotency.relay_create('fn', 'fn', min_backoff => '10 ms', max_backoff => '10 ms', max_attempts => 1);
RESET ROLE;
CREATE EVENT TRIGGER on_ddl ON ddl_command_start EXECUTE FUNCTION public.on_ddl();
END

my $reset = 'RESET SESSION AUTHORIZATION';
my @ways = (
	'plain' => 'SELECT',
	'set role' => 'SET ROLE postgres',
	'set own role' => 'SET ROLE tenant',
	'set local role' => 'SET LOCAL ROLE postgres',
	'reset role' => 'RESET ROLE',
	'role none' => q{SELECT set_config('role', 'none', false)},
	'set session' => 'SET SESSION AUTHORIZATION postgres',
	'set session default' => 'SET SESSION AUTHORIZATION DEFAULT',
	'reset session' => $reset,
	'set_config session' => q{SELECT set_config('session_authorization', 'postgres', true)},
	'set is_superuser' => q{SELECT set_config('is_superuser', 'on', true)},
	'reset all' => 'RESET ALL',
	'discard all' => 'DISCARD ALL',
	'do block' => "DO 'BEGIN $reset; END'",
	'do in exception block' => "DO 'BEGIN BEGIN RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN $reset; END; END'",
	'security definer' => "SELECT app.definer('$reset')",
	'role of a function' => 'SELECT app.as_role()',
	'session of a function' => 'SELECT app.as_session()',
	'procedure' => 'CALL app.commits()',
	'prepare' => 'PREPARE p AS SELECT 1',
	'held cursor' => q{DECLARE c CURSOR WITH HOLD FOR SELECT app.note('held cursor', 'at commit')},
	'index' => 'INSERT INTO app.indexed VALUES (1)',
	'ddl' => 'CREATE TABLE app.made (n int)',
	'parallel query' => "SELECT set_config('max_parallel_workers_per_gather', '2', true), set_config('$parallel', 'on', true), app.parallel()",
	'deferred' => 'INSERT INTO app.first VALUES (1)',
	'defer' => 'SET CONSTRAINTS ALL DEFERRED; INSERT INTO app.first VALUES (1)');

my @names;
my $sql = '';
while (my ($name, $way) = splice(@ways, 0, 2))
{
	push @names, $name;
	$sql .= "SELECT idempotency.outbox_enqueue('t', '$name', '$name', jsonb_build_object('sql', \$q\$$way\$q\$));\n";
}
$node->safe_psql('postgres', "BEGIN; $sql COMMIT");
IdemTest::wait_for($node, "SELECT count(DISTINCT way) = @{[ scalar(@names) ]} FROM app.seen
	WHERE way IN (" . join(', ', map { "'$_'" } @names) . ')');

is( $node->safe_psql('postgres', q{SELECT DISTINCT way, current_name, session_name, gate, super, gate_super FROM app.seen
		WHERE (current_name, session_name, gate, super, gate_super) IS DISTINCT FROM ('tenant', 'tenant', 'tenant', 'off', 'off')}),
	'', 'a handler, and all that it leads to, is the owner in the session of the owner');
is( $node->safe_psql('postgres', q{SELECT DISTINCT way COLLATE "C" AS way, outcome FROM app.seen ORDER BY 1, 2}),
	<<"END" =~ s/\n\z//r, 'and no way leads out of it');
ddl|done
defer|42501
defer in deferred trigger|42501
deferred|done
deferred trigger|
discard all|42501
do block|42501
do in exception block|42501
event trigger|CREATE TABLE
gate in parallel|worker
held cursor|42501
index|done
index expression|
parallel query|done
plain|done
prepare|42501
procedure|2D000
reset all|done
reset role|42501
reset session|42501
role none|42501
role of a function|42501
security definer|42501
session of a function|42501
set is_superuser|55P02
set local role|42501
set own role|42501
set role|42501
set session|42501
set session default|42501
set_config session|42501
END

$node->stop;
done_testing();
