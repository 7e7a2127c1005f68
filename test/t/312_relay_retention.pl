
# Copyright (c) 2026, the idempotency developers

# The outbox turns on while a relay is paused or has lost its position: what it
# still needs stays, and arrives when it may go on.  A rollback delays nothing.

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

# Events that were rolled back, of a backend that was killed, too.  Nobody wakes
# relays for them, and what was before them in their segment must not stay for it
# until the worker reads the relays again, which it does each minute.  A worker that
# has read them notes new names of owners in its next upkeep, before it empties
# anything: so the name tells which came first.  On a machine that is slow it may
# have been the reading, by chance.
$node->safe_psql('postgres', 'CREATE ROLE name_0 SUPERUSER');
IdemRelay::pytest_server($node, 's_noted', "$dir/noted.log");
$node->safe_psql('postgres', q{SET ROLE name_0; SELECT idempotency.relay_create('noted', 's_noted')});
IdemRelay::wait_state($node, 'noted', 'streaming');

sub is_empty
{
	return $node->safe_psql('postgres', 'SELECT segments_used = 0 FROM idempotency.stat_outbox') eq 't';
}

sub empties_at_once
{
	my ($how, $round) = @_;

	IdemRelay::wait_until('the outbox is empty', \&is_empty);
	$node->safe_psql('postgres', "ALTER ROLE name_" . ($round - 1) . " RENAME TO name_$round");
	$node->psql('postgres', "BEGIN; SELECT idempotency.outbox_enqueue('t', 'undone', 'E', '1'); $how");
	IdemRelay::wait_until('the outbox is empty again', \&is_empty);
	return $node->safe_psql('postgres', q{SELECT owner FROM idempotency_data.relays WHERE relay = 'noted'}) ne "name_$round";
}

my $round = 0;
foreach my $how ('ROLLBACK', 'SELECT pg_terminate_backend(pg_backend_pid())')
{
	my $at_once = 0;

	for (my $try = 0; $try < 3 && !$at_once; $try++)
	{
		$at_once = empties_at_once($how, ++$round);
	}
	ok($at_once, "$how keeps no segment until the relays are read again");
}

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
