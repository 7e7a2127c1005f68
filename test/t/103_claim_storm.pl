
# Copyright (c) 2026, the idempotency developers

# Many sessions claim the same events, one by one and in batches, at every
# isolation level, with and without locks kept, some rolling back, while
# backends are terminated and killed.  Afterwards each event that was completed
# has exactly one effect, and each that was not has none.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $events = 8000;				# per round
my $rounds = 4;
my $node = IdemTest::cluster('main', conf => <<'END');
max_connections = 60
idempotency.claim_segment_size = 256kB
END

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE effects (event_id text, xid xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION work(id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF idempotency.claim_event(id) = 'claimed' THEN
		INSERT INTO effects VALUES (id);
		PERFORM idempotency.complete_event(id);
	END IF;
END
$$;
CREATE FUNCTION work_many(ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	mine text[] := ARRAY(SELECT event_id FROM idempotency.claim_events(ids) WHERE result = 'claimed');
BEGIN
	INSERT INTO effects SELECT unnest(mine);
	PERFORM idempotency.complete_events(mine);
END
$$;
CREATE FUNCTION work_badly(id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM work(id);
		RAISE 'after the effect';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
END
$$;
SQL

# Scripts of pgbench, and their weights
my $ids = join ', ', map { "'r' || :round || '-' || (:e + $_) % $events" } map { $_ * 7 } 0 .. 9;
my @scripts = (
	[ 4, 'BEGIN', q{SELECT work('r' || :round || '-' || :e)}, 'COMMIT' ],
	[ 2, 'BEGIN ISOLATION LEVEL REPEATABLE READ', q{SELECT work('r' || :round || '-' || :e)}, 'COMMIT' ],
	[ 2, 'BEGIN ISOLATION LEVEL SERIALIZABLE', q{SELECT work('r' || :round || '-' || :e)}, 'COMMIT' ],
	[ 2, 'BEGIN', 'SET LOCAL idempotency.max_claim_locks = 0', q{SELECT work('r' || :round || '-' || :e)}, 'COMMIT' ],
	[ 2, 'BEGIN', 'SET LOCAL idempotency.max_claim_locks = 3', "SELECT work_many(ARRAY[$ids])", 'COMMIT' ],
	[ 1, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SET LOCAL idempotency.max_claim_locks = 3',
		"SELECT work_many(ARRAY[$ids])", 'COMMIT' ],
	[ 1, 'BEGIN', q{SELECT work('r' || :round || '-' || :e)}, 'ROLLBACK' ],
	[ 1, 'BEGIN', q{SELECT work_badly('r' || :round || '-' || :e)}, q{SELECT work('r' || :round || '-' || (:e + 1) % } . $events . ')', 'COMMIT' ]);
my @files;
foreach my $script (@scripts)
{
	my ($weight, @lines) = @$script;
	my $file = $node->basedir . '/storm' . scalar(@files) . '.sql';

	append_to_file($file, join '', "\\set e random(0, $events - 1)\n", map { "$_;\n" } @lines);
	push @files, '-f', "$file\@$weight";
}

# Start the storm; a client that loses its connection gives up.
sub start_storm
{
	my ($round) = @_;
	my ($out, $err) = ('', '');

	return IPC::Run::start(
		[ 'pgbench', '-n', '-c', '12', '-j', '2', '-T', '600', '--max-tries=0', '-M', 'prepared',
			'-D', "round=$round",
			@files, $node->connstr('postgres') . ' application_name=storm' ],
		'>', \$out, '2>', \$err);
}

my $clients = q{FROM pg_stat_activity WHERE application_name = 'storm'};

foreach my $round (1 .. $rounds)
{
	my $storm = start_storm($round);

	IdemTest::wait_for($node, "SELECT count(*) > $events / 4 FROM effects WHERE event_id LIKE 'r$round-%'");
	if ($round % 2)
	{
		# Each a session that is doing something
		$node->safe_psql('postgres',
			"SELECT pg_terminate_backend(pid) FROM (SELECT pid $clients AND state <> 'idle' LIMIT 6) s");
		IdemTest::wait_for($node, "SELECT count(*) < 12 $clients");
		$storm->kill_kill(grace => 5);
		IdemTest::wait_for($node, "SELECT count(*) = 0 $clients");
	}
	else
	{
		my $pid = $node->safe_psql('postgres', "SELECT pid $clients ORDER BY state = 'idle' LIMIT 1");

		IdemTest::kill9_backend($node, $pid);
		eval { $storm->finish };
	}
	is( $node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM effects'),
		'0', "round $round: no effect was made twice");
	is( $node->safe_psql('postgres', <<"END"),
SELECT count(*) FROM generate_series(0, $events - 1) AS n, LATERAL (SELECT 'r$round-' || n) AS i (id),
	idempotency.event_status(id) AS s
 WHERE (s.status = 'completed') <> EXISTS (SELECT FROM effects e WHERE e.event_id = id)
END
		'0', "round $round: effects and completions are the same events");
}

# What is left is nobody's: each can be claimed, once
$node->safe_psql('postgres', <<"SQL");
SELECT work('r' || round || '-' || e)
  FROM generate_series(1, $rounds) round, generate_series(0, $events - 1) e
SQL
my $all = $rounds * $events;
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'),
	"$all|$all", 'one effect per event');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM effects e, idempotency.event_status(e.event_id) s WHERE s.status = 'completed'}),
	$all, 'each event is completed');
$node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()') for 1 .. 3;
is( $node->safe_psql('postgres', <<'END'),
SELECT (SELECT sum(entries) FROM idempotency.stat_claim_segments WHERE state = 'searched') +
	(SELECT count(*) FROM idempotency.processed_events)
END
	$all, 'once');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid <> 18768}),
	'0', 'no lock is left');
$node->safe_psql('postgres', q{CREATE FUNCTION missing(number int) RETURNS bigint LANGUAGE c AS 'idempotency_test', 'idem_test_keys_missing_fn'});
is($node->safe_psql('postgres', 'SELECT sum(missing(n)) FROM generate_series(0, 7) n'), '0', 'the keys name every row');

$node->stop;
done_testing();
