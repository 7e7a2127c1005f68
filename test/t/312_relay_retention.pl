
# Copyright (c) 2026, the idempotency developers

# The outbox turns on while a relay is paused or has lost its position: what it
# still needs stays, and arrives when it may go on.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main',
	conf => "idempotency.sink_directory = '$dir'\n" . IdemOutbox::eager_conf());

sub generation
{
	return $node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox');
}

# Until the segment was closed and what is closed was looked at, which is over
# when the next one is closed.  The other relay has all of it behind it.
sub turn
{
	foreach my $round (1, 2)
	{
		my $before = generation();

		IdemRelay::enqueue($node, 'other', 'E');
		IdemRelay::wait_until('the outbox turns', sub { generation() > $before });
	}
	return;
}

IdemRelay::pytest_server($node, 's_fast', "$dir/fast.log");
IdemRelay::pytest_server($node, 's_slow', "$dir/slow.log");
$node->safe_psql('postgres',
	q{SELECT idempotency.relay_create('fast', 's_fast'), idempotency.relay_create('slow', 's_slow')});

# A relay that is paused
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('slow')});
IdemRelay::wait_state($node, 'slow', 'paused');
IdemRelay::enqueue($node, 'paused', 'E', 3);
turn();
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_id = 'paused'}),
	'3', 'a paused relay keeps what it needs');
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('slow')});
IdemRelay::wait_received("$dir/slow.log", 5);

# One whose positions are gone, as after a restore
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('slow')});
IdemRelay::wait_state($node, 'slow', 'paused');
$node->safe_psql('postgres', <<'END');
BEGIN;
DELETE FROM idempotency_data.relay_log_0 l USING idempotency_data.relays r WHERE r.relay_id = l.relay_id AND relay = 'slow';
DELETE FROM idempotency_data.relay_log_1 l USING idempotency_data.relays r WHERE r.relay_id = l.relay_id AND relay = 'slow';
SELECT idempotency.outbox_enqueue('t', 'lost', 'E', '1');
COMMIT;
END
IdemRelay::wait_until('the other relay has it',
	sub { scalar grep { $_->{aggregate_id} eq 'lost' } IdemRelay::acked("$dir/fast.log") });
turn();
is($node->safe_psql('postgres', q{SELECT count(*) FROM idempotency.outbox_events WHERE aggregate_id = 'lost'}),
	'1', 'a relay without a position holds everything');
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('slow')});
IdemRelay::wait_state($node, 'slow', 'diverged');

$node->stop;
done_testing();
