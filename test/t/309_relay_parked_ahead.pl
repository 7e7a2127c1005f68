
# Copyright (c) 2026, the idempotency developers

# An event that is parked while the sink's stored position is still before it,
# and is due again before the log has been read past it, arrives once.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");
my $file = "$dir/ahead.log";

# The sink dies of the event, which is parked without an answer.
IdemRelay::pytest_server($node, 'srv', $file, position => 'on', crash_type => 'Killer');
$node->safe_psql('postgres',
	"SELECT idempotency.relay_create('ahead', 'srv', min_backoff => '1 s', max_backoff => '1 s')");
IdemRelay::enqueue($node, 'a', 'Killer');
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM idempotency_data.relay_parked');

# No program runs until it is due; then one that survives it.
$node->safe_psql('postgres', "SELECT idempotency.relay_pause('ahead')");
IdemTest::wait_for($node, 'SELECT bool_and(next_attempt_at < clock_timestamp()) FROM idempotency_data.relay_parked');
$node->safe_psql('postgres', 'ALTER SERVER srv OPTIONS (DROP crash_type)');
$node->safe_psql('postgres', "SELECT idempotency.relay_resume('ahead')");
IdemRelay::wait_received($file, 1);
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');

# What comes after it has been read, so has it.
IdemRelay::enqueue($node, 'a', 'Good');
IdemRelay::wait_received($file, 2);
my @arrived = map { $_->{event_type} } IdemRelay::acked($file);
is("@arrived", 'Killer Good', 'each arrives once');

# And none waits for ever for the log to pass it.
IdemRelay::enqueue($node, 'b', 'Good');
IdemRelay::wait_received($file, 3);
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked'), '0', 'nothing stays parked');

$node->stop;
done_testing();
