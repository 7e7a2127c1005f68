
# Copyright (c) 2026, the idempotency developers

# A function relay whose function is missing, or not its owner's to call, is
# misconfigured and blames no event; put right, it goes on by itself.  So it does
# if the function is changed while it has an event in the midst of a batch.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use FindBin;

use lib "$FindBin::RealBin/../perl";
use IdemTest;

my $node = IdemTest::cluster('missing');

sub state_is
{
	my ($state) = @_;

	IdemTest::wait_for($node,
		"SELECT state = '$state' AND waiting_for IN ('backoff', 'events') FROM idempotency.stat_relay");
	return;
}

my $create = <<'END';
CREATE FUNCTION app.handle(event_id uuid) RETURNS void LANGUAGE sql
AS 'INSERT INTO app.seen VALUES (event_id)';
END
$node->safe_psql('postgres', <<"END");
CREATE SCHEMA app;
CREATE TABLE app.seen (event_id uuid PRIMARY KEY);
CREATE SERVER f FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
BEGIN;
$create
SELECT idempotency.relay_create('f', 'f', max_attempts => 1, min_backoff => '1 ms', max_backoff => '50 ms');
DROP FUNCTION app.handle;
SELECT idempotency.outbox_enqueue('a', '1', 'X', '{}');
COMMIT;
END
state_is('misconfigured');

$node->safe_psql('postgres', $create);
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM app.seen');
state_is('streaming');

# Dropped while a plan for it is kept.
$node->safe_psql('postgres', 'DROP FUNCTION app.handle');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('a', '2', 'X', '{}')});
state_is('misconfigured');
$node->safe_psql('postgres', $create);
IdemTest::wait_for($node, 'SELECT count(*) = 2 FROM app.seen');

# An owner who may not call it.
$node->safe_psql('postgres', <<'END');
CREATE ROLE op;
SELECT idempotency.grant_role('operator', 'op');
GRANT USAGE ON FOREIGN SERVER f TO op;
GRANT USAGE ON SCHEMA app TO op;
GRANT INSERT ON app.seen TO op;
SELECT idempotency.relay_drop('f');
BEGIN;
SET ROLE op;
SELECT idempotency.relay_create('g', 'f', start_at => 'latest', max_attempts => 1, min_backoff => '50 ms', max_backoff => '50 ms');
SELECT 1 FROM idempotency.stat_relay;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION app.handle FROM PUBLIC;
COMMIT;
SELECT idempotency.outbox_enqueue('a', '3', 'X', '{}');
END
state_is('misconfigured');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION app.handle TO op');
IdemTest::wait_for($node, 'SELECT count(*) = 3 FROM app.seen');

# In the midst of a batch the third event waits for a lock; meanwhile somebody
# changes the function.
sub turn
{
	my ($kind, $name, $args, $more) = @_;

	return "CREATE $kind app.$name(event_id uuid, payload jsonb, headers jsonb$args) " . ($more // '') . q{
		LANGUAGE plpgsql AS $$ BEGIN
			IF payload->>'n' = '3' THEN PERFORM pg_advisory_xact_lock(7); END IF;
			INSERT INTO app.seen VALUES (event_id);
		END $$;};
}

my $good = turn('FUNCTION', 'turn', '', 'RETURNS void');
my $holder = $node->background_psql('postgres');
my @changes = (
	['STRICT', 'ALTER FUNCTION app.turn STRICT', 'ALTER FUNCTION app.turn CALLED ON NULL INPUT'],
	['IMMUTABLE', 'ALTER FUNCTION app.turn IMMUTABLE', 'ALTER FUNCTION app.turn VOLATILE'],
	['other arguments', 'DROP FUNCTION app.turn; ' . turn('FUNCTION', 'turn', ', aggregate_id text', 'RETURNS int') =~ s/END \$\$/RETURN 1; END \$\$/r],
	['the former arguments', "DROP FUNCTION app.turn; $good"],
	['a procedure', 'DROP FUNCTION app.turn; ' . turn('PROCEDURE', 'turn', ''), "DROP PROCEDURE app.turn; $good"],
	['an argument that no event has', 'DROP FUNCTION app.turn; ' . turn('FUNCTION', 'turn', ', color text', 'RETURNS void'),
		"DROP FUNCTION app.turn; $good"],
	['gone', 'DROP FUNCTION app.turn', $good],
	['the same again', $good =~ s/CREATE/CREATE OR REPLACE/r]);

$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_drop('g');
TRUNCATE app.seen;
$good
CREATE SERVER turn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.turn');
SELECT idempotency.relay_create('turn', 'turn', start_at => 'latest', max_attempts => 1, min_backoff => '1 ms', max_backoff => '50 ms');
END
foreach my $change (@changes)
{
	my ($what, $sql, $undo) = @$change;

	$holder->query_safe('BEGIN; SELECT pg_advisory_xact_lock(7)');
	$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('a', 'k' || n, 'X', jsonb_build_object('n', n)) FROM generate_series(1, 20) AS n});
	IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted});
	$node->safe_psql('postgres', $sql);
	$holder->query_safe('COMMIT');
	if ($undo)
	{
		state_is('misconfigured');
		$node->safe_psql('postgres', $undo);
	}
	IdemTest::wait_for($node, "SELECT state = 'streaming' AND lag_events = 0 FROM idempotency.stat_relay");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM app.seen'), '20', "$what: each event had its effect");
	$node->safe_psql('postgres', 'TRUNCATE app.seen');
}
$holder->quit;

is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'),
	'0', 'no event was blamed');

$node->stop;
done_testing();
