
# Copyright (c) 2026, the idempotency developers

# Tokens rise, whatever happens: a transaction that drew one is rolled back, killed
# or lost with the server; a standby that lacks the last ones is promoted; the
# database is a copy, or is restored from a dump.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $leap = 2**17;
my $lead = 2**32;
my $node = IdemTest::cluster('main', allows_streaming => 1, conf => <<'END');
synchronous_commit = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
autovacuum = off
END

sub declare_draw
{
	my ($server, $database) = @_;

	$server->safe_psql($database, q{CREATE FUNCTION draw(given_out bool = true) RETURNS bigint
		LANGUAGE c AS 'idempotency_test', 'idem_test_token_draw_fn'});
	return;
}

sub draw
{
	my ($server, $database) = @_;

	return $server->safe_psql($database // 'postgres', 'SELECT draw()');
}

declare_draw($node, 'postgres');
my $begin = $node->safe_psql('postgres', 'SELECT extract(epoch FROM pg_postmaster_start_time())::numeric * 1000000');
my $last = draw($node);
cmp_ok($last, '>=', $begin + $lead, 'the first token of a server is beyond the clock of its start');
cmp_ok($last, '<', 2**53, 'and is exact in JavaScript');
is($node->safe_psql('postgres', 'SELECT draw() FROM generate_series(1, 300) ORDER BY 1 DESC LIMIT 1'), $last + 300,
	'tokens follow each other');
is($node->safe_psql('postgres', 'BEGIN; SELECT draw(); ROLLBACK'), $last + 301, 'one in a transaction');
is(draw($node), $last + 302, 'that is rolled back');
is($node->safe_psql('postgres', 'SELECT draw(false)'), $last + 303, 'a number for a row is like a token');

# By OID anybody can lock a sequence, whose privileges are asked for later; no first draw of a
# session waits for that lock.
$node->safe_psql('postgres', 'CREATE ROLE nobody');
my $locker = $node->background_psql('postgres', on_error_stop => 0);
$locker->query('BEGIN; SET LOCAL ROLE nobody');
foreach my $sequence (split /\n/, $node->safe_psql('postgres', q{SELECT oid FROM pg_class WHERE relkind = 'S' AND relnamespace = 'idempotency_data'::regnamespace}))
{
	$locker->query("SAVEPOINT s; SELECT nextval($sequence)");
	$locker->query('ROLLBACK TO s');
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks JOIN pg_class c ON c.oid = relation WHERE relname = 'lease_start' AND mode = 'RowExclusiveLock'}), '1', 'nobody has a lock');
is($node->safe_psql('postgres', q{SET lock_timeout = '100ms'; SELECT draw()}), $last + 304, 'and a session draws its first token');
$locker->query('ROLLBACK');
$locker->quit;

# A backend is killed: the server recovers, and its start stays what it was, so that
# nothing leaps.  After the checkpoint the next number is logged.
for my $round (1 .. 2)
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$node->safe_psql('postgres', 'CHECKPOINT');
	$session->query('BEGIN');
	$last = $session->query('SELECT draw()');
	IdemTest::kill9_backend($node, $session->query('SELECT pg_backend_pid()'));
	my $next = draw($node);
	cmp_ok($next, '>', $last, "round $round: a token that was given out before the crash is not given out again");
	cmp_ok($next, '<=', $last + 2 * 4096, 'no leap');
	eval { $session->quit };
}

# The server is stopped at once, and started.
$last = draw($node);
$node->stop('immediate');
$node->start;
cmp_ok(draw($node), '>', $last, 'after a stop');

# A copy within the server is another issuer.
$node->safe_psql('postgres', 'CREATE DATABASE template_copy TEMPLATE postgres');
$last = draw($node);
cmp_ok(draw($node, 'template_copy'), '>=', $last + $leap - 1, 'the copy of a database leaps');
is(draw($node), $last + 1, 'the original does not');

# An operator knows of a greater token than the server.
$last += 2**40;
$node->safe_psql('postgres', "SELECT setval('idempotency_data.lease_number', $last)");
cmp_ok(draw($node), '>', $last, 'a number that was set by hand is passed over');

# A dump has the rows of the log; the next token is beyond their numbers.
my $greatest = 2**52;
$node->safe_psql('postgres', "INSERT INTO idempotency_data.lease_log_1 (number, digest, kind, state, at)
	SELECT $greatest, md5('x')::uuid, 's', 'f', now()");
cmp_ok(draw($node), '>', $greatest, 'rows that are inserted by SQL are noticed');
$greatest += 2**40;
$node->safe_psql('postgres', "INSERT INTO idempotency_data.cursor_log_2 (number, digest, kind, what, owner, at)
	SELECT $greatest, md5('x')::uuid, 's', 'n', 'x', now()");
cmp_ok(draw($node), '>', $greatest, 'those of the log of cursors as well');
my $dump = $node->basedir . '/dump';
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'dump');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), $dump ], 'restore');
cmp_ok(draw($node, 'restored'), '>', $greatest, 'restored');
$node->safe_psql('postgres', 'CREATE DATABASE rows_only');
IdemTest::create_extension($node, 'rows_only');
declare_draw($node, 'rows_only');
cmp_ok(draw($node, 'rows_only'), '<', $greatest, 'a new database');
$node->command_ok([ 'pg_restore', '--data-only', '-d', $node->connstr('rows_only'), $dump ], 'restore of data only');
cmp_ok(draw($node, 'rows_only'), '>', $greatest, 'into a database that had given out tokens');

# A standby that lacks the last tokens is promoted.
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
$standby->stop;
$last = $node->safe_psql('postgres', 'SELECT draw() FROM generate_series(1, 1000) ORDER BY 1 DESC LIMIT 1');
$node->stop('immediate');
$standby->start;
$standby->promote;
cmp_ok(draw($standby), '>=', $last + $leap - 1000, 'a standby that is promoted leaps');

done_testing();
