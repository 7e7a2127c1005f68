
# Copyright (c) 2026, the idempotency developers

# pg_upgrade, in the matrix from the major version before, of a store in all its
# states: runs of two levels, a merged slot and a packed segment that an old snapshot
# kept, a closed segment, claims that were kept, orders to forget.  The state arrives
# without its seal, and the next claim seals it; every answer is as before; packing
# and merging go on.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my %like = (
	extra => ['--data-checksums'],
	conf => <<'END');
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
autovacuum = off
END
my $old = IdemTest::cluster('old', old => 1, %like);

$old->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
CREATE FUNCTION ids(prefix text) RETURNS text[] LANGUAGE sql AS
	$$ SELECT array_agg(prefix || i) FROM generate_series(1, 100) i $$;
-- Every tenth has a result
CREATE FUNCTION feed(prefix text) RETURNS void LANGUAGE sql AS $$
	SELECT count(*) FROM idempotency.claim_events(ids(prefix), 'c');
	SELECT idempotency.complete_events(ids(prefix), 'c',
		results => ARRAY(SELECT CASE WHEN i % 10 = 0 THEN to_jsonb(prefix || i) END FROM generate_series(1, 100) i));
$$;
CREATE FUNCTION keep(prefix text) RETURNS void LANGUAGE sql AS $$
	SELECT set_config('idempotency.uncompleted_claims', 'keep', true);
	SELECT idempotency.claim_event(prefix || 'kept', 'c'), idempotency.claim_event(prefix || 'taken', 'c');
$$;
-- What is claimed here is given up
CREATE FUNCTION verdicts(ids text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told text;
BEGIN
	SELECT string_agg(DISTINCT result::text, ' ') INTO told FROM idempotency.claim_events(ids, 'c');
	RAISE EXCEPTION USING MESSAGE = 'undo: ' || told;
EXCEPTION WHEN raise_exception THEN
	RETURN substr(SQLERRM, 7);
END
$$;
CREATE FUNCTION results(prefix text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM unnest(ids(prefix)) id WHERE idempotency.event_result(id, 'c') = to_jsonb(id) $$;
SQL
my $segments = q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state)
	FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND state <> 'empty'};
my $runs = q{SELECT string_agg(DISTINCT state || ' ' || level, ', ' ORDER BY state || ' ' || level)
	FROM idempotency.stat_claim_segments WHERE kind = 'run'};

sub maintain
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()') eq 't' or die 'no packer could be had';
	return;
}

my @prefixes;

# Events in a transaction of their own
sub feed
{
	my ($node, $prefix) = @_;

	$node->safe_psql('postgres', "SET idempotency.store_maintenance = off; SELECT feed('$prefix')");
	push @prefixes, $prefix;
	return;
}

# Twenty segments, each packed on its own if nothing holds it, so that runs are merged
sub grow
{
	my ($node, $name) = @_;

	for my $i (1 .. 20)
	{
		feed($node, "$name-$i-");
		maintain($node);
	}
	return;
}

# What is remembered of every event
sub answers
{
	my ($node, $name, @places) = @_;
	my $prefixes = join ',', @prefixes;

	is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT verdicts(ids(prefix)), ' ') FROM unnest('{$prefixes}'::text[]) prefix"),
		'duplicate', "$name: " . @prefixes . ' times a hundred events are duplicates');
	is($node->safe_psql('postgres', "SELECT sum(results(prefix)) FROM unnest('{$prefixes}'::text[]) prefix"),
		10 * @prefixes, "$name: with their results");
	for my $place (@places)
	{
		is($node->safe_psql('postgres', "SELECT verdicts('{$place-forgotten}')"), 'claimed', "$name: forgotten, $place");
		is($node->safe_psql('postgres', "SELECT status FROM idempotency.event_status('$place-kept', 'c')"),
			'processing', "$name: a claim that was kept, $place");
		is($node->safe_psql('postgres', "SELECT verdicts('{$place-kept}')"), 'claimed', "$name: is taken over");
	}
	is($node->safe_psql('postgres', "SELECT verdicts(ids('never-'))"), 'claimed', "$name: nothing else is remembered");
	return;
}

# A kept claim, and an event that is completed, packed with these and forgotten
sub specials
{
	my ($node, $place, $between) = @_;

	$node->safe_psql('postgres', <<"SQL");
SET idempotency.store_maintenance = off;
SELECT keep('$place-');
SELECT idempotency.claim_event('$place-forgotten', 'c'), idempotency.complete_event('$place-forgotten', 'c');
SQL
	maintain($node) if $between;
	$node->safe_psql('postgres', "SET idempotency.store_maintenance = off; SELECT idempotency.forget_event('$place-forgotten', 'c')");
	return;
}

sub clean
{
	my ($node, $name) = @_;

	is( $node->safe_psql('postgres', <<'SQL'), '', "$name: amcheck finds nothing");
SELECT format('%s: %s', c.oid::regclass, v)
FROM pg_class AS c, LATERAL verify_heapam(c.oid::regclass) AS v
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^store_'
SQL
	$node->safe_psql('postgres', <<'SQL');
SELECT bt_index_check(i.indexrelid, true)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_'
SQL
	return;
}

# Of all kinds, in runs
specials($old, 'run', 1);
grow($old, 'a');
# A slot is nearly full of runs, and a snapshot keeps what is merged and packed after it
for my $i (1 .. 50)
{
	last if $old->safe_psql('postgres', q{SELECT count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND level = 0}) == 14;
	feed($old, "n-$i-");
	maintain($old);
}
my $snapshot = $old->background_psql('postgres');
$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
grow($old, 'b');
specials($old, 'segment');
# A writer keeps its segment from being packed after that segment was closed.  Segments
# that are held make the next ones larger.
my $writer = $old->background_psql('postgres');
$writer->query_safe(q{BEGIN; SELECT idempotency.claim_event('lost', 'c'), idempotency.complete_event('lost', 'c')});
for my $i (1 .. 200)
{
	feed($old, "c-$i-");
	maintain($old);
	last if $old->safe_psql('postgres', $segments) =~ /closed/;
}
feed($old, 'current-');
is($old->safe_psql('postgres', $segments), 'closed current packed', 'segments in all states');
is($old->safe_psql('postgres', $runs), 'merged 0, searched 0, searched 1', 'runs in all states');
answers($old, 'before', 'run', 'segment');
$old->append_conf('postgresql.conf', "idempotency.store_maintenance = off\n");
$_->quit for $writer, $snapshot;
$old->stop;

my $new = IdemTest::upgraded($old, 'new', %like);
$new->append_conf('postgresql.conf', "idempotency.store_maintenance = off\n");
$new->start;
$new->safe_psql('postgres', q{CREATE FUNCTION store_state() RETURNS text LANGUAGE c AS 'idempotency_test', 'idem_test_store_get_fn'});
like($new->safe_psql('postgres', 'SELECT store_state()'), qr/^current \d, not probed:, not sealed$/, 'the state comes without its seal');
is($new->safe_psql('postgres', q{SELECT status, (SELECT status FROM idempotency.event_status('run-forgotten', 'c')) FROM idempotency.event_status('a-7-7', 'c')}),
	'completed|unknown', 'a look-up needs no seal');
like($new->safe_psql('postgres', 'SELECT store_state()'), qr/, not sealed$/, 'and makes none');
is($new->safe_psql('postgres', q{SELECT verdicts('{a-7-7}')}), 'duplicate', 'a claim needs none either');
like($new->safe_psql('postgres', 'SELECT store_state()'), qr/ \d, sealed$/, 'and seals the state');
answers($new, 'upgraded', 'run', 'segment');
is($new->safe_psql('postgres', q{SELECT verdicts('{lost}')}), 'claimed', 'an event that was not committed');
clean($new, 'upgraded');

$new->append_conf('postgresql.conf', "idempotency.store_maintenance = on\n");
$new->reload;
IdemTest::wait_for($new, 'SHOW idempotency.store_maintenance', 'on');
# A claim that was kept is completed after the upgrade, and one that was forgotten
$new->safe_psql('postgres', <<'SQL');
SELECT idempotency.claim_event('run-taken', 'c'), idempotency.complete_event('run-taken', 'c', '"done"');
SELECT idempotency.claim_event('segment-taken', 'c'), idempotency.complete_event('segment-taken', 'c', '"done"');
SQL
grow($new, 'd');
grow($new, 'e');
maintain($new) for 1 .. 2;
IdemTest::wait_for($new, q{SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT FROM idempotency.stat_claim_segments
	WHERE state NOT IN ('current', 'empty', 'searched'))});
is($new->safe_psql('postgres', $runs), 'searched 0, searched 1', 'runs were merged, and everything that is old is emptied');
answers($new, 'packed after it', 'run', 'segment');
is($new->safe_psql('postgres', q{SELECT string_agg(idempotency.event_result(p || '-taken', 'c')::text, ' ') FROM unnest('{run,segment}'::text[]) p}),
	'"done" "done"', 'claims that were kept are completed');
clean($new, 'packed after it');
$new->stop;
command_ok([ 'pg_checksums', '--check', '-D', $new->data_dir ], 'all checksums are right');
done_testing();
