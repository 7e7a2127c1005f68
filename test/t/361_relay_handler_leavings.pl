
# Copyright (c) 2026, the idempotency developers

# What a handler leaves behind: gone for the next event, the next batch, or the
# next owner.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', conf => "max_locks_per_transaction = 10\n");

$node->safe_psql('postgres', <<'END');
CREATE ROLE tenant;
CREATE ROLE other;
SELECT idempotency.grant_role('operator', r) FROM unnest(ARRAY['tenant', 'other']) r;
CREATE SCHEMA app AUTHORIZATION tenant;
GRANT USAGE ON SCHEMA app TO other;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO tenant, other;
SET ROLE tenant;
CREATE TABLE app.effects (n int, pid int DEFAULT pg_backend_pid(), xid xid8 DEFAULT pg_current_xact_id(), outcome text);
GRANT INSERT, SELECT ON app.effects TO other;
CREATE SEQUENCE app.seq;
CREATE FUNCTION app.handle(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c refcursor := 'left';
	outcome text;
BEGIN
	IF payload ? 'open' THEN
		OPEN c FOR SELECT generate_series(1, 1000);
	END IF;
	BEGIN
		EXECUTE payload->>'sql' INTO outcome;
	EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR undefined_object THEN
		outcome := SQLSTATE;
	END;
	INSERT INTO app.effects VALUES ((payload->>'n')::int, DEFAULT, DEFAULT, outcome);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
SELECT idempotency.relay_create('fn', 'fn', batch_events => 10000, min_backoff => '10 ms', max_backoff => '10 ms');
END

# Events of one transaction are one batch.
my $n = 0;

sub batch
{
	my $first = $n + 1;
	my $sql = 'BEGIN; ';

	foreach my $q (@_)
	{
		my $open = $q eq 'open' ? ", 'open', true" : '';
		my $run = $open ? 'SELECT NULL' : $q;

		$n++;
		$sql .= "SELECT idempotency.outbox_enqueue('t', '$n', 'Run', jsonb_build_object('n', $n, 'sql', \$q\$$run\$q\$$open)); ";
	}
	$node->safe_psql('postgres', "$sql COMMIT");
	IdemTest::wait_for($node, "SELECT count(*) = $n FROM app.effects");
	return $node->safe_psql('postgres', "SELECT coalesce(outcome, '-') FROM app.effects WHERE n >= $first ORDER BY n");
}

my $worker = q{(SELECT pid FROM idempotency.stat_relay WHERE relay = 'fn')};

# For the next event.
my $settings = q{SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('search_path'),
	nullif(current_setting('app.tenant', true), ''), current_setting('transaction_read_only'))};
is( batch(
		q{SELECT set_config('statement_timeout', '1s', false) || set_config('search_path', 'app', false) || set_config('app.tenant', 'x', false)},
		$settings),
	"1sappx\n0 pg_catalog, pg_temp off", 'settings end with the event');
is(batch($settings), '0 pg_catalog, pg_temp off', 'and are not there in the next batch');
is(batch('open', 'SELECT count(*) FROM pg_cursors', q{SELECT string_agg(name, ' ') FROM pg_cursors}), "-\n0\n-", 'so do cursors');

# For the next batch.
my $events = 400;
is( batch((q{SELECT pg_advisory_lock(1000000 + nextval('app.seq'))}) x $events) =~ tr/\n//,
	$events - 1, 'each event may take locks of the session');
IdemTest::wait_for($node, qq{SELECT count(*) = 0 FROM pg_locks WHERE pid = $worker AND locktype = 'advisory'});
pass('which are gone after the batch');

is( batch((q{SELECT count(pg_advisory_xact_lock(nextval('app.seq'))) FROM generate_series(1, 5)}) x $events) =~ tr/\n//,
	$events - 1, 'or of the transaction');
cmp_ok(
	$node->safe_psql('postgres', 'SELECT max(c) FROM (SELECT count(*) AS c FROM app.effects GROUP BY xid) g'), '<', 10,
	'but a batch ends when it has collected many');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency_data.relay_parked}), '0', 'and no event failed for want of locks');

# An event that alone takes more locks than there are uses its attempts up.
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_alter('fn', max_attempts => 2);
	SELECT idempotency.outbox_enqueue('t', 'y', 'Run', jsonb_build_object('sql', 'SELECT count(pg_advisory_xact_lock(i)) FROM generate_series(1, 20000) i'))});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE sqlstate = '53200'});

# Those of an event that failed are gone with the batch as well.
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_alter('fn', max_attempts => 1);
	SELECT idempotency.outbox_enqueue('t', 'x', 'Run', jsonb_build_object('sql', 'SELECT 1 / length(pg_advisory_lock(7)::text)'))});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE sqlstate = '22012'});
IdemTest::wait_for($node, qq{SELECT count(*) = 0 FROM pg_locks WHERE pid = $worker AND locktype = 'advisory'});

is(batch(q{SELECT nextval('app.seq') > 0}, q{SELECT lastval() > 0}), "true\ntrue", 'a value of a sequence is known');
is(batch(q{SELECT lastval()}), '55000', 'and not in the next batch');

is( batch(q{LISTEN a}, q{SELECT count(*) FROM pg_listening_channels()}, q{PREPARE p AS SELECT 1},
		q{SELECT count(*) FROM pg_prepared_statements}, q{CREATE TEMP TABLE t (n int)}),
	"42501\n0\n42501\n0\n42501", 'no LISTEN, no prepared statement, no temporary table');

# Functions of pg_temp are not refused; nor types, which are found there first, by older minor releases.
$node->safe_psql('postgres', 'GRANT TEMPORARY ON DATABASE postgres TO tenant');
my $temp = q{SELECT count(*) FROM pg_proc WHERE pronamespace = pg_my_temp_schema()};
is( batch(q{CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'; } . $temp, $temp),
	"1\n1", 'a temporary object');
is(batch($temp), '0', 'is gone in the next batch');

# A name of a setting stays in the process: too many of them end it.
my $last = 'SELECT pid FROM app.effects ORDER BY n DESC LIMIT 1';
batch(q{SELECT count(set_config('app.few' || i, 'x', true)) FROM generate_series(1, 100) i});
my $pid = $node->safe_psql('postgres', $last);
batch(q{SELECT count(set_config('app.many' || i, 'x', true)) FROM generate_series(1, 1100) i});
is($node->safe_psql('postgres', $last), $pid, 'a few names of settings are no matter');
batch('SELECT NULL');
isnt($node->safe_psql('postgres', $last), $pid, 'many end the process after their batch');

# For the next owner.
$pid = $node->safe_psql('postgres', $last);
$node->safe_psql('postgres', q{
	GRANT EXECUTE ON FUNCTION app.handle TO other;
	ALTER SERVER fn OWNER TO other;
	DO $$ BEGIN EXECUTE format('ALTER FOREIGN TABLE idempotency_data.relay_%s OWNER TO other',
		(SELECT relay_id FROM idempotency_data.relays WHERE relay = 'fn')); END $$});
is(batch(q{SELECT session_user || ' ' || current_user}), 'other other', 'another owner');
isnt($node->safe_psql('postgres', $last), $pid, 'has another process');

$node->stop;
done_testing();
