
# Copyright (c) 2026, the idempotency developers

# The time of its commit that an event carries is known for every event but what
# a start finds, and never later than the commit: an age taken from it is not too
# small, however long the relay was busy with others.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/stamp.log";
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

# Busy for longer than a commit takes, so that many are found late.
IdemRelay::pytest_server($node, 'srv', $file, delay_ms => 30, max_batch_events => 3);
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('stamp', 'srv')});
IdemRelay::wait_state($node, 'stamp', 'streaming');
IdemRelay::enqueue($node, 'k', 'Warm');
IdemRelay::wait_received($file, 1);

# When the client knows of each commit, microseconds since the epoch.
my $n = 60;
my $session = $node->background_psql('postgres');
my %answered;

foreach my $i (1 .. $n)
{
	$session->query_safe("SELECT idempotency.outbox_enqueue('t', 'k$i', 'Timed', '{}')");
	$answered{"k$i"} = $session->query_safe('SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint');
}
$session->quit;
IdemRelay::wait_received($file, 1 + $n);

my @timed = grep { $_->{event_type} eq 'Timed' } IdemRelay::acked($file);

is(scalar(@timed), $n, 'each event came once');
is(scalar(grep { $_->{committed_at} == 0 } @timed), 0, 'the time of each commit is known');
is(scalar(grep { $_->{committed_at} > $answered{ $_->{aggregate_id} } } @timed), 0, 'and not later than the commit');

$node->stop;
done_testing();
