
# Copyright (c) 2026, the idempotency developers

# Events that a sink refuses, dies of or does not answer: attempts, dead
# letters, and the order of a key while one of its events is parked.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
END

my $made = 0;

# A relay to a sink of its own; returns the sink's file.
sub relay
{
	my ($name, $settings, %opt) = @_;
	my $file = "$dir/$name.log";

	$settings = "min_backoff => '50 ms', max_backoff => '100 ms', $settings" unless $settings =~ /backoff/;
	IdemRelay::pytest_server($node, "s_$name", $file, %opt);
	$node->safe_psql('postgres',
		"SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}', $settings)");
	return $file;
}

# Events as "key:type" in one transaction each, numbered in the payload.
sub enqueue
{
	my ($name, @events) = @_;
	my $sql = '';

	foreach my $event (@events)
	{
		my ($key, $type) = split /:/, $event;

		$made++;
		$sql .= "SELECT idempotency.outbox_enqueue('$name', '$key', '$type', '{\"n\": $made}');\n";
	}
	$node->safe_psql('postgres', $sql);
	return;
}

# "key:type" of what was acknowledged, each at its first time, of one key or all.
sub acked
{
	my ($file, $key) = @_;
	my %seen;

	return join(' ',
		map { "$_->{aggregate_id}:$_->{event_type}" }
		  grep { !$seen{ $_->{event} }++ && (!defined $key || $_->{aggregate_id} eq $key) }
		  IdemRelay::acked($file));
}

sub tries
{
	my ($file, $type) = @_;

	# An event that the sink passes over, since it has not heard of the settling of a later one, is not tried.
	return scalar grep { ($_->{event_type} // '') eq $type && ($_->{outcome} // '') ne 'skipped' } IdemRelay::received($file);
}

sub dead
{
	my ($name) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*), min(attempts), min(sqlstate), min(error) FROM idempotency.dead_letters WHERE relay = '$name'");
}

sub wait_dead
{
	my ($name, $n) = @_;

	IdemTest::wait_for($node, "SELECT count(*) = $n FROM idempotency.dead_letters WHERE relay = '$name'");
	return;
}

# A refused event is tried max_attempts times, later ones of its key wait for
# it, other keys do not.
my $file = relay('skip', 'max_attempts => 3', reject_type => 'Bad');
enqueue('skip', qw(a:One b:One a:Bad a:Two b:Two a:Three));
wait_dead('skip', 1);
is(dead('skip'), '1|3|P0001|told to answer rejected', 'the dead letter says why');
IdemRelay::wait_received($file, 5);
is(acked($file, 'a'), 'a:One a:Two a:Three', 'skip: the key goes on, in order');
is(tries($file, 'Bad'), 3, 'max_attempts were made');
my @log = map { $_->{event_type} // '' } grep { ($_->{aggregate_id} // '') eq 'a' && $_->{outcome} ne 'skipped' } IdemRelay::received($file);
is(join(' ', @log), 'One Bad Bad Bad Two Three', 'nothing of the key overtook the refused event');
is($node->safe_psql('postgres', "SELECT idempotency.relay_redrive('skip')"), '1', 'redrive');
IdemRelay::wait_until('three attempts more', sub { tries($file, 'Bad') == 6 });
wait_dead('skip', 1);
$node->safe_psql('postgres', "ALTER SERVER s_skip OPTIONS (DROP reject_type)");
is($node->safe_psql('postgres', "SELECT idempotency.relay_redrive('skip')"), '1', 'redrive after the cause is gone');
IdemRelay::wait_until('the redriven event arrives', sub { acked($file) =~ /a:Bad/ });
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');

# A temporary refusal: later events of the key wait, and nobody spins.
$file = relay('wait', 'max_attempts => 100', retry_type => 'Bad', retry_times => 4);
enqueue('wait', qw(a:One a:Bad a:Two a:Three b:One));
IdemRelay::wait_received($file, 5);
is(acked($file, 'a'), 'a:One a:Bad a:Two a:Three', 'order of the key through retries');
is(tries($file, 'Bad'), 5, 'four retries');
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');

# Without a limit an event is tried more often than by default.
$file = relay('ever', q{max_attempts => 0, min_backoff => '1 ms', max_backoff => '1 ms'}, retry_type => 'Bad', retry_times => 15);
enqueue('ever', qw(a:Bad a:Two));
IdemRelay::wait_received($file, 2);
is(tries($file, 'Bad'), 16, 'max_attempts of 0 is no limit');

# Events that are read while one of their key waits for its next try
$file = relay('late', "max_attempts => 100, min_backoff => '1 h', max_backoff => '1 h'", reject_type => 'Bad');
enqueue('late', 'a:Bad');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked WHERE state = 'retry'});
enqueue('late', qw(a:Late b:Go));
IdemRelay::wait_until('another key goes on', sub { acked($file, 'b') eq 'b:Go' });
is(acked($file, 'a'), '', 'a later event of the key waits');
is($node->safe_psql('postgres', q{SELECT string_agg(event_type, ' ') FROM idempotency_data.relay_parked WHERE state = 'waiting'}),
	'Late', 'and is parked');
is($node->safe_psql('postgres', "SELECT retrying, dead FROM idempotency.stat_relay WHERE relay = 'late'"), '2|0', 'stat_relay counts both');
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND oldest_waiting = (SELECT enqueued_at FROM idempotency_data.relay_parked WHERE state = 'retry')
	FROM idempotency.stat_relay WHERE relay = 'late'});
$node->safe_psql('postgres', <<'END');
UPDATE idempotency_data.relay_parked SET next_attempt_at = now() WHERE state = 'retry';
ALTER SERVER s_late OPTIONS (DROP reject_type);
END
IdemRelay::wait_received($file, 3);
is(acked($file, 'a'), 'a:Bad a:Late', 'in order when it is let through');
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');

# block_key: later events of the key wait for the operator.
$file = relay('block', "max_attempts => 2, on_dead => 'block_key'", reject_type => 'Bad');
enqueue('block', qw(a:Bad a:Two b:One));
wait_dead('block', 1);
enqueue('block', qw(a:Three b:Two));
IdemRelay::wait_received($file, 2);
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency_data.relay_parked WHERE state = 'waiting'});
is(acked($file), 'b:One b:Two', 'block_key: the key waits');
is($node->safe_psql('postgres', "SELECT retrying, dead FROM idempotency.stat_relay WHERE relay = 'block'"), '2|1',
	'a dead letter counts as dead only');
is($node->safe_psql('postgres', "SELECT idempotency.relay_discard('block', sqlstate => 'P0001', event_types => '{Bad}')"), '1', 'discard');
IdemRelay::wait_received($file, 4);
is(acked($file, 'a'), 'a:Two a:Three', 'the key goes on in order');

# stop: nothing goes on.
$file = relay('stop', "max_attempts => 1, on_dead => 'stop'", reject_type => 'Bad');
enqueue('stop', qw(a:Bad));
IdemRelay::wait_state($node, 'stop', 'halted');
enqueue('stop', qw(b:One));
is(IdemRelay::stat($node, 'stop', 'last_error'), 'a dead letter', 'stat_relay says why it stands');
is($node->safe_psql('postgres', "SELECT halted FROM idempotency_data.relays WHERE relay = 'stop'"), 'dead_letter', 'and so does its row');
is($node->safe_psql('postgres', "SELECT idempotency.relay_discard('stop')"), '1', 'discard under stop');
is(acked($file), '', 'stop: nothing is sent');
$node->safe_psql('postgres', "SELECT idempotency.relay_resume('stop')");
IdemRelay::wait_received($file, 1);

# Many are refused at a time: each is dead at its third refusal that counts, and not later.  Which
# these are the sink's log tells: it has all answers in their order, in which the relay settles nearly
# all; the answers of two batches in flight may have another.
$file = relay('third', 'max_attempts => 3', reject_type => 'Bad');
enqueue('third', map { ("bad$_:Bad", "good$_:Good") } 1 .. 150);
for (my $n = 0; IdemRelay::stat($node, 'third', 'dead') < 150; $n++)
{
	BAIL_OUT('they do not become dead letters') if $n > 2000;
	enqueue('third', "more$n:Good", "again$n:Good");
	IdemRelay::wait_until('these are there', sub { scalar(grep { $_->{aggregate_id} eq "again$n" } IdemRelay::acked($file)) });
}
my ($at, $late) = (0, 0);
my (%counted, %refused_at, %newest);
# When an event of another key was answered so last.
sub answered_others
{
	my ($kind, $key) = @_;
	my $newest = $newest{$kind} // return 0;

	return $newest->{key} eq $key ? $newest->{other} : $newest->{at};
}
foreach my $answer (grep { ($_->{outcome} // '') =~ /^(?:acked|rejected)$/ } IdemRelay::received($file))
{
	my ($key, $kind) = ($answer->{aggregate_id}, $answer->{outcome});
	my $newest = $newest{$kind} //= { key => $key, at => 0, other => 0 };

	$at++;
	if ($kind eq 'rejected')
	{
		$late++ if ($counted{$key} // 0) == 3;
		$counted{$key}++ if answered_others('acked', $key) > ($refused_at{$key} // answered_others('rejected', $key));
		$refused_at{$key} = $at;
	}
	$newest->{other} = $newest->{at} if $newest->{key} ne $key;
	$newest->{key} = $key;
	$newest->{at} = $at;
}
is(scalar(keys %counted), 150, 'many at a time: all are tried until a refusal counts');
cmp_ok($late + grep({ $_ != 3 } values %counted), '<', 15, 'and each is dead after three refusals that count');

# A sink that dies of one event: the others arrive, that one is parked.
$file = relay('crash', 'max_attempts => 2', crash_type => 'Killer');
enqueue('crash', (map { "k$_:Good" } 1 .. 20), 'x:Killer', 'x:After', (map { "l$_:Good" } 1 .. 20));
wait_dead('crash', 1);
like(dead('crash'), qr/^1\|2\|ID006\|the sink program was terminated by signal 9/, 'the killer is a dead letter');
IdemRelay::wait_received($file, 41);
unlike(acked($file), qr/Killer/, 'all but the killer arrived');

# The killer among many is found in a few deaths: two that may be anyone's
# doing, the range, its parts, the event alone.  A program that answers event
# by event tells where it stood, and is not sent the same for ever.
sub starts
{
	my ($log) = @_;

	return scalar grep { exists $_->{hello} } IdemRelay::received($log);
}

foreach my $case ([ 'many', 7 ], [ 'each', 4, answer => 'each' ], [ 'stored', 7, position => 'on' ])
{
	my ($name, $max, %opt) = @$case;

	$file = relay($name, 'max_attempts => 1', crash_type => 'Killer', %opt);
	$node->safe_psql('postgres', <<"END");
SELECT count(idempotency.outbox_enqueue('$name', 'k' || i, CASE i WHEN 700 THEN 'Killer' ELSE 'Good' END, '{}'))
	FROM generate_series(1, 3000) i
END
	wait_dead($name, 1);
	like(dead($name), qr/^1\|1\|ID006\|the sink program was terminated by signal 9/, "$name: the killer is a dead letter");
	cmp_ok(starts($file) - 1, '<=', $max, "$name: after at most $max deaths");
	IdemRelay::wait_received($file, 2999);
	$node->safe_psql('postgres', "SELECT idempotency.relay_drop('$name')");
}

# What is known to kill is tried alone: one death per attempt, and the others
# are not sent twice for it.
$file = relay('again', 'max_attempts => 4', crash_type => 'Killer');
enqueue('again', 'x:Killer', map { "k$_:Good" } 1 .. 20);
wait_dead('again', 1);
is(dead('again') =~ s/\|ID006.*//r, '1|3', 'three attempts that end the program make it dead');
cmp_ok(starts($file) - 1, '<=', 3 + 4, 'are about three deaths');

# A sink that hangs is killed after sink_timeout; the same holds for its event.
$node->append_conf('postgresql.conf', 'idempotency.sink_timeout = 1s');
$node->restart;
$file = relay('hang', 'max_attempts => 1', hang_type => 'Hang');
enqueue('hang', 'x:Hang', 'y:Good');
wait_dead('hang', 1);
like(dead('hang'), qr/did not answer within 1000 ms/, 'the event that makes it hang is a dead letter');
IdemRelay::wait_received($file, 1);
$node->append_conf('postgresql.conf', 'idempotency.sink_timeout = 30s');
$node->restart;

# An outage burns no attempts, and is one while others go on.
$file = relay('outage', 'max_attempts => 1', outage_type => 'Out');
enqueue('outage', 'a:Out');
IdemRelay::wait_until('several attempts to reach it', sub { tries($file, 'Out') > 3 });
IdemRelay::wait_state($node, 'outage', 'outage');
enqueue('skip', 'c:Meanwhile');
IdemRelay::wait_until('the other relay works', sub { acked("$dir/skip.log") =~ /Meanwhile/ });
is(dead('outage'), '0|||', 'an outage makes no dead letters');
$node->safe_psql('postgres', 'ALTER SERVER s_outage OPTIONS (DROP outage_type)');
IdemRelay::wait_received($file, 1);

# What the sink cannot tell the fate of is tried again, and no attempt is burnt.
$file = relay('unknown', 'max_attempts => 2', unknown_type => 'What');
enqueue('unknown', 'a:What');
IdemRelay::wait_until('several tries', sub { tries($file, 'What') > 4 });
is(dead('unknown'), '0|||', 'the unknown makes no dead letters');
$node->safe_psql('postgres', 'ALTER SERVER s_unknown OPTIONS (DROP unknown_type)');
IdemRelay::wait_received($file, 1);

# Paused, nothing is sent and nothing lost.
$node->safe_psql('postgres', "SELECT idempotency.relay_pause('skip')");
IdemRelay::wait_state($node, 'skip', 'paused');
enqueue('skip', qw(p:One p:Two));
enqueue('wait', qw(p:One));
IdemRelay::wait_until('the other relay works', sub { acked("$dir/wait.log") =~ /p:One/ });
unlike(acked("$dir/skip.log"), qr/p:/, 'paused');
$node->safe_psql('postgres', "SELECT idempotency.relay_resume('skip')");
IdemRelay::wait_until('what was held back arrives', sub { acked("$dir/skip.log") =~ /p:One p:Two/ });

# Replay: one event, and everything since a time.
my $before = scalar IdemRelay::acked("$dir/skip.log");
my $id = $node->safe_psql('postgres', q{SELECT event_id FROM idempotency.outbox_events WHERE aggregate_id = 'p' AND event_type = 'Two'});
$node->safe_psql('postgres', "SELECT idempotency.relay_replay('skip', event_id => '$id')");
IdemRelay::wait_until('one event again', sub { scalar(IdemRelay::acked("$dir/skip.log")) == $before + 1 });
my $total = IdemRelay::distinct(IdemRelay::acked("$dir/skip.log"));
$node->safe_psql('postgres', "SELECT idempotency.relay_replay('skip', since => now() - interval '1 hour')");
IdemRelay::wait_until('everything again', sub { scalar(IdemRelay::acked("$dir/skip.log")) == $before + 1 + $total });

# Nor is a processor kept busy by what is due meanwhile.
relay('due', q{min_backoff => '1 s', max_backoff => '1 s'}, retry_type => 'Later');
$node->safe_psql('postgres', q{
CREATE FUNCTION refuse(event_id uuid) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE SERVER refuse FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.refuse');
SELECT idempotency.relay_create('due_too', 'refuse', aggregate_types => '{due}', start_at => 'latest',
	min_backoff => '1 s', max_backoff => '1 s')});
enqueue('due', qw(k:Later));
my $parked = 'FROM idempotency_data.relay_parked JOIN idempotency_data.relays USING (relay_id) WHERE aggregate_type = $$due$$';
IdemTest::wait_for($node, "SELECT count(*) = 2 $parked");
# The view says that something is to be tried again, and is not counted as lag.
IdemTest::wait_for($node, "SELECT waiting_for = 'retry' AND lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$_'")
  foreach qw(due due_too);
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('due'), idempotency.relay_pause('due_too')});
IdemRelay::wait_state($node, $_, 'paused') foreach qw(due due_too);
IdemTest::wait_for($node, "SELECT count(*) = 2 $parked AND next_attempt_at < now()");
IdemRelay::worker_sleeps($node, $_) foreach qw(due due_too);

# Backoffs that are not given, or taken back, are the default's.
$node->safe_psql('postgres', q{
SELECT idempotency.relay_create('plain', 'refuse', aggregate_types => '{plain}', max_attempts => 0);
SELECT idempotency.relay_create('taken back', 'refuse', aggregate_types => '{plain}', max_attempts => 0, min_backoff => '1 ms', max_backoff => '1 ms');
SELECT idempotency.relay_alter('taken back', min_backoff => '0', max_backoff => '0')});
enqueue('plain', 'k:X');
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency_data.relay_parked WHERE aggregate_type = 'plain'});
$node->safe_psql('postgres', q{UPDATE idempotency_data.relay_parked SET attempts = 1000 WHERE aggregate_type = 'plain'});
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency_data.relay_parked WHERE aggregate_type = 'plain' AND attempts > 1000});
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency_data.relay_parked WHERE aggregate_type = 'plain'
	AND next_attempt_at - last_failed_at BETWEEN '20 s' AND '60 s'}), '2', 'the default of max_backoff');

$node->stop;
unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|server process .* was terminated)/, 'nothing crashed');
done_testing();
