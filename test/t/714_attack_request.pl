
# Copyright (c) 2026, the idempotency developers

# What a login may learn of requests, and how it may hinder them: without membership of a
# kind, as a monitor, and as a consumer that takes locks; and what the server log has of
# keys' answers, with all that it can be told to write.

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(sha256);
use PostgreSQL::Test::Utils;
use Test::More;

use IdemAttack;
use IdemTest;

my $node = IdemTest::cluster('main', conf => <<'END');
log_error_verbosity = verbose
log_statement = none
log_min_error_statement = panic
log_min_messages = debug1
log_lock_waits = on
deadlock_timeout = 20ms
max_locks_per_transaction = 64
END
$node->safe_psql('postgres', <<'END');
CREATE ROLE api LOGIN;
CREATE ROLE nobody LOGIN;
CREATE ROLE watch LOGIN;
CREATE ROLE mallory LOGIN;
GRANT pg_monitor TO watch;
SELECT idempotency.grant_role('consumer', 'api'), idempotency.grant_role('monitor', 'watch'), idempotency.grant_role('consumer', 'mallory');
CREATE SCHEMA app;
GRANT USAGE ON SCHEMA app TO api;
-- Answers come from a table: a statement that has them in it would be in the log as any statement is
CREATE TABLE app.answers AS SELECT '{"X-Secret": "s3cret header"}'::jsonb AS headers, convert_to('s3cret body', 'UTF8') AS body,
	'{"X-Secret": "s3cret\nheader"}'::jsonb AS bad, convert_to(repeat('s3cret body ', 100000), 'UTF8') AS long, '"s3cret state"'::jsonb AS work, 's3cret scope' AS scope, 's3cret print'::bytea AS print;
GRANT SELECT ON app.answers TO api;
END

my $from = -s $node->logfile;

# As the API: an answer, a lease, a failure, and all errors that there are
sub api
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', 'api' ]);

	return ($out, $err);
}
my ($out, $err) = api(<<'END');
SELECT r.result, idempotency.complete_request('done', scope, 200, answers.headers, answers.body) FROM app.answers, idempotency.claim_request('done', scope, print) r;
SELECT r.result, r.token FROM app.answers, idempotency.claim_request('leased', scope, print, lease => '1 hour', request => '"asked"') r \gset
SELECT idempotency.advance_request('leased', scope, :token, 's3cret point', state => work) IS NOT NULL FROM app.answers;
SELECT r.result, idempotency.fail_request('failed', scope, 's3cret error', retry_after => '1 hour') FROM app.answers, idempotency.claim_request('failed', scope, print) r;
SELECT r.result, r.body FROM app.answers, idempotency.claim_request('done', scope, print) r;
END
like($out, qr/replay/, 'the API stores and gets its answer');
my $said = '';
foreach my $call (
	q{idempotency.complete_request('new', scope, 200, bad, answers.body) FROM app.answers, idempotency.claim_request('new', scope, print)},
	q{idempotency.complete_request('new', scope, 200, answers.headers, long) FROM app.answers, idempotency.claim_request('new', scope, print)},
	q{idempotency.complete_request('done', scope, 200, headers, body) FROM app.answers},
	q{idempotency.complete_request('leased', scope, 200, headers, body, token => 1) FROM app.answers},
	q{idempotency.complete_request('leased', scope, 1000, headers, body) FROM app.answers},
	q{idempotency.advance_request('leased', scope, 1, 'p', state => work) FROM app.answers},
	q{idempotency.fail_request('leased', scope, 's3cret error', token => 1) FROM app.answers},
	q{idempotency.release_request('leased', scope, token => 1) FROM app.answers},
	q{idempotency.claim_request('undecided', scope, print) FROM app.answers},
	q{idempotency.claim_request(repeat(scope, 100), scope, print) FROM app.answers},
	q{idempotency.claim_request('k', repeat(scope, 100), print) FROM app.answers},
	q{idempotency.claim_request('k', scope, repeat('s3cret', 100)::bytea) FROM app.answers},
	q{idempotency.claim_request('k', scope, print, '@' || scope) FROM app.answers WHERE false},
	q{idempotency.claim_request('k', scope, print, request => work) FROM app.answers})
{
	my ($o, $e) = api("\\set VERBOSITY verbose\nSELECT $call");

	like($e, qr/ERROR|^$/, "an error: $call");
	$said .= $o . $e;
}
(undef, $err) = api(<<'END');
\set VERBOSITY verbose
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
\! true
SELECT idempotency.complete_request('leased', scope, 200, headers, body) FROM app.answers;
END
$said .= $err;
unlike($said, qr/s3cret/, 'no error quotes an answer, a state, a fingerprint or a scope');

# 40001 and 55P03 as well
my $old = IdemAttack::session($node, 'api');
$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.answers');
api(q{SELECT r.result, idempotency.complete_request('later', scope, 200, answers.headers, answers.body) FROM app.answers, idempotency.claim_request('later', scope, print) r});
my $conflict = $old->query(q{SELECT r.result FROM app.answers, idempotency.claim_request('later', scope, print) r}) . ($old->{stderr} // '');
like($conflict, qr/could not serialize/, 'a conflict');
unlike($conflict, qr/s3cret/, 'which quotes nothing');
$old->quit;

# The server log has none of it, with everything that it can be told to write
unlike(slurp_file($node->logfile, $from), qr/s3cret/, 'nor does the server log, with log_error_verbosity = verbose and log_min_messages = debug1');

# Nobody, a monitor, and the roles of other kinds
my @calls = (q{claim_request('done', 's3cret scope')}, q{advance_request('leased', 's3cret scope', 1, 'p')}, q{complete_request('done', 's3cret scope', 200)},
	q{fail_request('done', 's3cret scope', 'e')}, q{release_request('done', 's3cret scope')});
$node->safe_psql('postgres', q{CREATE ROLE maker LOGIN; CREATE ROLE boss LOGIN; SELECT idempotency.grant_role('producer', 'maker'), idempotency.grant_role('operator', 'boss')});
foreach my $role ('nobody', 'watch', 'maker', 'boss')
{
	IdemAttack::refused($node, $role, "SELECT idempotency.$_", qr/permission denied/, "$role: $_") foreach @calls;
	IdemAttack::refused($node, $role, "SELECT * FROM idempotency_data.$_", qr/permission denied/, "$role: $_") foreach 'store_segment_0', 'lease_log_0';
}
foreach my $role ('watch', 'boss')
{
	my $all = '';

	foreach my $view (split /\n/, $node->safe_psql('postgres', q{SELECT c.oid::regclass FROM pg_class c WHERE relkind = 'v' AND relnamespace = 'idempotency'::regnamespace}))
	{
		my ($rc, $rows) = $node->psql('postgres', "SELECT to_jsonb(v)::text FROM $view v", extra_params => [ '-U', $role ]);

		$all .= $rows // '';
	}
	foreach my $secret ('s3cret body', 's3cret header', 's3cret state', 's3cret print', unpack('H*', 's3cret body'), unpack('H*', 's3cret print'), 'czNjcmV0IGJvZHk')
	{
		unlike($all, qr/\Q$secret/, "$role sees no $secret in a view");
	}
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%s3cret body%' AND pid <> pg_backend_pid()}), '0', 'pg_stat_activity has no answer either');

# Another consumer role that guesses the key learns nothing without the scope, and the
# event of that key is another thing
is($node->safe_psql('postgres', q{SELECT (r).result, (r).body FROM (SELECT idempotency.claim_request('done', 'another scope', lease => '1 ms') AS r OFFSET 0) x}, extra_params => [ '-U', 'mallory' ]), 'started|', 'another scope: another request');
is($node->safe_psql('postgres', q{SELECT idempotency.event_result('done'), status FROM idempotency.event_status('done')}, extra_params => [ '-U', 'mallory' ]), '|unknown', 'no event of that name');
is($node->safe_psql('postgres', q{SELECT idempotency.event_result('s3cret scope' || chr(1) || 'done'), idempotency.lock_key('done') IS NOT NULL}, extra_params => [ '-U', 'mallory' ]), '|t', 'nor one that looks like scope and key');
IdemAttack::refused($node, 'mallory', "SELECT idempotency.$_", qr/reserved/, $_) foreach q{event_result('done', '@request/default')}, q{claim_event('done', '@request/default')},
	q{claim_request('done', 's3cret scope', consumer => '@request/default')};

# Locks: whoever knows the number of a request's lock cannot take the lock
my $attacker = IdemAttack::session($node, 'mallory');
my $api = IdemAttack::session($node, 'api');
my $number = unpack 'q>', sha256("default\0known scope\0known key");
foreach my $lock ("pg_advisory_lock($number)", "pg_advisory_xact_lock($number)", "pg_advisory_lock_shared($number)",
	'pg_advisory_lock(' . unpack('l>', pack('q>', $number)) . ', ' . unpack('x4l>', pack('q>', $number)) . ')')
{
	$attacker->query("BEGIN; SELECT $lock");
	$api->query('BEGIN');
	is($api->query(q{SELECT result FROM idempotency.claim_request('known key', 'known scope')}), 'started', "with $lock held: started");
	is($api->query(qq{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND (classid::bigint << 32) + objid::bigint = $number AND objsubid NOT IN (1, 2)}), '1',
		'by a lock of the same number that is private');
	$api->query('ROLLBACK');
	$attacker->query('ROLLBACK; SELECT pg_advisory_unlock_all()');
}
# nor release it
$api->query('BEGIN');
$api->query(q{SELECT result FROM idempotency.claim_request('known key', 'known scope')});
$attacker->query("SELECT pg_advisory_unlock($number), pg_advisory_unlock_all()");
is($attacker->query(q{SELECT result FROM idempotency.claim_request('known key', 'known scope')}), 'in_progress', 'the lock of a request is not released by others');
$api->query('ROLLBACK');
# PREPARE and CREATE RULE over the tables of requests
IdemAttack::refused($node, 'mallory', "PREPARE p AS SELECT * FROM idempotency_data.$_", qr/permission denied for schema/, "PREPARE over $_") foreach 'store_segment_0', 'lease_log_0';

# Places for waiting calls are the cluster's: a role that takes them all makes others
# impatient, never wrong; and its own statement_timeout ends them
$node->safe_psql('postgres', 'ALTER SYSTEM SET idempotency.max_waiters = 1');
$node->reload;
IdemTest::wait_for($node, q{SELECT current_setting('idempotency.max_waiters') = '1'});
$api->query('BEGIN');
$api->query(q{SELECT result FROM idempotency.claim_request('slow', 'a')});
$attacker->query_until(qr/go/, "\\echo go\nSELECT result FROM idempotency.claim_request('slow', 'a', wait => '1 hour');\n");
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Extension' AND query LIKE '%slow%'});
is($node->safe_psql('postgres', q{SET statement_timeout = '1 min'; SELECT result FROM idempotency.claim_request('slow', 'a', wait => '1 hour')}, extra_params => [ '-U', 'api' ]), 'in_progress', 'no place: told at once');
$api->query(q{SELECT idempotency.complete_request('slow', 'a', 200)});
$api->query('COMMIT');
like($attacker->query('SELECT 2'), qr/replay/, 'who waited is answered');
$_->quit foreach $attacker, $api;
IdemAttack::refused($node, 'mallory', "SET idempotency.$_", qr/permission denied|cannot be changed/, "mallory may not set $_") foreach "max_wait = '1 d'", 'max_waiters = 1000', 'max_response_size = 1024';

# Fill, as the page says: an open request keeps what it has for as long as its lease, and who
# may claim ends it by the token that the view shows
my $megabyte = q{(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 31000) i)};
is($node->safe_psql('postgres', <<"END", extra_params => [ '-U', 'mallory' ]), "20", 'open requests of a megabyte, with a lease of 100 days');
SELECT count(r.token) FROM generate_series(1, 20) i,
	LATERAL idempotency.claim_request('fill ' || i, 'fill', lease => '100 days', request => $megabyte) r;
END
$node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()');
is($node->safe_psql('postgres', q{SELECT count(*), min(octet_length(request::text)) > 990000, min(lease_until - now()) > '99 days'
	FROM idempotency.requests WHERE scope = 'fill'}), '20|t|t', 'they stay, whatever maintains the log');
is($node->safe_psql('postgres', <<'END', extra_params => [ '-U', 'api' ]), "20\n0", 'and another role releases them');
SELECT count(idempotency.release_request(key, scope, token => token)::text) FROM idempotency.requests WHERE scope = 'fill';
SELECT count(*) FROM idempotency.requests WHERE scope = 'fill';
END
$node->stop;
done_testing();
