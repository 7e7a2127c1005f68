
# Copyright (c) 2026, the idempotency developers

# In a database that never leased an event, claims leave the log of leases alone.  The
# first lease, and rows that are restored, end that at once.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

# What the cell says: no number was drawn here, the rows are from elsewhere, or numbers were drawn.
sub cell
{
	my ($database) = @_;

	return $node->safe_psql($database, q{SELECT CASE WHEN log_cnt >= 0 THEN 'unsettled' WHEN NOT is_called THEN 'unused'
		WHEN last_value = 1 THEN 'from elsewhere' ELSE 'used' END FROM idempotency_data.lease_identity});
}

sub claim
{
	my ($database, $event) = @_;

	return $node->safe_psql($database, "BEGIN; SELECT idempotency.claim_event('$event', 'mail'); ROLLBACK");
}

sub make
{
	my ($database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	IdemTest::create_extension($node, $database);
	return;
}

sub restore
{
	my ($database, $dump, @options) = @_;

	$node->command_ok([ 'pg_restore', @options, '-d', $node->connstr($database), $dump ], "restore @options into $database");
	return;
}

make('source');
is(cell('source'), 'unsettled', 'a new database');
$node->safe_psql('source', q{SELECT idempotency.consumer_create('mail', max_attempts => 1)});
is(claim('source', 'a'), 'claimed', 'its first claim');
is(cell('source'), 'unused', 'settles that nothing was leased');
$node->safe_psql('source', q{SELECT idempotency.claim_event('b', 'mail'), idempotency.complete_event('b', 'mail')});
is(cell('source'), 'unused', 'a completion changes nothing');

# Each claim asks anew, and a lease that is open counts.
my $claimer = $node->background_psql('source');
$claimer->query_safe(q{BEGIN; SELECT idempotency.claim_event('c', 'mail')});
my $holder = $node->background_psql('source');
$holder->query_safe(q{BEGIN; SELECT idempotency.lease_event('leased', 'mail')});
is(cell('source'), 'used', 'the first lease changes that before it is committed');
is(claim('source', 'leased'), 'busy', 'the event is locked');
$holder->query_safe('COMMIT');
is($claimer->query_safe(q{SELECT idempotency.claim_event('leased', 'mail')}), 'busy', 'and leased, for a transaction that began before, too');
$claimer->query_safe('ROLLBACK');
$_->quit foreach $claimer, $holder;

$node->safe_psql('source', q{
	SELECT idempotency.release_lease('dead', token, 'mail', error => 'cannot') FROM idempotency.lease_event('dead', 'mail')});
is(claim('source', 'dead'), 'dead', 'an event that has failed');
my $dump = $node->basedir . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('source') ], 'dump');

# Restored as a whole, into a database without claims, and into one where claims have settled the cell.
$node->safe_psql('postgres', 'CREATE DATABASE whole');
restore('whole', $dump);
make('rows_only');
restore('rows_only', $dump, '--data-only');
make('claimed_before');
$node->safe_psql('claimed_before', q{SELECT idempotency.claim_event('x'), idempotency.complete_event('x')});
is(cell('claimed_before'), 'unused', 'claims before the restore');
restore('claimed_before', $dump, '--data-only');
foreach my $database ('whole', 'rows_only', 'claimed_before')
{
	is(cell($database), 'unsettled', "$database: not known after the restore");
	is(claim($database, 'dead'), 'dead', "$database: the event stays dead");
	is(claim($database, 'leased'), 'busy', "$database: and the other one leased");
	is(cell($database), 'from elsewhere', "$database: settled that there are rows");
	is(claim($database, 'dead'), 'dead', "$database: dead for the next claim as well");
	$node->safe_psql($database, q{SELECT idempotency.lease_event('new', 'mail')});
	is(cell($database), 'used', "$database: the first lease");
}

# While rows are being restored, nothing is known; when they are rolled back, it is found out again.
make('rolled_back');
my $restorer = $node->background_psql('rolled_back');
$restorer->query_safe(q{BEGIN; INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, at) SELECT 1, md5('x')::uuid, 's', 'f', now()});
is(claim('rolled_back', 'a'), 'claimed', 'a claim beside a restore');
is(cell('rolled_back'), 'from elsewhere', 'rows that are not committed count');
$restorer->query_safe('ROLLBACK');
$restorer->quit;
is(claim('rolled_back', 'a'), 'claimed', 'a claim after it');

# An event is claimed while its first lease, the first of the database, is being taken.
make('waiting');
claim('waiting', 'a');
$holder = $node->background_psql('waiting');
$holder->query_safe(q{BEGIN; SELECT idempotency.lease_event('e')});
my $waiter = $node->background_psql('waiting');
$waiter->query_until(qr/started/, q{
\echo started
BEGIN;
SELECT idempotency.claim_event('e', wait => '3 s') AS verdict \gset
\echo verdict :verdict
});
$node->poll_query_until('waiting', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%wait =>%' AND pid <> pg_backend_pid() AND wait_event = 'Extension'})
	or die 'nobody waits';
$holder->query_safe('COMMIT');
like($waiter->query_until(qr/verdict \w+/, ''), qr/verdict busy/, 'leased, says a claim that has waited meanwhile');
$_->quit foreach $waiter, $holder;

$node->stop;
done_testing();
