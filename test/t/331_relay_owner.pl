
# Copyright (c) 2026, the idempotency developers

# A relay acts as its owner, who is there as long as it is: the role cannot be
# dropped, from whichever database, and hands the relay over as it does its
# other objects.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');

sub sql
{
	my ($query, $as) = @_;

	return $node->safe_psql('postgres', $query, $as ? (extra_params => [ '-U', $as ]) : ());
}

sub refused
{
	my ($query, %opt) = @_;
	my ($rc, $out, $err) = $node->psql($opt{in} // 'postgres', $query,
		$opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());

	return $rc == 0 ? 'not refused' : $err;
}

# Enqueue one event, and wait until somebody has handled it: who?
my $events = 0;

sub handled_by
{
	sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});
	$events++;
	IdemTest::wait_for($node, "SELECT count(*) = $events FROM app.got");
	return sql('SELECT by FROM app.got ORDER BY n DESC LIMIT 1');
}

sql(<<'END');
CREATE DATABASE elsewhere;
CREATE ROLE old_owner LOGIN;
CREATE ROLE new_owner LOGIN;
CREATE ROLE outsider LOGIN;
SELECT idempotency.grant_role('operator', role) FROM unnest('{old_owner,new_owner,outsider}'::name[]) role;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO old_owner;
CREATE SCHEMA app;
CREATE TABLE app.got (n serial, by name);
GRANT USAGE ON SCHEMA app TO old_owner, new_owner;
GRANT USAGE ON SEQUENCE app.got_n_seq TO old_owner, new_owner;
GRANT INSERT ON app.got TO old_owner, new_owner;
CREATE FUNCTION app.got(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO app.got (by) VALUES (current_user)';
END
sql(<<'END', 'old_owner');
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.got');
SELECT idempotency.relay_create('r', 'fn', min_backoff => '1 ms', max_backoff => '10 ms');
END
is(handled_by(), 'old_owner', 'the relay acts as its owner');

# A role that has nothing but a relay.
sql(<<'END');
DO $$ BEGIN EXECUTE format('ALTER SERVER fn OWNER TO %I', current_user); END $$;
GRANT USAGE ON FOREIGN SERVER fn TO PUBLIC;
CREATE ROLE lone;
SELECT idempotency.grant_role('operator', 'lone');
GRANT USAGE ON SCHEMA app TO lone;
SET ROLE lone;
SELECT idempotency.relay_create('lone', 'fn', aggregate_types => '{other}');
RESET ROLE;
REVOKE USAGE ON SCHEMA app FROM lone;
END
sql(q{REVOKE ALL ON ALL FUNCTIONS IN SCHEMA idempotency, idempotency_data FROM lone; REVOKE ALL ON ALL TABLES IN SCHEMA idempotency FROM lone;
	REVOKE ALL ON SCHEMA idempotency FROM lone;
	DO $$ DECLARE t regtype; BEGIN
		FOR t IN SELECT oid FROM pg_type WHERE typnamespace = 'idempotency'::regnamespace AND typtype = 'e' LOOP
			EXECUTE format('REVOKE ALL ON TYPE %s FROM lone', t);
		END LOOP;
	END $$});
like(refused('DROP ROLE lone'), qr/cannot be dropped because some objects depend on it/, 'the owner of a relay is not dropped');
like(refused('DROP ROLE lone', in => 'elsewhere'), qr/DETAIL:  1 object in database postgres/, 'nor from another database');
sql('DROP OWNED BY lone');
is(sql(q{SELECT count(*) FROM idempotency.stat_relay WHERE relay = 'lone'}), '0', 'DROP OWNED drops the relays of the role');
$node->safe_psql('elsewhere', 'DROP ROLE lone');

# A role may be renamed; the relay does not care, and a dump will say the new name.
sql('ALTER ROLE old_owner RENAME TO former');
is(handled_by(), 'former', 'the owner has another name');
sql(q{SELECT idempotency.relay_pause('r'); SELECT idempotency.relay_resume('r')});
IdemTest::wait_for($node, q{SELECT owner = 'former' FROM idempotency_data.relays WHERE relay = 'r'});

# Handed over, the relay acts as the new owner, or says why not.
like(refused('REASSIGN OWNED BY former TO new_owner', as => 'outsider'), qr/permission denied/, 'not by anybody');
sql('REASSIGN OWNED BY former TO new_owner');
is(sql(q{SELECT owner FROM idempotency_data.relays WHERE relay = 'r'}), 'new_owner', 'REASSIGN OWNED is noted');
IdemTest::wait_for($node,
	q{SELECT last_error ~ 'belongs to' OR state IN ('streaming', 'idle') FROM idempotency.stat_relay WHERE relay = 'r'});
is(handled_by(), 'new_owner', 'REASSIGN OWNED moves the relay to the new owner');
like(refused(q{SELECT idempotency.relay_alter('r', max_attempts => 3)}, as => 'former'), qr/must be owner of relay "r"/,
	'the former owner has it no more');
sql(q{SELECT idempotency.relay_alter('r', max_attempts => 3)}, 'new_owner');
sql('DROP OWNED BY former; DROP ROLE former');

# A new owner without USAGE: a state that says so.
sql('REVOKE USAGE ON FOREIGN SERVER fn FROM PUBLIC');
IdemTest::wait_for($node, q{SELECT state = 'misconfigured' AND last_error ~ 'owner "new_owner" has no USAGE on server "fn"'
	FROM idempotency.stat_relay WHERE relay = 'r'});

# Nobody without rights on the relay can get at it by its foreign table.
my $anchor = 'idempotency_data.relay_' . sql(q{SELECT relay_id FROM idempotency_data.relays WHERE relay = 'r'});
like(refused("DROP FOREIGN TABLE $anchor", as => 'outsider'), qr/permission denied for schema/, 'not by DROP');
like(refused("ALTER FOREIGN TABLE $anchor OWNER TO outsider", as => 'outsider'), qr/permission denied for schema/,
	'nor by ALTER');
like(refused("ALTER FOREIGN TABLE $anchor RENAME TO relay_99", as => 'new_owner'), qr/permission denied for schema/,
	'the owner cannot take another relay\'s place');
like(refused("ALTER FOREIGN TABLE $anchor OWNER TO outsider", as => 'new_owner'), qr/must be|permission denied/,
	'nor give the relay to somebody else');

# Moved out of its schema it is no relay's, and the relay stands, loudly.
sql('CREATE SCHEMA mine AUTHORIZATION new_owner');
like(refused("ALTER FOREIGN TABLE $anchor SET SCHEMA mine", as => 'new_owner'), qr/permission denied for schema/,
	'the owner cannot move it');
sql("ALTER FOREIGN TABLE $anchor SET SCHEMA mine");
sql(q{SELECT idempotency.relay_resume('r')});
IdemTest::wait_for($node, qq{SELECT state = 'misconfigured' AND last_error = 'the relay''s foreign table $anchor does not exist'
	FROM idempotency.stat_relay WHERE relay = 'r'});
like(refused(q{SELECT idempotency.relay_alter('r', server => 'fn')}, as => 'new_owner'), qr/must be owner|permission denied/,
	'without it the relay is the extension owner\'s');
sql(q{SELECT idempotency.relay_alter('r', server => 'fn')});
is(handled_by(), sql('SELECT current_user'), 'who gives it a server again owns it');
$node->stop;
done_testing();
