
# Copyright (c) 2026, the idempotency developers

# Twins: two cold copies of one server, both started under the same publish_as,
# both with a backlog that they share and with load of their own, and one target
# between them that stores the position.  The target keeps them apart: no event
# has two effects, the relay that loses shows that it did, and of the one that is
# not stopped each event arrives.  No move of the loser's operator makes it send, but
# relay_adopt.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $target = IdemRelay::counting_target();
my $a = IdemTest::cluster('a', conf => "idempotency.publish_as = 'shop'\n");
$a->safe_psql('postgres', 'CREATE TABLE sent (event_id uuid)');
IdemRelay::counting_server($a, $target);

sub enqueue_sql
{
	my ($key, $n) = @_;

	return "INSERT INTO sent SELECT idempotency.outbox_enqueue('t', '$key', 'E', '{}') FROM generate_series(1, $n);\n";
}

# The relay has delivered something, and has a backlog, when the copy is made.
$a->safe_psql('postgres', q{SELECT idempotency.relay_create('r', 'target',
	batch_events => 20, min_backoff => '10 ms', max_backoff => '100 ms')});
$a->safe_psql('postgres', enqueue_sql('common', 100));
IdemTest::wait_for($target, 'SELECT count(*) = 100 FROM app.got');
$a->safe_psql('postgres', q{SELECT idempotency.relay_pause('r')});
IdemRelay::wait_state($a, 'r', 'paused');
$a->safe_psql('postgres', enqueue_sql('common', 500));
$a->stop;
mkdir $a->backup_dir;
PostgreSQL::Test::RecursiveCopy::copypath($a->data_dir, $a->backup_dir . '/cold');
my $b = PostgreSQL::Test::Cluster->new('b');
$b->init_from_backup($a, 'cold');
$a->start;
$b->start;
my @twins = ($a, $b);

sub state_of
{
	return IdemRelay::stat($_[0], 'r', 'state');
}

sub is_stuck
{
	return state_of($_[0]) =~ /^(?:fenced|diverged)$/;
}

my @load;
foreach my $twin (@twins)
{
	my $script = $twin->basedir . '/enqueue.sql';
	my ($out, $err) = ('', '');

	append_to_file($script, enqueue_sql($twin->name, 3));
	push @load, IPC::Run::start(
		[ 'pgbench', '-n', '-c', '2', '-T', 100_000, '-f', $script, '-h', $twin->host, '-p', $twin->port, 'postgres' ],
		'>', \$out, '2>', \$err);
	IdemTest::wait_for($twin, q{SELECT count(*) > 650 FROM sent});
}

# They begin at once, and each round ends sessions at the target, so that either
# may say hello again and again.
$_->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')}) foreach @twins;
IdemRelay::wait_until('a twin has lost', sub {
	$target->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'idempotency sink' AND random() < 0.5});
	return is_stuck($a) || is_stuck($b);
});
foreach my $round (1 .. 20)
{
	my $got = $target->safe_psql('postgres', 'SELECT count(*) FROM app.got');

	IdemRelay::wait_until("round $round", sub {
		(is_stuck($a) && is_stuck($b)) || $target->safe_psql('postgres', "SELECT count(*) > $got FROM app.got") eq 't' });

	# The loser is told to go on, as by somebody who does not know of the other.
	foreach my $twin ($round % 4 == 0 ? grep { is_stuck($_) } @twins : ())
	{
		$twin->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
	}
	$target->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'idempotency sink'});
}
$_->signal('INT') foreach @load;
$_->finish foreach @load;

# Whoever is not stuck delivers all it has; both cannot go on for long.
my @winners = ();
foreach my $twin (@twins)
{
	IdemRelay::wait_until($twin->name . ' is stuck, or has delivered', sub {
		is_stuck($twin) || $twin->safe_psql('postgres',
			q{SELECT state IN ('streaming', 'idle') AND lag_events = 0 FROM idempotency.stat_relay}) eq 't' });
	push @winners, $twin unless is_stuck($twin);
	note($twin->name . ' is ' . state_of($twin) . ': ' . IdemRelay::stat($twin, 'r', 'last_error'));
}
cmp_ok(scalar(@winners), '<', 2, 'the loser shows it');
is($target->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM app.got'), '0', 'no event has two effects');
my %got = map { $_ => 1 } split /\n/, $target->safe_psql('postgres', 'SELECT event_id FROM app.got');
foreach my $twin (@winners)
{
	my @lost = grep { !$got{$_} } split /\n/, $twin->safe_psql('postgres', 'SELECT event_id FROM sent');

	is(scalar(@lost), 0, 'the winner ' . $twin->name . ' has lost nothing');
}

# The last row at the target is of one of the two.  The operator of the other moves its relay
# again and again.  Each move draws numbers of the log, which soon are beyond that row.
my @diverged = grep {
	my $twin = $_;

	$twin->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
	IdemRelay::wait_until($twin->name . ' has tried', sub { state_of($twin) =~ /^(?:streaming|idle|diverged)$/ });
	state_of($twin) eq 'diverged';
} @twins;
is(scalar(@diverged), 1, 'one of them is diverged');
my ($loser) = @diverged;

# The other may have been fenced until now, and have events to deliver: it rests meanwhile.
my ($other) = grep { $_ != $loser } @twins;
$other->safe_psql('postgres', q{SELECT idempotency.relay_pause('r')});
IdemRelay::wait_state($other, 'r', 'paused');
my $got = $target->safe_psql('postgres', 'SELECT count(*) FROM app.got');
IdemRelay::prepared_postgres_server($loser, 'again', $target, 'postgres', 'app.on_event');
foreach my $move ("relay_replay('r', since => '-infinity')", ("relay_alter('r', start_at => 'earliest')") x 3,
	"relay_alter('r', server => 'again')", "relay_alter('r', server => 'target')")
{
	my $now = $loser->safe_psql('postgres', "SELECT idempotency.$move; SELECT clock_timestamp()");

	$now =~ s/.*\n//;
	IdemTest::wait_for($loser, "SELECT state = 'diverged' AND last_error_at > '$now' FROM idempotency.stat_relay");
}
is($target->safe_psql('postgres', 'SELECT count(*) FROM app.got'), $got, 'its operator makes it send nothing');
$_->stop foreach @twins, $target;
done_testing();
