
# Copyright (c) 2026, the idempotency developers

# The packer: who starts it and when it ends, with and without the preload.  Commands
# that need the database or the extension do not wait for it, whatever it does.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $conf = <<'END';
idempotency.claim_segment_size = 64kB
idempotency.max_claim_locks = 0
autovacuum = off
END
my $feed = <<'SQL';
CREATE FUNCTION feed(lo int, hi int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ids text[] := (SELECT array_agg('event-' || i) FROM generate_series(lo, hi) AS i);
	verdicts text;
BEGIN
	SELECT string_agg(n || ' ' || result, ', ' ORDER BY result) INTO verdicts
	FROM (SELECT result, count(*) AS n FROM idempotency.claim_events(ids, 'c') GROUP BY 1) AS c;
	IF verdicts LIKE '% claimed' THEN
		PERFORM idempotency.complete_events(ids, 'c');
	END IF;
	RETURN verdicts;
END
$$
SQL
my $packers = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency packer'};
my $packing = q{SELECT count(*) > 0 FROM pg_locks JOIN pg_class c ON c.oid = relation
	WHERE mode = 'RowExclusiveLock' AND c.relname LIKE 'store_slot_%'};
my $results = join ' UNION ALL ', map { "SELECT result FROM idempotency_data.store_slot_$_ WHERE result IS NOT NULL" } 0 .. 47;
my $waiting = q{FROM idempotency.stat_claim_segments WHERE state NOT IN ('current', 'empty', 'searched')};

sub make_database
{
	my ($node, $db) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	IdemTest::create_extension($node, $db);
	$node->safe_psql($db, $feed);
	return;
}

# Change a setting; sessions that begin after that have it.
sub setting
{
	my ($node, $name, $value) = @_;
	my $log_at = -s $node->logfile;

	$node->append_conf('postgresql.conf', "$name = $value\n");
	$node->reload;
	$node->wait_for_log(qr/parameter "$name" changed/, $log_at);
	return;
}

# How many seconds a command takes
sub seconds
{
	my ($node, $db, $sql) = @_;
	my $begin = time;

	$node->safe_psql($db, $sql);
	return time - $begin;
}

for my $preload (0, 1)
{
	my $with = $preload ? 'preloaded' : 'not preloaded';
	my $node = IdemTest::cluster("p$preload", preload => $preload, conf => $conf, extension => 0);

	#
	# Claims start a packer, which ends when nothing comes.
	#
	make_database($node, 'd');
	is($node->safe_psql('d', 'SELECT feed(1, 2000)'), '2000 claimed', "$with: claimed");
	IdemTest::wait_for($node, "SELECT count(*) = 0 AND (SELECT count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run') > 0 $waiting", 't', 'd');
	is($node->safe_psql('d', 'SELECT feed(1, 2000)'), '2000 duplicate', "$with: packed by itself");
	IdemTest::wait_for($node, "SELECT ($packers) = 0");

	#
	# Many sessions have one packer at most.
	#
	my @sessions = map { $node->background_psql('d') } 1 .. 8;
	my $most = 0;
	for my $round (1 .. 5)
	{
		for my $i (0 .. $#sessions)
		{
			my $lo = 10000 * ($i + 1) + 1000 * $round;

			$sessions[$i]->query_safe("SELECT feed($lo, $lo + 499)");
		}
		my $n = $node->safe_psql('postgres', $packers);

		$most = $n if $n > $most;
	}
	$_->quit for @sessions;
	cmp_ok($most, '<=', 1, "$with: one packer for eight sessions");
	IdemTest::wait_for($node, "SELECT count(*) = 0 $waiting", 't', 'd');

	#
	# Commands that need the database, while the packer stays and while it packs.
	#
	$node->safe_psql('d', 'SELECT feed(200001, 202000)');
	IdemTest::wait_for($node, "SELECT ($packers) = 1");
	cmp_ok(seconds($node, 'postgres', 'CREATE DATABASE copy TEMPLATE d'), '<', 5, "$with: the database is a template");
	setting($node, 'idempotency.pack_max_rate', '1');
	$node->safe_psql('copy', 'SELECT feed(300001, 302000)');
	IdemTest::wait_for($node, $packing, 't', 'copy');
	cmp_ok(seconds($node, 'postgres', 'DROP DATABASE copy'), '<', 5, "$with: DROP DATABASE while it packs");

	$node->safe_psql('d', 'SELECT feed(400001, 402000)');
	IdemTest::wait_for($node, $packing, 't', 'd');
	cmp_ok(seconds($node, 'd', 'BEGIN; SET LOCAL client_min_messages = warning; DROP EXTENSION idempotency CASCADE; ROLLBACK'), '<', 5, "$with: DROP EXTENSION while it packs");
	IdemTest::wait_for($node, "SELECT ($packers) = 0");

	# Who waits for a table of the run has all claims behind him.
	my $next = 410001;
	for my $kind ('slot', 'segment')
	{
		$node->safe_psql('d', "SELECT feed($next, $next + 1999)");
		$next += 2000;
		IdemTest::wait_for($node, $packing, 't', 'd');
		my $table = $node->safe_psql('d', qq{SELECT c.oid::regclass FROM pg_locks l JOIN pg_class c ON c.oid = relation JOIN pg_stat_activity a USING (pid)
			WHERE backend_type = 'idempotency packer' AND c.relname ~ '^store_${kind}_\\d+\$' AND mode = '@{[ $kind eq 'slot' ? 'RowExclusiveLock' : 'AccessShareLock' ]}' LIMIT 1});
		like($table, qr/store_$kind/, "$with: the packer has a $kind");
		cmp_ok(seconds($node, 'd', "VACUUM FULL $table"), '<', 5, "$with: VACUUM FULL of a $kind while it packs");
		IdemTest::wait_for($node, "SELECT ($packers) = 0");
	}
	setting($node, 'idempotency.pack_max_rate', '0');
	is($node->safe_psql('d', 'SELECT feed(400001, 402000)'), '2000 duplicate', "$with: nothing is lost");
	is($node->safe_psql('d', 'SELECT feed(410001, 414000)'), '4000 duplicate', "$with: nor of what was packed while a command waited");

	# the next claim that begins a page starts another one
	$node->safe_psql('d', 'SELECT feed(500001, 502000)');
	IdemTest::wait_for($node, "SELECT count(*) = 0 $waiting", 't', 'd');

	#
	# The rate counts all that is written: results, too.  What the packer wrote last, less
	# than 200 kB, is not waited for.
	#
	setting($node, 'idempotency.pack_max_rate', '100');
	my $began = time;
	$node->safe_psql('d', q{
		SELECT idempotency.claim_event('big-' || i), idempotency.complete_event('big-' || i, result => to_jsonb(
			(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100 + i - i))))
		FROM generate_series(1, 120) AS i});
	# they fill their segment, and so it is packed
	$node->safe_psql('d', 'SELECT feed(550001, 552000)');
	IdemTest::wait_for($node, "SELECT count(*) = 120 FROM ($results) AS r", 't', 'd');
	my $took = time - $began;
	my $bytes = $node->safe_psql('d', "SELECT sum(pg_column_size(result)) FROM ($results) AS r");
	cmp_ok($bytes, '>', 200_000, "$with: large results are packed");
	cmp_ok($took, '>=', $bytes / (100 * 1024) - 2, "$with: at the rate that is set");
	setting($node, 'idempotency.pack_max_rate', '0');

	#
	# Packing that is off is shown.
	#
	setting($node, 'idempotency.store_maintenance', 'off');
	# one that has not heard of it yet, or that is just being started, might close the segment
	my $held_by = '';
	for (my $at = 600_001; $held_by eq '' && $at < 700_000; $at += 2_000)
	{
		IdemTest::wait_for($node, "SELECT ($packers) = 0");
		$node->safe_psql('d', "SELECT feed($at, $at + 1999)");
		$held_by = $node->safe_psql('d', "SELECT held_by FROM idempotency.stat_claim_segments WHERE state = 'current'");
	}
	is($held_by, 'idempotency.store_maintenance', "$with: packing is off");
	my ($rc, undef, $stderr) = $node->psql('d', 'SELECT idempotency.claims_maintain()');
	like($stderr, qr/packing is switched off/, "$with: and is not done by hand");
	setting($node, 'idempotency.store_maintenance', 'on');
	is($node->safe_psql('d', 'SELECT idempotency.claims_maintain()'), 't', "$with: by hand");

	#
	# Who comes late where claims have ceased: the worker of relays, if there is one.
	#
	if ($preload)
	{
		my $old = $node->background_psql('d');

		$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
		$node->safe_psql('d', 'SELECT feed(700001, 702000)');
		IdemTest::wait_for($node, "SELECT count(*) > 0 $waiting AND state = 'packed' AND held_by = 'snapshot'", 't', 'd');
		IdemTest::wait_for($node, "SELECT ($packers) = 0");
		$node->safe_psql('d', q{
			CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
			SELECT idempotency.relay_create('r', 'nul')});
		$old->quit;
		IdemTest::wait_for($node, "SELECT count(*) = 0 $waiting", 't', 'd');
	}

	#
	# No process is to be had.  A segment that is not empty lets the current one grow.
	#
	IdemTest::wait_for($node, "SELECT idempotency.claims_maintain() AND count(*) = 0 $waiting", 't', 'd');
	$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
	$node->restart;
	if (!$preload)
	{
		$node->append_conf('postgresql.conf', "max_worker_processes = 0\n");
		$node->restart;
	}
	is($node->safe_psql('d', 'SELECT idempotency.claims_maintain()'), 'f', "$with: no process");
	is($node->safe_psql('d', 'SELECT feed(800001, 802000)'), '2000 claimed', "$with: claims go on");
	is($node->safe_psql('d', "SELECT held_by FROM idempotency.stat_claim_segments WHERE state = 'current'"),
		'no packer', "$with: and say so");
	$node->append_conf('postgresql.conf', "max_worker_processes = 32\n");
	$node->restart;
	is($node->safe_psql('d', 'SELECT feed(800001, 802000)'), '2000 duplicate', "$with: still known");
	is($node->safe_psql('d', 'SELECT idempotency.claims_maintain(); SELECT idempotency.claims_maintain()'), "t\nt", "$with: packed");
	is($node->safe_psql('d', 'SELECT feed(800001, 802000)'), '2000 duplicate', "$with: known for ever");
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|packing gives way/, "$with: nothing in the log");
	$node->stop;
}

done_testing();
