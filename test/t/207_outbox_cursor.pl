
# Copyright (c) 2026, the idempotency developers

# What a cursor enqueued before it failed inside of a savepoint is prepared and
# committed later.  The prepared transaction has the writer's locks, so REINDEX
# CONCURRENTLY of the segment waits for it, and the event is in the new index.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');
my $events = q{SELECT string_agg(aggregate_id, ',' ORDER BY seq) FROM t.read(NULL, t.snapshot(), 0, 10)};

IdemOutbox::create_functions($node);

my $writer = $node->background_psql('postgres', on_error_stop => 0);
$writer->query($_) foreach (
	'BEGIN',
	q{DECLARE c CURSOR FOR SELECT idempotency.outbox_enqueue('a', 'event ' || g, 't', to_jsonb(1 / (2 - g)))
		FROM generate_series(1, 2) g},
	'FETCH c', 'SAVEPOINT s', 'FETCH c', 'ROLLBACK TO s', q{PREPARE TRANSACTION 'writer'});
like($writer->{stderr}, qr/division by zero/, 'the second fetch failed');
$writer->quit;
is( $node->safe_psql('postgres', q{
		SELECT string_agg(relation::regclass || ' ' || mode, ', ' ORDER BY relation::regclass::text COLLATE "C") FROM pg_locks
		WHERE pid IS NULL AND relation::regclass::text ~ 'outbox_segment'}),
	'idempotency_data.outbox_segment_0 RowExclusiveLock, idempotency_data.outbox_segment_0_xid_seq_idx RowExclusiveLock',
	'the prepared transaction has the locks of what it wrote');

my $dba = $node->background_psql('postgres');
my $pid = $dba->query_safe('SELECT pg_backend_pid()');
$dba->query_until(qr/go/, <<'END');
\echo go
REINDEX TABLE CONCURRENTLY idempotency_data.outbox_segment_0;
END
IdemTest::wait_for($node, <<"END");
SELECT wait_event_type = 'Lock' OR state = 'idle' AND query ~ 'REINDEX' FROM pg_stat_activity WHERE pid = $pid
END
is($node->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid"), 'Lock',
	'REINDEX CONCURRENTLY waits for it');
$node->safe_psql('postgres', q{COMMIT PREPARED 'writer'});
$dba->quit;
is($node->safe_psql('postgres', $events), 'event 1', 'the event is in the new index');
$node->stop;
done_testing();
