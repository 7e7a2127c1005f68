
# Copyright (c) 2026, the idempotency developers

# A claim that waits: until the other commits, rolls back or gives up, whether
# it holds the lock or wrote a row; not longer than it was told, and not if it
# is cancelled.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');
my $holder = $node->background_psql('postgres', on_error_stop => 0);
my $waiter = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $waiter->query('SELECT pg_backend_pid()');
my $n = 0;

# The holder claims a new event, the waiter waits for it, the holder ends.
sub wait_while
{
	my ($isolation, $budget, @end) = @_;
	my $id = 'e' . ++$n;

	$holder->query("SET idempotency.max_claim_locks = $budget");
	$holder->query('BEGIN');
	is($holder->query("SELECT idempotency.claim_event('$id')"), 'claimed', "$id is held");
	$waiter->query("BEGIN ISOLATION LEVEL $isolation; SELECT");
	$waiter->query_until(qr/go/,
		"\\echo go\nSELECT idempotency.claim_event('$id', wait => '1 hour');\n");
	IdemTest::wait_for($node,
		"SELECT state = 'active' AND wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid");
	foreach my $statement (@end)
	{
		(my $sql = $statement) =~ s/\bID\b/'$id'/g;
		if ($sql eq 'cancel') { $node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)"); }
		else { $holder->query($sql); }
	}
	my $answer = $waiter->query('\echo :SQLSTATE');
	$waiter->query('ROLLBACK');
	$holder->query('ROLLBACK');
	return $answer;
}

my @complete = ('SELECT idempotency.complete_event(ID)', 'COMMIT');
foreach my $budget (-1, 0)
{
	like(wait_while('READ COMMITTED', $budget, @complete), qr/^duplicate\b/, "told of the commit, budget $budget");
	like(wait_while('READ COMMITTED', $budget, 'ROLLBACK'), qr/^claimed\b/, "claims after the rollback, budget $budget");
	like(wait_while('READ COMMITTED', $budget, 'SELECT idempotency.release_event(ID)', 'COMMIT'),
		qr/^claimed\b/, "claims after the release, budget $budget");
	like(wait_while($_, $budget, @complete), qr/^40001\b/m, "$_, budget $budget: a retry is needed")
	  foreach ('REPEATABLE READ', 'SERIALIZABLE');
	like(wait_while('READ COMMITTED', $budget, 'cancel'), qr/^57014\b/m, "cancelled, budget $budget");
}
$waiter->quit;

# Not longer than told, and busy then
$holder->query('BEGIN');
is($holder->query("SELECT idempotency.claim_event('held')"), 'claimed', 'held');
is( $node->safe_psql('postgres', <<'END'),
BEGIN;
SELECT clock_timestamp() AS start \gset
SELECT idempotency.claim_event('held', wait => '200 ms');
SELECT clock_timestamp() - :'start' >= interval '200 ms';
END
	"busy\nt", 'waits as long as told');
is($node->safe_psql('postgres', q{SELECT idempotency.claim_event('held', wait => '1 us')}),
	'busy', 'the least wait');
$holder->quit;
$node->stop;
done_testing();
