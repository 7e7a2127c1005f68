
# Copyright (c) 2026, the idempotency developers

# A transaction of a million events, a backlog of transactions and of big
# payloads pass through a worker of bounded memory, which a million events more
# leave as it is; the position log takes turns meanwhile, beside a pinned
# horizon, and no position is lost by that.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
shared_buffers = 16MB
max_wal_size = 4GB
fsync = off
END

# Resident memory without what is shared, at its peak, in kB.
sub peak
{
	my ($pid) = @_;
	my $status = slurp_file("/proc/$pid/status");
	my ($peak) = $status =~ /VmHWM:\s+(\d+) kB/;
	my ($shared) = $status =~ /RssShmem:\s+(\d+) kB/;
	my ($file) = $status =~ /RssFile:\s+(\d+) kB/;

	return $peak - $shared - $file;
}

# Memory of its own in use now, in kB, whoever asked the kernel for it.
sub anonymous
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /RssAnon:\s+(\d+) kB/ ? $1 : die "no RssAnon of $pid";
}

sub wait_sent
{
	my ($relay, $n) = @_;

	IdemTest::wait_for($node,
		"SELECT sent >= $n AND lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$relay'");
	return;
}

$node->safe_psql('postgres', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('nul', 'nul');
END

# In steps of one shape.  The reader's keys of a step are 3 MB, which malloc maps
# the first time and from the second on takes from its heap and keeps; so the
# second one is where growth is counted from.
my (%memory, $pid, $program);
foreach my $step (1 .. 12)
{
	IdemRelay::enqueue($node, 'k', 'Step', 100_000);
	wait_sent('nul', $step * 100_000);
	($pid, $program) = split /\|/, IdemRelay::stat($node, 'nul', 'pid, sink_pid');
	push @{ $memory{"worker $pid"} }, anonymous($pid);
	push @{ $memory{"program $program"} }, anonymous($program);
}
is(scalar(keys %memory), 2, 'the same processes from the first event to the last');
foreach my $process (sort keys %memory)
{
	my @kb = @{ $memory{$process} };

	note("$process, kB after each 100,000 events: @kb");
	cmp_ok($kb[-1] - $kb[1], '<', 1024, "$process: less than 1 MB for a million events") if @kb == 12;
}

$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('nul')});
IdemRelay::enqueue($node, 'k', 'Million', 1_000_000);
$node->safe_psql('postgres', <<'END');
DO $$ BEGIN FOR i IN 1 .. 200 LOOP
	PERFORM idempotency.outbox_enqueue('t', i::text, 'Backlog', '{}') FROM generate_series(1, 500);
	COMMIT;
END LOOP; END $$;
SELECT idempotency.relay_resume('nul');
END
wait_sent('nul', 2_300_000);
is(IdemRelay::stat($node, 'nul', 'sent'), '2300000', 'each event is sent once');
is(IdemRelay::stat($node, 'nul', 'pid'), $pid, 'by the same worker');
cmp_ok(peak($pid), '<', 32 * 1024, 'the worker stays below 32 MB');

# Big payloads, those refused included: parked events are read back.
my $file = "$dir/big.log";
IdemRelay::pytest_server($node, 'big', '/dev/null', reject_type => 'Bad');
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('big', 'big', aggregate_types => '{big}', max_attempts => 3,
	min_backoff => '10 ms', max_backoff => '10 ms');
SELECT idempotency.outbox_enqueue_bytes('big', i::text, 'Bad', decode(repeat('00', 900000), 'hex'))
	FROM generate_series(1, 60) i;
END
# Refusals count while events of others pass.
IdemRelay::wait_until('60 dead letters', sub {
	$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('big', 'other', 'Good', '{}')});
	return $node->safe_psql('postgres', q{SELECT count(*) FROM idempotency.dead_letters WHERE relay = 'big'}) eq '60';
});
cmp_ok(peak($pid), '<', 32 * 1024, 'the worker stays below 32 MB with big payloads refused');

# A row of the position log per event, until the log has taken turns.
# One timer for the whole session.
my $pin = $node->background_psql('postgres', timeout => 10 * $PostgreSQL::Test::Utils::timeout_default);
$pin->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (n int);
CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.effects VALUES ((payload->>'n')::int) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{fn}', start_at => 'latest');
SELECT idempotency.relay_alter('nul', batch_events => 1);
END
$node->safe_psql('postgres', <<'END');
DO $$ BEGIN FOR i IN 1 .. 400 LOOP
	PERFORM idempotency.outbox_enqueue('t', n::text, 'Row', '{}') FROM generate_series(1, 1000) n;
	PERFORM idempotency.outbox_enqueue('fn', 'k', 'Row', jsonb_build_object('n', i));
	COMMIT;
END LOOP; END $$;
END
my $sent = 2_700_400;
wait_sent('nul', $sent);
IdemTest::wait_for($node, q{SELECT count(*) = 400 FROM effects});

# How many results one row settles is the machine's affair; so many rows are
# more than one table takes (512 pages).
while ($node->safe_psql('postgres', q{SELECT last_value FROM idempotency_data.relay_log_id}) < 45000)
{
	IdemRelay::enqueue($node, 'k', 'Row', 20_000);
	$sent += 20_000;
	wait_sent('nul', $sent);
}
IdemTest::wait_for($node, q{SELECT min(size) = 0 AND max(size) BETWEEN 1 AND 512 * 8192
	FROM (VALUES (pg_relation_size('idempotency_data.relay_log_0')), (pg_relation_size('idempotency_data.relay_log_1'))) l (size)});
is( $node->safe_psql('postgres', q{SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE relname LIKE 'relay_log_%'}),
	'0', 'without a dead row');
$pin->quit;
$node->restart;
IdemRelay::wait_state($node, 'nul', 'streaming');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('fn', 'k', 'Row', '{"n": 401}')});
IdemTest::wait_for($node, q{SELECT count(*) = 401 FROM effects});
cmp_ok(IdemRelay::stat($node, 'nul', 'sent'), '<', 100, 'the position survived: nothing old is sent again');
$node->stop;
done_testing();
