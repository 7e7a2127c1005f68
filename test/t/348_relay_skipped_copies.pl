
# Copyright (c) 2026, the idempotency developers

# Copies that a sink which stores positions passed over, since an earlier one of their run
# was refused, are not taken for delivered when its program starts again.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");
my $file = "$dir/skipped.log";
my $parked = $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relname = 'relay_parked'});

sub due_now
{
	my ($options) = @_;

	$node->safe_psql('postgres', <<"END");
UPDATE $parked SET next_attempt_at = now() WHERE state = 'retry';
ALTER SERVER srv OPTIONS ($options);
END
	return;
}

IdemRelay::pytest_server($node, 'srv', $file, position => 'on', reject_type => 'A,D');
$node->safe_psql('postgres',
	q{SELECT idempotency.relay_create('r', 'srv', min_backoff => '1 h', max_backoff => '1 h')});
IdemRelay::enqueue($node, 'k', 'A');
IdemTest::wait_for($node, "SELECT count(*) = 1 FROM $parked WHERE state = 'retry'");
IdemRelay::enqueue($node, 'k', $_) foreach qw(B C D E F G);
IdemTest::wait_for($node, "SELECT count(*) = 6 FROM $parked WHERE state = 'waiting'");

# Runs of one, two and four: A; B and C; D, which is refused, with E, F and G behind it.
due_now(q{SET reject_type 'D'});
IdemTest::wait_for($node, "SELECT count(*) = 4 FROM $parked WHERE event_type >= 'D'"
	  . " AND (SELECT attempts = 1 FROM $parked WHERE event_type = 'D') AND NOT EXISTS (SELECT FROM $parked WHERE event_type < 'D')");
is(scalar(grep { ($_->{outcome} // '') eq 'skipped' } IdemRelay::received($file)), 3, 'three were passed over');
IdemRelay::wait_until('the batch is stored', sub { (IdemRelay::received($file))[-1]{commit} });

my $pid = IdemRelay::stat($node, 'r', 'sink_pid');

# The program is started again; an operator need not wait for that.
kill 'KILL', $pid;
# The outage may be over before anybody sees its state; its error stays.
IdemTest::wait_for($node, q{SELECT last_error = 'the sink program was terminated by signal 9' FROM idempotency.stat_relay WHERE relay = 'r'});
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('r')});
IdemTest::wait_for($node, "SELECT state = 'streaming' AND sink_pid <> $pid FROM idempotency.stat_relay WHERE relay = 'r'");
is($node->safe_psql('postgres', "SELECT string_agg(event_type || ' ' || state, ', ' ORDER BY seq) FROM $parked"),
	'D retry, E waiting, F waiting, G waiting', 'all of them are parked still');
due_now('DROP reject_type');
IdemRelay::wait_received($file, 7);
is(join(' ', map { $_->{event_type} } IdemRelay::acked($file)), 'A B C D E F G', 'each comes once, in order');

$node->stop;
done_testing();
