
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

# A relay that max_lag_size has halted keeps nothing, also if no other one is there
$node->safe_psql('postgres', q{SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay});
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('only', 's_fast', max_lag_size => '1MB', start_at => 'latest'), idempotency.relay_pause('only')});
$node->safe_psql('postgres', q{SELECT count(idempotency.outbox_enqueue('t', 'much', 'E', to_jsonb(repeat('x', 1000)))) FROM generate_series(1, 3000)});
IdemTest::wait_for($node, q{SELECT halted = 'max_lag_size' FROM idempotency_data.relays WHERE relay = 'only'});
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency.outbox_events WHERE aggregate_id = 'much'});

# Nor is a relay led to where it would be halted at once
sub refuses
{
	my ($call, $what) = @_;
	my (undef, undef, $error) = $node->psql('postgres', "SELECT idempotency.$call");

	like($error, qr/ERROR:  relay "only" would be halted by its max_lag_size, with \d+ kB of events to send/, $what);
	my ($hint) = $error =~ /relay_alter\(\.\.\., (max_lag_size => '\d+ kB')\)/;
	$node->safe_psql('postgres', "SELECT idempotency.relay_alter('only', $hint); SELECT idempotency.$call; SELECT idempotency.relay_alter('only', max_lag_size => '1MB')");
	return;
}
$node->append_conf('postgresql.conf', "idempotency.outbox_retention = '1h'\n");
$node->reload;
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('only')});
$node->safe_psql('postgres', q{SELECT count(idempotency.outbox_enqueue('t', 'again', 'E', to_jsonb(repeat('x', 1000)))) FROM generate_series(1, 600)}) foreach 1 .. 3;
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND state IN ('streaming', 'idle') FROM idempotency.stat_relay});
$node->safe_psql('postgres', q{SELECT count(idempotency.outbox_enqueue('t', 'again', 'E', to_jsonb(repeat('x', 1000)))) FROM generate_series(1, 600)});
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND state IN ('streaming', 'idle') FROM idempotency.stat_relay});
refuses(q{relay_replay('only', since => '-infinity')}, 'a replay of more than that');
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND state IN ('streaming', 'idle') FROM idempotency.stat_relay});
refuses(q{relay_alter('only', start_at => 'earliest')}, 'a way back to the earliest event');
$node->safe_psql('postgres', <<'END');
BEGIN;
DELETE FROM idempotency_data.relay_log_0;
DELETE FROM idempotency_data.relay_log_1;
COMMIT;
END
refuses(q{relay_adopt('only')}, 'an adoption that sends more than that');

$node->stop;
done_testing();
