
# Copyright (c) 2026, the idempotency developers

# A dump that lasts for long keeps what was packed from being emptied, and nothing else.
# While its snapshot and its locks last, segments are filled and packed until the ring is
# full, and runs are merged: claims go on at every isolation level, and the views say what
# holds what.  The dump has the ids of its snapshot, all of them and no others.  When it
# has ended, everything is emptied.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @levels = ('read committed', 'repeatable read', 'serializable');
my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
autovacuum = off
END

# Each event that is claimed has its effect in the same transaction.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE effects (event_id text PRIMARY KEY);
CREATE FUNCTION feed(prefix text, n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdicts text;
	mine text[];
BEGIN
	WITH v AS MATERIALIZED (
		SELECT c.event_id, c.result
		FROM idempotency.claim_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c') AS c)
	SELECT (SELECT array_agg(v.event_id) FROM v WHERE v.result = 'claimed'),
		(SELECT string_agg(k || ' ' || result, ', ' ORDER BY result)
		 FROM (SELECT v.result, count(*) AS k FROM v GROUP BY 1) AS r)
	INTO mine, verdicts;
	IF mine IS NOT NULL THEN
		INSERT INTO effects SELECT unnest(mine);
		PERFORM idempotency.complete_events(mine, 'c');
	END IF;
	RETURN verdicts;
END
$$;
SQL

my $segments = q{FROM idempotency.stat_claim_segments WHERE kind = 'segment'};
my $unfinished = q{FROM idempotency.stat_claim_segments WHERE state NOT IN ('current', 'empty', 'searched')};
my %fed;

sub feed
{
	my ($level, $prefix, $n) = @_;

	return $node->safe_psql('postgres', "BEGIN ISOLATION LEVEL $level; SELECT feed('$prefix', $n); COMMIT");
}

sub maintain
{
	return $node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()');
}

# New events are claimed, and their repeats are duplicates, at each level.
sub claims_go_on
{
	my ($prefix, $n, $when) = @_;

	foreach my $level (@levels)
	{
		(my $own = "$prefix-$level-") =~ tr/ /_/;
		is(feed($level, $own, $n), "$n claimed", "$when: new events, $level");
		$fed{$own} = $n;
		is(feed($level, $own, $n), "$n duplicate", "$when: their repeats, $level");
	}
	return;
}

# Every event ever fed is a duplicate, at each level.
sub all_remembered
{
	my ($when) = @_;

	foreach my $level (@levels)
	{
		my @wrong = grep { feed($level, $_, $fed{$_}) ne "$fed{$_} duplicate" } sort keys %fed;

		is("@wrong", '', "$when: every event is a duplicate, $level");
	}
	return;
}

#
# Twelve runs, and then events that are not packed yet.
#
foreach my $i (1 .. 12)
{
	is(feed('read committed', "before-$i-", 200), '200 claimed', "before the dump: $i");
	maintain();
	$fed{"before-$i-"} = 200;
}
IdemTest::wait_for($node, "SELECT count(*) = 0 $unfinished");
is(feed('read committed', 'open-', 40), '40 claimed', 'before the dump: not packed');
$fed{'open-'} = 40;
my $seen = $node->safe_psql('postgres', 'SELECT count(*) FROM effects');

#
# What pg_dump holds: its snapshot, the locks of the tables that it is to copy, and of
# tables of the store that it has come to.
#
my $dump = $node->background_psql('postgres');

$dump->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY');
my $snapshot = $dump->query_safe('SELECT pg_export_snapshot()');
chomp $snapshot;
$dump->query_safe('LOCK TABLE effects, idempotency_data.store_segment_0, idempotency_data.store_slot_47 IN ACCESS SHARE MODE');

#
# The ring becomes full: each segment that is packed and not emptied doubles the size at
# which the next one is closed.
#
my $full = q{SELECT count(*) FILTER (WHERE state = 'packed' AND held_by = 'snapshot') = 7
	AND bool_or(state = 'current' AND held_by = 'no empty segment') } . $segments;
my $rounds = 0;

while ($rounds < 15 && $node->safe_psql('postgres', $full) ne 't')
{
	$rounds++;
	claims_go_on("round-$rounds", 200 * $rounds, "round $rounds");
	maintain();
}
is($node->safe_psql('postgres', $full), 't', "after $rounds rounds all segments but the current one are packed and held");
IdemTest::wait_for($node, "SELECT array_agg(DISTINCT (kind, state, held_by)::text ORDER BY (kind, state, held_by)::text) $unfinished",
	'{"(run,merged,snapshot)","(segment,packed,snapshot)"}');
all_remembered('ring full');

my $size = $node->safe_psql('postgres', "SELECT bytes $segments AND state = 'current'");
claims_go_on('grown', 3000, 'ring full');
maintain();
cmp_ok($node->safe_psql('postgres', "SELECT bytes $segments AND state = 'current'"), '>', $size, 'the current segment grows');
is($node->safe_psql('postgres', $full), 't', 'and nothing is emptied');

#
# What the dump reads now.
#
my $file = $node->basedir . '/dump';

command_ok([ 'pg_dump', '-Fc', '-h', $node->host, '-p', $node->port, '-f', $file, '--snapshot', $snapshot, 'postgres' ],
	'dump of the snapshot');
is($dump->query_safe('SELECT count(*) FROM effects'), $seen, 'the snapshot is what it was');

#
# Claims with the snapshot of the dump: what it sees is a duplicate, also where runs have
# it beside what is newer; what is newer is a serialization failure.
#
my @with_snapshot = ('psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=sqlstate', '-d', $node->connstr('postgres'));
my $begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$snapshot'; SELECT feed";

foreach my $prefix (sort keys %fed)
{
	if ($prefix =~ /^(before|open)-/)
	{
		is($node->safe_psql('postgres', "$begin('$prefix', $fed{$prefix}); COMMIT"), "$fed{$prefix} duplicate", "the snapshot sees $prefix");
	}
	else
	{
		command_fails_like([ @with_snapshot, '-c', "$begin('$prefix', 1)" ], qr/40001/, "and not $prefix");
	}
}
$dump->query_safe('COMMIT');
$dump->quit;

$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0');
command_ok([ 'pg_restore', '-e', '-h', $node->host, '-p', $node->port, '-d', 'restored', $file ], 'restore');
is($node->safe_psql('restored', 'SELECT count(*) FROM effects'), $seen, 'restored: the effects of the snapshot');
foreach my $prefix (sort keys %fed)
{
	my $expected = $prefix =~ /^(before|open)-/ ? 'duplicate' : 'claimed';

	is($node->safe_psql('restored', "BEGIN; SELECT feed('$prefix', $fed{$prefix}); ROLLBACK"),
		"$fed{$prefix} $expected", "restored: $prefix");
}

#
# The dump has ended: nothing is held any more.  A call empties what it can; what it packs
# is emptied by the next one.
#
IdemTest::wait_for($node, "SELECT idempotency.claims_maintain(); SELECT count(*) = 0 $unfinished", "t\nt");
is($node->safe_psql('postgres', "SELECT count(*) $segments AND state = 'empty'"), '7', 'the ring is empty again');
all_remembered('after the dump');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM effects'),
	eval { my $n = 0; $n += $_ foreach values %fed; $n }, 'each event had one effect');

$node->stop;
done_testing();
