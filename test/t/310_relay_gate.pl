
# Copyright (c) 2026, the idempotency developers

# Nothing leaves the server that a crash, or a failover to the synchronous
# standby, could take back: asynchronous commits are flushed before their events
# are sent, and what no standby has waits for one, a cancelled wait included.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing but the gate is to flush WAL: the sink answers nothing, so the relay
# writes nothing.
my $dir = IdemRelay::sink_directory();
my $file = "$dir/gate.log";
my $primary = IdemTest::cluster(
	'primary',
	allows_streaming => 1,
	conf => "idempotency.sink_directory = '$dir'\nwal_writer_delay = 10s\nautovacuum = off\n");

IdemRelay::pytest_server($primary, 'srv', $file, mute_type => 'Mute');
$primary->safe_psql('postgres', q{SELECT idempotency.relay_create('gate', 'srv')});

sub arrived
{
	my ($key) = @_;

	return scalar grep { ($_->{aggregate_id} // '') eq $key } IdemRelay::received($file);
}

# A crash right after an event of an asynchronous commit arrived
foreach my $key (qw(a b c))
{
	$primary->stop('immediate');
	$primary->start;
	IdemRelay::wait_state($primary, 'gate', 'streaming');
	$primary->safe_psql('postgres', <<"END");
SET synchronous_commit = off;
SELECT idempotency.outbox_enqueue('t', '$key', 'Mute', '1');
END
	IdemRelay::wait_until("event $key arrives", sub { arrived($key) });
}
$primary->stop('immediate');
$primary->start;
is( $primary->safe_psql('postgres',
		q{SELECT string_agg(aggregate_id, ',' ORDER BY seq) FROM idempotency.outbox_events}),
	'a,b,c', 'what was sent survives a crash');

# Synchronous standby
$primary->safe_psql('postgres', 'ALTER SERVER srv OPTIONS (DROP mute_type)');
IdemRelay::wait_received($file, 3);
my $standby = IdemTest::synchronous_standby($primary);
IdemRelay::enqueue($primary, 'd', 'E');
IdemRelay::wait_until('event d arrives while the standby is there', sub { arrived('d') });

$standby->stop;
my $session = $primary->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query_until(qr/go/, <<'END');
\echo go
SELECT idempotency.outbox_enqueue('t', 'e', 'E', '1');
END
IdemTest::wait_for($primary,
	"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid");
$primary->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
IdemTest::wait_for($primary,
	q{SELECT count(*) = 1 FROM idempotency.outbox_events WHERE aggregate_id = 'e'});

# Visible now, but a failover would un-commit it
IdemRelay::wait_until(
	'the relay waits for the standby',
	sub {
		arrived('e') || IdemRelay::stat($primary, 'gate', 'waiting_for') eq 'synchronous standby';
	});
is(arrived('e'), 0, 'no event that only this server has');
$standby->start;
IdemRelay::wait_until('event e arrives once the standby has it', sub { arrived('e') });
$session->quit;

# What a sink that stores positions refused is parked here, and only then it may
# pass it: not before the standby has that.
my $stored = "$dir/stored.log";
IdemRelay::pytest_server($primary, 'stored', $stored, position => 'on', reject_type => 'Bad');
$primary->safe_psql('postgres', q{SELECT idempotency.relay_create('stored', 'stored', start_at => 'latest', aggregate_types => '{stored}')});
IdemRelay::wait_state($primary, 'stored', 'streaming');
my $program = IdemRelay::stat($primary, 'stored', 'sink_pid');
kill 'STOP', $program;
$primary->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('stored', 'k', 'Bad', '1')});
IdemTest::wait_for($primary, q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'stored'});
$standby->stop('immediate');
kill 'CONT', $program;
my $settled = sub { scalar grep { exists $_->{settle} } IdemRelay::received($stored) };
IdemRelay::wait_until(
	'the relay waits for the standby with what was refused',
	sub { $settled->() || IdemRelay::stat($primary, 'stored', 'waiting_for') eq 'synchronous standby' });
is($settled->(), 0, 'the sink may not pass what only this server has parked');
$standby->start;
IdemRelay::wait_until('it may once the standby has it', sub { $settled->() });

# A function relay names what its transaction waits for: the function, then the
# standby.
$primary->safe_psql('postgres', q{
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (event_id)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
SELECT idempotency.relay_create('fn', 'fn', start_at => 'latest', aggregate_types => '{fn}')});
IdemRelay::wait_state($primary, 'fn', 'streaming');
my $lock = $primary->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE effects');
$primary->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('fn', 'k', 'E', '1')});
IdemTest::wait_for($primary, q{SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'fn'});
$standby->stop('immediate');
$lock->query_safe('ROLLBACK');
$lock->quit;
IdemTest::wait_for($primary, q{SELECT waiting_for = 'synchronous standby' FROM idempotency.stat_relay WHERE relay = 'fn'});
$standby->start;
IdemTest::wait_for($primary, q{SELECT waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = 'fn'});
is($primary->safe_psql('postgres', 'SELECT count(*) FROM effects'), '1', 'its effect is there');
$standby->stop;
$primary->stop;
done_testing();
