
# Copyright (c) 2026, the idempotency developers

# A standby knows what was packed, and takes over with it.  An old snapshot on a
# standby of which the primary is not told gets an error, not a wrong answer.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = <<'END';
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
hot_standby_feedback = off
max_standby_streaming_delay = -1
END
my $primary = IdemTest::cluster('primary', allows_streaming => 1, conf => $conf);

# Claims that start no packer by themselves
sub feed
{
	my ($node, $prefix) = @_;

	$node->safe_psql('postgres', <<"SQL");
SET idempotency.store_maintenance = off;
BEGIN;
SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT '$prefix' || i FROM generate_series(1, 200) i));
SELECT idempotency.complete_events(ARRAY(SELECT '$prefix' || i FROM generate_series(1, 200) i),
	results => ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 200) i));
COMMIT;
SQL
	return;
}

sub maintain
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'SELECT idempotency.claims_maintain()') for 1 .. 3;
	return;
}

sub caught_up
{
	my ($standby) = @_;

	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	return;
}

my $asked = q{SELECT count(*) FROM generate_series(1, 200) i WHERE idempotency.event_result('%s' || i) = to_jsonb(i)};

$primary->safe_psql('postgres', <<'SQL');
CREATE FUNCTION asked(id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (idempotency.event_status(id)).status;
EXCEPTION WHEN serialization_failure THEN
	RETURN 'retry';
END
$$
SQL
feed($primary, 'packed-');
maintain($primary);

# A transaction that is older than the open events, so that the snapshot cannot know
# by the xids of a run that it sees all of it
my $writer = $primary->background_psql('postgres');
$writer->query_safe('BEGIN');
$writer->query_safe('SELECT pg_current_xact_id()');
feed($primary, 'open-');
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
caught_up($standby);
is($standby->safe_psql('postgres', sprintf $asked, $_), '200', "$_: all results are read on the standby") for 'packed-', 'open-';
is($standby->safe_psql('postgres', q{SELECT status FROM idempotency.event_status('never')}), 'unknown', 'and nothing else is there');

# The snapshot sees the open events; then the primary packs them and empties the segment
my $old = $standby->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($old->query_safe(q{SELECT status FROM idempotency.event_status('open-1')}), 'completed', 'an old snapshot finds an event');
$writer->query_safe('COMMIT');
$writer->quit;
maintain($primary);
is( $primary->safe_psql('postgres', q{SELECT string_agg(DISTINCT state, ' ') FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND entries > 0}),
	'', 'its segment is emptied');
caught_up($standby);
is($old->query_safe(q{SELECT status FROM idempotency.event_status('never')}), 'unknown', 'what never was is unknown to the old snapshot');
is($old->query_safe(q{SELECT asked('open-1')}), 'retry', 'but what was packed is an error that asks for a retry');
$old->query_safe('ROLLBACK');
is($old->query_safe(q{SELECT status FROM idempotency.event_status('open-1')}), 'completed', 'a new snapshot finds it');
$old->quit;

# Promoted between packing and emptying, or anywhere else
feed($primary, 'last-');
$primary->safe_psql('postgres', 'SELECT idempotency.claims_maintain()');
caught_up($standby);
$primary->stop('immediate');
$standby->promote;
is($standby->safe_psql('postgres', sprintf $asked, $_), '200', "$_: all results are read after the promotion") for 'packed-', 'open-', 'last-';
for my $round ('promoted', 'packed after that')
{
	is( $standby->safe_psql('postgres', <<"SQL"),
SELECT result, count(*) FROM unnest('{packed-,open-,last-}'::text[]) prefix,
	idempotency.claim_events(ARRAY(SELECT prefix || i FROM generate_series(1, 200) i)) GROUP BY 1;
SQL
		'duplicate|600', "$round: every event is a duplicate");
	feed($standby, 'new-') if $round eq 'promoted';
	maintain($standby);
}
is($standby->safe_psql('postgres', sprintf $asked, 'new-'), '200', 'new claims are packed with the others');

$standby->stop;
done_testing();
