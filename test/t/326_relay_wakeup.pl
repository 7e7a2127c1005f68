
# Copyright (c) 2026, the idempotency developers

# No wake-up is lost: an event that commits while a relay is still busy with older
# ones is sent as soon as these are out of the way, for each kind of relay, whatever
# held the older ones back, and however they fill the batches.
#
# The judgement is no number of seconds.  After what held the relay back is gone,
# each step that it makes leads to the next, so its worker has no reason to sleep
# before the event has arrived; a worker that lost the wake-up sleeps until a timer
# of its own (5 s, 60 s) or a stranger's commit.  So the test looks at the worker: a
# process that the kernel shows as sleeping, in the worker's own wait, without one
# switch of context between two looks, while stat_relay says that the relay waits for
# events and the event is not there.  A slow machine makes processes ready to run and
# late, but it does not make them sleep.  NAP allows for the short timers of a relay
# at work, which look at a standby (5 ms) and gather positions (100 ms).

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemSession;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use constant NAP => 0.25;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster(
	'main',
	allows_streaming => 1,
	conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 10min
autovacuum = off
END
my ($host, $port) = ($node->host, $node->port);
my $user = $node->safe_psql('postgres', 'SELECT current_user');

$node->safe_psql('postgres', <<"END");
CREATE TABLE effect (relay text);
CREATE FUNCTION handle(aggregate_type text) RETURNS void LANGUAGE sql
	AS 'INSERT INTO public.effect VALUES (aggregate_type)';
CREATE SERVER s_pg FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'postgres', "table" 'public.got', statement_timeout '0');
CREATE USER MAPPING FOR CURRENT_USER SERVER s_pg OPTIONS (user '$user');
CREATE SERVER s_nul FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER s_fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
END
$node->safe_psql('postgres', $node->safe_psql('postgres', q{SELECT idempotency.sink_setup_sql('s_pg')}));

# Events per batch.  The test sinks with little credit have room for 3 batches, or 3
# events, the others for IDEM_STREAM_MAX_BATCHES, which is 8, or if they store
# positions for IDEM_STREAM_MAX_STORED_BATCHES, which is 128.
my %batch = (pg => 2, nul => 1, plain => 2, storing => 3, credit => 2, storing_credit => 1, fn => 3, fn_single => 1);
my %room = (pg => 128, storing => 128);
my %options = (
	plain => {},
	storing => { position => 'on' },
	credit => { credit_messages => 6, max_batch_events => 2 },
	storing_credit => { position => 'on', credit_messages => 3, max_batch_events => 1 });
my %server = (fn => 's_fn', fn_single => 's_fn');
my @relays = sort keys %batch;
my @functions = grep { /^fn/ } @relays;
my @programs = grep { !/^fn/ } @relays;

IdemRelay::pytest_server($node, "s_$_", "$dir/$_.log", %{ $options{$_} }) foreach sort keys %options;
foreach my $relay (@relays)
{
	my $server = $server{$relay} // "s_$relay";

	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$relay', '$server', aggregate_types => '{$relay}', batch_events => $batch{$relay})
END
}

# Events of each relay in one transaction, n(relay) of them, that no standby holds up.
my %sent = map { $_ => 0 } @relays;

sub enqueue
{
	my ($n) = @_;
	my $values = join(', ', map { "('$_', " . $n->($_) . ')' } @relays);

	$node->safe_psql('postgres', <<"END");
SET synchronous_commit = local;
SELECT count(idempotency.outbox_enqueue(relay, 'k' || i, 'E', '1'))
	FROM (VALUES $values) AS v (relay, n), generate_series(1, n) AS i
END
	$sent{$_} += $n->($_) foreach @relays;
	return;
}

my $looker = IdemSession->new($node, 'postgres');

# relay -> pid, waiting_for, wait (wait_event_type of the worker), arrived
sub look
{
	my %seen;
	my $rows = $looker->ask(<<'END');
SELECT relay, r.pid, waiting_for, coalesce(wait_event_type, ''), CASE
		WHEN relay = 'pg' THEN (SELECT count(*) FROM got)
		WHEN relay LIKE 'fn%' THEN (SELECT count(*) FROM effect e WHERE e.relay = r.relay)
		WHEN relay = 'nul' THEN sent ELSE 0 END
	FROM idempotency.stat_relay r LEFT JOIN pg_stat_activity a ON a.pid = r.pid
END

	foreach my $row (split /\n/, $rows)
	{
		my ($relay, $pid, $waiting_for, $wait, $arrived) = split /\|/, $row;

		$arrived = IdemRelay::acked("$dir/$relay.log") if $options{$relay};
		$seen{$relay} = { pid => $pid, waiting_for => $waiting_for, wait => $wait, arrived => $arrived };
	}
	return \%seen;
}

# A look, with slept: the switches of a worker that slept from before it until after it.
sub look_at_sleepers
{
	my $pids = $looker->ask('SELECT DISTINCT pid FROM idempotency.stat_relay WHERE pid IS NOT NULL');
	my %before = map { $_ => IdemRelay::switches($_) } split /\n/, $pids;
	my $seen = look();

	foreach my $relay (@relays)
	{
		my $r = $seen->{$relay};
		my $slept = $before{ $r->{pid} } // '';

		$r->{slept} = $slept ne '' && IdemRelay::switches($r->{pid}) eq $slept ? $slept : '';
	}
	return $seen;
}

# Until each relay has all that was sent; returns those whose workers slept instead.
sub sleepers
{
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my (%asleep, %found);

	while (time < $until)
	{
		my $seen = look_at_sleepers();
		my @behind = grep { $seen->{$_}{arrived} < $sent{$_} } @relays;

		return join(' ', sort keys %found) unless @behind;
		usleep(20_000);
		foreach my $relay (@behind)
		{
			my $r = $seen->{$relay};
			my $state = $r->{wait} eq 'Extension' && $r->{waiting_for} eq 'events' ? $r->{slept} : '';

			$asleep{$relay} = [ $state, time ] if $state eq '' || $state ne ($asleep{$relay}[0] // '');
			$found{$relay} = 1 if $state ne '' && time - $asleep{$relay}[1] >= NAP;
		}
		# Wake those that sleep, so that the next case begins anew.
		$node->safe_psql('postgres', q{SET synchronous_commit = local; SELECT idempotency.outbox_enqueue('nobody', 'k', 'E', '1')})
		  unless grep { !$found{$_} } @behind;
	}
	return 'never arrived: ' . join(' ', grep { look()->{$_}{arrived} < $sent{$_} } @relays);
}

# Ways to hold relays back.
# One timer for the whole session.
my $locker = $node->background_psql('postgres', timeout => 10 * $PostgreSQL::Test::Utils::timeout_default);
my @stopped;

sub hold_sinks
{
	$locker->query_safe('BEGIN');
	$locker->query_safe('LOCK TABLE got, effect IN EXCLUSIVE MODE');
	@stopped = map { IdemRelay::stat($node, $_, 'sink_pid') } grep { $_ ne 'pg' } @programs;
	kill 'STOP', @stopped;
	return;
}

sub release_sinks
{
	$locker->query_safe('COMMIT');
	kill 'CONT', @stopped;
	return;
}

# Programs have what there is room for, functions are in the middle of the first event,
# and no worker has anything left to do.
sub wait_held
{
	IdemRelay::wait_until(
		'every relay is held up by its sink',
		sub {
			my $seen = look_at_sleepers();

			return !grep {
				my $r = $seen->{$_};

				!$r->{slept} || (/^fn/ ? $r->{wait} ne 'Lock' : $r->{wait} ne 'Extension' || $r->{waiting_for} ne 'answer')
			} @relays;
		});
	return;
}

enqueue(sub { 1 });
is(sleepers(), '', 'all relays work');

# So many events of a relay fill n batches, or n eighths of the room that its sink has.
sub fill
{
	my ($relay, $n) = @_;

	return $n * $batch{$relay} * ($room{$relay} // 8) / 8;
}

# One transaction fills some batches, one event more is committed by itself.
foreach my $batches (7, 8, 9, 16)
{
	foreach my $extra (0, 1)
	{
		foreach my $when ('before', 'after')
		{
			hold_sinks();
			enqueue(sub { fill($_[0], $batches) + $extra });
			wait_held();
			if ($when eq 'before')
			{
				enqueue(sub { 1 });
				wait_held();
			}
			release_sinks();
			enqueue(sub { 1 }) if $when eq 'after';
			is(sleepers(), '', "$batches batches and $extra events, one more just $when the sinks go on: no worker sleeps on it");
		}
	}
}

# The gate of a synchronous standby holds up programs behind each batch.
my $standby = IdemTest::synchronous_standby($node);
my $receiver = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');
my $worker = IdemRelay::stat($node, 'pg', 'pid');

sub wait_gated
{
	IdemRelay::wait_until(
		'every program waits for the standby',
		sub {
			my $seen = look();
			return !grep { $seen->{$_}{waiting_for} ne 'synchronous standby' } @programs;
		});
	return;
}

# The worker, which looks at the gate again and again, has looked for what is new.
sub wait_loops
{
	my $switches = sub { (slurp_file("/proc/$worker/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m)[0] };
	my $before = $switches->();

	IdemRelay::wait_until('the worker has gone round', sub { $switches->() > $before + 5 });
	return;
}

foreach my $batches (1, 2, 8)
{
	foreach my $extra (0, 1)
	{
		kill 'STOP', $receiver;
		enqueue(sub { fill($_[0], $batches) + $extra });
		wait_gated();
		enqueue(sub { 1 });
		wait_loops();
		kill 'CONT', $receiver;
		is(sleepers(), '', "$batches batches and $extra events, one more while a standby is waited for: no worker sleeps on it");
	}
}

$looker = undef;
$locker->quit;
$standby->stop;
$node->stop;
done_testing();
