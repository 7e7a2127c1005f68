
# Copyright (c) 2026, the idempotency developers

# A transaction that is being prepared runs in two processes until PREPARE has
# its standby.  A snapshot of that moment names it once, so its events are read
# once when it commits.  A subscription commits prepared transactions where no statement is
# seen: the relay hears of it.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 'logical');
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

# A subscription's two phases
$node->safe_psql('postgres', 'CREATE DATABASE publisher');
$node->safe_psql('publisher', q{
CREATE TABLE orders (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE orders;
SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)});
my $publisher = $node->connstr('publisher');
$publisher =~ s/'/''/g;
$node->safe_psql('postgres', <<"END");
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE got (order_id text);
CREATE FUNCTION handle(aggregate_id text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.got VALUES (aggregate_id)';
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('r', 'handler', aggregate_types => '{order}');
CREATE FUNCTION enqueue() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN PERFORM idempotency.outbox_enqueue('order', new.id::text, 'Placed', '{}'); RETURN NULL; END \$\$;
CREATE TRIGGER enqueues AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION enqueue();
ALTER TABLE orders ENABLE ALWAYS TRIGGER enqueues;
CREATE SUBSCRIPTION s CONNECTION '$publisher' PUBLICATION p
	WITH (two_phase = true, create_slot = false, copy_data = false, slot_name = 's')
END
IdemTest::wait_for($node, q{SELECT subtwophasestate = 'e' FROM pg_subscription});
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay});
my @took;
foreach my $i (1 .. 3)
{
	$node->safe_psql('publisher', "BEGIN; INSERT INTO orders VALUES ($i); PREPARE TRANSACTION 'p$i'");
	$node->safe_psql('publisher', "COMMIT PREPARED 'p$i'");
	IdemTest::wait_for($node, "SELECT count(*) = $i FROM orders");
	my $began = time;
	IdemTest::wait_for($node, "SELECT count(*) = $i FROM got");
	push @took, time - $began;
}

# The look finds what came after the look before: a minute each time but the first.
ok(scalar(grep { $_ < 30 } @took[ 1, 2 ]), 'the relay hears of it, and does not find it by its look each minute')
  || diag("took @took");
$node->safe_psql('postgres', 'DROP SUBSCRIPTION s');
$node->stop;
done_testing();
