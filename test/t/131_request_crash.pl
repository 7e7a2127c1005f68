
# Copyright (c) 2026, the idempotency developers

# Requests across crashes: prepared transactions that have completed, failed, started or
# advanced one; kills at every step of an execution; and dumps, whose restored answers are
# given byte for byte.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $schema = <<'END';
CREATE TABLE token (key text, token bigint);
CREATE TABLE effects (key text);
CREATE FUNCTION lease(k text, lease interval = '1 hour') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a record := idempotency.claim_request(k, 's', '\x01', lease => lease, request => '{"path": "/"}');
BEGIN
	INSERT INTO token VALUES (k, a.token);
	RETURN concat_ws(' ', a.result, a.attempt, a.recovery_point, a.state);
END $$;
CREATE FUNCTION token(k text) RETURNS bigint LANGUAGE sql AS 'SELECT max(token) FROM token WHERE key = k';
-- What a call would be told; nothing is left of it
CREATE FUNCTION ask(k text, fingerprint bytea = '\x01', lease interval = NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a record;
BEGIN
	a := idempotency.claim_request(k, 's', fingerprint, lease => lease);
	RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
	RETURN concat_ws(' ', a.result, a.attempt, a.recovery_point, a.state, a.status, convert_from(a.body, 'UTF8'));
END $$;
END
my $node = IdemTest::cluster('main', conf => "autovacuum = off\nmax_prepared_transactions = 30\nidempotency.claim_segment_size = 8kB\n");
$node->safe_psql('postgres', $schema);

sub ask
{
	my ($key, $print) = @_;

	$print //= '\x01';
	return $node->safe_psql('postgres', "SELECT ask('$key', '$print')");
}

sub run
{
	return $node->safe_psql('postgres', join ";\n", @_);
}

# Prepared: the request is the transaction's, across crashes, and then what it says
my %prepared = (
	complete => [ q{SELECT idempotency.claim_request(KEY, 's', '\x01')}, q{SELECT idempotency.complete_request(KEY, 's', 201, body => 'made')}, 'replay 201 made', 'started 1' ],
	fail => [ q{SELECT idempotency.claim_request(KEY, 's', '\x01')}, q{SELECT idempotency.fail_request(KEY, 's', 'e', retry_after => '0')}, 'started 2', 'started 1' ],
	release => [ q{SELECT idempotency.claim_request(KEY, 's', '\x01')}, q{SELECT idempotency.release_request(KEY, 's')}, 'started 1', 'started 1' ],
	lease => [ q{SELECT 1}, q{SELECT idempotency.claim_request(KEY, 's', '\x01', lease => '1 hour')}, 'in_progress', 'started 1' ],
	advance => [ q{SELECT lease(KEY, '1 us') / COMMIT / BEGIN}, q{SELECT idempotency.advance_request(KEY, 's', token(KEY), 'half', state => '[1]', lease => '1 us')}, 'started 2 half [1]', 'started 2' ],
	complete_lease => [ q{SELECT lease(KEY) / COMMIT / BEGIN}, q{SELECT idempotency.complete_request(KEY, 's', 202, body => 'late', token => token(KEY))}, 'replay 202 late', 'in_progress' ],
	fail_lease => [ q{SELECT lease(KEY) / COMMIT / BEGIN}, q{SELECT idempotency.fail_request(KEY, 's', 'e', token => token(KEY), retry_after => '0')}, 'started 2', 'in_progress' ],
	release_lease => [ q{SELECT lease(KEY) / COMMIT / BEGIN}, q{SELECT idempotency.release_request(KEY, 's', token => token(KEY))}, 'started 1', 'in_progress' ],
	take_over => [ q{SELECT lease(KEY, '1 us') / COMMIT / BEGIN}, q{SELECT lease(KEY)}, 'in_progress', 'started 2' ]);
my @ends = ('COMMIT', 'ROLLBACK');
foreach my $what (sort keys %prepared)
{
	my ($start, $end) = @{ $prepared{$what} };

	foreach my $how (@ends)
	{
		my $key = "'$what $how'";
		my @steps = ('BEGIN', split(/ \/ /, $start), $end, "PREPARE TRANSACTION $key");

		s/\bKEY\b/$key/g foreach @steps;
		run(@steps);
	}
}
$node->stop('immediate');
$node->start;
foreach my $what (sort keys %prepared)
{
	foreach my $how (@ends)
	{
		my $mismatch = $what =~ /_lease$/ ? 'mismatch' : $what =~ /^(take_over|advance)$/ ? 'mismatch' : 'in_progress';

		# a release gives the request back at once
		next if $what eq 'release';
		is(ask("$what $how"), 'in_progress', "$what, prepared, after a crash: in progress");
		is(ask("$what $how", '\x02'), $mismatch, "$what, prepared, another payload: $mismatch");
	}
}
is(run(q{SELECT count(*) FROM pg_prepared_xacts}), 2 * keys %prepared, 'all are prepared');
foreach my $what (sort keys %prepared)
{
	foreach my $how (@ends)
	{
		run("$how PREPARED '$what $how'");
		is(ask("$what $how"), $prepared{$what}[ $how eq 'COMMIT' ? 2 : 3 ], "$what, $how PREPARED");
	}
}
my ($rc, $out, $err) = $node->psql('postgres', q{BEGIN; SELECT idempotency.claim_request('undecided', 's'); PREPARE TRANSACTION 'undecided'});
like($err, qr/request "undecided" was claimed but neither/, 'PREPARE of a request that has no end');

# Killed at each step: nothing is half-done, and the next call goes on where it was
my $victim;
sub killed_after
{
	$victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query('SELECT pg_backend_pid()');
	$victim->query($_) foreach @_;
	IdemTest::kill9_backend($node, $pid);
	eval { $victim->{run}->finish };
	return;
}

killed_after('BEGIN', q{SELECT idempotency.claim_request('one', 's', '\x01')}, q{INSERT INTO effects VALUES ('one')}, q{SELECT idempotency.complete_request('one', 's', 200)});
is(ask('one', '\x02'), 'started 1', 'killed before its COMMIT: nothing is left, the fingerprint included');
killed_after('SELECT 1', 'BEGIN', q{SELECT idempotency.claim_request('two', 's', '\x01')}, q{INSERT INTO effects VALUES ('two')}, q{SELECT idempotency.complete_request('two', 's', 200, body => 'ok')}, 'COMMIT');
is(ask('two'), 'replay 200 ok', 'killed after its COMMIT: answered');
is(run('SELECT key FROM effects'), 'two', 'the effect is there with its answer, and not without');
killed_after(q{SELECT lease('three', '1 us')});
is(ask('three', '\x02'), 'mismatch', 'killed after its lease: the fingerprint is kept');
is(ask('three'), 'started 2', 'killed after its lease: another attempt');
killed_after(q{SELECT lease('four', '1 us')}, 'BEGIN', q{SELECT idempotency.advance_request('four', 's', token('four'), 'lost')});
is(ask('four'), 'started 2', 'killed in a phase: at the point before it');
killed_after(q{SELECT lease('five', '1 us')}, q{SELECT idempotency.advance_request('five', 's', token('five'), 'charged', state => '7', lease => '1 us')},
	'BEGIN', q{SELECT idempotency.complete_request('five', 's', 200, token => token('five'))});
is(ask('five'), 'started 2 charged 7', 'killed while it completes: at the last point');

# An asynchronous commit that is told of is flushed before
run(q{SET synchronous_commit = off; SET idempotency.durable_complete = off},
	q{SELECT (idempotency.claim_request('told', 's', '\x01')).result, idempotency.complete_request('told', 's', 200, body => 'told')});
is(ask('told'), 'replay 200 told', 'told of an asynchronous completion');
is(ask('told', '\x02'), 'mismatch', 'told of a mismatch');
$node->stop('immediate');
$node->start;
is(ask('told'), 'replay 200 told', 'what was told of is there after the crash');

# Dump and restore, of answers in segments and of packed ones, into another cluster
$node->safe_psql('postgres', <<'END');
CREATE TABLE answers (key text, status int, headers jsonb, body bytea);
INSERT INTO answers VALUES ('nothing', 204, NULL, NULL), ('empty', 200, '{}', ''), ('bytes', 200, NULL, '\x0001ff0d0a'),
	('pairs', 302, '[["Link", "</a>"], ["Link", "</b>"], ["Link", "</a>"]]', 'moved'), ('text', 200, '{"Title": "Grüße \\ \" \t"}', '{"status": 500}'),
	('long', 200, NULL, (SELECT string_agg(decode(md5(i::text), 'hex'), '') FROM generate_series(1, 65536) i));
CREATE FUNCTION store(prefix text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idempotency.complete_request(prefix || key, 'tenant', a.status, a.headers, a.body, 'c'))
	FROM answers a, idempotency.claim_request(prefix || key, 'tenant', sha256(convert_to(key, 'UTF8')), 'c') WHERE result = 'started' $$;
CREATE FUNCTION right_answers(prefix text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM answers a, idempotency.claim_request(prefix || key, 'tenant', sha256(convert_to(key, 'UTF8')), 'c') r
	WHERE r.result = 'replay' AND r.status = a.status AND r.headers::text IS NOT DISTINCT FROM a.headers::text AND r.body IS NOT DISTINCT FROM a.body
		AND (idempotency.claim_request(prefix || key, 'tenant', '\x00', 'c')).result = 'mismatch' $$;
END
is(run(q{SELECT store('packed ')}), '6', 'stored');
# the packer takes what is full, and a transaction of its own has to see it
IdemTest::wait_for($node, q{SELECT (SELECT sum(entries) >= 6 FROM idempotency.stat_claim_segments WHERE kind = 'run') FROM idempotency.claims_maintain()});
is(run(q{SELECT store('new ')}), '6', 'stored');
run(q{SELECT lease('dumped', '1 us')}, q{SELECT idempotency.advance_request('dumped', 's', token('dumped'), 'half', state => '{"a": 1}', lease => '1 us')});
run(q{SELECT idempotency.consumer_create('once', max_attempts => 1)},
	q{SELECT (idempotency.claim_request('dead', 's', '\x01', 'once')).result, idempotency.fail_request('dead', 's', 'e', 'once')});
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
my $other = IdemTest::cluster('other', extension => 0);
foreach my $format ('plain', 'custom')
{
	$node->command_ok([ 'pg_dump', '-F', $format, '-f', "$dump.$format", 'postgres' ], "dump: $format");
	$other->safe_psql('postgres', "CREATE DATABASE $format");
	if ($format eq 'plain') { $other->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $format, '-f', "$dump.$format" ], 'restore'); }
	else { $other->command_ok([ 'pg_restore', '-j', '2', '-e', '-d', $format, "$dump.$format" ], 'restore'); }
	is($other->safe_psql($format, q{SELECT right_answers('packed '), right_answers('new ')}), '6|6', "$format: all answers, byte for byte, and their fingerprints");
	is($other->safe_psql($format, q{SELECT ask('dumped'), ask('dumped', '\x02'), ask('told'), ask('two'), ask('never seen')}),
		'started 2 half {"a": 1}|mismatch|replay 200 told|replay 200 ok|started 1', "$format: leases with point and fingerprint");
	is($other->safe_psql($format, q{SELECT (idempotency.claim_request('dead', 's', '\x02', 'once')).result, (idempotency.claim_request('dead', 's', '\x01', 'once')).result}),
		'mismatch|dead', "$format: dead ones");
	is($other->safe_psql($format, q{SELECT idempotency.consumer_redrive('once', '{dead}', 's'), (idempotency.claim_request('dead', 's', '\x01', 'none')).result, idempotency.release_request('dead', 's', 'none')}),
		'1|started|', "$format: dead ones are redriven by scope");
	is($other->safe_psql($format, q{SELECT token > token('dumped') FROM idempotency.claim_request('dumped', 's', lease => '1 hour')}), 't', "$format: tokens rise");
}
$node->stop;
$other->stop;
done_testing();
