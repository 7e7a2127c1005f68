
# Copyright (c) 2026, the idempotency developers

# relay_adopt of a relay that is at work: its newest position is younger than the
# snapshot of the transaction that adopts it, and is a position of this cluster.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

IdemRelay::pytest_server($node, 'srv', $file);
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('p', 'srv')});
IdemRelay::enqueue($node, 'a', 'One', 3);
IdemRelay::wait_received($file, 3);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

my $operator = $node->background_psql('postgres');
$operator->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
IdemRelay::enqueue($node, 'a', 'Two', 5);
IdemRelay::wait_received($file, 8);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

my $log = -s $node->logfile;
$operator->query_safe(q{SELECT idempotency.relay_adopt('p'); COMMIT});
$operator->quit;
ok(!$node->log_contains('has no position of this cluster', $log), 'the position is one of this cluster');

IdemRelay::wait_state($node, 'p', 'streaming');
IdemRelay::enqueue($node, 'a', 'Three', 2);
IdemRelay::wait_received($file, 10);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});
is(scalar(IdemRelay::acked($file)), 10, 'nothing is sent again');
$node->stop;
done_testing();
