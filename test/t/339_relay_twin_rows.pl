
# Copyright (c) 2026, the idempotency developers

# Twins number the rows of their logs alike.  What one of them has stored at the
# target under a number must not be taken for the row that the other has under
# it: those are other events, and they would be lost.

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
IdemRelay::counting_server($a, $target);

sub got
{
	my ($key) = @_;

	return $target->safe_psql('postgres', "SELECT count(*) FROM app.got WHERE twin = '$key'");
}

$a->safe_psql('postgres', q{SELECT idempotency.relay_create('r', 'target')});
IdemRelay::enqueue($a, 'common', 'E', 10);
IdemTest::wait_for($target, 'SELECT count(*) = 10 FROM app.got');
$a->safe_psql('postgres', q{SELECT idempotency.relay_pause('r')});
IdemRelay::wait_state($a, 'r', 'paused');
$a->stop;
mkdir $a->backup_dir;
PostgreSQL::Test::RecursiveCopy::copypath($a->data_dir, $a->backup_dir . '/cold');
my $b = PostgreSQL::Test::Cluster->new('b');
$b->init_from_backup($a, 'cold');
$a->start;
$b->start;
IdemRelay::enqueue($b, 'b', 'E', 5);
IdemRelay::enqueue($a, 'a', 'E', 50);

# The one has its row in the log, and events under way to a target that cannot
# take them, when its program ends.
my $lock = $target->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE app.got');
$b->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
IdemTest::wait_for($target, q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'app.got'::regclass});
my $program = IdemRelay::stat($b, 'r', 'sink_pid');
$b->safe_psql('postgres', q{SELECT idempotency.relay_pause('r')});
kill 'KILL', $program;
IdemRelay::wait_state($b, 'r', 'paused');
$target->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
	WHERE application_name = 'idempotency sink'});
$lock->query_safe('COMMIT');
$lock->quit;
is(got('b'), '0', 'nothing of the one arrived');

# The other stores its position, under the next number as well.
$a->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
IdemTest::wait_for($target, q{SELECT count(*) = 50 FROM app.got WHERE twin = 'a'});
$a->safe_psql('postgres', q{SELECT idempotency.relay_pause('r')});
IdemRelay::wait_state($a, 'r', 'paused');

# Its events are delivered, or it says that it cannot know.
$b->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
IdemRelay::wait_until('the one has decided', sub {
	IdemRelay::stat($b, 'r', 'state') =~ /^(?:diverged|fenced)$/
	  || $b->safe_psql('postgres', q{SELECT state IN ('streaming', 'idle') AND waiting_for = 'events' AND lag_events = 0
		FROM idempotency.stat_relay}) eq 't' });
note('the one is ' . IdemRelay::stat($b, 'r', 'state') . ' with ' . got('b') . ' of 5 events delivered');
ok(IdemRelay::stat($b, 'r', 'state') =~ /^(?:diverged|fenced)$/ || got('b') == 5,
	'no event is passed over in silence');
is($target->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM app.got'), '0', 'nor sent twice');

$_->stop foreach $a, $b, $target;
done_testing();
