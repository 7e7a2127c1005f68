
# Copyright (c) 2026, the idempotency developers

# A function relay whose function is missing, or not its owner's to call, is
# misconfigured and blames no event; put right, it goes on by itself.

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

$node->safe_psql('postgres', <<'END');
CREATE SCHEMA app;
CREATE TABLE app.seen (event_id uuid PRIMARY KEY);
CREATE SERVER f FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.handle');
SELECT idempotency.relay_create('f', 'f', max_attempts => 1, min_backoff => '1 ms', max_backoff => '50 ms');
SELECT idempotency.outbox_enqueue('a', '1', 'X', '{}');
END
state_is('misconfigured');

my $create = <<'END';
CREATE FUNCTION app.handle(event_id uuid) RETURNS void LANGUAGE sql
AS 'INSERT INTO app.seen VALUES (event_id)';
END
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
REVOKE EXECUTE ON FUNCTION app.handle FROM PUBLIC;
SELECT idempotency.relay_drop('f');
SET ROLE op;
SELECT idempotency.relay_create('g', 'f', start_at => 'latest', max_attempts => 1, min_backoff => '50 ms', max_backoff => '50 ms');
SELECT 1 FROM idempotency.stat_relay;
RESET ROLE;
SELECT idempotency.outbox_enqueue('a', '3', 'X', '{}');
END
state_is('misconfigured');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION app.handle TO op');
IdemTest::wait_for($node, 'SELECT count(*) = 3 FROM app.seen');

is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'),
	'0', 'no event was blamed');

$node->stop;
done_testing();
