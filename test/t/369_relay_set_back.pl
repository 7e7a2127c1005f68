
# Copyright (c) 2026, the idempotency developers

# A target that stores positions is set back to a time before events that the outbox has
# given up: the relay is `diverged`, and says what is lost, whichever way the target came
# back.  It is not `diverged` where nothing is lost: the outbox has all, or the target was
# not set back, whatever was emptied, killed or refused meanwhile.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use IdemOutbox;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n" . IdemOutbox::eager_conf());
my $lost = qr/the target was set back: it has lost what it stored between \S+ \S+ and \S+ \S+, and the outbox no longer has all of that; .* relay_adopt/;

sub enqueue
{
	my ($name, @types) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$name', 'k', '$_', '1')") foreach @types;
	return;
}

# Until nothing of the relay's type is left in the outbox.
sub emptied
{
	my ($name) = @_;

	IdemTest::wait_for($node, "SELECT count(*) = 0 FROM idempotency.outbox_events WHERE aggregate_type = '$name'");
	return;
}

sub kill_sink
{
	my ($name) = @_;

	kill 'KILL', IdemRelay::stat($node, $name, 'sink_pid');
	return;
}

# Both logs of positions take their turn, so that only what is kept is left.
sub turn_logs
{
	my $full = $node->safe_psql('postgres', <<'END');
SELECT CASE WHEN pg_relation_size('idempotency_data.relay_log_0') = 0 THEN 1 ELSE 0 END
END

	$node->safe_psql('postgres', <<"END");
INSERT INTO idempotency_data.relay_log_$full (id, epoch, life, acked_row, acked_k, seq, at, relay_id, kind, fresh, base)
	SELECT nextval('idempotency_data.relay_log_id'), 1, 0, 0, 0, 0, now(), 999, 'r', 'n', pg_current_snapshot()
	FROM generate_series(1, 60000)
END
	IdemTest::wait_for($node, "SELECT pg_relation_size('idempotency_data.relay_log_$full') = 0");
	return;
}

sub hellos
{
	my ($file) = @_;

	return scalar grep { exists $_->{hello} } IdemRelay::received($file);
}

# Either it goes on, which is wrong, or it stands.
sub diverges
{
	my ($name, $came, $error) = @_;

	IdemRelay::wait_until("$name goes on or stands",
		sub { $came->() > 0 || IdemRelay::stat($node, $name, 'state') eq 'diverged' });
	is(IdemRelay::stat($node, $name, 'state'), 'diverged', "$name: a target that lost events for good is a contradiction");
	like(IdemRelay::stat($node, $name, 'last_error'), $error // $lost, "$name: which says what is lost, and what to do");
	is($came->(), 0, "$name: and nothing is sent over the gap");
	return;
}

# What the target has is a file.  The relay runs, is paused, or rests, the server is
# started anew, the logs of positions have taken turns, or an operator moved the position
# after the time to which the target is set back.
foreach my $name (qw(running paused restarted turned replayed))
{
	my $file = IdemRelay::own_relay($node, $dir, $name, position => 'on');

	enqueue($name, qw(E1 E2 E3));
	IdemRelay::arrives($file, 'E3');
	copy($file, "$file.early") or die "could not copy: $!";
	$node->safe_psql('postgres', "SELECT idempotency.relay_replay('$name', since => '-infinity')") if $name eq 'replayed';
	enqueue($name, qw(E4 E5));
	IdemRelay::arrives($file, 'E5');
	emptied($name);
	if ($name ne 'running')
	{
		$node->safe_psql('postgres', "SELECT idempotency.relay_pause('$name')");
		IdemRelay::wait_state($node, $name, 'paused');
	}
	copy($file, "$file.late") or die "could not copy: $!";
	copy("$file.early", $file) or die "could not copy: $!";
	turn_logs() if $name eq 'turned';
	$node->restart if $name eq 'restarted';
	kill_sink($name) if $name eq 'running';
	enqueue($name, 'E6');
	$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$name')");
	# Once the logs have turned, the row that the target names is not there; or it is of an epoch before.
	diverges($name, sub { IdemRelay::came($file, 'E6') },
		$name =~ /^(?:turned|replayed)$/ ? qr/is not in the log of positions/ : $lost);

	# A move is no acceptance, nor is another way to the same target.
	if ($name =~ /^(?:restarted|replayed)$/)
	{
		IdemRelay::pytest_server($node, "again_$name", $file, position => 'on');
		foreach my $move ("relay_alter('$name', server => 'again_$name')", "relay_replay('$name', since => '-infinity')",
			"relay_alter('$name', start_at => 'earliest')", "relay_alter('$name', server => 's_$name')")
		{
			my $starts = hellos($file);

			$node->safe_psql('postgres', "SELECT idempotency.$move");
			IdemRelay::wait_until("$move starts a program", sub { hellos($file) > $starts });
			diverges($name, sub { IdemRelay::came($file, 'E6') }, qr/the target was set back/);
		}
	}

	# The target comes back as it was, or the operator accepts the loss.
	if ($name eq 'paused')
	{
		copy("$file.late", $file) or die "could not copy: $!";
		$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$name')");
	}
	else
	{
		$node->safe_psql('postgres', "SELECT idempotency.relay_adopt('$name')");
	}
	IdemRelay::arrives($file, 'E6');
	is(IdemRelay::came($file, 'E6'), 1, "$name: what comes next comes once");
}

# A PostgreSQL target, whose program is idle and has its connection.
my $target = IdemRelay::counting_target(allows_streaming => 1);
$target->safe_psql('postgres', q{
DROP FUNCTION app.on_event;
CREATE FUNCTION app.on_event(event_id uuid, event_type text) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.got VALUES (event_id, event_type) $$});
IdemRelay::counting_server($node, $target);
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('sql', 'target', aggregate_types => '{sql}', min_backoff => '50 ms', max_backoff => '100 ms')});

sub got
{
	my ($twin) = @_;

	return $target->safe_psql('postgres', "SELECT count(*) FROM app.got WHERE twin = '$twin'");
}

# The relay has nothing to send.  It finds out when the target has ended its session, when
# an operator resumes the relay, or at the next event.
foreach my $way (qw(ended resumed sent))
{
	enqueue('sql', map { "$way$_" } 1 .. 5);
	IdemRelay::wait_until('five are there', sub { got("${way}5") == 1 });
	$target->safe_psql('postgres', 'CREATE TABLE saved AS SELECT * FROM idempotency_sink_position');
	enqueue('sql', map { "$way$_" } 6 .. 9);
	IdemRelay::wait_until('nine are there', sub { got("${way}9") == 1 });
	emptied('sql');
	is(IdemRelay::stat($node, 'sql', 'state'), 'streaming', 'the program has nothing to do');
	$target->safe_psql('postgres', qq{
DELETE FROM app.got WHERE twin IN ('${way}6', '${way}7', '${way}8', '${way}9');
UPDATE idempotency_sink_position p SET row_id = s.row_id, k = s.k, incarnation = s.incarnation, epoch = s.epoch FROM saved s;
DROP TABLE saved});
	$target->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'idempotency sink'})
	  if $way eq 'ended';
	$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('sql')}) if $way eq 'resumed';
	enqueue('sql', 'sent10') if $way eq 'sent';
	diverges('sql', sub { got('sent10') });
	$node->safe_psql('postgres', q{SELECT idempotency.relay_adopt('sql')});
	IdemRelay::wait_state($node, 'sql', 'streaming');
}
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('sql')});

# No false alarm.  Events of others are passed and emptied; then the program dies again
# and again without a commit, or dies after its commit; and the logs take turns.
my $file = IdemRelay::own_relay($node, $dir, 'calm', position => 'on', outage_type => 'Stop', lose_type => 'Last');
enqueue('calm', qw(C1 C2));
IdemRelay::arrives($file, 'C2');
enqueue('other', 'O') foreach 1 .. 3;
emptied('other');
enqueue('calm', 'Stop');
IdemRelay::wait_state($node, 'calm', 'outage');
my $starts = $node->safe_psql('postgres', q{SELECT last_value FROM idempotency_data.relay_log_id});
foreach my $turn (0, 1)
{
	turn_logs() if $turn;
	IdemTest::wait_for($node, q{
WITH log AS (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1)
SELECT count(*) > 20 FROM log JOIN idempotency_data.relays r USING (relay_id)
	WHERE relay = 'calm' AND kind = 's' AND id > } . $starts);
	$starts = $node->safe_psql('postgres', q{SELECT last_value FROM idempotency_data.relay_log_id});
}
is(IdemRelay::stat($node, 'calm', 'state') =~ /^(?:outage|starting|streaming)$/, 1, 'a program that fails is no contradiction');
$node->safe_psql('postgres', 'ALTER SERVER s_calm OPTIONS (DROP outage_type)');
IdemRelay::arrives($file, 'Stop');
enqueue('other', 'O') foreach 1 .. 3;
enqueue('calm', 'Last');
IdemRelay::arrives($file, 'Last');
emptied('calm');
$node->safe_psql('postgres', 'ALTER SERVER s_calm OPTIONS (DROP lose_type)');
enqueue('calm', 'C3');
IdemRelay::arrives($file, 'C3');
is(join(' ', map { IdemRelay::came($file, $_) } qw(C1 C2 Stop Last C3)), '1 1 1 1 1', 'each has come once');
is(IdemRelay::stat($node, 'calm', 'state') =~ /^(?:idle|streaming)$/, 1, 'and the relay goes on');

# A target in recovery is down, until it is promoted.
$target->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($target, 'base', has_streaming => 1);
$standby->start;
IdemRelay::postgres_server($node, 'standby', $standby, 'postgres', 'app.on_event');
$node->safe_psql('postgres', q{ALTER SERVER standby OPTIONS (ADD target_session_attrs 'any');
SELECT idempotency.relay_create('promoted', 'standby', aggregate_types => '{promoted}',
	min_backoff => '50 ms', max_backoff => '100 ms')});
IdemRelay::wait_until('the target is looked at', sub { IdemRelay::stat($node, 'promoted', 'last_error') ne '' });
IdemRelay::wait_state($node, 'promoted', 'outage');
like(IdemRelay::stat($node, 'promoted', 'last_error'), qr/is a standby/, 'a standby is an outage');
enqueue('promoted', 'P1');
$standby->promote;
IdemRelay::wait_until('the promoted one gets it',
	sub { $standby->safe_psql('postgres', q{SELECT count(*) FROM app.got WHERE twin = 'P1'}) eq '1' });

$node->stop;
$standby->stop;
$target->stop;

# The cluster's transaction ids go back behind the positions: nobody knows what was delivered.
my $reset = IdemTest::cluster('reset', conf => "idempotency.sink_directory = '$dir'\n" . IdemOutbox::eager_conf());

sub reset_ids
{
	my ($epoch) = @_;

	$reset->stop;
	PostgreSQL::Test::Utils::system_or_bail('pg_resetwal', '-e', $epoch, '-D', $reset->data_dir);
	$reset->start;
	return;
}

sub stands
{
	my ($what) = @_;

	foreach my $relay (qw(program function))
	{
		IdemRelay::wait_state($reset, $relay, 'diverged');
		like(IdemRelay::stat($reset, $relay, 'last_error'), qr/transaction ids went back .* relay_adopt/, "$what: $relay says why");
	}
	return;
}

reset_ids(3);
$reset->safe_psql('postgres', <<'END');
CREATE TABLE public.handled (event_type text);
CREATE FUNCTION public.handle(event_type text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.handled VALUES (event_type)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('function', 'fn', aggregate_types => '{program}');
END
$file = IdemRelay::own_relay($reset, $dir, 'program', position => 'on');

sub handled
{
	my ($type) = @_;

	return $reset->safe_psql('postgres', "SELECT count(*) FROM public.handled WHERE event_type = '$type'");
}

# A segment is closed in each upkeep that finds events in it; the one before has emptied what it could.
sub enqueue_and_close
{
	my ($type) = @_;
	my $current = $reset->safe_psql('postgres', 'SELECT last_value FROM idempotency_data.outbox_generation');

	$reset->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('program', 'k', '$type', '1')");
	IdemTest::wait_for($reset, "SELECT last_value > $current FROM idempotency_data.outbox_generation");
	return;
}

enqueue_and_close('R1');
IdemRelay::arrives($file, 'R1');
IdemRelay::wait_until('the function has it', sub { handled('R1') == 1 });
reset_ids(0);
$reset->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('program', 'k', 'R2', '1')");
stands('back');
enqueue_and_close($_) foreach qw(R3 R4);
is($reset->safe_psql('postgres', q{SELECT string_agg(event_type, ' ' ORDER BY seq) FROM idempotency.outbox_events WHERE event_type <> 'R1'}),
	'R2 R3 R4', 'the outbox keeps what was not sent');
is($reset->safe_psql('postgres', q{SELECT count(*) FROM idempotency.stat_relay WHERE lag_events >= 3}), '2', 'which is their lag');
$reset->safe_psql('postgres', "SELECT idempotency.relay_resume('$_')") foreach qw(program function);
stands('resumed');

# The ids pass the positions again, which does not make up for what they were.
reset_ids(4);
stands('passed');
is(IdemRelay::came($file, 'R2') + handled('R2'), 0, 'nothing was sent');
$reset->safe_psql('postgres', "SELECT idempotency.relay_adopt('$_')") foreach qw(program function);
IdemRelay::arrives($file, 'R4');
IdemRelay::wait_until('the function has them', sub { handled('R4') == 1 });
is(join(' ', map { IdemRelay::came($file, $_), handled($_) } qw(R2 R3 R4)), '1 1 1 1 1 1', 'after relay_adopt each comes once');
$reset->stop;
done_testing();
