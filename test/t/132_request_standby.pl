
# Copyright (c) 2026, the idempotency developers

# Requests and standbys: a standby refuses them; an answer is given when a synchronous
# standby has it, and not before, a mismatch likewise; promotion keeps what was given.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $primary = IdemTest::cluster('primary', allows_streaming => 1, conf => "autovacuum = off\n");
my $standby = IdemTest::synchronous_standby($primary);

$primary->safe_psql('postgres', <<'END');
SELECT (idempotency.claim_request('sync', 's', '\x01')).result, idempotency.complete_request('sync', 's', 201, '{"A": "x"}', '\x0001');
SELECT result FROM idempotency.claim_request('lease', 's', '\x01', lease => '1 ms');
END

# A standby: refused before any lock, whatever is asked
$primary->wait_for_catchup('sync', 'replay');
foreach my $call (q{claim_request('sync', 's')}, q{claim_request('sync', 's', lease => '1 min')}, q{claim_request('sync', 's', wait => '1 hour')}, q{complete_request('sync', 's', 200)},
	q{advance_request('lease', 's', 1, 'p')}, q{fail_request('lease', 's', 'e', token => 1)}, q{release_request('lease', 's', token => 1)})
{
	my ($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT idempotency.$call");

	like($err, qr/25006/, "a standby refuses $call");
}
is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'and holds no lock for it');

# The standby is away: a completion waits for it, and so does whoever would be told of it
$standby->stop;
my $session = $primary->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query_until(qr/go/, <<'END');
\echo go
SET synchronous_commit = off;
SELECT (idempotency.claim_request('cancelled', 's', '\x01')).result, idempotency.complete_request('cancelled', 's', 200, body => 'lost by a failover');
END
IdemTest::wait_for($primary, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid");
pass('a completion waits for the standby whatever synchronous_commit says');
is($primary->safe_psql('postgres', q{SELECT (idempotency.claim_request('cancelled', 's')).result}), 'in_progress', 'until then it is in progress');

# Cancelled: visible, and not durable
$primary->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
IdemTest::wait_for($primary, q{SELECT count(*) = 1 FROM idempotency_data.store_segment_0 WHERE event_id = 'cancelled'});
foreach my $call (q{claim_request('cancelled', 's')}, q{claim_request('cancelled', 's', '\x01', lease => '1 min')}, q{claim_request('cancelled', 's', '\x02')},
	q{claim_request('cancelled', 's', wait => '1 hour')})
{
	my ($rc, $out, $err) = $primary->psql('postgres', "\\set VERBOSITY verbose\nSET statement_timeout = '500ms'; SELECT result FROM idempotency.$call");

	is($out, '', "no answer: $call");
	like($err, qr/57014/, "but an error: $call");
}
# also where the look is one without the request's lock
my $holder = $primary->background_psql('postgres', on_error_stop => 0);
my $holder_pid = $holder->query('SELECT pg_backend_pid()');
$holder->query_until(qr/go/, "\\echo go\nBEGIN; SELECT result FROM idempotency.claim_request('cancelled', 's');\n");
IdemTest::wait_for($primary, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $holder_pid");
my ($rc, $out, $err) = $primary->psql('postgres', q{SET statement_timeout = '500ms'; SET idempotency.max_claim_locks = 0; SELECT result FROM idempotency.claim_request('cancelled', 's')});
is($out, '', 'no answer past the budget of locks');

$standby->start;
like($holder->query('SELECT 1'), qr/replay/, 'answered when the standby has it');
$holder->quit;
is($primary->safe_psql('postgres', q{SELECT result, convert_from(body, 'UTF8') FROM idempotency.claim_request('cancelled', 's', '\x01')}), 'replay|lost by a failover', 'and so is the next one');
$session->quit;

# Failover: what was told is kept, and leases go on with higher tokens
my $token = $primary->safe_psql('postgres', q{SELECT token FROM idempotency.claim_request('lease 2', 's', '\x01', lease => '1 ms', request => '[1]')});
$primary->safe_psql('postgres', "SELECT idempotency.advance_request('lease 2', 's', $token, 'half', state => '[2]', lease => '1 ms')");
$primary->stop('immediate');
$standby->promote;
$standby->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$standby->reload;
is($standby->safe_psql('postgres', q{SELECT result, status, headers, body FROM idempotency.claim_request('sync', 's', '\x01')}), 'replay|201|{"A": "x"}|\x0001', 'answers are kept');
is($standby->safe_psql('postgres', q{SELECT result FROM idempotency.claim_request('sync', 's', '\x02')}), 'mismatch', 'and fingerprints');
is($standby->safe_psql('postgres', q{SELECT result, status FROM idempotency.claim_request('cancelled', 's')}), 'replay|200', 'what was told after the wait is kept');
is($standby->safe_psql('postgres', q{SELECT result FROM idempotency.claim_request('lease 2', 's', '\x02')}), 'mismatch', 'the fingerprint of a lease is kept');
is($standby->safe_psql('postgres', qq{SELECT result, attempt, recovery_point, state, token > $token FROM idempotency.claim_request('lease 2', 's', '\\x01', lease => '1 hour')}),
	'started|2|half|[2]|t', 'the promoted standby goes on at the recovery point, with a higher token');
$standby->stop;
done_testing();
