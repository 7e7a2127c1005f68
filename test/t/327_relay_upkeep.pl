
# Copyright (c) 2026, the idempotency developers

# A worker that waits for a lock in its upkeep spends no wake-up.  The wait resets the
# latch of the process, so a commit that sets it meanwhile leaves nothing but the flag
# in shared memory: the worker has to look at that before it sleeps.
#
# The judgement is that of 326_relay_wakeup: once the lock is granted, no worker sleeps
# for NAP in its own wait, and says that it waits for events, before the event is there.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant NAP => 0.25;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/program.log";
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\nautovacuum = off\n");

IdemRelay::pytest_server($node, 's_program', $file);
$node->safe_psql('postgres', <<'END');
CREATE TABLE effect (n int);
CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect VALUES (1)';
CREATE SERVER s_function FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
SELECT idempotency.relay_create(r, 's_' || r, aggregate_types => '{t}') FROM unnest('{program,function}'::text[]) r
END

my %arrived = (
	program => sub { scalar IdemRelay::acked($file) },
	function => sub { $node->safe_psql('postgres', 'SELECT count(*) FROM effect') });
my $sent = 0;

sub enqueue
{
	my ($type) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$type', 'k', 'E', '1')");
	$sent++ if $type eq 't';
	return;
}

sub sleeps_on_it
{
	my ($relay, $pid) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my ($asleep, $since) = ('', 0);

	while (time < $until)
	{
		my $before = IdemRelay::switches($pid);
		my $wait = $node->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid");
		my $waiting_for = IdemRelay::stat($node, $relay, 'waiting_for');

		return 0 if $arrived{$relay}->() >= $sent;
		$before = '' if $wait ne 'Extension' || $waiting_for ne 'events' || IdemRelay::switches($pid) ne $before;
		($asleep, $since) = ($before, time) if $before eq '' || $before ne $asleep;
		return 1 if $asleep ne '' && time - $since >= NAP;
	}
	return 'for ever';
}

sub wait_for_lock
{
	my ($pid) = @_;

	IdemRelay::wait_until(
		'the worker waits for a lock',
		sub {
			IdemRelay::switches($pid) ne ''
			  && $node->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Lock';
		});
	return;
}

enqueue('t');
foreach my $relay (sort keys %arrived)
{
	IdemRelay::wait_until("relay $relay works", sub { $arrived{$relay}->() == $sent });
}

# A worker of a function has a position to write down that moved without a row; that of
# the database reads the relays.  It gives a lock up after 1 s; on a machine that needs
# longer from here to the COMMIT below, its case shows nothing.
my %lock = (
	function => 'idempotency_data.relay_log_0, idempotency_data.relay_log_1 IN SHARE MODE',
	program => 'idempotency_data.relays IN ACCESS EXCLUSIVE MODE');
my $locker = $node->background_psql('postgres');
foreach my $relay (sort keys %lock)
{
	my $pid = IdemRelay::stat($node, $relay, 'pid');

	enqueue('nobody');
	$locker->query_safe('BEGIN');
	$locker->query_safe("LOCK TABLE $lock{$relay}");
	wait_for_lock($pid);
	enqueue('t');
	wait_for_lock($pid);
	$locker->query_safe('COMMIT');
	is(sleeps_on_it($relay, $pid), 0, "the worker of the $relay does not sleep on an event that came during its upkeep");
}
$locker->quit;
$node->stop;
done_testing();
