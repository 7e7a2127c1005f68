
# Copyright (c) 2026, the idempotency developers

# What a login with few rights can make a relay do for it, and what an owner's
# mistake does to events: nothing.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('security');

sub sql
{
	my ($query, %opt) = @_;

	return $node->safe_psql('postgres', $query,
		$opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());
}

# The error of a statement that has to fail.
sub refused
{
	my ($query, $as) = @_;
	my ($rc, $out, $err) =
	  $node->psql('postgres', $query, $as ? (extra_params => [ '-U', $as ]) : ());

	return $rc == 0 ? 'not refused' : $err;
}

sub wait_relay
{
	my ($relay, $condition, $what) = @_;

	ok($node->poll_query_until('postgres',
			"SELECT $condition FROM idempotency.stat_relay WHERE relay = '$relay'"), $what);
	return;
}

sub enqueue
{
	my ($key) = @_;

	sql("SELECT idempotency.outbox_enqueue('order', '$key', 'Created', '{}')");
	return;
}

sql(<<'END');
CREATE ROLE op LOGIN;
CREATE ROLE outsider LOGIN;
SELECT idempotency.grant_role('operator', 'op');
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function, idempotency_postgres TO op;
CREATE SCHEMA app;
GRANT USAGE, CREATE ON SCHEMA app TO op;
CREATE TABLE app.got (id uuid, by name);
CREATE TABLE app.parent (k int PRIMARY KEY);
INSERT INTO app.parent VALUES (1);
CREATE TABLE app.child (k int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION app.handle(event_id uuid) RETURNS void LANGUAGE sql AS
	'INSERT INTO app.got VALUES (event_id, current_user); INSERT INTO app.child VALUES (1)';
END

# A server's owner decides what runs: not with the rights of another.
sql(<<'END', as => 'op');
CREATE SERVER of_op FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.evil');
CREATE FUNCTION app.evil(event_id uuid) RETURNS void LANGUAGE plpgsql AS
	'BEGIN ALTER ROLE op SUPERUSER; END';
END
like(refused("SELECT idempotency.relay_create('lent', 'of_op')"),
	qr/server "of_op" belongs to role "op"/,
	'no function relay of a superuser to a server of somebody else');
sql(<<'END');
CREATE SERVER given FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
SELECT idempotency.relay_create('given', 'given');
ALTER SERVER given OWNER TO op;
END
wait_relay('given', "state = 'misconfigured'", 'stands when its server is given away');
sql("ALTER SERVER given OPTIONS (SET function 'app.evil')", as => 'op');
enqueue('1');
wait_relay('given', "lag_events = 1 AND state = 'misconfigured'", 'still stands, with an event to send');
is(sql("SELECT rolsuper FROM pg_roles WHERE rolname = 'op'"), 'f',
	'the owner of the server has gained nothing');
sql("ALTER SERVER given OPTIONS (SET function 'app.handle'); ALTER SERVER given OWNER TO CURRENT_USER");
wait_relay('given', "state IN ('streaming', 'idle') AND lag_events = 0", 'runs when it has come back');

# The same by way of a connection without a password.
my ($host, $port) = ($node->host, $node->port);
sql(<<"END", as => 'op');
CREATE SERVER loop FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'postgres', function 'app.evil');
CREATE USER MAPPING FOR PUBLIC SERVER loop OPTIONS (user '@{[ $node->safe_psql('postgres', 'SELECT current_user') ]}');
END
sql("SELECT idempotency.relay_create('loop', 'loop')");
wait_relay('loop', "last_error ILIKE '%password%'", 'a password is required where the server is not a superuser\'s');
sql("SELECT idempotency.relay_drop('loop')");
is(sql("SELECT rolsuper FROM pg_roles WHERE rolname = 'op'"), 'f', 'again nothing gained');

# Constraints that are deferred otherwise are checked within the handler.
is(sql('SELECT count(*) FROM app.child'), '1', 'a handler may write to a table with a deferred constraint');

# Settings of the database are not the worker's, as far as they would hurt it.
sql(<<'END');
CREATE TABLE app.settings (name text, setting text);
CREATE FUNCTION app.note_settings(event_id uuid) RETURNS void LANGUAGE sql AS
	$$INSERT INTO app.settings SELECT name, setting FROM pg_settings UNION ALL SELECT 'role', current_setting('role')$$;
CREATE SERVER notes FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.note_settings');
ALTER DATABASE postgres SET role = 'outsider';
ALTER DATABASE postgres SET transform_null_equals = on;
ALTER DATABASE postgres SET debug_print_plan = on;
ALTER DATABASE postgres SET max_parallel_workers_per_gather = 7;
ALTER DATABASE postgres SET idempotency.uncompleted_claims = keep;
ALTER DATABASE postgres SET work_mem = '123kB';
SELECT idempotency.relay_create('notes', 'notes');
END
{
	local $ENV{PGOPTIONS} = '-c role=none';
	enqueue('settings');
	ok($node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM app.settings'),
	'a relay in a database with hostile settings runs');
is(sql(<<'END'), 'debug_print_plan=off idempotency.uncompleted_claims=error max_parallel_workers_per_gather=0 role=none transform_null_equals=off work_mem=123', 'its worker has those of its own');
SELECT string_agg(DISTINCT name || '=' || setting, ' ' ORDER BY name || '=' || setting) FROM app.settings
	WHERE name IN ('role', 'transform_null_equals', 'debug_print_plan', 'max_parallel_workers_per_gather',
		'idempotency.uncompleted_claims', 'work_mem')
END
sql('ALTER DATABASE postgres RESET ALL');
}
sql("SELECT idempotency.relay_drop('notes')");

# Error text is for those who may read dead letters.
sql(<<'END');
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE FUNCTION app.quote(event_id uuid, payload jsonb) RETURNS void LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'no such card: %', payload; END$$;
CREATE SERVER quotes FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.quote');
SELECT idempotency.relay_create('quotes', 'quotes', aggregate_types => '{card}', max_attempts => 1);
SELECT idempotency.outbox_enqueue('card', '1', 'Created', '"4111"');
END
wait_relay('quotes', "last_error LIKE '%4111%' AND dead = 1", 'an error quotes the payload');
my $errors = "SELECT last_error, last_error_at IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'quotes'";
is(sql($errors, as => 'watcher'), '<insufficient privilege>|t', 'a monitor sees that there is one');
like(sql($errors, as => 'op'), qr/4111/, 'an operator sees it');
like(refused('SELECT * FROM idempotency.dead_letters', 'watcher'), qr/permission denied/, 'a monitor reads no dead letters');
sql("SELECT idempotency.relay_drop('quotes')");

# A consumer cannot list what others did.
sql("CREATE ROLE eater LOGIN; SELECT idempotency.grant_role('consumer', 'eater')");
like(refused('SELECT * FROM idempotency.processed_events', 'eater'), qr/permission denied/, 'a consumer does not list results');

# Who may not drop a server learns nothing, and drops nothing.
unlike(refused('DROP SERVER given', 'outsider'), qr/given.*relay|Relays/s,
	'DROP SERVER tells outsiders of no relay');
like(refused('DROP SERVER given CASCADE', 'outsider'), qr/must be owner/, 'and is refused');
sql(<<'END');
CREATE ROLE leaving;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_null TO leaving;
CREATE SERVER going FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('stays', 'going');
ALTER SERVER going OWNER TO leaving;
END
like(refused('DROP OWNED BY leaving'), qr/other objects depend on/, 'nor does the DROP OWNED of a server\'s owner');
sql('DROP SERVER IF EXISTS nothing CASCADE', as => 'outsider');
is(sql("SELECT server FROM idempotency.stat_relay WHERE relay = 'stays'"), 'going', 'the relay stays');

# What a worker parked for a relay at the moment it was dropped is not the next one's.
# No restore may bring such rows, so the trigger against restores is off meanwhile.
sql(<<'END');
ALTER TABLE idempotency_data.relay_parked DISABLE TRIGGER USER;
INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at,
		aggregate_type, aggregate_id, event_type, payload)
	SELECT max(relay_id) + 1, 'dead', 1, '3', 1, gen_random_uuid(), now(), 'order', 'secret', 'Created', '{}'
	FROM idempotency_data.relays;
ALTER TABLE idempotency_data.relay_parked ENABLE TRIGGER USER;
CREATE SERVER next FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('next', 'next');
END
is(sql("SELECT count(*) FROM idempotency.dead_letters WHERE relay = 'next'"), '0',
	'a new relay has no dead letters of another');

# COMMIT PREPARED is another session's.
sql("BEGIN; SELECT idempotency.relay_pause('next'); PREPARE TRANSACTION 'pause'");
sql("COMMIT PREPARED 'pause'");
wait_relay('next', "state = 'paused'", 'a relay that was paused by a prepared transaction is');

# Nobody tells a worker that a role has lost its rights; it looks once a minute.
sql("CREATE ROLE boss SUPERUSER; SET ROLE boss; SELECT idempotency.relay_create('demoted', 'given')");
wait_relay('demoted', "state IN ('streaming', 'idle')", 'runs for a superuser');
sql("ALTER ROLE boss NOSUPERUSER");
wait_relay('demoted', "state = 'misconfigured'", 'and stands when he is none any more');
sql("SELECT idempotency.relay_drop('demoted')");

# An interval that wraps around would keep every worker from its configuration.
sql("CREATE SERVER null_server FOREIGN DATA WRAPPER idempotency_null");
like(refused(<<'END'), qr/argument "min_backoff" is out of range/, 'no backoff longer than a day');
SELECT idempotency.relay_create('wraps', 'null_server',
	min_backoff => make_interval(months => 8000000, hours => -635904423, secs => -3490.443384));
END

# Handlers see tables under row-level security, as they would in a session.
sql(<<'END');
CREATE TABLE app.guarded (id uuid);
ALTER TABLE app.guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON app.guarded TO op USING (true);
GRANT SELECT, INSERT ON app.guarded TO op;
END
sql(<<'END', as => 'op');
CREATE FUNCTION app.guard(event_id uuid) RETURNS void LANGUAGE sql AS
	'INSERT INTO app.guarded SELECT $1 WHERE NOT EXISTS (SELECT FROM app.guarded WHERE id = $1)';
CREATE SERVER guard FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.guard');
SELECT idempotency.relay_create('guard', 'guard', start_at => 'latest');
END
enqueue('guarded');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.guarded});

$node->stop;
done_testing();
