
# Copyright (c) 2026, the idempotency developers

# What a handler of a function relay can do wrong stays with its event.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

$node->safe_psql('postgres', <<'END');
CREATE ROLE owner;
SELECT idempotency.grant_role('operator', 'owner');
SELECT idempotency.grant_role('consumer', 'owner');
CREATE SCHEMA app AUTHORIZATION owner;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO owner;
CREATE TABLE public.secret (x int);
SET ROLE owner;
CREATE TABLE app.effects (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, event_type text, payload text,
	headers jsonb, who text, path text, calls int);
CREATE TABLE app.parent (id int PRIMARY KEY);
CREATE TABLE app.child (id int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION app.handle(event_id uuid, event_type text, payload jsonb, headers jsonb, enqueued_at timestamptz)
	RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.effects (event_id, event_type, payload, headers, who, path)
		VALUES (event_id, event_type, payload->>'n', headers, current_user, current_setting('search_path'));
	CASE event_type
		WHEN 'Error' THEN RAISE EXCEPTION 'refused by the handler' USING ERRCODE = 'XX123';
		WHEN 'Deferred' THEN INSERT INTO app.child VALUES (1);
		WHEN 'DeferredGood' THEN
			INSERT INTO app.parent VALUES ((payload->>'n')::int);
			INSERT INTO app.child VALUES ((payload->>'n')::int);
		WHEN 'Later' THEN
			SET CONSTRAINTS ALL DEFERRED;
			INSERT INTO app.child VALUES (1);
		WHEN 'Set' THEN
			PERFORM set_config('search_path', 'elsewhere', false), set_config('statement_timeout', '1', false);
		WHEN 'Secret' THEN PERFORM FROM public.secret;
		WHEN 'Role' THEN RESET ROLE;
		WHEN 'Restricted' THEN CREATE TEMP TABLE t (x int);
		WHEN 'Slow' THEN PERFORM pg_sleep(3600);
		WHEN 'Caught' THEN
			BEGIN
				INSERT INTO app.effects (event_type) VALUES ('inner');
				RAISE EXCEPTION 'caught';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		ELSE NULL;
	END CASE;
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle', timeout '1500');
SELECT idempotency.relay_create('fn', 'fn', max_attempts => 2, min_backoff => '20 ms', max_backoff => '20 ms');
SELECT idempotency.relay_pause('fn');
END

# All in one batch, each between two good ones.
my $n = 10;
my $sql = '';
foreach my $type (qw(Error Deferred DeferredGood Set DeferredGood Later Secret Role Restricted Slow Caught))
{
	foreach my $t ($type, 'Good')
	{
		$n++;
		$sql .= qq{SELECT idempotency.outbox_enqueue('t', 'k$n', '$t', '{"n": $n}', headers => '{"h": $n}');\n};
	}
}
$node->safe_psql('postgres', "BEGIN; $sql; COMMIT; SELECT idempotency.relay_resume('fn')");
IdemRelay::wait_dead($node, 'fn', 7, sub {
	$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'others', 'Other', '{"n": 0}')});
});
IdemTest::wait_for($node, q{SELECT count(*) = 11 FROM app.effects WHERE event_type = 'Good'});
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = 'fn'});
is( $node->safe_psql('postgres', <<'END'), <<'END2' =~ s/\n\z//r, 'each error is that of its event');
SELECT o.event_type, attempts, sqlstate, error FROM idempotency.dead_letters JOIN idempotency.outbox_events o USING (event_id)
	ORDER BY o.seq
END
Error|2|XX123|refused by the handler
Deferred|2|23503|insert or update on table "child" violates foreign key constraint "child_id_fkey"
Later|2|42501|cannot fire deferred trigger within security-restricted operation
Secret|2|42501|permission denied for table secret
Role|2|42501|cannot set parameter "role" within security-definer function
Restricted|2|42501|cannot create temporary table within security-restricted operation
Slow|2|57014|the handler did not end within its timeout of 1500 ms
END2
is( $node->safe_psql('postgres', q{SELECT event_type, count(*) FROM app.effects WHERE event_type <> 'Other' GROUP BY 1 ORDER BY 1}),
	"Caught|1\nDeferredGood|2\nGood|11\nSet|1", 'the effects of the others, and no other');
is($node->safe_psql('postgres', q{SELECT DISTINCT who, headers->>'h' = payload FROM app.effects WHERE event_type <> 'Other'}),
	'owner|t', 'as the owner, with headers');
is($node->safe_psql('postgres', q{SELECT count(DISTINCT path) FROM app.effects}), '1', 'no setting is left behind');

# Exactly once holds against replay and against the application's own claim.
my $effects = $node->safe_psql('postgres', 'SELECT count(*) FROM app.effects');
$node->safe_psql('postgres', q{SELECT idempotency.relay_replay('fn', since => '-infinity')});
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'after', 'After', '{"n": 1}')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'After'});
is($node->safe_psql('postgres', 'SELECT count(*) FROM app.effects'), $effects + 1, 'a replay has no second effect');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM app.effects a JOIN idempotency_data.store_segment_0 p ON p.event_id = a.event_id::text
			WHERE a.event_type = 'After' AND p.consumer = '@relay/fn' AND p.completed_at IS NOT NULL}),
	'1', 'the relay has claimed what it handled');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.processed_events'), '0', 'which nobody else sees');

# Nobody can take an event away from the relay by claiming it.
$node->safe_psql('postgres', <<'END');
CREATE ROLE rival;
SELECT idempotency.grant_role('consumer', 'rival');
SELECT idempotency.relay_pause('fn');
SELECT idempotency.outbox_enqueue('t', 'after', 'Wanted', '{"n": 1}', event_id => '11111111-1111-4111-8111-111111111111');
SET ROLE rival;
BEGIN;
SELECT idempotency.claim_event('11111111-1111-4111-8111-111111111111'::uuid, consumer => 'fn');
SELECT idempotency.complete_event('11111111-1111-4111-8111-111111111111'::uuid, consumer => 'fn');
COMMIT;
END
foreach my $call ("claim_event('x', consumer => '\@relay/fn')", "claim_events('{x}', consumer => '\@relay/fn')",
	"complete_event('x', consumer => '\@relay/fn')", "release_event('x', consumer => '\@relay/fn')",
	"event_result('x', consumer => '\@relay/fn')", "lock_key('x', consumer => '\@relay/fn')")
{
	my ($ret, $out, $err) = $node->psql('postgres', "SET ROLE rival; SELECT idempotency.$call");

	like($err, qr/consumer "\@relay\/fn" is reserved/, "not for SQL: $call");
}
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('fn')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'Wanted'});

# A function that is not there, or that may not be called, is the
# relay's fault, not that of events.
$node->safe_psql('postgres', 'ALTER FUNCTION app.handle RENAME TO hidden');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'after', 'Renamed', '{"n": 1}')});
IdemTest::wait_for($node, q{SELECT state = 'misconfigured' AND last_error = 'function "app.handle" of the sink does not exist'
	FROM idempotency.stat_relay WHERE relay = 'fn'});
$node->safe_psql('postgres', 'ALTER FUNCTION app.hidden RENAME TO handle');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'Renamed'});
$node->safe_psql('postgres', 'ALTER FUNCTION app.handle OWNER TO postgres; REVOKE ALL ON FUNCTION app.handle FROM public, owner');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'later', 'Revoked', '{"n": 1}')});
IdemTest::wait_for($node, q{SELECT state = 'misconfigured' AND last_error = 'permission denied for function app.handle'
	FROM idempotency.stat_relay WHERE relay = 'fn'});
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION app.handle TO owner');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'Revoked'});
$node->safe_psql('postgres', 'ALTER FUNCTION app.handle STRICT');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'last', 'Strict', '{"n": 1}')});
IdemTest::wait_for($node, q{SELECT state = 'misconfigured' AND last_error = 'function "app.handle" of the sink is STRICT'
	FROM idempotency.stat_relay WHERE relay = 'fn'});
$node->safe_psql('postgres', 'ALTER FUNCTION app.handle CALLED ON NULL INPUT');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.effects WHERE event_type = 'Strict'});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'), '7', 'no dead letters from that');

# Payloads: bytea for bytea, and an event of the other kind is refused.  A function
# without a payload takes both.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION app.bare(event_type text) RETURNS void LANGUAGE sql AS $$ INSERT INTO app.effects (event_type) VALUES ('bare ' || event_type) $$;
CREATE SERVER bare FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.bare');
SELECT idempotency.relay_create('bare', 'bare', aggregate_types => '{raw}', max_attempts => 1);
CREATE TABLE app.raw (payload bytea);
CREATE FUNCTION app.raw(payload bytea) RETURNS void LANGUAGE sql AS $$ INSERT INTO app.raw VALUES (payload) $$;
CREATE SERVER raw FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.raw');
SELECT idempotency.relay_create('raw', 'raw', aggregate_types => '{raw}', max_attempts => 1);
SELECT idempotency.outbox_enqueue_bytes('raw', 'k', 'Bytes', '\x00ff');
SELECT idempotency.outbox_enqueue('raw', 'l', 'Json', '{}');
SELECT idempotency.outbox_enqueue_bytes('raw', 'm', 'Big', decode(repeat('ab', 900000), 'hex'));
END
IdemTest::wait_for($node, q{SELECT array_agg(length(payload) ORDER BY length(payload)) = '{2,900000}' FROM app.raw});
IdemTest::wait_for($node, q{SELECT array_agg(event_type ORDER BY event_type) = '{bare Big,bare Bytes,bare Json}' FROM app.effects WHERE event_type LIKE 'bare %'});
is( $node->safe_psql('postgres', q{SELECT sqlstate, error FROM idempotency.dead_letters WHERE relay = 'raw'}),
	q{42804|the event's payload is jsonb and the sink's function takes bytea}, 'the wrong kind of payload');

# A handler's error may have any length.  A row keeps 1 kB of it and stat_relay 255
# bytes, cut between two characters: also if the error comes at the commit.
$node->safe_psql('postgres', <<'END');
SET ROLE owner;
CREATE FUNCTION app.long(event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Commit' THEN
		PERFORM idempotency.claim_event(repeat(U&'\20AC', 300));
	ELSIF event_type <> 'Other' THEN
		RAISE EXCEPTION '%', event_type || repeat(U&'\20AC', 500000);
	END IF;
END $$;
CREATE SERVER long FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.long');
SELECT idempotency.relay_create('long', 'long', aggregate_types => '{long}', max_attempts => 2, min_backoff => '20 ms', max_backoff => '20 ms');
RESET ROLE;
SELECT idempotency.outbox_enqueue('long', 'k' || t, t, '1') FROM unnest('{A,AB,ABC,Commit}'::text[]) AS t;
END
IdemRelay::wait_dead($node, 'long', 4, sub {
	$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('long', 'others', 'Other', '1')});
});
is( $node->safe_psql('postgres', <<'END'), <<'END2' =~ s/\n\z//r, 'a long error is cut between two characters');
SELECT event_type, sqlstate, octet_length(error), rtrim(error, U&'\20AC') FROM idempotency.dead_letters
	JOIN idempotency.outbox_events o USING (event_id) WHERE relay = 'long' ORDER BY o.seq
END
A|P0001|1024|A
AB|P0001|1022|AB
ABC|P0001|1023|ABC
Commit|ID001|253|event "
END2

# Events that fail only at the commit, each alone in its transaction: several of them are known as
# such at a time, and those between them go on.
$node->safe_psql('postgres', <<'END');
CREATE TABLE app.forgetful (n int);
CREATE FUNCTION app.forget(event_id uuid, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload::int % 4 = 0 THEN
		PERFORM idempotency.claim_event(event_id, 'undecided');
	END IF;
	INSERT INTO app.forgetful VALUES (payload::int);
END $$;
CREATE SERVER forget FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.forget');
SELECT idempotency.relay_create('forget', 'forget', aggregate_types => '{forget}', max_attempts => 0, min_backoff => '10 ms', max_backoff => '10 ms');
SELECT idempotency.outbox_enqueue('forget', 'k' || i, 'E', to_jsonb(i)) FROM generate_series(1, 48) i;
END
IdemTest::wait_for($node, q{SELECT count(*) = 36 FROM app.forgetful});
is($node->safe_psql('postgres', q{SELECT count(DISTINCT n) FROM app.forgetful}), '36', 'each of the others once');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('forget')});

# A timeout and a barrier that come together: DROP DATABASE waits for no relay that has
# served the timeout.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION app.await_barrier() RETURNS void LANGUAGE c AS 'idempotency_test', 'idem_test_await_barrier_fn';
CREATE SERVER barrier FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.await_barrier', timeout '100');
SELECT idempotency.relay_create('barrier', 'barrier', aggregate_types => '{barrier}', min_backoff => '1 hour', max_backoff => '1 hour');
CREATE DATABASE gone;
SELECT idempotency.outbox_enqueue('barrier', 'k', 'E', '1');
END
IdemTest::wait_for($node, q{SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'barrier'});
$node->safe_psql('postgres', 'DROP DATABASE gone', timeout => $PostgreSQL::Test::Utils::timeout_default);
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_database WHERE datname = 'gone'}), '0', 'a database is dropped beside a handler that runs into its timeout');

# relay_drop waits for a batch of the relay's worker that has some of its parked events, and has none
# itself meanwhile, for which the worker would wait.
$node->safe_psql('postgres', <<'END');
CREATE TABLE app.refuses (key text);
CREATE FUNCTION app.held(aggregate_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM app.refuses WHERE key = aggregate_id) THEN
		IF aggregate_id <> 'first' THEN
			PERFORM pg_advisory_xact_lock_shared(4711);
		END IF;
		RAISE EXCEPTION 'not now';
	END IF;
END $$;
CREATE SERVER held FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.held', timeout '3600000');
SELECT idempotency.relay_create('held', 'held', aggregate_types => '{held}', max_attempts => 0, min_backoff => '10 ms', max_backoff => '10 ms');
INSERT INTO app.refuses SELECT 'k' || i FROM generate_series(1, 5) i;
SELECT idempotency.outbox_enqueue('held', k, 'E', '1') FROM unnest('{first,k1,k2,k3,k4,k5}'::text[]) k;
END
IdemTest::wait_for($node, q{SELECT retrying = 5 FROM idempotency.stat_relay WHERE relay = 'held'});
my $gate = $node->background_psql('postgres');
$gate->query_safe(q{SELECT pg_advisory_lock(4711)});
# The event with the lowest number has the last row.
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_pause('held');
INSERT INTO app.refuses VALUES ('first');
SELECT idempotency.relay_replay('held', event_id => event_id) FROM idempotency.outbox_events WHERE aggregate_type = 'held' AND aggregate_id = 'first';
END
IdemTest::wait_for($node, q{SELECT next_attempt_at < now() FROM idempotency_data.relay_parked WHERE aggregate_id = 'k5'});
my $from = -s $node->logfile;
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('held')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted});
my $dropper = $node->background_psql('postgres');
$dropper->query_until(qr/asked/, q{\echo asked
SELECT idempotency.relay_drop('held');
\echo dropped
});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%relay_drop(''held'')%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()});
$gate->quit;
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency.stat_relay WHERE relay = 'held'});
$dropper->quit;
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $from), qr/deadlock detected/, 'relay_drop and the worker wait for each other never');

$node->stop;
done_testing();
