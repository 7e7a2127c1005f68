
# Copyright (c) 2026, the idempotency developers

# What was packed survives dump and restore: into another database, into another
# cluster, and into a store in use.  A dump has the ids of just the transactions that
# its snapshot sees, whatever is packed, merged and emptied meanwhile.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = <<'END';
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
idempotency.uncompleted_claims = keep
max_connections = 40
END
my $functions = <<'SQL';
CREATE FUNCTION feed(prefix text, n int) RETURNS void LANGUAGE sql AS $$
	SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c');
	SELECT idempotency.complete_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c',
		results => ARRAY(SELECT CASE WHEN i % 10 = 0 THEN to_jsonb(prefix || i) END FROM generate_series(1, n) i));
$$;
CREATE FUNCTION verdicts(prefix text, n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told text;
BEGIN
	SELECT string_agg(DISTINCT result::text, ' ') INTO told
	FROM idempotency.claim_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c');
	RAISE EXCEPTION USING MESSAGE = 'undo: ' || told;
EXCEPTION WHEN raise_exception THEN
	RETURN substr(SQLERRM, 7);
END
$$;
CREATE FUNCTION results(prefix text, n int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM generate_series(1, n) i WHERE idempotency.event_result(prefix || i, 'c') = to_jsonb(prefix || i);
$$;
SQL
my $runs = q{SELECT count(*), coalesce(max(level), -1) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND state = 'searched'};

sub make_database
{
	my ($node, $db) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	IdemTest::create_extension($node, $db);
	$node->safe_psql($db, $functions);
	return;
}

# Pack all there is: what a call copies, a later one empties.
sub maintain
{
	my ($node, $db) = @_;

	is($node->safe_psql($db, 'SELECT idempotency.claims_maintain()'), 't', "$db is packed") for 1 .. 2;
	return;
}

# Twenty segments, each packed on its own, so that runs are merged.
sub grow
{
	my ($node, $db, $prefix) = @_;

	$node->safe_psql($db, join '', map { "SELECT feed('$prefix-$_-', 200);\nSELECT idempotency.claims_maintain();\n" } 1 .. 20);
	return;
}

# All of these are remembered, with their results.
sub remembers
{
	my ($node, $db, $prefix, $name) = @_;

	is( $node->safe_psql($db, "SELECT string_agg(DISTINCT verdicts('$prefix-' || i || '-', 200), ', ') FROM generate_series(1, 20) i"),
		'duplicate', "$name: every event is a duplicate");
	is( $node->safe_psql($db, "SELECT sum(results('$prefix-' || i || '-', 200)) FROM generate_series(1, 20) i"),
		'400', "$name: with its result");
	return;
}

sub others
{
	my ($node, $db, $name) = @_;

	is($node->safe_psql($db, "SELECT verdicts('never-', 500)"), 'claimed', "$name: no other event is remembered");
	is( $node->safe_psql($db, q{SELECT id, (idempotency.event_status(id, 'c')).status FROM unnest('{kept,forgotten,anew}'::text[]) id}),
		"kept|processing\nforgotten|unknown\nanew|completed", "$name: kept, forgotten, and claimed anew");
	return;
}

sub dump_of
{
	my ($node, $db, $name, @options) = @_;
	my $file = $node->basedir . "/$name";

	command_ok([ 'pg_dump', '-Fc', '-h', $node->host, '-p', $node->port, '-f', $file, @options, $db ], "dump: $name");
	return $file;
}

sub restore_to
{
	my ($node, $db, $file, $name, @options) = @_;

	command_ok([ 'pg_restore', '-e', '-h', $node->host, '-p', $node->port, '-d', $db, @options, $file ], "restore: $name");
	return;
}

my $node = IdemTest::cluster('main', conf => $conf, extension => 0);
my $other = IdemTest::cluster('other', conf => $conf, extension => 0);

make_database($node, 'source');
$node->safe_psql('source', <<'SQL');
SELECT idempotency.claim_event('kept', 'c');
SELECT idempotency.claim_event('forgotten', 'c'), idempotency.complete_event('forgotten', 'c');
SELECT idempotency.claim_event('anew', 'c'), idempotency.complete_event('anew', 'c');
SQL
$node->safe_psql('source', 'SELECT idempotency.claims_maintain()');
$node->safe_psql('source', <<'SQL');
SELECT idempotency.forget_event('forgotten', 'c'), idempotency.forget_event('anew', 'c');
SELECT idempotency.claim_event('anew', 'c'), idempotency.complete_event('anew', 'c');
SQL
grow($node, 'source', 'a');
like($node->safe_psql('source', $runs), qr/\|1$/, 'runs were merged');
remembers($node, 'source', 'a', 'source');
others($node, 'source', 'source');

#
# A snapshot, then claims, packing and merging, and then the dump of that snapshot.
#
my $session = $node->background_psql('source');
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
my $snapshot = $session->query_safe('SELECT pg_export_snapshot()');
chomp $snapshot;
grow($node, 'source', 'b');
maintain($node, 'source');
my $early = dump_of($node, 'source', 'early', '--snapshot', $snapshot);
$session->query_safe('COMMIT');
$session->quit;
maintain($node, 'source');
my $late = dump_of($node, 'source', 'late');
remembers($node, 'source', $_, 'source, later') for 'a', 'b';

for my $target ([ $node, 'same cluster' ], [ $other, 'other cluster' ])
{
	my ($to, $name) = @$target;

	$to->safe_psql('postgres', "CREATE DATABASE $_ TEMPLATE template0") for 'early', 'late';
	restore_to($to, 'early', $early, "$name, early");
	restore_to($to, 'late', $late, "$name, late", '--jobs=2');
	# who only asks seals no state
	is($to->safe_psql($_, "SELECT sum(results('a-' || i || '-', 200)) FROM generate_series(1, 20) i"),
		'400', "$name, $_: results before the first claim") for 'early', 'late';
	for my $round ('as it came', 'packed again')
	{
		remembers($to, 'early', 'a', "$name, early, $round");
		others($to, 'early', "$name, early, $round");
		is( $to->safe_psql('early', "SELECT string_agg(DISTINCT verdicts('b-' || i || '-', 200), ', ') FROM generate_series(1, 20) i"),
			'claimed', "$name, early, $round: nothing that the snapshot did not see");
		remembers($to, 'late', $_, "$name, late, $round") for 'a', 'b';
		others($to, 'late', "$name, late, $round");
		next if $round ne 'as it came';

		# new claims make segments and runs beside the restored ones
		$to->safe_psql($_, "SELECT feed('new-', 600)") for 'early', 'late';
		maintain($to, $_) for 'early', 'late';
	}
	is($to->safe_psql($_, "SELECT verdicts('new-', 600)"), 'duplicate', "$name, $_: new claims") for 'early', 'late';
}

#
# The rows of a dump into a store in use, twice.
#
make_database($other, 'used');
grow($other, 'used', 'u');
for my $round (1, 2)
{
	# segments have primary keys, so their rows cannot come twice
	my @segments = map { "store_segment_$_" } $round == 1 ? 0 .. 7 : ();
	my @slots = map { "store_slot_$_" } 0 .. 47;

	restore_to($other, 'used', $late, "into a store in use, $round", '--data-only', map { ('-t', $_) } @segments, @slots);
	remembers($other, 'used', $_, "into a store in use, $round") for 'a', 'b', 'u';
	maintain($other, 'used');
	grow($other, 'used', "more$round");
	remembers($other, 'used', $_, "into a store in use, $round, packed") for 'a', 'b', 'u', "more$round";
	others($other, 'used', "into a store in use, $round");
}

#
# A restore into a store in use that commits row by row.  When nothing but the last end
# mark of a slot is left, others claim, and the store packs, merges and empties.
#
make_database($other, 'slow');
my ($inserts) = run_command([ 'pg_dump', '--data-only', '--inserts', '-h', $node->host, '-p', $node->port, 'source' ]);
my @rows = grep { /^INSERT INTO idempotency_data\.store_s/ } split /^/, $inserts;
my $mark = qr/^INSERT INTO idempotency_data\.(store_slot_\d+) .*'00000000-0000-0000-0000-000000000000', 0,/;
my %marks;
for my $i (grep { $rows[$_] =~ $mark } 0 .. $#rows)
{
	push @{ $marks{$1} }, $i if $rows[$i] =~ $mark;
}
my ($slot) = sort { @{ $marks{$b} } <=> @{ $marks{$a} } } sort keys %marks;
my $last = $marks{$slot}[-1];
like($rows[ $last - 1 ], qr/\.$slot /, 'the end mark comes after the other rows of its run');
unlike($rows[ $last + 1 ] // '', qr/\.$slot /, 'and last');
$other->safe_psql('slow', join '', @rows[ 0 .. $last - 1 ]);
is( $other->safe_psql('slow', "SELECT DISTINCT held_by FROM idempotency.stat_claim_segments WHERE 'store_slot_' || slot = '$slot'"),
	'restore', 'the rest of its slot waits');
grow($other, 'slow', 'beside');
maintain($other, 'slow');
$other->safe_psql('slow', join '', @rows[ $last .. $#rows ]);
for my $round ('as it came', 'packed again')
{
	remembers($other, 'slow', $_, "row by row, $round") for 'a', 'b', 'beside';
	others($other, 'slow', "row by row, $round");
	maintain($other, 'slow') if $round eq 'as it came';
}

#
# The same ids twice: as the runs of an early dump, and in the run of a late one that those
# runs were merged into.  A dump begins in between.  It sees the former only.
#
make_database($node, 'small');
sub feed_runs
{
	my ($from, $to) = @_;

	# A claim that finds its segment full starts a packer, which could close it before the rest of the claims is there.
	$node->safe_psql('small', "SET idempotency.claim_segment_size = '1GB';\n"
		  . join '', map { "SELECT feed('s-$_-', 200);\nSELECT idempotency.claims_maintain();\n" } $from .. $to);
	IdemTest::wait_for($node, q{SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT FROM idempotency.stat_claim_segments
		WHERE state NOT IN ('current', 'empty', 'searched'))}, undef, 'small');
	return;
}
sub small_remembered
{
	my ($db, $name) = @_;

	is($other->safe_psql($db, "SELECT string_agg(DISTINCT verdicts('s-' || i || '-', 200), ', ') FROM generate_series(1, 10) i"),
		'duplicate', "$name: what was remembered before");
	return;
}
my @slots = map { ('-t', "store_slot_$_") } 0 .. 47;

feed_runs(1, 10);
is($node->safe_psql('small', $runs), '10|0', 'ten runs');
my $unmerged = dump_of($node, 'small', 'unmerged');
feed_runs(11, 16);
is($node->safe_psql('small', $runs), '1|1', 'sixteen runs were merged');
my $merged = dump_of($node, 'small', 'merged');
make_database($other, 'twice');
restore_to($other, 'twice', $unmerged, 'runs', '--data-only', @slots);
$session = $other->background_psql('twice');
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$snapshot = $session->query_safe('SELECT pg_export_snapshot()');
chomp $snapshot;
restore_to($other, 'twice', $merged, 'the run that they were merged into', '--data-only', @slots);
maintain($other, 'twice');
my $between = $other->basedir . '/between';
command_ok([ 'pg_dump', '-Fc', '-h', $other->host, '-p', $other->port, '-f', $between, '--snapshot', $snapshot, 'twice' ],
	'dump: between the two');
$session->query_safe('COMMIT');
$session->quit;
$other->safe_psql('postgres', 'CREATE DATABASE between TEMPLATE template0');
restore_to($other, 'between', $between, 'between the two');
small_remembered($_, "restored twice: $_") for 'twice', 'between';

#
# The run once more, row by row, and its end mark first: the former runs stay, and claims go on.
#
make_database($other, 'backwards');
restore_to($other, 'backwards', $unmerged, 'runs', '--data-only', @slots);
($inserts) = run_command([ 'pg_dump', '--data-only', '--inserts', '-h', $node->host, '-p', $node->port, 'small' ]);
@rows = grep { /^INSERT INTO idempotency_data\.store_slot/ } split /^/, $inserts;
@rows = ((grep { $_ =~ $mark } @rows), (grep { $_ !~ $mark } @rows));
like($rows[0], $mark, 'the end mark');
unlike($rows[1], $mark, 'of the only run');
my $now = q{SELECT state, held_by, count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1, 2 ORDER BY 1, 2};
for my $part ([ 0, 0 ], [ 1, $#rows - 1 ])
{
	$other->safe_psql('backwards', join '', @rows[ $part->[0] .. $part->[1] ]);
	maintain($other, 'backwards');
	is($other->safe_psql('backwards', $now), "searched||10\nunfinished|restore|1", "rows to $part->[1]: what is there");
	small_remembered('backwards', "rows to $part->[1]");
	is($other->safe_psql('backwards', "SELECT verdicts('never-', 10)"), 'claimed', "rows to $part->[1]: others can be claimed");
}
$other->safe_psql('backwards', $rows[-1]);
maintain($other, 'backwards');
is($other->safe_psql('backwards', $now), 'searched||11', 'all rows are there');
is($other->safe_psql('backwards', "SELECT string_agg(DISTINCT verdicts('s-' || i || '-', 200), ', ') FROM generate_series(1, 16) i"),
	'duplicate', 'and every id is remembered');

#
# Transaction ids go back behind those that packed: the dump has what they packed, and the
# store empties what is packed.
#
for my $epoch (1, 0)
{
	$node->stop;
	system_or_bail('pg_resetwal', '-e', $epoch, '-D', $node->data_dir);
	$node->start;
	$node->safe_psql('source', "SELECT feed('epoch-$epoch-', 200)");
	$node->safe_psql('source', 'SELECT idempotency.claims_maintain()');
}
IdemTest::wait_for($node, q{SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT FROM idempotency.stat_claim_segments
	WHERE state NOT IN ('current', 'empty', 'searched'))}, undef, 'source');
$other->safe_psql('postgres', 'CREATE DATABASE back TEMPLATE template0');
restore_to($other, 'back', dump_of($node, 'source', 'back'), 'ids went back');
remembers($other, 'back', $_, 'ids went back') for 'a', 'b';
is($other->safe_psql('back', "SELECT verdicts('epoch-1-', 200), verdicts('epoch-0-', 200)"), 'duplicate|duplicate', 'ids went back: before and after');
others($other, 'back', 'ids went back');

$node->stop;
$other->stop;
done_testing();
