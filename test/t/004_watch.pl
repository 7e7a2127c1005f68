
# Copyright (c) 2026, the idempotency developers

# Verdicts are counted across sessions, until the server ends or the database is dropped.
# Packing and replays show how far they are.  A look at watch keeps no lock, and waits for
# none that a session at work has.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "idempotency.max_counted_consumers = 3\n");

sub sql
{
	my ($query, %opt) = @_;

	return $node->safe_psql($opt{in} // 'postgres', $query, $opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());
}

# What is counted for a consumer: claimed, duplicate, busy.
sub counted
{
	my ($consumer, $in) = @_;

	return sql("SELECT verdicts_claimed, verdicts_duplicate, verdicts_busy FROM idempotency.stat_consumers WHERE consumer = '$consumer'", in => $in);
}

sub claims
{
	my ($consumer, %opt) = @_;

	return sql("SELECT idempotency.claim_event('x', '$consumer'), idempotency.release_event('x', '$consumer')", %opt);
}

sql(q{CREATE ROLE monitor LOGIN; SELECT idempotency.grant_role('monitor', 'monitor')});

#
# Counters
#
my $holder = $node->background_psql('postgres', on_error_stop => 1);
$holder->query_safe(q{BEGIN; SELECT idempotency.claim_event('e', 'c1')});
is(sql(q{SELECT idempotency.claim_event('e', 'c1')}), 'busy', 'a twin is busy');
is(counted('c1'), '1|0|1', 'and counts at once, before any commit');
$holder->query_safe('ROLLBACK');
is(counted('c1'), '1|0|1', 'a rollback takes nothing back');
sql('CREATE DATABASE other');
sql('CREATE EXTENSION idempotency CASCADE', in => 'other');
claims('c1', in => 'other') foreach 1 .. 2;
is(counted('c1', 'other'), '2|0|0', 'a consumer of the same name in another database has its own');
is(counted('c1'), '1|0|1', 'and changes nothing here');
claims('c2', in => 'other');
claims('c3');
is(counted('c3'), '', 'beyond the limit nothing is counted for a consumer');
is(sql(q{SELECT count(*) FROM idempotency.stat_consumers}), '1', 'and it has no row');
sql('DROP DATABASE other');
claims('c3');
is(counted('c3'), '1|0|0', 'a dropped database gives its counters up');
is(counted('c1'), '1|0|1', 'and leaves others alone');
claims($_) foreach 'c2', 'c1';
is(counted('c2') . ' ' . counted('c1'), '1|0|0 2|0|1', 'each is found again');
IdemTest::kill9_backend($node, $holder->query_safe('SELECT pg_backend_pid()'));
is(counted('c1'), '', 'a crash resets them');
claims('c1');
is(counted('c1'), '1|0|0', 'and they begin anew');

#
# Packing: a packer that may write little per second is seen at work
#
sql(q{ALTER DATABASE postgres SET idempotency.claim_segment_size = '8kB'; ALTER DATABASE postgres SET idempotency.pack_max_rate = '8kB'});
sql(q{SELECT count(*) FROM (SELECT * FROM idempotency.claim_events(ARRAY(SELECT 'p' || i FROM generate_series(1, 20000) i), 'c1')) c,
	LATERAL (SELECT 1) one; SELECT idempotency.complete_events(ARRAY(SELECT 'p' || i FROM generate_series(1, 20000) i), 'c1')}
	=~ s/^/BEGIN; /r . '; COMMIT');
claims('c1');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.stat_progress p JOIN pg_stat_activity a USING (pid)
	WHERE job = 'packing' AND unit = 'entries' AND object ~ '^segment \d$' AND done > 0 AND done < total
	AND remaining > '0' AND a.backend_type = 'idempotency packer'});
like(sql(q{SELECT state FROM idempotency.watch WHERE kind = 'packing'}, as => 'monitor'), qr/^\d+ % done, \d+ \w+ left$/, 'a monitor sees it on the screen');
is(sql('SELECT count(*) FROM pg_stat_progress_vacuum') . sql('SELECT count(*) FROM pg_stat_progress_copy'), '00', "no view of the server takes it for the server's");
sql(q{ALTER DATABASE postgres RESET idempotency.pack_max_rate});
sql(q{SELECT pg_terminate_backend(pid) FROM idempotency.stat_progress});
IdemTest::wait_for($node, q{SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT FROM idempotency.stat_claim_segments WHERE state = 'closed')});
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency.stat_progress});
pass('when it is packed, the job is gone');

#
# Merging: sixteen runs of a slot become one
#
my $ids = 0;
sub pack_some
{
	my $array = "ARRAY(SELECT 'm' || i FROM generate_series($ids + 1, $ids + 400) i)";

	$ids += 400;
	sql("BEGIN; SELECT count(*) FROM idempotency.claim_events($array, 'c1'); SELECT idempotency.complete_events($array, 'c1'); COMMIT");
	return;
}
foreach my $round (1 .. 60)
{
	last if sql(q{SELECT max(n) = 15 FROM (SELECT count(*) AS n FROM idempotency.stat_claim_segments WHERE kind = 'run' AND state = 'searched' GROUP BY slot) s}) eq 't';
	pack_some();
	sql('SELECT idempotency.claims_maintain()');
}
sql(q{ALTER DATABASE postgres SET idempotency.pack_max_rate = '16kB'});
sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency packer'});
IdemTest::wait_for($node, q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency packer')});
pack_some();
claims('c1');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.stat_progress
	WHERE job = 'merging' AND unit = 'entries' AND object ~ '^slot \d+$' AND done > 0 AND done < total});
pass('merging is seen');
sql(q{ALTER DATABASE postgres RESET idempotency.pack_max_rate});
sql(q{SELECT pg_terminate_backend(pid) FROM idempotency.stat_progress});
IdemTest::wait_for($node, q{SELECT idempotency.claims_maintain()});
is(sql('SELECT count(*) FROM idempotency.stat_progress'), '0', 'until it is done');

#
# A replay
#
sql(q{
CREATE TABLE gate (open boolean);
CREATE TABLE got (seq int);
CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT (SELECT open FROM public.gate) AND (payload->>'n')::int > 3 THEN RAISE EXCEPTION 'closed' USING ERRCODE = '57P03'; END IF;
END $$;
INSERT INTO gate VALUES (true);
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('again', 'handler', min_backoff => '50 ms', max_backoff => '100 ms')});
sql(q{SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', jsonb_build_object('n', i))) FROM generate_series(1, 10) i});
IdemTest::wait_for($node, q{SELECT sent = 10 AND lag_events = 0 FROM idempotency.stat_relay});
# A packer may have begun anew meanwhile.
is(sql(q{SELECT count(*) FROM idempotency.stat_progress WHERE job = 'replay'}), '0', 'no replay yet');
sql(q{SELECT idempotency.relay_pause('again')});
sql(q{SELECT idempotency.relay_replay('again', since => now() - interval '1 hour')});
is(sql(q{SELECT job, object, done, total, unit FROM idempotency.stat_progress WHERE job = 'replay'}), 'replay|again|0|10|events', 'a replay');
sql(q{SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', '{"n": 1}')) FROM generate_series(1, 4) i});
is(sql(q{SELECT done, total FROM idempotency.stat_progress WHERE job = 'replay'}), '0|10', 'what is enqueued since is no part of it');
sql(q{SELECT idempotency.relay_resume('again')});
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency.stat_progress WHERE job = 'replay'});
IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay});
pass('it ends when all is delivered again');

#
# Locks: none is left in an open transaction, and a writer is not waited for
#
my $writer = $node->background_psql('postgres', on_error_stop => 1);
$writer->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}'), idempotency.claim_event('w', 'c1'), idempotency.complete_event('w', 'c1')});
is(sql(q{BEGIN; SET LOCAL lock_timeout = '1ms'; SELECT count(*) > 0 FROM idempotency.watch; SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = pg_backend_pid() AND c.relkind <> 'v' AND c.relnamespace = 'idempotency_data'::regnamespace; COMMIT}, as => 'monitor'), "t\n0", 'a look keeps no lock');
is(sql(q{SET lock_timeout = '1ms'; SELECT count(*) > 0 FROM idempotency.doctor()}, as => 'monitor'), 't', 'nor does the doctor wait for a writer');
$writer->query_safe('ROLLBACK');
$node->stop;

# Without preload there is nothing to count with.
my $bare = IdemTest::cluster('bare', preload => 0);
$bare->safe_psql('postgres', q{SELECT idempotency.claim_event('x', 'c'), idempotency.release_event('x', 'c'); SELECT idempotency.consumer_create('c', keep_ids => true)});
is($bare->safe_psql('postgres', q{SELECT consumer, verdicts_claimed IS NULL FROM idempotency.stat_consumers}), 'c|t', 'without preload the counters are NULL');
is($bare->safe_psql('postgres', q{SELECT count(*) FROM idempotency.watch}), '4', 'and watch shows what is on the disk');
$bare->stop;

done_testing();
