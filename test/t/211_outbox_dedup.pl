
# Copyright (c) 2026, the idempotency developers

# Dedup ids across a crash, and across the end of transactions: a repeat waits
# for a prepared transaction, and is answered only when the first event is
# durable; time that it waits does not count against the window.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

# Nothing but commits is to flush WAL.
my $node = IdemTest::cluster('main',
	conf => "wal_writer_delay = 10s\nautovacuum = off\nmax_prepared_transactions = 5\n");

# The SQL that enqueues with a dedup id.  n is the last digit of the event id.
sub enqueue
{
	my ($n, $dedup_id, $window) = @_;

	return sprintf q{SELECT idempotency.outbox_enqueue('a', 'i', 't', '1', event_id => %s, dedup_id => '%s', dedup_window => '%s')},
	  "'00000000-0000-7000-8000-00000000000$n'", $dedup_id, $window // '1 day';
}

# As the last digit of the event's id
sub result
{
	my ($sql) = @_;

	return substr $node->safe_psql('postgres', $sql), -1;
}

# Does the process wait for the end of a transaction?
sub wait_until_waiting
{
	my ($pid) = @_;

	IdemTest::wait_for($node,
		"SELECT count(*) = 1 FROM pg_locks WHERE pid = $pid AND NOT granted AND locktype = 'transactionid'");
	return;
}

# Prepared transactions, and a crash
foreach my $end (qw(COMMIT ROLLBACK))
{
	$node->safe_psql('postgres',
		'BEGIN; ' . enqueue($end eq 'COMMIT' ? 1 : 2, lc $end) . "; PREPARE TRANSACTION '$end'");
}
$node->safe_psql('postgres', enqueue(3, 'settled'));
my $open = $node->background_psql('postgres', on_error_stop => 0);
$open->query('BEGIN; ' . enqueue(4, 'open'));
$node->stop('immediate');
$node->start;
eval { $open->quit };

is(result(enqueue(5, 'open')), 5, 'nothing is left of an open transaction');
is(result(enqueue(6, 'settled')), 3, 'a committed dedup id survives the crash');
my ($ret, $out, $err) = $node->psql('postgres', "SET lock_timeout = '50ms'; " . enqueue(6, 'commit'));
like($err, qr/lock timeout.*while waiting for the transaction that uses dedup id "commit"/s,
	'a repeat waits for a prepared transaction');
foreach my $end (qw(COMMIT ROLLBACK))
{
	my $session = $node->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/go/,
		"\\echo go\nCREATE TEMPORARY TABLE answer AS " . enqueue($end eq 'COMMIT' ? 6 : 7, lc $end) . " AS id;\n");
	wait_until_waiting($pid);
	$node->safe_psql('postgres', "$end PREPARED '$end'");
	is( substr($session->query_safe('SELECT id FROM answer'), -1),
		$end eq 'COMMIT' ? 1 : 7,
		"and is answered by what $end PREPARED left");
	$session->quit;
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.outbox_events'),
	4, 'each event is there once');

# Several wait for a transaction that rolls back: one of them is the first
my $rolled_back = $node->background_psql('postgres');
$rolled_back->query_safe('BEGIN; ' . enqueue(4, 'rolled back'));
my @waiting = map { $node->background_psql('postgres') } 1 .. 3;
foreach my $session (@waiting)
{
	my $waiter = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/go/, <<'END');
\echo go
CREATE TEMPORARY TABLE answer AS SELECT idempotency.outbox_enqueue('a', 'i', 't', '1', dedup_id => 'rolled back') AS id;
END
	wait_until_waiting($waiter);
}
$rolled_back->query_safe('ROLLBACK');
my %answers = map { $_->query_safe('SELECT id FROM answer') => 1 } @waiting;
is(keys %answers, 1, 'three that waited get the same answer');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.outbox_events'),
	5, 'which is one event');
$_->quit foreach $rolled_back, @waiting;

# The wait for the first transaction outlasts the window, but the repeat was made
# in time.
my $first = $node->background_psql('postgres');
my $twin = $node->background_psql('postgres');
my $pid = $twin->query_safe('SELECT pg_backend_pid()');
$first->query_safe('CREATE TEMPORARY TABLE t AS SELECT 1; BEGIN; ' . enqueue(8, 'window', '8 s'));
$twin->query_until(qr/go/, "\\echo go\nCREATE TEMPORARY TABLE answer AS " . enqueue(9, 'window') . " AS id;\n");
wait_until_waiting($pid);
$first->query_safe(q{SELECT pg_sleep(greatest(0, 8.1 - extract(epoch FROM clock_timestamp() - now())::float8))});
$first->query_safe('COMMIT');
is(substr($twin->query_safe('SELECT id FROM answer'), -1),
	8, 'a repeat that waits longer than the window stays a repeat');
is(result(enqueue(9, 'window')), 9, 'one that begins after the window is new');
$first->quit;
$twin->quit;

# A repeat is told of a first event that can no longer be lost.  The WAL writer
# is stopped while it sleeps; in a flush it would hold the lock that others need.
my $asleep = q{backend_type = 'walwriter' AND wait_event = 'WalWriterMain'};
my $wal_writer = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
for (;;)
{
	IdemTest::wait_for($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE $asleep");
	kill 'STOP', $wal_writer or die "could not stop the WAL writer: $!";
	last if $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE $asleep") eq '1';
	kill 'CONT', $wal_writer;
}
$node->safe_psql('postgres', q{SET synchronous_commit = off;
SELECT idempotency.outbox_enqueue('a', 'i', 't', '1', dedup_id => 'told', dedup_window => '1 day')});
my $told = q{BEGIN; SELECT idempotency.outbox_enqueue('a', 'i', 't', '1', dedup_id => 'told'); ROLLBACK};
my $id = $node->safe_psql('postgres', $told);
IdemTest::kill9_backend($node, $wal_writer);
is($node->safe_psql('postgres', $told), $id, 'the event of a repeat survives a crash');
is($node->safe_psql('postgres', "SELECT count(*) FROM idempotency.outbox_events WHERE event_id = '$id'"),
	1, 'and is in the outbox');
$node->stop;
done_testing();
