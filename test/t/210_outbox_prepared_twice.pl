
# Copyright (c) 2026, the idempotency developers

# A transaction that is being prepared runs in two processes until PREPARE has
# its standby.  A snapshot of that moment names it once, so its events are read
# once when it commits.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1);
my $asynchronous = 'SET synchronous_commit = local;';

IdemOutbox::create_functions($node);
$node->safe_psql('postgres', q{
CREATE TABLE taken (at text, snapshot pg_snapshot);
ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$node->reload;

sub wait_for_standby
{
	my ($pid) = @_;

	IdemTest::wait_for($node, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# The checkpointer tells the others of the setting, so a commit has to show it.
my $probe = $node->background_psql('postgres', on_error_stop => 0);
my $probe_pid = $probe->query_safe('SELECT pg_backend_pid()');
$probe->query_until(qr/go/, <<'END');
\echo go
DO $$ BEGIN WHILE to_regclass('done') IS NULL LOOP DELETE FROM taken; INSERT INTO taken VALUES ('probe'); COMMIT; END LOOP; END $$;
END
wait_for_standby($probe_pid);

my $writer = $node->background_psql('postgres');
my $pid = $writer->query_safe('SELECT pg_backend_pid()');
$writer->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('t', 'a', 'E', '1')});
$writer->query_until(qr/go/, <<'END');
\echo go
PREPARE TRANSACTION 'writer';
END
wait_for_standby($pid);

# A snapshot lists what runs before the last one that ended.
$node->safe_psql('postgres', "$asynchronous CREATE TABLE later ()");
$node->safe_psql('postgres', "$asynchronous INSERT INTO taken SELECT 'preparing', t.snapshot()");
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_prepared_xacts"), 1, 'it was prepared');
is( $node->safe_psql('postgres', "SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = $pid"),
	't', 'and runs in its first process, too');

$node->safe_psql('postgres', "$asynchronous CREATE TABLE done ()");
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
$_->quit foreach ($writer, $probe);
$node->safe_psql('postgres', q{COMMIT PREPARED 'writer'});
is( $node->safe_psql('postgres', q{
		SELECT string_agg(r.aggregate_id, ',' ORDER BY r.seq)
		FROM taken, t.read(snapshot, t.snapshot(), 0, 10) r WHERE at = 'preparing'}),
	'a', 'its event is read once');
$node->stop;
done_testing();
