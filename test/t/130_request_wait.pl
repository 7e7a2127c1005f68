
# Copyright (c) 2026, the idempotency developers

# Calls of claim_request that wait: for every end of the execution that they wait for, at
# every isolation level; 200 at a time, one execution, an answer for each of them, without
# polling; not more than max_waiters, not longer than max_wait; a call that is cancelled,
# times out or is terminated leaves nothing; and without preload.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $conf = <<'END';
max_connections = 260
superuser_reserved_connections = 3
idempotency.max_waiters = 200
idempotency.max_wait = '1 h'
autovacuum = off
END
my $node = IdemTest::cluster('main', conf => $conf);
my $waiting = q{state = 'active' AND wait_event_type = 'Extension'};
my $schema = <<'END';
CREATE TABLE effects (key text, pid int);
CREATE TABLE answers (key text, result text, body text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION serve(k text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	a record := idempotency.claim_request(k, 's', wait => '1 hour');
BEGIN
	IF a.result = 'started' THEN
		INSERT INTO effects VALUES (k, pg_backend_pid());
		PERFORM idempotency.complete_request(k, 's', 200, body => convert_to('by a waiter', 'UTF8'));
		a.body := 'by a waiter';
	END IF;
	INSERT INTO answers VALUES (k, a.result, convert_from(a.body, 'UTF8'));
END $$;
CREATE TABLE token (key text, token bigint);
CREATE FUNCTION lease(k text, lease interval = '1 hour') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a record := idempotency.claim_request(k, 's', '\x01', lease => lease);
BEGIN
	INSERT INTO token VALUES (k, a.token);
	RETURN a.result;
END $$;
CREATE FUNCTION token(k text) RETURNS bigint LANGUAGE sql AS 'SELECT max(token) FROM token WHERE key = k';
END

$node->safe_psql('postgres', $schema);
my $twin = $node->background_psql('postgres', on_error_stop => 0);
my $waiter = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $waiter->query('SELECT pg_backend_pid()');
my $n = 0;

# A twin executes a new request, another call waits for it, the twin does what it is told
# (KEY stands for the request).  Returns the waiter's answer and the SQLSTATE.
sub wait_while
{
	my ($isolation, $start, @end) = @_;
	my $key = 'k' . ++$n;
	my $print = $start =~ s/^other: // ? '\x02' : '\x01';

	foreach ($start, @end) { s/\bKEY\b/'$key'/g; }
	$twin->query($_) foreach split / \/ /, $start;
	$waiter->query("BEGIN ISOLATION LEVEL $isolation; SELECT count(*) FROM token");
	$waiter->query_until(qr/go/,
		"\\echo go\nSELECT concat_ws(' ', result, attempt, recovery_point, status, convert_from(body, 'UTF8')) FROM idempotency.claim_request('$key', 's', '$print', wait => '1 hour');\n");
	IdemTest::wait_for($node, "SELECT $waiting FROM pg_stat_activity WHERE pid = $pid");
	foreach my $sql (@end)
	{
		if ($sql =~ /^outside: (.*)/s) { $node->safe_psql('postgres', $1); }
		else { $twin->query($sql); }
	}
	my $answer = $waiter->query('\echo :SQLSTATE');
	$waiter->query('ROLLBACK');
	$twin->query('ROLLBACK');
	return $answer;
}

my $begin = q{BEGIN / SELECT idempotency.claim_request(KEY, 's', '\x01')};
my $done = q{SELECT idempotency.complete_request(KEY, 's', 201, body => 'made')};
my $fail = q{SELECT idempotency.fail_request(KEY, 's', 'e', retry_after => '0')};
my $free = q{SELECT idempotency.release_request(KEY, 's')};
my $lease = q{SELECT lease(KEY)};
my @ends = (
	# what is waited for, how it ends, the answer, the answer where the snapshot is older
	[ 'it completes', $begin, [ $done, 'COMMIT' ], 'replay 201 made', '40001' ],
	[ 'it completes another payload', "other: $begin", [ $done, 'COMMIT' ], 'mismatch', '40001' ],
	[ 'it is rolled back', $begin, ['ROLLBACK'], 'started 1', 'started 1' ],
	[ 'it fails', $begin, [ $fail, 'COMMIT' ], 'started 2', '40001' ],
	[ 'it fails with another payload', "other: $begin", [ $fail, 'COMMIT' ], 'mismatch', '40001' ],
	[ 'it is released', $begin, [ $free, 'COMMIT' ], 'started 1', 'started 1' ],
	[ 'its savepoint is rolled back', q{BEGIN / SAVEPOINT s / SELECT idempotency.claim_request(KEY, 's')}, ['ROLLBACK TO s'], 'started 1', 'started 1' ],
	[ 'it is prepared and committed', $begin, [ $done, q{PREPARE TRANSACTION 'p'}, q{outside: COMMIT PREPARED 'p'} ], 'replay 201 made', '40001' ],
	[ 'it is prepared and rolled back', $begin, [ $done, q{PREPARE TRANSACTION 'p'}, q{outside: ROLLBACK PREPARED 'p'} ], 'started 1', 'started 1' ],
	[ 'the holder completes', $lease, [q{SELECT idempotency.complete_request(KEY, 's', 202, body => 'late', token => token(KEY))}], 'replay 202 late', '40001' ],
	[ 'the holder fails', $lease, [q{SELECT idempotency.fail_request(KEY, 's', 'e', token => token(KEY), retry_after => '0')}], 'started 2', '40001' ],
	[ 'the holder releases', $lease, [q{SELECT idempotency.release_request(KEY, 's', token => token(KEY))}], 'started 1', '40001' ],
	[ 'the holder advances, and its lease ends', $lease, [q{SELECT idempotency.advance_request(KEY, 's', token(KEY), 'half', lease => '1 ms')}], 'started 2 half', '40001' ],
	[ 'the lease is over', q{SELECT lease(KEY, '1500 ms')}, [], 'started 2', 'started 2' ],
	[ 'the pause is over', q{BEGIN / SELECT idempotency.claim_request(KEY, 's') / SELECT idempotency.fail_request(KEY, 's', 'e', retry_after => '1500 ms') / COMMIT}, [], 'started 2', 'started 2' ]);

foreach my $end (@ends)
{
	my ($what, $start, $steps, $answer, $older) = @$end;

	like(wait_while('READ COMMITTED', $start, @$steps), qr/^\Q$answer\E\n/, "$what: $answer");
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		like(wait_while($level, $start, @$steps), qr/^\Q$older\E$/m, "$what, $level: $older");
	}
}
# a savepoint of the waiter, and what it has done before
$waiter->query('BEGIN');
like($waiter->query(q{SELECT (idempotency.claim_request('mine', 's')).result; SELECT idempotency.complete_request('mine', 's', 200)}), qr/started/, 'the waiter has done something before');
$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('theirs', 's')});
$waiter->query('SAVEPOINT s');
$waiter->query_until(qr/go/, "\\echo go\nSELECT (idempotency.claim_request('theirs', 's', wait => '1 hour')).result;\n");
IdemTest::wait_for($node, "SELECT $waiting FROM pg_stat_activity WHERE pid = $pid");
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
like($waiter->query('\echo :SQLSTATE'), qr/57014/, 'cancelled in a savepoint');
$waiter->query('ROLLBACK TO s');
$waiter->query('COMMIT');
is($node->safe_psql('postgres', q{SELECT (idempotency.claim_request('mine', 's')).result}), 'replay', 'what the waiter had done is committed');
$twin->query('ROLLBACK');
$waiter->quit;

# 200 waiters at once

# Start them; returns what finishes them.
sub crowd
{
	my ($key) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/serve.sql';
	my ($out, $err) = ('', '');

	append_to_file($script, "SELECT serve('$key');\n");
	my $run = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '200', '-j', '2', '-t', '1', '-f', $script, $node->connstr('postgres') ],
		'>', \$out, '2>', \$err);
	IdemTest::wait_for($node, "SELECT count(*) = 200 FROM pg_stat_activity WHERE $waiting AND query LIKE '%serve%'");
	return sub {
		my $ok = IPC::Run::finish($run);

		diag($err) unless $ok || $_[0];
		return $ok;
	};
}

sub crowd_answers
{
	my ($what, $key, $finish, $expected, $effects) = @_;

	ok($finish->(), "$what: all 200 are answered");
	is($node->safe_psql('postgres', "SELECT result, body, count(*) FROM answers WHERE key = '$key' GROUP BY 1, 2 ORDER BY 3"), $expected, "$what: their answers");
	is($node->safe_psql('postgres', "SELECT count(*) FROM effects WHERE key = '$key'"), $effects, "$what: executions of theirs");
	return;
}

# Context switches that the waiters made of their own: one or more for each look.
sub switches
{
	my $sum = 0;

	foreach my $waiter (split /\n/, $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $waiting AND query LIKE '%serve%'"))
	{
		$sum += $1 if slurp_file("/proc/$waiter/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	}
	return $sum;
}

$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('c1', 's')});
my $finish = crowd('c1');
my $before = switches();
my $since = time;
sleep(3);
my $looks = (switches() - $before) / 200;
my $seconds = time - $since;
note(sprintf '%.1f context switches of a waiter in %.1f s', $looks, $seconds);
# a look a second takes some; looks after pauses of 50 ms would take 20 a second at least
cmp_ok($looks, '<', 8 * $seconds, 'waiters do not poll');
is($node->safe_psql('postgres', q{SET statement_timeout = '1 min'; SELECT (idempotency.claim_request('c1', 's', wait => '1 hour')).result}),
	'in_progress', 'beyond max_waiters: told at once');
is($node->safe_psql('postgres', q{SELECT (idempotency.claim_request('c2', 's', wait => '1 hour', lease => '1 ms')).result}),
	'started', 'what is free is started however many wait');
$twin->query(q{SELECT idempotency.complete_request('c1', 's', 200, body => 'by the twin')});
$twin->query('COMMIT');
crowd_answers('the twin completes', 'c1', $finish, 'replay|by the twin|200', 0);

my @crowds = (
	[ 'the twin fails', [ q{SELECT idempotency.fail_request(KEY, 's', 'e', retry_after => '0')}, 'COMMIT' ] ],
	[ 'the twin releases', [ q{SELECT idempotency.release_request(KEY, 's')}, 'COMMIT' ] ],
	[ 'the twin is rolled back', ['ROLLBACK'] ],
	[ 'the twin is terminated', ['terminate'] ],
	[ 'the twin rolls back what it had prepared', [ q{SELECT idempotency.complete_request(KEY, 's', 200)}, q{PREPARE TRANSACTION 'p'}, q{ROLLBACK PREPARED 'p'} ] ]);
foreach my $crowd (@crowds)
{
	my ($what, $end) = @$crowd;
	my $key = 'crowd' . ++$n;
	my $twin_pid = $twin->query('SELECT pg_backend_pid()');

	$twin->query('BEGIN');
	$twin->query("SELECT idempotency.claim_request('$key', 's')");
	$finish = crowd($key);
	foreach my $sql (@$end)
	{
		(my $statement = $sql) =~ s/\bKEY\b/'$key'/g;
		if ($sql eq 'terminate')
		{
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($twin_pid)");
			$twin->{run}->finish;
			$twin = $node->background_psql('postgres', on_error_stop => 0);
		}
		else { $twin->query($statement); }
	}
	crowd_answers($what, $key, $finish, "started|by a waiter|1\nreplay|by a waiter|199", 1);
}
$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('c3', 's')});
$finish = crowd('c3');
$twin->query(q{SELECT idempotency.complete_request('c3', 's', 200, body => 'by the twin')});
$twin->query(q{PREPARE TRANSACTION 'p'});
is($node->safe_psql('postgres', q{SELECT count(*) FROM answers WHERE key = 'c3'}), '0', 'prepared: nobody is answered');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
crowd_answers('it commits what was prepared', 'c3', $finish, 'replay|by the twin|200', 0);

# The twin is killed: the server restarts, and all that waited have lost their connection
$twin->query('BEGIN');
my $victim = $twin->query(q{SELECT pg_backend_pid() FROM idempotency.claim_request('c4', 's')});
$finish = crowd('c4');
IdemTest::kill9_backend($node, $victim);
ok(!$finish->(1), 'a killed twin takes the connections of the waiters with it');
eval { $twin->{run}->finish };
$node->safe_psql('postgres', q{SELECT serve('c4')});
is($node->safe_psql('postgres', q{SELECT result FROM answers WHERE key = 'c4'}), 'started', 'and leaves the request to the next call');

# What ends a waiting call early leaves no place taken: there is one only
$node->append_conf('postgresql.conf', "idempotency.max_waiters = 1\n");
$node->reload;
IdemTest::wait_for($node, q{SELECT current_setting('idempotency.max_waiters') = '1'});
$twin = $node->background_psql('postgres', on_error_stop => 0);
$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('held', 's')});

# The place is free: a call waits as long as it was told.
sub place_is_free
{
	my ($what) = @_;

	is( $node->safe_psql('postgres', <<'END'), "in_progress\nt", "$what: the place is free");
SELECT clock_timestamp() AS start \gset
SELECT (idempotency.claim_request('held', 's', wait => '300 ms')).result;
SELECT clock_timestamp() - :'start' >= interval '300 ms';
END
	return;
}

# The place is taken: the answer comes at once.
sub place_is_taken
{
	my ($what) = @_;

	is($node->safe_psql('postgres', q{SET statement_timeout = '1 min'; SELECT (idempotency.claim_request('held', 's', wait => '1 hour')).result}),
		'in_progress', "$what: the place is taken");
	return;
}

place_is_free('nobody waits');
my $wait = q{SELECT (idempotency.claim_request('held', 's', wait => '1 hour')).result};
foreach my $how (
	[ 'cancelled', 'SELECT pg_cancel_backend(PID)', '' ],
	[ 'terminated', 'SELECT pg_terminate_backend(PID)', '' ],
	[ 'statement_timeout', undef, q{SET statement_timeout = '500 ms'} ],
	[ 'cancelled in a savepoint', 'SELECT pg_cancel_backend(PID)', 'BEGIN; SAVEPOINT s' ],
	[ 'cancelled in a cursor', 'SELECT pg_cancel_backend(PID)', "BEGIN; DECLARE c CURSOR FOR $wait" ])
{
	my ($what, $end, $first) = @$how;

	$waiter = $node->background_psql('postgres', on_error_stop => 0);
	$pid = $waiter->query('SELECT pg_backend_pid()');
	$waiter->query($first) if $first;
	$waiter->query_until(qr/go/, "\\echo go\n" . ($first =~ /CURSOR/ ? 'FETCH c' : $wait) . ";\n");
	if (defined $end)
	{
		IdemTest::wait_for($node, "SELECT $waiting FROM pg_stat_activity WHERE pid = $pid");
		place_is_taken($what);
		$end =~ s/PID/$pid/;
		$node->safe_psql('postgres', $end);
	}
	if ($what eq 'terminated') { $waiter->{run}->finish; }
	else { like($waiter->query('\echo :SQLSTATE'), qr/57014/, $what); }
	IdemTest::wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE $waiting");
	place_is_free($what);
	$waiter->quit unless $what eq 'terminated';
}

# A conflict of snapshots, and a block that catches it
$waiter = $node->background_psql('postgres', on_error_stop => 0);
$pid = $waiter->query('SELECT pg_backend_pid()');
my $other = $node->background_psql('postgres', on_error_stop => 0);
$other->query('BEGIN');
$other->query(q{SELECT idempotency.claim_request('conflict', 's')});
$waiter->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$waiter->query('SELECT 1');
$waiter->query_until(qr/go/, <<'END');
\echo go
DO $$ BEGIN PERFORM idempotency.claim_request('conflict', 's', wait => '1 hour'); EXCEPTION WHEN serialization_failure THEN END $$;
END
IdemTest::wait_for($node, "SELECT $waiting FROM pg_stat_activity WHERE pid = $pid");
$other->query(q{SELECT idempotency.complete_request('conflict', 's', 200)});
$other->query('COMMIT');
like($waiter->query('\echo :SQLSTATE'), qr/00000/, 'a block has caught the conflict');
place_is_free('a caught conflict, its transaction still open');
$waiter->quit;
$other->quit;

# max_wait caps what a call asks for; only superusers may raise it
$node->safe_psql('postgres', q{CREATE ROLE app LOGIN; SELECT idempotency.grant_role('consumer', 'app'); ALTER DATABASE postgres SET idempotency.max_wait = '200 ms'});
is( $node->safe_psql('postgres', q{SET statement_timeout = '1 min'; SELECT (idempotency.claim_request('held', 's', wait => '1 hour')).result},
		extra_params => [ '-U', 'app' ]), 'in_progress', 'max_wait caps');
my ($rc, $out, $err) = $node->psql('postgres', q{SET idempotency.max_wait = '1 h'}, extra_params => [ '-U', 'app' ]);
like($err, qr/permission denied/, 'max_wait is not the role\'s to raise');
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET idempotency.max_wait = 0');
is($node->safe_psql('postgres', q{SET statement_timeout = '1 min'; SELECT (idempotency.claim_request('held', 's', wait => '1 hour')).result}),
	'in_progress', 'max_wait 0: nobody waits');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET idempotency.max_wait');
$node->append_conf('postgresql.conf', "idempotency.max_waiters = 0\n");
$node->reload;
IdemTest::wait_for($node, q{SELECT current_setting('idempotency.max_waiters') = '0'});
place_is_taken('max_waiters 0');
$twin->query('ROLLBACK');
$node->append_conf('postgresql.conf', "idempotency.max_waiters = -1\n");
$node->reload;
IdemTest::wait_for($node, q{SELECT current_setting('idempotency.max_waiters') = '-1'});

# From the commit to the answer, 200 times
$node->safe_psql('postgres', 'CREATE TABLE commits (key text, at timestamptz); CREATE TABLE times (us float)');
my $script = PostgreSQL::Test::Utils::tempdir() . '/rounds.sql';
append_to_file($script, join '', map { "SELECT serve('round$_');\n" } 1 .. 200);
$twin->query('SET synchronous_commit = off');
$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('round1', 's')});
my $rounds = IPC::Run::start([ 'psql', '-XqAt', '-f', $script, '-d', $node->connstr('postgres') ], '>', \$out, '2>', \$err);
foreach my $round (1 .. 200)
{
	my $next = $round + 1;

	IdemTest::wait_for($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE $waiting AND query LIKE '%round$round''%'") if $round % 20 == 1;
	# the next request is begun by another session before this one ends
	$node->safe_psql('postgres', "SELECT lease('round$next')");
	$twin->query($round == 1 ? q{SELECT idempotency.complete_request('round1', 's', 200)}
		: "SELECT idempotency.complete_request('round$round', 's', 200, token => token('round$round'))");
	$twin->query("INSERT INTO commits VALUES ('round$round', clock_timestamp())");
	$twin->query('COMMIT');
	$twin->query('BEGIN');
}
ok(IPC::Run::finish($rounds), 'rounds');
note('from just before the commit to the answer: ' . $node->safe_psql('postgres', q{
	SELECT format('p50 %s ms, p99 %s ms', round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 2), round((percentile_cont(0.99) WITHIN GROUP (ORDER BY ms))::numeric, 2))
	FROM (SELECT 1000 * extract(epoch FROM a.at - c.at)::float8 AS ms FROM answers a JOIN commits c USING (key) WHERE a.at > c.at) s}));
is($node->safe_psql('postgres', q{SELECT result, count(*) FROM answers WHERE key LIKE 'round%' GROUP BY 1}), 'replay|200', 'all rounds are answered');
cmp_ok($node->safe_psql('postgres', q{SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM a.at - c.at)) FROM answers a JOIN commits c USING (key)}),
	'<', 0.7, 'not by the look of once a second');
$twin->quit;
$node->stop;

# Without preload: by pauses
$node = IdemTest::cluster('plain', preload => 0);
$node->safe_psql('postgres', $schema);
$twin = $node->background_psql('postgres', on_error_stop => 0);
$waiter = $node->background_psql('postgres', on_error_stop => 0);
$pid = $waiter->query(q{SELECT pg_backend_pid() FROM idempotency.claim_request('load the library', 's', lease => '1 ms')});
foreach my $end (grep { $_->[0] !~ /rolled back$/ } @ends)
{
	my ($what, $start, $steps, $answer) = @$end;

	like(wait_while('READ COMMITTED', $start, @$steps), qr/^\Q$answer\E\n/, "without preload, $what: $answer");
}
$twin->query('BEGIN');
$twin->query(q{SELECT idempotency.claim_request('held', 's')});
place_is_free('without preload');
$twin->quit;
$waiter->quit;
$node->stop;
done_testing();
