
# Copyright (c) 2026, the idempotency developers

# Claims across a crash: of an open transaction nothing is left, of a prepared
# one everything, whether the claim is a lock or a row.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

sub claim
{
	my ($id) = @_;

	return $node->safe_psql('postgres',
		"SET idempotency.uncompleted_claims = keep; BEGIN; SELECT idempotency.claim_event('$id'); ROLLBACK");
}

sub prepare
{
	my ($gid, $id, $budget) = @_;

	$node->safe_psql('postgres', <<"END");
SET idempotency.max_claim_locks = $budget;
BEGIN;
SELECT idempotency.claim_event('$id');
INSERT INTO effects VALUES ('$id');
SELECT idempotency.complete_event('$id', result => '"$gid"');
PREPARE TRANSACTION '$gid';
END
	return;
}

$node->safe_psql('postgres', 'CREATE TABLE effects (event_id text)');
prepare("$_->[0]-commit", "$_->[0]-c", $_->[1]) foreach ([ 'lock', -1 ], [ 'row', 0 ]);
prepare("$_->[0]-abort", "$_->[0]-a", $_->[1]) foreach ([ 'lock', -1 ], [ 'row', 0 ]);

my $open = $node->background_psql('postgres', on_error_stop => 0);
$open->query(q{BEGIN; SELECT idempotency.claim_event('open'); SELECT idempotency.complete_event('open')});
is(claim('open'), 'busy', 'an open claim is busy');

$node->stop('immediate');
$node->start;
eval { $open->quit };

is(claim('open'), 'claimed', 'nothing is left of an open transaction');
is(claim($_), 'busy', "prepared $_ is busy after the crash")
  foreach qw(lock-c row-c lock-a row-a);

$node->safe_psql('postgres', "COMMIT PREPARED '$_-commit'; ROLLBACK PREPARED '$_-abort'")
  foreach qw(lock row);
is(claim($_), 'duplicate', "$_ committed") foreach qw(lock-c row-c);
is(claim($_), 'claimed', "$_ aborted") foreach qw(lock-a row-a);
is( $node->safe_psql('postgres',
		q{SELECT event_id, idempotency.event_result(event_id) FROM effects ORDER BY 1}),
	qq{lock-c|"lock-commit"\nrow-c|"row-commit"},
	'effects and results are those of the committed');

# A backend killed between completion and commit
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query(
	q{BEGIN; SELECT idempotency.claim_event('killed'); INSERT INTO effects VALUES ('killed');
	  SELECT idempotency.complete_event('killed')});
IdemTest::kill9_backend($node, $pid);
eval { $session->quit };
is(claim('killed'), 'claimed', 'nothing is left of a killed backend');

$node->stop;
done_testing();
