
# Copyright (c) 2026, the idempotency developers

# Private locks: held by a prepared transaction across a crash, known to a
# standby that takes over, used by the relays' own claims.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1);

$node->safe_psql('postgres', <<'END');
SELECT idempotency.consumer_create('priv', private_locks => true);
BEGIN;
SELECT idempotency.claim_event('prepared', 'priv'), idempotency.complete_event('prepared', 'priv');
PREPARE TRANSACTION 'p';
END
my $locks = q{SELECT mode, objsubid FROM pg_locks WHERE locktype = 'advisory'};
is($node->safe_psql('postgres', $locks), 'ExclusiveLock|18756', 'the lock is in a space of its own');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', $locks), 'ExclusiveLock|18756', 'and survives a crash');
is($node->safe_psql('postgres', q{SELECT idempotency.claim_event('prepared', 'priv')}),
	'busy', 'a prepared claim keeps its event');
foreach my $change (q{idempotency.consumer_drop('priv')}, q{idempotency.consumer_create('other', private_locks => true)})
{
	my ($ret, $out, $err) = $node->psql('postgres', "SET lock_timeout = '100 ms'; SELECT $change");

	like($err, qr/ERROR:  could not change the locks of consumer "(?:priv|other)" while .*DETAIL:  A prepared transaction has claimed/s,
		"has to wait for it: $change");
}
is($node->safe_psql('postgres', q{SELECT idempotency.consumer_create('plain')}),
	'', 'a consumer with ordinary locks has not');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is($node->safe_psql('postgres', q{SELECT idempotency.claim_event('prepared', 'priv')}),
	'duplicate', 'and is done');

# A standby
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
my ($ret, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT idempotency.claim_event('e', 'priv')");
like($err, qr/ERROR:  25006/, 'refused on a standby');
is($standby->safe_psql('postgres', $locks), '', 'which takes no lock');
$standby->promote;
is($standby->safe_psql('postgres', qq{BEGIN; SELECT idempotency.claim_event('e', 'priv'); $locks; ROLLBACK}),
	"claimed\nExclusiveLock|18756", 'promoted, it has private locks, too');
$standby->stop;

# A relay handles an event whose key somebody holds who has computed it.
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (event_id)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn');
CREATE ROLE rival;
END
my $id = '11111111-1111-4111-8111-111111111111';
my $rival = $node->background_psql('postgres');
$rival->query_safe('SET ROLE rival');
$rival->query_safe("SELECT pg_advisory_lock(('x' || substr(encode(sha256(
	convert_to('\@relay/fn', 'UTF8') || '\\x00'::bytea || convert_to('$id', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint)");
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}', event_id => '$id')");
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effects');
is($node->safe_psql('postgres', q{SELECT retried, last_error IS NULL FROM idempotency.stat_relay}),
	'0|t', 'at once');
$rival->quit;

$node->stop;
done_testing();
