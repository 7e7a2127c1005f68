
# Copyright (c) 2026, the idempotency developers

# What a login of the kind consumer may lock, fill, read, stop and learn.

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(sha256);
use PostgreSQL::Test::Utils;
use Test::More;

use IdemAttack;
use IdemTest;

my $node = IdemAttack::victim('consumer', 'mallory');

# The first 8 bytes of a hash that the documents describe.
sub published_number
{
	return unpack 'q>', sha256(shift);
}

IdemAttack::common($node, 'mallory', 'consumer');

# Stop: the extension's own consumers, whose claims would make a relay pass over an event
my $event = '00000000-0000-4000-8000-000000000001';
foreach my $own ('@outbox', '@relay/orders', '@', '@relay/')
{
	IdemAttack::refused($node, 'mallory', "SELECT $_", qr/reserved/, "$_ is refused") foreach
	  "idempotency.claim_event('$event', '$own')", "idempotency.claim_event('$event'::uuid, '$own')",
	  "idempotency.claim_events('{$event}', '$own')", "idempotency.complete_event('$event', '$own')",
	  "idempotency.complete_events('{$event}', '$own')", "idempotency.release_event('$event', '$own')",
	  "idempotency.claims_renew('{$event}', '$own')",
	  "idempotency.event_result('$event', '$own')", "idempotency.lock_key('$event', '$own')";
	IdemAttack::refused($node, 'mallory', "CREATE TEMPORARY TABLE t AS SELECT '$event' AS id; CALL idempotency.claims_backfill('t', 'id', '$own')",
		qr/reserved/, "claims_backfill as $own is refused");
}

# Lock: claims that stay open, in locks and in rows; and the locks of a relay's claims
my $holder = IdemAttack::session($node, 'mallory');
$holder->query('BEGIN');
$holder->query(q{SELECT idempotency.claim_event('held', c) FROM unnest('{default,billing,vault}'::text[]) c});
$holder->query(q{SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT 'many-' || i FROM generate_series(1, 50000) i), 'billing')});
$holder->query(q{DECLARE c CURSOR FOR SELECT * FROM idempotency.claim_events('{c1,c2,c3}'); FETCH 1 FROM c});
$holder->query('SELECT pg_advisory_lock(' . published_number("\@relay/orders\0$event") . '), pg_advisory_lock(' . published_number("\@outbox\0$event") . ')');
is($holder->query(q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1}) >= 2, 1,
	'and locks with the numbers of claims that a relay and the outbox make');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks'), '<', 1000, 'the locks of 50,000 claims are within the budget');
IdemAttack::alive($node, 'a consumer holds claims');
IdemAttack::sql($node, 'shop', "SELECT idempotency.outbox_enqueue('order', 'claimed', 'Placed', '1', event_id => '$event')");
IdemTest::wait_for($node, "SELECT count(*) = 1 FROM app.got WHERE event_id = '$event'");
$node->safe_psql('postgres', q{SET lock_timeout = '10s'; VACUUM; ANALYZE});
is(IdemAttack::sql($node, 'billing', q{BEGIN; SELECT idempotency.claim_event('held', c) FROM unnest('{default,billing,vault}'::text[]) c; ROLLBACK}),
	"busy\nbusy\nbusy", 'what is held is busy, and never anything else');

# The one wait that a held claim can cause is an operator's, and has the operator's lock_timeout
IdemAttack::refused($node, $node->safe_psql('postgres', 'SELECT current_user'),
	q{SET lock_timeout = '100ms'; SELECT idempotency.consumer_create('later', private_locks => true)}, qr/process \d+ has claimed events/,
	'consumer_create with private locks waits for held claims, for lock_timeout');
IdemAttack::alive($node, 'after consumer_create gave up');
$holder->query('ROLLBACK; SELECT pg_advisory_unlock_all()');
$holder->quit;

# Fill: the shared lock table is anybody's, and then nobody can log in; what fails meanwhile goes on by itself
my $filler = IdemAttack::session($node, 'mallory');
my $shop = IdemAttack::session($node, 'shop');
$shop->query(q{BEGIN; SELECT idempotency.outbox_enqueue('order', 'full', 'Placed', '1')});
$filler->query('SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i');
$shop->query('COMMIT');
$filler->query('SELECT pg_advisory_unlock_all()');
$_->quit foreach $filler, $shop;
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.got WHERE aggregate_id = 'full'});
IdemAttack::alive($node, 'the lock table was full');

# Fill: what is too large, and an id that would forge a line of the log
IdemAttack::refused($node, 'mallory', "SELECT $_->[0]", $_->[1]) foreach
  [ q{idempotency.claim_event(repeat('x', 1025))}, qr/event_id/ ], [ q{idempotency.claim_event('x', repeat('c', 256))}, qr/consumer/ ],
  [ q{idempotency.claim_event('')}, qr/event_id/ ], [ q{idempotency.claim_event('x', wait => '-1 s')}, qr/wait/ ],
  [ q{count(*) FROM idempotency.claim_events('{{a,b},{c,d}}')}, qr/dimension/ ], [ q{idempotency.complete_event('x', token => 1)}, qr/lease of event "x" is lost/ ];
IdemAttack::try($node, 'mallory', q{BEGIN; SELECT idempotency.claim_event(E'line\n2026-11-22 12:00:00.000 UTC [1] LOG:  forged'); COMMIT});
unlike(slurp_file($node->logfile), qr/^2026-11-22 12:00:00\.000 UTC \[1\] LOG:  forged/m, 'no line of the log is forged');

# Stop: acting under claims of others
IdemAttack::refused($node, 'mallory', "SELECT $_", qr/not claimed by this transaction/, $_) foreach
  q{idempotency.complete_event('paid', 'billing')}, q{idempotency.release_event('paid', 'billing')},
  q{idempotency.complete_events('{paid}', 'billing')};
is(IdemAttack::sql($node, 'mallory', q{SELECT idempotency.claim_event('paid', 'billing')}), 'duplicate', 'what is completed stays completed');

# Stop: settings of one's own change no verdict of others
my $keeper = IdemAttack::session($node, 'mallory');
$keeper->query(q{SET idempotency.uncompleted_claims = keep; SET idempotency.max_claim_locks = 0; SET idempotency.durable_complete = off; SET synchronous_commit = off});
$keeper->query(q{SELECT idempotency.claim_event('kept', 'billing')});
is(IdemAttack::sql($node, 'billing', q{BEGIN; SELECT idempotency.claim_event('kept', 'billing'); SELECT idempotency.complete_event('kept', 'billing'); COMMIT}),
	"claimed\n", 'a claim that was left undecided is taken over');
$keeper->quit;

# Read: a copy of a table by claims_backfill is made with the caller's rights
IdemAttack::refused($node, 'mallory', "CALL idempotency.claims_backfill('$_', 'event_id')", qr/permission denied|does not exist|not a table/, "claims_backfill of $_")
  foreach 'app.got', 'idempotency.processed_events', 'idempotency_data.store_segment_0';
IdemAttack::refused($node, 'mallory',
	q{CREATE TEMPORARY TABLE t AS SELECT 1 AS id; CALL idempotency.claims_backfill('t', 'id', condition => 'EXISTS (SELECT FROM app.got)')},
	qr/permission denied/, 'and so is its condition evaluated');

# Learn: results of ids that are known are given, as the documents say; lists are not
like(IdemAttack::sql($node, 'mallory', q{SELECT idempotency.event_result('paid', 'billing')}), qr/result/, 'event_result asks for the id, and for no more');
foreach my $query ('SELECT * FROM idempotency.processed_events', 'SELECT * FROM idempotency.stat_claims', 'SELECT * FROM idempotency.outbox_events',
	q{SELECT idempotency.outbox_enqueue('order', 'k', 't', '1')}, q{SELECT idempotency.consumer_create('x')}, q{SELECT idempotency.consumer_drop('vault')},
	q{SELECT idempotency.relay_pause('orders')}, q{SELECT idempotency.grant_role('operator', 'mallory')})
{
	IdemAttack::refused($node, 'mallory', $query, qr/permission denied/);
}

# A consumer with an owner: nothing of it is the attacker's to learn, lock, fill or stop
$node->safe_psql('postgres', <<'END');
CREATE ROLE treasury LOGIN;
SELECT idempotency.grant_role('consumer', 'treasury');
SELECT idempotency.consumer_create('safe', owner => 'treasury', private_locks => true);
END
IdemAttack::sql($node, 'treasury', q{SELECT idempotency.claim_event('paid', 'safe'), idempotency.complete_event('paid', 'safe', '"s3cret"')});
my $token = IdemAttack::sql($node, 'treasury', q{SELECT token FROM idempotency.lease_event('leased', 'safe', '1 h', 's3cret holder')});
my $thief = IdemAttack::session($node, 'mallory');
foreach my $id ('paid', 'leased', 'open')
{
	foreach my $call ("claim_event('$id', 'safe', wait => '1 h')", "claim_events('{$id}', 'safe')", "complete_event('$id', 'safe')",
		"complete_event('$id', 'safe', token => $token)", "complete_events('{$id}', 'safe')", "claims_renew('{$id}', 'safe')", "release_event('$id', 'safe')",
		"event_result('$id', 'safe')", "event_status('$id', 'safe')", "lease_event('$id', 'safe', wait => '1 h')", "lease_events('{$id}', 'safe')",
		"extend_lease('$id', $token, 'safe')", "assert_lease('$id', $token, 'safe')", "release_lease('$id', $token, 'safe', park => true)",
		"claim_request('$id', 's', consumer => 'safe', wait => '1 h')", "advance_request('$id', 's', $token, 'point', 'safe')",
		"complete_request('$id', 's', 200, consumer => 'safe', token => $token)", "fail_request('$id', 's', 'error', 'safe', $token)",
		"release_request('$id', 's', 'safe', $token)")
	{
		IdemAttack::refused($node, 'mallory', "SELECT idempotency.$call", qr/ERROR:  permission denied for consumer "safe"\n/, $call);
	}
	$thief->query("SELECT pg_advisory_lock(idempotency.lock_key('$id', 'safe'))");
}
IdemAttack::refused($node, 'mallory', $_, qr/permission denied for consumer "safe"|needs a claim or an asserted lease for consumer "safe"/, $_) foreach
  q{CREATE TEMPORARY TABLE ids AS SELECT 'paid' AS id; CALL idempotency.claims_backfill('ids', 'id', 'safe')},
  q{CREATE TEMPORARY TABLE guarded (id text); CREATE TRIGGER g BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('safe', 'id');
	INSERT INTO guarded VALUES ('leased')};
is(IdemAttack::sql($node, 'treasury', <<"END"), "claimed\ncompleted\nt", 'the owner claims, and its lease stands');
SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';
BEGIN;
SELECT idempotency.claim_event('open', 'safe');
SELECT status FROM idempotency.event_status('paid', 'safe');
SELECT idempotency.extend_lease('leased', $token, 'safe') > now();
ROLLBACK;
END
$thief->query('SELECT pg_advisory_unlock_all()');
$thief->quit;

IdemAttack::alive($node, 'after all that a consumer tried');
$node->stop;
done_testing();
