
# Copyright (c) 2026, the idempotency developers

# What relays leave behind when they are paused or dropped: programs get to
# say their last words and hold nothing up; an event that is parked while its
# relay is dropped is not the next relay's.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'");

sub words
{
	my ($relay, $n) = @_;

	return scalar(() = slurp_file($node->logfile) =~ /relay "$relay": sink says: null sink: events=$n /g);
}

# The null sink reports once an hour, and at the end.
$node->safe_psql('postgres', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null OPTIONS (stats_interval '3600000');
CREATE SERVER other FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('counts', 'nul');
END
IdemRelay::enqueue($node, 'k', 'T', 3);
IdemTest::wait_for($node, q{SELECT sent = 3 AND waiting_for = 'events' FROM idempotency.stat_relay});
is(words('counts', 3), 0, 'no report yet');
my $sink = IdemRelay::stat($node, 'counts', 'sink_pid');
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('counts')});
IdemRelay::wait_until('the report of a paused relay', sub { words('counts', 3) == 1 });
IdemRelay::wait_until('the end of its program', sub { IdemRelay::process_is_gone($sink) });

# Dropped as the last one of its database, so that the worker ends as well.
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('counts')});
IdemRelay::enqueue($node, 'k', 'T', 5);
IdemTest::wait_for($node, q{SELECT sent = 8 AND waiting_for = 'events' FROM idempotency.stat_relay});
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('counts')});
IdemRelay::wait_until('the report of a dropped relay', sub { words('counts', 5) == 1 });
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idempotency relay'});

# A program that does not go is killed, and nobody waits for it.
IdemRelay::pytest_server($node, 'deaf', "$dir/deaf.log", bye => 'hang');
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('stays', 'other');
SELECT idempotency.relay_create('deaf', 'deaf', start_at => 'latest');
END
IdemRelay::wait_state($node, 'deaf', 'streaming');
$sink = IdemRelay::stat($node, 'deaf', 'sink_pid');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('deaf')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.stat_relay});
IdemRelay::wait_until('the program that does not go is gone', sub { IdemRelay::process_is_gone($sink) });

# Relay dropped while its handler is at work, which then fails.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION public.late(event_id uuid) RETURNS void LANGUAGE plpgsql AS
	'BEGIN PERFORM pg_advisory_xact_lock(1); RAISE EXCEPTION ''no''; END';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.late', timeout '3600000');
END
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('late', 'fn', start_at => 'latest')});
IdemRelay::wait_state($node, 'late', 'streaming');
IdemRelay::enqueue($node, 'k', 'T');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'});
my $handler = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'});
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_drop('late');
SELECT idempotency.relay_create('next', 'other', start_at => 'latest');
SELECT idempotency.relay_pause('next');
END
$gate->quit;
IdemTest::wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $handler");
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked JOIN idempotency_data.relays USING (relay_id)'),
	'0', 'what was parked is not the next relay\'s');
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked');

done_testing();
