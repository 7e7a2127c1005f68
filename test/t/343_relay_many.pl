
# Copyright (c) 2026, the idempotency developers

# A thousand relays that have nothing to send hold no process and cost nothing per
# commit: transactions, programs, scans and starts are counted, not timed.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant {
	IDLE => 1000,
	COMMITS => 40,
	FAILING => 50,
	TURNS => 6 };

my $dir = IdemRelay::sink_directory();
my $busy = "$dir/busy.log";

# A program that comes to nothing, and says how often it was started.
append_to_file("$dir/idempotency-sink-dies", "#!/bin/sh\necho >>'$dir/starts'\nexit 3\n");
append_to_file("$dir/starts", '');
chmod 0755, "$dir/idempotency-sink-dies";

my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_idle_timeout = 500ms
idempotency.max_sink_programs = 40
idempotency.max_sink_starts = 1000
idempotency.max_relays = @{[ IDLE + 1 ]}
autovacuum = off
END

sub sql
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

sub setting
{
	my ($name, $value) = @_;

	$node->append_conf('postgresql.conf', "$name = $value\n");
	$node->reload;
	return;
}

sub worker
{
	return sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency relay'});
}

sub wait_idle
{
	my ($n) = @_;

	return IdemTest::wait_for($node, "SELECT count(*) = $n FROM idempotency.stat_relay WHERE state = 'idle' AND sink_pid IS NULL");
}

#
# A thousand relays that were verified once.
#
IdemRelay::pytest_server($node, 's_busy', $busy);
sql(<<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER dies FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'dies');
SELECT idempotency.relay_create('busy', 's_busy', aggregate_types => '{busy}')
END
sql(qq{SELECT count(idempotency.relay_create('r' || i, 'nul', aggregate_types => ARRAY['t' || i])) FROM generate_series(1, @{[ IDLE ]}) i});
wait_idle(IDLE + 1);
is(scalar IdemRelay::children(worker()), 0, 'idle relays hold no process');

my ($rc, undef, $stderr) = $node->psql('postgres', q{\set VERBOSITY verbose
SELECT idempotency.relay_create('more', 'nul')});
like($stderr, qr/53400: too many relays.*idempotency\.max_relays is @{[ IDLE + 1 ]}.*HINT:  Raise idempotency\.max_relays/s,
	'one relay too many is refused, and the error names the setting');

#
# A commit that concerns one of them: the transactions of the worker do not depend on
# the others.  Its statistics are complete when it has ended.
#
setting('idempotency.sink_idle_timeout', '10min');
sql(q{SELECT idempotency.outbox_enqueue('busy', 'k', 'E', '0')});
IdemRelay::wait_received($busy, 1);

my $committed = sub { sql(q{SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'}) };
my $end_worker = sub {
	my $pid = worker();

	# The position is written a moment after the answer.  The next worker sends again
	# what the position does not cover, and would start the program for that.
	IdemTest::wait_for($node, q{SELECT lag_events = 0 AND position !~ '\.' FROM idempotency.stat_relay WHERE relay = 'busy'});
	sql("SELECT pg_terminate_backend($pid)");
	IdemRelay::wait_until('the worker has ended', sub { IdemRelay::process_is_gone($pid) });
	IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idempotency relay'});
};

# Upkeep has to have written where they stand: who has not moved is verified again.
IdemTest::wait_for($node, "SELECT count(DISTINCT relay_id) > @{[ IDLE ]} FROM idempotency_data.relay_log_0 WHERE kind IN ('r', 'p')");
$end_worker->();
wait_idle(IDLE + 1);

my $before = $committed->();

foreach my $n (1 .. COMMITS)
{
	sql(q{SELECT idempotency.outbox_enqueue('busy', 'k', 'E', '1')});
	IdemRelay::wait_until("event $n", sub { IdemRelay::acked($busy) > $n });
}
is(scalar IdemRelay::children(worker()), 1, 'one program runs, that of the relay with something to send');
$end_worker->();
cmp_ok($committed->() - $before, '<', COMMITS * 25, 'the transactions of a commit do not grow with idle relays');

#
# The worker that was started anew starts no program, and one event one program.
#
wait_idle(IDLE + 1);
is(scalar IdemRelay::children(worker()), 0, 'a start of the worker starts no program');
sql(q{SELECT idempotency.outbox_enqueue('t500', 'k', 'E', '1')});
IdemTest::wait_for($node, q{SELECT sent = 1 AND sink_pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'r500'});
is(sql(q{SELECT count(*), sum(sent), count(sink_pid) FROM idempotency.stat_relay}), (IDLE + 1) . '|1|1',
	'of a thousand relays one is sent its event');

# The upkeep has written where all of them stand.
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

#
# stat_relay: one scan of each log of positions, however many relays there are.
#
is( sql(<<'END'), IDLE + 1 . "\n1|1", 'stat_relay scans the log of positions once');
BEGIN;
SELECT count(lag_events) FROM idempotency.stat_relay;
SELECT string_agg(seq_scan::text, '|') FROM pg_stat_xact_all_tables WHERE relname IN ('relay_log_0', 'relay_log_1');
COMMIT;
END

#
# Dropped in one transaction.
#
sql(q{SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay WHERE relay ~ '^r'});
is(sql('SELECT count(*) FROM idempotency.stat_relay'), '1', 'a thousand relays are dropped in one transaction');

#
# Relays whose program dies share a ration of starts, and another is served beside them.
#
setting('idempotency.max_sink_starts', 5);
setting('idempotency.sink_idle_timeout', '0');
my $began = time;

sql(qq{SELECT count(idempotency.relay_create('d' || i, 'dies', min_backoff => '10 ms', max_backoff => '20 ms'))
	FROM generate_series(1, @{[ FAILING ]}) i});

my $starts = sub { length(slurp_file("$dir/starts")) };
# 50 of the 53 at once come out of the first try of each.
IdemRelay::wait_until('each was tried, and some again', sub { $starts->() > FAILING + 15 });
cmp_ok($starts->(), '<=', 2 * 10 + (1 + 5) * (time - $began + 1), 'starts are rationed');
my $had = IdemRelay::acked($busy);
sql(q{SELECT idempotency.outbox_enqueue('busy', 'k', 'E', '1')});
IdemRelay::wait_until('another relay is served beside them', sub { IdemRelay::acked($busy) > $had });
sql(q{SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay WHERE relay ~ '^d'});

#
# More relays with something to send than programs may run: they take turns.
#
setting('idempotency.max_sink_starts', 1000);
setting('idempotency.sink_idle_timeout', '10min');
setting('idempotency.max_sink_programs', 2);
foreach my $n (1 .. TURNS)
{
	IdemRelay::pytest_server($node, "s_turn$n", "$dir/turn$n.log", delay_ms => 20);
	sql("SELECT idempotency.relay_create('turn$n', 's_turn$n', aggregate_types => '{turn}', batch_events => 1)");
}
sql(q{SELECT count(idempotency.outbox_enqueue('turn', 'k' || i, 'E', '1')) FROM generate_series(1, 100) i});
my $most = 0;

IdemRelay::wait_until('each of them is served', sub {
	my $now = IdemRelay::children(worker());

	$most = $now if $now > $most;
	return !grep { IdemRelay::distinct(IdemRelay::acked("$dir/turn$_.log")) < 100 } 1 .. TURNS;
});
cmp_ok($most, '<=', 2, 'never more programs than are allowed');
like(slurp_file($node->logfile), qr/relays wait for one of the \d+ sink programs.*\n.*Raise idempotency\.max_sink_programs/,
	'and the server log says what is short');

done_testing();
