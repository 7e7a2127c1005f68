
# Copyright (c) 2026, the idempotency developers

# A standby refuses claims before it locks anything, reads results, and takes
# over with everything that was completed.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $primary = IdemTest::cluster('primary', allows_streaming => 1);
$primary->safe_psql('postgres',
	q{SELECT idempotency.claim_event('done'), idempotency.complete_event('done', result => '1')});
$primary->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'b', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

foreach my $call (
	q{claim_event('e')}, q{claim_event('done')},
	q{claim_event('e', wait => '1 h')}, q{claim_events('{e}')},
	q{complete_event('e')}, q{complete_events('{e}')},
	q{release_event('e')})
{
	my ($name) = $call =~ /^(\w+)/;
	my ($ret, $out, $err) = $standby->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT idempotency.$call");
	like($err, qr/ERROR:  25006: cannot execute $name\(\) during recovery/, "refused: $call");
}

# Even in a transaction that goes on: no lock was taken before the refusal
is( $standby->safe_psql('postgres', <<'SQL'),
DO $$
BEGIN
	PERFORM idempotency.claim_event('e');
EXCEPTION WHEN read_only_sql_transaction THEN
	NULL;
END
$$;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
SQL
	'0',
	'no lock was taken');

is($standby->safe_psql('postgres', q{SELECT idempotency.event_result('done')}),
	'1', 'results are read on a standby');
is($standby->safe_psql('postgres', q{SELECT status FROM unnest('{done,never}'::text[]) id, idempotency.event_status(id)}),
	"completed\nunknown", 'and what is remembered');
is($standby->safe_psql('postgres', q{SELECT event_id, status FROM idempotency.processed_events}),
	'done|completed', 'and so is the view');
is($standby->safe_psql('postgres', q{SELECT idempotency.lock_key('evt-1')}),
	'8881273919641520361', 'and lock keys are computed');

$primary->stop;
$standby->promote;
is($standby->safe_psql('postgres', q{SELECT idempotency.claim_event('done')}),
	'duplicate', 'the promoted standby knows what was completed');
is( $standby->safe_psql('postgres',
		q{SELECT idempotency.claim_event('e'), idempotency.complete_event('e')}),
	'claimed|',
	'and claims');
$standby->stop;
done_testing();
