
# Copyright (c) 2026, the idempotency developers

# Leases are extended under whatever holds old rows back: a snapshot, a writer, a reader and
# a prepared transaction, each in a database of its own.  There is not a dead tuple, in
# catalogs neither; an extension reads as much as it did before; and the log stays short,
# also where one of its three tables is held.  To the old snapshot a lease that nobody touched
# is the lease that it was, although its row has moved.
#
# LEASE_EXTENDS: how many extensions in each database; 100,000 for the long run

use strict;
use warnings FATAL => 'all';

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $extends = $ENV{LEASE_EXTENDS} // 12_000;
# Three tables of 256 blocks, and what is written to one before the worker has seen it
my $bound = 4 * 256 * 8192;

# Dumps are not waited for: the tables take their turns at once.
my $node = IdemTest::cluster('pinned', conf => <<'END');
autovacuum = off
synchronous_commit = off
idempotency.lease_log_dump_size = 0
END
my $schema = <<'END';
CREATE TABLE elsewhere (n int);
CREATE FUNCTION log_bytes() RETURNS bigint LANGUAGE sql AS
	$$SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname ~ '^lease_log_\d$'$$;
-- Heartbeats, with a recovery point of some size, which fills the log
CREATE PROCEDURE beat(n int) LANGUAGE plpgsql AS $$
DECLARE
	point jsonb := (SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 30) i);
	lease record;
BEGIN
	SELECT event_id, token INTO lease FROM idempotency.leases WHERE event_id = 'beats';
	FOR i IN 1 .. n / 50 LOOP
		PERFORM idempotency.extend_lease(lease.event_id, lease.token, duration => '1 day', state => point) FROM generate_series(1, 50);
		COMMIT;
	END LOOP;
END $$;
-- Blocks that a heartbeat looks at
CREATE FUNCTION blocks_of_a_beat() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	lease record;
	plan json;
BEGIN
	SELECT event_id, token INTO lease FROM idempotency.leases WHERE event_id = 'beats';
	EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT idempotency.extend_lease(%L, %s, duration => ''1 day'') FROM generate_series(1, 100)',
		lease.event_id, lease.token) INTO plan;
	RETURN ((plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::numeric + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::numeric) / 100;
END $$;
SELECT result FROM idempotency.lease_event('beats', duration => '1 day');
SELECT result FROM idempotency.lease_event('untouched', duration => '1 day');
SELECT idempotency.release_lease('changed', token, retry_after => '0') FROM idempotency.lease_event('changed');
CREATE FUNCTION look(id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (idempotency.lease_event(id)).result;
EXCEPTION WHEN serialization_failure THEN
	RETURN SQLERRM;
END $$;
END

# What pins, and which lock it holds on a table of the log, if any
my %pins = (
	snapshot => [ 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class' ],
	writer => [ q{BEGIN; INSERT INTO elsewhere VALUES (1); SELECT result FROM idempotency.lease_event('of a writer')} ],
	reader => [ 'BEGIN; DECLARE c CURSOR FOR SELECT number FROM idempotency_data.lease_log_0; FETCH 1 c' ],
	prepared => [ q{BEGIN; INSERT INTO elsewhere VALUES (1); SELECT result FROM idempotency.lease_event('of a prepared one'); PREPARE TRANSACTION 'pin'} ]);
my (%session, %blocks);

sub sql
{
	my ($pin, $sql) = @_;

	return $node->safe_psql($pin, $sql);
}

foreach my $pin (sort keys %pins)
{
	$node->safe_psql('postgres', "CREATE DATABASE $pin");
	IdemTest::create_extension($node, $pin);
	IdemTest::watch_dead_tuples($node, $pin);
	sql($pin, $schema);
	$session{$pin} = $node->background_psql($pin);
	$session{$pin}->query_safe($pins{$pin}[0]);
	sql($pin, q{SELECT result FROM idempotency.lease_event('changed', duration => '1 day'); CALL beat(100)});
	IdemTest::note_dead_tuples($node, $pin);
	$blocks{$pin} = sql($pin, 'SELECT blocks_of_a_beat()');
}

# The worker shortens the log; a page that is filled starts it.
sub becomes_short
{
	my ($pin) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	while (sql($pin, 'SELECT log_bytes()') > $bound)
	{
		return if time > $until;
		sql($pin, 'CALL beat(50)');
	}
	return 1;
}

# In parts, so that the worker is not asked for more than it can do
my $parts = 6;
foreach my $part (1 .. $parts)
{
	my @runs = map { IPC::Run::start([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($_), '-c', "CALL beat($extends / $parts)" ]) } sort keys %pins;

	ok($_->finish, "part $part: extended") foreach @runs;
	ok(becomes_short($_), "part $part, $_: the log is short") foreach sort keys %pins;
}

# also while a worker is waiting for them
is(sql('writer', 'SELECT held_by FROM idempotency.stat_leases'), 'writer', 'a writer is named that holds a table');
is(sql('prepared', 'SELECT held_by FROM idempotency.stat_leases'), 'prepared transaction', 'and so is a prepared transaction');
foreach my $pin (sort keys %pins)
{
	is(IdemTest::new_dead_tuples($node, $pin), '', "$pin: not a dead tuple");
	# of up to three tables instead of one
	cmp_ok(sql($pin, 'SELECT blocks_of_a_beat()'), '<=', 3 * $blocks{$pin}, "$pin: a heartbeat looks at as many blocks of a table as before");
	note("$pin: " . join ' ', $blocks{$pin}, sql($pin, 'SELECT blocks_of_a_beat(), log_bytes() / 8192'));
}

is(sql('snapshot', q{SELECT count(*) FROM (TABLE idempotency_data.lease_log_0 UNION ALL TABLE idempotency_data.lease_log_1 UNION ALL TABLE idempotency_data.lease_log_2) AS r
	WHERE event_id = 'untouched' AND origin IS NOT NULL}), '1', 'the row of a lease was copied');
is($session{snapshot}->query_safe(q{SELECT look('untouched')}), 'busy', 'to a snapshot before that it is the same lease');
is($session{snapshot}->query_safe(q{SELECT look('changed')}),
	'could not serialize access due to concurrent change of the lease of event "changed"', 'and a lease that was taken since is not');

$_->quit foreach values %session;
$node->stop;
done_testing();
