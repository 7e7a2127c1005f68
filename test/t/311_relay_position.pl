
# Copyright (c) 2026, the idempotency developers

# Where a relay goes on: never past what was not answered, and where the sink
# stores the position, at the sink's word, found again after the position log
# took turns; a word that contradicts the log is a state, never a guess.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 60s
END

sub relay
{
	my ($name, %opt) = @_;

	return IdemRelay::own_relay($node, $dir, $name, %opt);
}

sub enqueue
{
	my ($name, $type) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$name', '$type', '$type', '1')");
	return;
}

# How often an event of a type came, whatever was answered.
sub came
{
	my ($file, $type) = @_;

	return scalar grep { ($_->{event_type} // '') eq $type } IdemRelay::received($file);
}

sub wait_type
{
	my ($file, $type, $n) = @_;

	IdemRelay::wait_until("$type came " . ($n // 1) . ' times', sub { came($file, $type) >= ($n // 1) });
	return;
}

# Kill the program; the file says hello again when the next one runs.
sub kill_sink
{
	my ($name, $file) = @_;
	my $hellos = sub { scalar grep { exists $_->{hello} } IdemRelay::received($file) };
	my $before = $hellos->();

	kill 'KILL', IdemRelay::stat($node, $name, 'sink_pid');
	IdemRelay::wait_until("$name says hello again", sub { $hellos->() > $before });
	return;
}

# Rows of the position log that a relay has.
sub rows
{
	my ($name) = @_;

	return $node->safe_psql('postgres', <<"END");
SELECT count(*) FROM (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1) l
	JOIN idempotency_data.relays USING (relay_id) WHERE relay = '$name'
END
}

# An event without an answer.  Positions are written down now and then; that
# this has happened shows in a relay that comes later and sends nothing.
my $file = relay('mute', mute_type => 'Mute');
IdemRelay::pytest_server($node, 's_idle', "$dir/idle.log");
$node->safe_psql('postgres',
	q{SELECT idempotency.relay_create('idle', 's_idle', aggregate_types => '{nothing}')});
IdemRelay::wait_state($node, 'idle', 'streaming');
enqueue('mute', 'Mute');
wait_type($file, 'Mute');
foreach my $round (1, 2)
{
	my $before = rows('idle');

	enqueue('other', 'Foreign');
	IdemRelay::wait_until('positions were written down', sub { rows('idle') > $before });
}
kill_sink('mute', $file);
enqueue('mute', 'Marker');
wait_type($file, 'Marker');
is(came($file, 'Mute'), 2, 'what was not answered is sent again');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('mute'), idempotency.relay_drop('idle')});

# The sink stores the position.  Repeated events are a batch of their own: one
# that the sink committed is done, though nobody told the worker.
$file = relay('lose', position => 'on', retry_type => 'Lose', retry_times => 1, lose_type => 'Lose');
enqueue('lose', 'Lose');
IdemRelay::wait_until('the event is accepted', sub { IdemRelay::acked($file) == 1 });
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');
enqueue('lose', 'Marker');
wait_type($file, 'Marker');
is(scalar(grep { $_->{event_type} eq 'Lose' } IdemRelay::acked($file)), 1, 'a repeat whose verdict was lost is not repeated');

# A batch that did not commit, or may have: the sink's position tells which, so
# nothing is lost and nothing comes twice.  One that was fenced off is not tried
# again before somebody says so.  One whose batch was aborted is to blame for that,
# and waits for its next attempt.
foreach my $verdict (qw(aborted unknown kept fenced))
{
	$file = relay($verdict, position => 'on', verdict_type => 'Odd', verdict => $verdict, fault_times => 1);
	enqueue($verdict, 'Odd');
	if ($verdict eq 'fenced')
	{
		IdemRelay::wait_state($node, $verdict, 'fenced');
		is(IdemRelay::stat($node, $verdict, 'last_error'), 'told to answer fenced', "$verdict: last_error says it");
		is(came($file, 'Odd'), 0, "$verdict: and nothing came");
		$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$verdict')");
	}
	enqueue($verdict, 'Marker');
	wait_type($file, 'Marker');
	wait_type($file, 'Odd');
	is(came($file, 'Odd'), 1, "$verdict: came once");
	is(scalar(grep { ($_->{fault} // '') eq 'verdict' } IdemRelay::received($file)), 1, "$verdict: was answered");
}

# A repeat that is due while a batch is in flight: its row would say that the
# batch is done, and in a fresh epoch the log is believed.
$file = relay('due', position => 'on', reject_type => 'Again', retry_times => 1);
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('due', min_backoff => '1 hour', max_backoff => '1 hour')});
enqueue('due', 'Again');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked WHERE state = 'retry'});
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('due')});
IdemRelay::wait_state($node, 'due', 'paused');
$node->safe_psql('postgres', q{
	ALTER SERVER s_due OPTIONS (ADD mute_type 'Held');
	SELECT idempotency.outbox_enqueue('due', 'k' || i, 'Held', '1') FROM generate_series(1, 3) i});
$node->safe_psql('postgres', q{
	UPDATE idempotency_data.relay_parked SET next_attempt_at = now();
	SELECT idempotency.relay_alter('due', min_backoff => '50 ms', max_backoff => '100 ms');
	SELECT idempotency.relay_replay('due', since => '-infinity');
	SELECT idempotency.relay_resume('due')});
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'due'});
kill_sink('due', $file);
$node->safe_psql('postgres', 'ALTER SERVER s_due OPTIONS (DROP mute_type)');
IdemRelay::wait_until('what was in flight comes again', sub { 3 == grep { $_->{event_type} eq 'Held' } IdemRelay::acked($file) });
IdemRelay::wait_until('the repeat comes, too', sub { grep { $_->{event_type} eq 'Again' } IdemRelay::acked($file) });

# The position log takes turns while sinks name a row that is not the last.
my %file = (turn => relay('turn', position => 'on', mute_type => 'Held'),
	fails => relay('fails', position => 'on', failed_type => 'Held'));
foreach my $name (qw(turn fails))
{
	enqueue($name, 'One');
	wait_type($file{$name}, 'One');
}
# A relay is moved; its sink names a row from before the move.
my $moved = relay('moved', position => 'on');
enqueue('moved', 'One');
wait_type($moved, 'One');
IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'moved'});
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('moved')});
IdemRelay::wait_state($node, 'moved', 'paused');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('moved', start_at => 'latest')});
# Rows of batches that were never committed do not push out the one that the sink names.
my $rows_before = rows('fails');
enqueue('fails', 'Held');
IdemRelay::wait_until('a dozen programs fail', sub { rows('fails') > $rows_before + 24 });
# Nor do those about events of others, written while it was not known where the sink stands.
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('nobody', 'k', 'Foreign', '1')});
my $passed = q{relay_id = (SELECT relay_id FROM idempotency_data.relays WHERE relay = 'turn') AND kind = 'p'};
IdemTest::wait_for($node, "SELECT count(*) > 0 FROM idempotency_data.relay_log_0 WHERE $passed");
$node->safe_psql('postgres', <<"END");
INSERT INTO idempotency_data.relay_log_0 (id, epoch, life, acked_row, acked_k, seq, at, relay_id, kind, fresh, base, target)
	SELECT nextval('idempotency_data.relay_log_id'), epoch, life, 0, 0, 0, at, relay_id, kind, fresh, base, target
	FROM (SELECT * FROM idempotency_data.relay_log_0 WHERE $passed ORDER BY id DESC LIMIT 1) AS last, generate_series(1, 20)
END
$rows_before = rows('turn');
enqueue('turn', 'Held');
IdemRelay::wait_until('a difference is in flight', sub { rows('turn') > $rows_before });
$node->safe_psql('postgres', <<'END');
INSERT INTO idempotency_data.relay_log_0 (id, epoch, life, acked_row, acked_k, seq, at, relay_id, kind, fresh, base)
	SELECT nextval('idempotency_data.relay_log_id'), 1, 0, 0, 0, 0, now(), 999, 'r', 'n', pg_current_snapshot()
	FROM generate_series(1, 60000)
END
IdemTest::wait_for($node, q{SELECT pg_relation_size('idempotency_data.relay_log_0') = 0});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_log_1 WHERE relay_id = 999'), '0',
	'of a relay that is gone nothing is kept');
$node->safe_psql('postgres', 'ALTER SERVER s_turn OPTIONS (DROP mute_type); ALTER SERVER s_fails OPTIONS (DROP failed_type)');
foreach my $name (qw(turn fails))
{
	my $held = sub { scalar grep { $_->{event_type} eq 'Held' } IdemRelay::acked($file{$name}) };

	IdemRelay::wait_until("$name goes on or stands",
		sub { $held->() || IdemRelay::stat($node, $name, 'state') eq 'diverged' });
	is($held->(), 1, "$name: the row that the sink names was kept");
	is(came($file{$name}, 'One'), 1, "$name: nothing before it is sent again");
}
enqueue('moved', 'Next');
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('moved')});
IdemRelay::wait_until('it goes on or stands', sub {
	came($moved, 'Next') || IdemRelay::stat($node, 'moved', 'state') eq 'diverged' });
is(came($moved, 'Next'), 1, 'moved: the row from before the move was kept');

# Repeats whose program ends before it stored them are still to be sent, whatever
# the sink stores later: here those that the next batches, smaller, leave out.
$file = relay('smaller', position => 'on', reject_type => 'First,Second,Third');
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_alter('smaller', max_attempts => 1);
SELECT idempotency.outbox_enqueue('smaller', type || n, type, '1')
	FROM unnest('{First,Second,Third}'::text[]) WITH ORDINALITY AS t (type, o), generate_series(1, 2) AS n ORDER BY o, n
END
IdemRelay::wait_until('six are dead, while others pass', sub {
	enqueue('smaller', 'Other');
	return $node->safe_psql('postgres', q{SELECT count(*) FROM idempotency.dead_letters WHERE relay = 'smaller'}) == 6;
});
# Had the refusals made an outage, only as many would be in flight as were accepted since.
enqueue('smaller', 'Other') foreach 1 .. 8;
IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'smaller'});
$node->safe_psql('postgres', q{
	ALTER SERVER s_smaller OPTIONS (DROP reject_type, ADD mute_type 'First,Second,Third');
	SELECT idempotency.relay_redrive('smaller')});
my $marked = q{FROM idempotency_data.relay_parked JOIN idempotency_data.relays USING (relay_id)
	WHERE relay = 'smaller' AND batch_row IS NOT NULL};
IdemTest::wait_for($node, "SELECT count(*) = 6 $marked");
$node->safe_psql('postgres', q{
	ALTER SERVER s_smaller OPTIONS (SET mute_type 'Second,Third');
	SELECT idempotency.relay_alter('smaller', batch_events => 2)});
wait_type($file, 'First');
# Those of the first batch are gone, and the next one carries a later row than the rest.
IdemTest::wait_for($node, "SELECT array_agg(n ORDER BY batch_row) = '{2,2}' FROM (SELECT batch_row, count(*) AS n $marked GROUP BY batch_row) AS batches");
kill_sink('smaller', $file);
$node->safe_psql('postgres', 'ALTER SERVER s_smaller OPTIONS (DROP mute_type)');
my @repeats;
IdemRelay::wait_until('all repeats come', sub {
	@repeats = grep { $_->{event_type} ne 'Other' } IdemRelay::acked($file);
	return IdemRelay::distinct(@repeats) == 6;
});
is(scalar(@repeats), 6, 'each repeat came once');

# The sink's word contradicts the log: older than it, and of another life.
foreach my $case (
	[ 'older', '"row_id": 1, "k": 0', '$1', qr/row 1, is not in the log of positions/ ],
	[ 'stranger', '$2', '$3', qr/belongs to another relay of this name, or to another incarnation/ ])
{
	my ($name, $position, $incarnation, $error) = @$case;

	$file = relay($name, position => 'on');
	# The first difference's row says that nothing was confirmed, the second's does not.
	foreach my $n (1, 2)
	{
		enqueue($name, 'One');
		IdemRelay::wait_until("event $n is committed", sub { IdemRelay::acked($file) == $n });
		IdemTest::wait_for($node, "SELECT waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$name'");
	}
	my @commits = grep { /"commit"/ } split /\n/, slurp_file($file);
	my ($ours) = $commits[-1] =~ /"incarnation": "([^"]*)"/;
	my ($row) = $commits[-1] =~ /"row_id": (\d+)/;
	my ($k) = $commits[-1] =~ /"k": (\d+)/;

	$position =~ s/\$2/"row_id": $row, "k": $k/;
	my $other = $ours =~ s/^./x/r;
	$incarnation =~ s/\$1/$ours/;
	$incarnation =~ s/\$3/$other/;
	append_to_file($file, qq({"commit": 1, "incarnation": "$incarnation", $position}\n));
	kill_sink($name, $file);
	enqueue($name, 'Two');
	IdemRelay::wait_until(
		'the relay stands or goes on',
		sub { came($file, 'Two') || IdemRelay::stat($node, $name, 'state') eq 'diverged' });
	is(IdemRelay::stat($node, $name, 'state'), 'diverged', "$name: a contradiction is a state");
	like(IdemRelay::stat($node, $name, 'last_error'), $error, 'which says why');
	is(came($file, 'Two'), 0, 'nothing is sent on a guess');
}

$node->stop;
done_testing();
