
# Copyright (c) 2026, the idempotency developers

# Numbers of events are given out once, whatever is restored: the data of a dump
# into a database in use changes nothing, a new database goes on after the
# numbers that it was given, and so do crashed and promoted servers.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1, conf => IdemOutbox::eager_conf());
my $dump = $node->basedir . '/dump';
my $twice = 'SELECT count(*) - count(DISTINCT seq) FROM idempotency.outbox_events';
my $events = q{SELECT string_agg(aggregate_id || ':' || seq, ' ' ORDER BY seq) FROM idempotency.outbox_events};

sub enqueue
{
	my ($server, $id, $database) = @_;

	$server->safe_psql($database // 'postgres', "SELECT idempotency.outbox_enqueue('a', '$id', 't', '1')");
	return;
}

sub crash
{
	my ($server) = @_;

	$server->stop('immediate');
	$server->start;
	return;
}

# What is in the log and read from it, and where its cells stand
sub state_of
{
	my ($server, $database) = @_;

	return $server->safe_psql($database, "$events; SELECT generation, last_seq FROM idempotency.stat_outbox");
}

# Data only, into a database in use, numbers of which are ahead of the dump's
$node->safe_psql('postgres', 'CREATE DATABASE source');
IdemTest::create_extension($node, 'source');
enqueue($node, "old $_", 'source') foreach 1 .. 3;
command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('source') ], 'dumped');
enqueue($node, "new $_") foreach 1 .. 5;
my $before = state_of($node, 'postgres');
command_checks_all(
	[ 'pg_restore', '--data-only', '-d', $node->connstr('postgres'), $dump ],
	1, [qr/^$/], [
		qr/cannot restore events into "outbox_segment_0": the outbox is in use/,
		qr/HINT: .*Restore the whole dump into a new database/ ],
	'its data is not restored into a database in use');
is(state_of($node, 'postgres'), $before, 'which is as it was');
command_checks_all(
	[ 'pg_restore', '--data-only', '--single-transaction', '-d', $node->connstr('postgres'), $dump ],
	1, [qr/^$/], [qr/the outbox is in use/], 'in one transaction neither');
is(state_of($node, 'postgres'), $before, 'and it is as it was');
enqueue($node, 'next');
is($node->safe_psql('postgres', "SELECT last_seq FROM idempotency.stat_outbox"), '6', 'its numbers go on');

# Whole, into a new one, where it is restored once
$node->safe_psql('postgres', 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $dump ], 'restored into a new database');
my $again = [ 'pg_restore', '--data-only', '-d', $node->connstr('copy'), $dump ];
command_checks_all($again, 1, [qr/^$/], [qr/the outbox is in use/], 'its data a second time is refused');
is($node->safe_psql('copy', $events), 'old 1:1 old 2:2 old 3:3', 'each event is there once');
my $writer = $node->background_psql('copy');
$writer->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('a', 'open', 't', '1')});
enqueue($node, 'beside', 'copy');
$writer->query_safe('COMMIT');
is($node->safe_psql('copy', $events), 'old 1:1 old 2:2 old 3:3 open:4 beside:5', 'and new ones come after them');
command_checks_all($again, 1, [qr/^$/], [qr/the outbox is in use/], 'its data is refused in use');

# With INSERT instead of COPY
my $inserts = $node->basedir . '/inserts.sql';
$node->safe_psql('postgres', 'CREATE DATABASE inserted');
command_ok([ 'pg_dump', '--inserts', '-f', $inserts, '-d', $node->connstr('source') ], 'dumped as INSERT');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $inserts, '-d', $node->connstr('inserted') ], 'and restored');
enqueue($node, 'new', 'inserted');
is($node->safe_psql('inserted', $events), 'old 1:1 old 2:2 old 3:3 new:4', 'every event is there');

# Two dumps whose events are in different segments, by COPY and by INSERT; a dump
# with INSERT twice.  What has a number of its own is taken.
my $data = { copy => $node->basedir . '/data_copy.sql', inserts => $node->basedir . '/data_inserts.sql' };
command_ok([ 'pg_dump', '--data-only', '-t', 'idempotency_data.outbox_segment_*', '-f', $data->{copy}, '-d', $node->connstr('source') ],
	'data dumped');
command_ok([ 'pg_dump', '--data-only', '-t', 'idempotency_data.outbox_segment_*', '--inserts', '-f', $data->{inserts}, '-d', $node->connstr('source') ],
	'data dumped as INSERT');
foreach my $first (qw(copy inserts))
{
	foreach my $second (qw(copy inserts))
	{
		my $other = slurp_file($data->{$second});
		$other =~ s/outbox_segment_0/outbox_segment_1/g;
		my $moved = $node->basedir . "/moved.sql";
		append_to_file($moved, $other);
		$node->safe_psql('postgres', "CREATE DATABASE two_$first$second");
		IdemTest::create_extension($node, "two_$first$second");
		my @restore = ('psql', '-qX', '-d', $node->connstr("two_$first$second"));
		command_ok([ @restore, '-v', 'ON_ERROR_STOP=1', '-f', $data->{$first} ], "the first dump by $first");
		my ($said, $err);
		IPC::Run::run([ @restore, '-f', $moved ], '>', \$said, '2>', \$err);
		like($err, qr/cannot restore event number 1 into "outbox_segment_1": another event was restored with that number/,
			"another dump by $second is refused");
		like($err, qr/HINT: .*no two dumps into the same database/, 'with a hint');
		unlink $moved;
		next if $second eq 'copy';
		IPC::Run::run([ @restore, '-f', $data->{inserts} ], '>', \$said, '2>', \$err);
		is(() = $err =~ /another event was restored/g, 3, 'and so is the same dump, row by row');
		is($node->safe_psql("two_$first$second", $events), 'old 1:1 old 2:2 old 3:3', 'each event is there once');
	}
}

my ($rc, $out, $err);

# A restore that failed can be repeated
$node->safe_psql('postgres', 'CREATE DATABASE failed');
IdemTest::create_extension($node, 'failed');
my $into = 'COPY idempotency_data.outbox_segment_0 (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload) FROM stdin';
my $row = join("\t", 1, 7, '00000000-0000-7000-8000-000000000001', '2026-01-01', 'a', 'restored', 't', '1');
$node->safe_psql('failed', "BEGIN;\n$into;\n$row\n\\.\nROLLBACK;");
$node->safe_psql('failed', "$into;\n$row\n\\.\n");
enqueue($node, 'after', 'failed');
is($node->safe_psql('failed', $events), 'restored:7 after:8', 'a restore that was undone is repeated');

# Two restores at once: the second waits for the first
$node->safe_psql('postgres', 'CREATE DATABASE once');
IdemTest::create_extension($node, 'once');
my $insert = sub {
	my ($segment) = @_;
	return "INSERT INTO idempotency_data.outbox_segment_$segment (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)"
	  . " VALUES ('1', 7, gen_random_uuid(), '2026-01-01', 'a', 'restored', 't', '1')";
};
my $one = $node->background_psql('once');
$one->query_safe('BEGIN; ' . $insert->(0));
my $two = $node->background_psql('once', on_error_stop => 0);
my $two_pid = $two->query_safe('SELECT pg_backend_pid()');
$two->query_until(qr/go/, "\\echo go\n" . $insert->(1) . ";\n");
IdemTest::wait_for($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $two_pid");
$one->query_safe('COMMIT');
$one->quit;
IdemTest::wait_for($node, "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $two_pid");
$two->quit;
is($node->safe_psql('once', $events), 'restored:7', 'the first event stays the only one');

# The numbers are kept until the first event is enqueued
my $kept = 'SELECT count(*), pg_relation_size(\'idempotency_data.outbox_restored\') = 0 FROM idempotency_data.outbox_restored';
is($node->safe_psql('once', $kept), '1|f', 'the numbers of restored events are kept');
enqueue($node, 'after', 'once');
$node->safe_psql('once', q{CREATE SERVER nowhere FOREIGN DATA WRAPPER idempotency_null;
	SELECT idempotency.relay_create('nowhere', 'nowhere')});
$node->poll_query_until('once', "SELECT (SELECT count(*) FROM idempotency_data.outbox_restored) = 0"
	  . " AND pg_relation_size('idempotency_data.outbox_restored') = 0") or die 'the numbers stay';
$node->safe_psql('once', q{SELECT idempotency.relay_drop('nowhere'); DROP SERVER nowhere});
($rc, $out, $err) = $node->psql('once', $insert->(1));
like($err, qr/the outbox is in use/, 'then every restore is refused');

# Mending waits for a transaction that has drawn a number which is in no row that
# others see.
$writer->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('a', 'open 2', 't', '1')});
is($node->safe_psql('copy', 'SET lock_timeout = 1; SELECT idempotency.outbox_mend_seq()'), '6',
	'mending what is well waits for nobody');
($rc, $out, $err) = $node->psql('copy', "SET lock_timeout = 1;\n$into;\n$row\n\\.\n");
like($err, qr/the outbox is in use/, 'nor does a restore that is refused');
$node->safe_psql('copy', q{SELECT setval('idempotency_data.outbox_seq', 2)});
($rc, $out, $err) = $node->psql('copy', q{SELECT idempotency.outbox_enqueue('a', 'refused', 't', '1')});
like($err, qr/was set by others than the outbox/, 'nobody draws a number from a sequence that was set back');
my $dba = $node->background_psql('copy');
my $pid = $dba->query_safe('SELECT pg_backend_pid()');
$dba->query_until(qr/go/, "\\echo go\nSELECT idempotency.outbox_mend_seq();\n");
IdemTest::wait_for($node, <<"END");
SELECT wait_event_type = 'Lock' OR state = 'idle' AND query ~ 'mend' FROM pg_stat_activity WHERE pid = $pid
END
is($node->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid"), 'Lock', 'mending waits for writers');
$writer->query_safe('COMMIT');
$dba->quit;
$writer->quit;
enqueue($node, 'mended', 'copy');
like($node->safe_psql('copy', $events), qr/open 2:6 mended:7$/, 'and numbers go on after theirs');

# A database made from it as a template has its numbers.  WAL has the value of a
# copied, and of a mended sequence as it was: what is drawn next is logged.
foreach my $strategy (qw(file_copy wal_log))
{
	$node->safe_psql('postgres', "CREATE DATABASE $strategy TEMPLATE copy STRATEGY $strategy");
	enqueue($node, 'cloned', $strategy);
	like($node->safe_psql($strategy, $events), qr/mended:7 cloned:8$/, "a copy by $strategy goes on, too");
}
$node->safe_psql('copy', q{SELECT setval('idempotency_data.outbox_seq', 2); SELECT idempotency.outbox_mend_seq()});
enqueue($node, 'before the crash', 'copy');
crash($node);
foreach my $database (qw(file_copy wal_log copy))
{
	enqueue($node, 'after the crash', $database);
	is($node->safe_psql($database, $twice), '0', "$database: no number twice after a crash");
}

# Promoted, and crashed: right after a checkpoint, in the middle of what was logged
# ahead, again and again.
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
foreach my $n (1, 100, 300)
{
	$node->safe_psql('postgres', 'CHECKPOINT') if $n != 100;
	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'crash', 't', '1') FROM generate_series(1, $n)");
	crash($node);
	enqueue($node, 'recovered');
	is($node->safe_psql('postgres', $twice), '0', "no number twice after a crash $n events after a checkpoint");
}
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
enqueue($standby, 'promoted');
is($standby->safe_psql('postgres', $twice), '0', 'nor after a failover');
is($standby->safe_psql('postgres', q{SELECT aggregate_id FROM idempotency.outbox_events ORDER BY seq DESC LIMIT 1}),
	'promoted', 'where the numbers go on');
$standby->stop;

# Events of the transaction that creates the extension, where WAL does not have its
# pages one by one but as they were when the transaction committed
my $minimal = IdemTest::cluster('minimal', conf => "wal_level = minimal\nmax_wal_senders = 0\n");
$minimal->safe_psql('postgres', 'CREATE DATABASE whole');
$minimal->safe_psql('whole', q{BEGIN; CREATE EXTENSION idempotency CASCADE;
	SELECT idempotency.outbox_enqueue('a', 'first', 't', '1'); COMMIT});
enqueue($minimal, 'before the crash', 'whole');
crash($minimal);
enqueue($minimal, 'after the crash', 'whole');
is($minimal->safe_psql('whole', $twice), '0', 'no number twice after a crash under wal_level = minimal');
$minimal->stop;
done_testing();
