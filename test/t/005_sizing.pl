
# Copyright (c) 2026, the idempotency developers

# sizing() against a server: what events, remembered ids, parked events, leases,
# cursors and an empty database take on disk, what relays take in shared memory,
# and that as many processes as it says do for all relays at once.  A value is a
# bound: nothing takes more, and all takes at least 0.6 of it, but leases and
# cursors 0.2, whose logs are longer for a while.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', conf => "synchronous_commit = off\nautovacuum = off\n");

sub value
{
	my ($what, $arguments) = @_;

	return $node->safe_psql('postgres', "SELECT value FROM idempotency.sizing($arguments) WHERE what = '$what'");
}

sub bounded
{
	my ($name, $measured, $value, $least) = @_;

	note(sprintf('%s: measured %d, value %d, ratio %.2f', $name, $measured, $value, $measured / $value));
	cmp_ok($measured, '<=', $value, "$name: no more than the value");
	cmp_ok($measured, '>=', $least * $value, "$name: at least $least of it");
	return;
}

# Bytes of the tables and sequences whose names match.
sub size
{
	my ($pattern) = @_;

	return $node->safe_psql('postgres', qq{
		SELECT sum(pg_total_relation_size(oid)) FROM pg_class
		 WHERE relnamespace = 'idempotency_data'::regnamespace AND relkind IN ('r', 'S') AND relname ~ '$pattern'});
}

sub enqueue
{
	my ($events, $bytes, $bad) = @_;

	$node->safe_psql('postgres', qq{
		SELECT count(idempotency.outbox_enqueue('order', gen_random_uuid()::text,
					CASE WHEN $bad AND i % 2 = 0 THEN 'Refused' ELSE 'OrderPlaced' END,
					jsonb_build_object('text', (SELECT left(string_agg(md5(random()::text), ''), $bytes - 20)
												  FROM generate_series(0, $bytes / 32) WHERE i = i))))
		  FROM generate_series(1, $events) AS i});
	return;
}

bounded('empty database', size('.'), value('disk: empty database', ''), 0.6);
bounded('relays in memory',
	$node->safe_psql('postgres', q{SELECT size FROM pg_shmem_allocations WHERE name = 'idempotency relays'}),
	value('memory: relays', ''), 0.6);

# Without a relay the outbox gives up nothing.  The least time that events stay is 70 s.
foreach my $bytes (50, 200, 1000, 1500, 3000, 10000)
{
	my $events = 4000;
	my $before = size('^outbox_segment');

	enqueue($events, $bytes, 'false');
	bounded("events of $bytes bytes", size('^outbox_segment') - $before,
		value('disk: outbox', "events_per_second => $events / 70.0, payload_size => $bytes, outbox_retention => '0', outage => '0'"), 0.6);
}

# Ids, at most as they come and then packed
my $empty = size('^store_slot');
my $most = 0;
foreach my $batch (1 .. 20)
{
	$node->safe_psql('postgres', q{
		SELECT idempotency.claims_import('billing', array_agg(gen_random_uuid()::text)) FROM generate_series(1, 10000)});
	my $now = size('^store_');
	$most = $now if $now > $most;
}
cmp_ok($most, '<=', value('disk: remembered ids', 'remembered_ids => 200000') + value('disk: free for a merge', 'remembered_ids => 200000'),
	'ids: no more than the values while they come');
cmp_ok(size('^store_keys'), '<=', value('memory: keys, in shared_buffers', ''), 'keys: no more than the value');
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency.stat_claim_segments
	WHERE kind = 'segment' AND state NOT IN ('current', 'empty')});
my ($packed, $slots) = split /\|/,
  $node->safe_psql('postgres', q{SELECT sum(entries), count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND entries > 0});
cmp_ok($packed, '>', 50000, 'ids are packed');
# Whoever packed faster has more slots that are not merged yet, each with begun pages in
# its table and what belongs to it; the value has them in the part per database.
bounded('packed ids', size('^store_slot') - $empty,
	value('disk: remembered ids', "remembered_ids => $packed, databases => 0") + $slots * 3 * 8192, 0.6);

# Dead letters, beside events that pass
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE plpgsql AS
	'BEGIN IF event_type = ''Refused'' THEN RAISE ''refused''; END IF; END';
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('handled', 'handler', max_attempts => 1, start_at => 'latest');
END
my $parked = 0;
foreach my $bytes (200, 1000)
{
	my $before = size('^relay_parked');

	enqueue(800, $bytes, 'true');
	$parked += 400;
	IdemTest::wait_for($node, "SELECT dead = $parked AND lag_events = 0 FROM idempotency.stat_relay");
	bounded("parked events of $bytes bytes", size('^relay_parked') - $before,
		value('disk: parked events', "parked_events => 400, payload_size => $bytes"), 0.6);
}

# Leases and cursors, with what the tables of their logs take besides
$node->safe_psql('postgres', join('', map { qq{
		SELECT count(*) FROM idempotency.lease_events((SELECT array_agg(gen_random_uuid()::text) FROM generate_series(1, 50)), 'worker', '1 h');
		SELECT count((idempotency.claim_offset('reader', 'topic', $_ * 50 + i, 1)).result) FROM generate_series(1, 50) AS i; } } 1 .. 400));
bounded('20,000 leases', size('^lease_log'), value('disk: log of leases', 'open_leases => 20000'), 0.2);
bounded('20,000 cursors', size('^cursor_log'), value('disk: log of cursors', 'cursors => 20000'), 0.2);
$node->stop;

# Two databases with three function relays each: all at once, and ids are packed meanwhile.
# The server itself has one of the eight processes that are not ours, for logical replication.
my $arguments = 'program_relays => 2, function_relays => 6, databases => 2';
$node->start;
my $processes = value('max_worker_processes', $arguments) - 8 + 1;
like($node->safe_psql('postgres', "SELECT how FROM idempotency.sizing() WHERE what = 'max_worker_processes'"), qr/^8 \+ /,
	'eight processes are for others');
$node->append_conf('postgresql.conf', <<"END");
idempotency.max_workers = 8
idempotency.claim_segment_size = '256kB'
max_worker_processes = $processes
max_parallel_workers = 0
END
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('handled')});
$node->restart;
$node->safe_psql('postgres', 'CREATE DATABASE shop');
IdemTest::create_extension($node, 'shop');
foreach my $database (qw(postgres shop))
{
	$node->safe_psql($database, <<'END');
CREATE FUNCTION waits(event_id uuid) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(7)';
CREATE SERVER waits FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.waits');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('waits ' || n, 'waits', start_at => 'latest') FROM generate_series(1, 3) AS n;
SELECT idempotency.relay_create('nul', 'nul', start_at => 'latest');
END
}
# Handlers wait for a lock, so that none ends before all have begun.
my @holders = map { $node->background_psql($_) } qw(postgres shop);
$_->query_safe('SELECT pg_advisory_lock(7)') foreach @holders;
foreach my $database (qw(postgres shop))
{
	$node->safe_psql($database, q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '1')});
}
IdemTest::wait_for($node, q{SELECT count(*) = 6 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted});
foreach my $database (qw(postgres shop))
{
	$node->safe_psql($database, q{
		SELECT idempotency.claims_import('billing', array_agg(gen_random_uuid()::text)) FROM generate_series(1, 20000)});
	IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM idempotency.stat_claim_segments WHERE kind = 'run'}, 't', $database);
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted}), '6',
	'all handlers are still at work');
$_->quit foreach @holders;
foreach my $database (qw(postgres shop))
{
	IdemTest::wait_for($node, 'SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay', 't', $database);
}
$node->stop;
done_testing();
