
# Copyright (c) 2026, the idempotency developers

# "duplicate" is an acknowledgement: a completion is made durable at its commit,
# and where it was not, before anybody is told of it.  That goes for synchronous
# standbys too, a cancelled wait for one included.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

# Nothing but commits and claims is to flush WAL: no vacuum, and no WAL writer,
# which an asynchronous commit would wake.
my $primary = IdemTest::cluster('primary',
	allows_streaming => 1,
	conf => "wal_writer_delay = 10s\nautovacuum = off\n");
my $wal_writer;

# Stop the WAL writer while it sleeps: in the middle of a flush it would hold
# the lock that all others need.
sub stop_wal_writer
{
	my $asleep = q{backend_type = 'walwriter' AND wait_event = 'WalWriterMain'};

	for (;;)
	{
		IdemTest::wait_for($primary, "SELECT count(*) = 1 FROM pg_stat_activity WHERE $asleep");
		$wal_writer = $primary->safe_psql('postgres',
			q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
		kill 'STOP', $wal_writer or die "could not stop the WAL writer: $!";
		return
		  if $primary->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE $asleep") eq '1';
		kill 'CONT', $wal_writer;
	}
}

# What was not flushed is lost with the shared memory.
sub crash
{
	IdemTest::kill9_backend($primary, $wal_writer);
	return;
}

sub claim
{
	my ($id) = @_;

	return $primary->safe_psql('postgres',
		"BEGIN; SELECT idempotency.claim_event('$id'); ROLLBACK");
}

# A session that committed asynchronously all the same
stop_wal_writer();
$primary->safe_psql('postgres', <<'END');
SET synchronous_commit = off;
SELECT idempotency.claim_event('forced'), idempotency.complete_event('forced');
END
crash();
is(claim('forced'), 'duplicate', 'a completion is flushed whatever synchronous_commit says');

# A transaction that says so for itself, before the completion or after it
stop_wal_writer();
$primary->safe_psql('postgres', <<'END');
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT idempotency.claim_event('local'), idempotency.complete_event('local');
SET LOCAL synchronous_commit = off;
COMMIT;
END
crash();
is(claim('local'), 'duplicate', 'also if the transaction itself says that it need not be');

# One that was allowed to, and somebody who was told of it
foreach my $budget (-1, 0)
{
	stop_wal_writer();
	$primary->safe_psql('postgres', <<"END");
SET synchronous_commit = off;
SET idempotency.durable_complete = off;
SET idempotency.max_claim_locks = $budget;
SELECT idempotency.claim_event('told$budget'), idempotency.complete_event('told$budget');
END
	is(claim("told$budget"), 'duplicate', 'an asynchronous completion is seen');
	crash();
	is(claim("told$budget"), 'duplicate', 'and was flushed before');
}

# Does the transaction of a session wait for the standby, and not end?
sub waits_for_standby
{
	my ($backend) = @_;

	for (;;)
	{
		my $doing = $primary->safe_psql('postgres',
			"SELECT CASE WHEN wait_event = 'SyncRep' THEN 'waits' WHEN state = 'idle' AND query ~ 'COMMIT' THEN 'ended' END FROM pg_stat_activity WHERE pid = $backend");

		return $doing eq 'waits' if $doing ne '';
	}
}

# Synchronous standby
my $standby = IdemTest::synchronous_standby($primary);

# A session that would not wait for it
$primary->safe_psql('postgres', <<'END');
SET synchronous_commit = local;
SELECT idempotency.claim_event('with standby'), idempotency.complete_event('with standby');
END
is(claim('with standby'), 'duplicate', 'answered while the standby is there');

$standby->stop;

# Nor is a producer registered, or a reader fenced, before the standby has it
foreach my $call (q{register_producer('p')}, q{resume_offset('c', 't', 0, 1)})
{
	my $caller = $primary->background_psql('postgres', on_error_stop => 0);
	my $caller_pid = $caller->query('SELECT pg_backend_pid()');

	$caller->query_until(qr/go/, <<"END");
\\echo go
BEGIN;
SELECT idempotency.$call;
SET LOCAL synchronous_commit = off;
COMMIT;
END
	ok(waits_for_standby($caller_pid), "the commit waits for the standby whatever synchronous_commit says: $call");
	$primary->safe_psql('postgres', "SELECT pg_cancel_backend($caller_pid)");
	$caller->quit;
}

my $session = $primary->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query_until(qr/go/, <<'END');
\echo go
SET synchronous_commit = off;
SELECT idempotency.claim_event('cancelled'), idempotency.complete_event('cancelled');
END
IdemTest::wait_for($primary,
	"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid");
pass('a completion waits for the standby whatever synchronous_commit says');
is(claim('cancelled'), 'busy', 'until then it is busy');
$primary->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
IdemTest::wait_for($primary,
	q{SELECT count(*) = 1 FROM idempotency.processed_events WHERE event_id = 'cancelled'});

# Visible now, but a failover would lose it: no verdict, rather than duplicate
foreach my $call (q{claim_event('cancelled')}, q{claim_events('{other,cancelled}')},
	q{event_result('cancelled')}, q{event_status('cancelled')})
{
	my ($ret, $out, $err) = $primary->psql('postgres',
		"\\set VERBOSITY verbose\nSET statement_timeout = '500ms'; SELECT idempotency.$call");
	is($out, '', "no answer: $call");
	like($err, qr/57014/, "but an error: $call");
}
# One that gives up leaves no lock behind
is( $primary->safe_psql('postgres',
		q{SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND backend_type = 'client backend'}),
	'0', 'no lock is left');

$standby->start;
is(claim('cancelled'), 'duplicate', 'answered when the standby has it');
$session->quit;

$primary->stop('immediate');
$standby->promote;
$standby->safe_psql('postgres', q{ALTER SYSTEM RESET synchronous_standby_names});
$standby->reload;
is($standby->safe_psql('postgres', 'SELECT idempotency.claim_event(id) FROM unnest(\'{cancelled,"with standby"}\'::text[]) id'),
	"duplicate\nduplicate", 'nothing answered was lost in the failover');
$standby->stop;
done_testing();
