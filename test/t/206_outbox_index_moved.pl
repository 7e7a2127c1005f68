
# Copyright (c) 2026, the idempotency developers

# An index of the outbox that moves to another tablespace is locked, and nothing
# else is: writers wait for it, or their events would stay behind in the old file.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "allow_in_place_tablespaces = on\n");

$node->safe_psql('postgres', q{CREATE TABLESPACE other LOCATION ''});
IdemOutbox::create_functions($node);
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('a', 'before', 't', '1')});

my $dba = $node->background_psql('postgres');
$dba->query_safe('BEGIN; ALTER INDEX idempotency_data.outbox_segment_0_xid_seq_idx SET TABLESPACE other');
my $writer = $node->background_psql('postgres');
my $pid = $writer->query_safe('SELECT pg_backend_pid()');
$writer->query_until(qr/go/, <<'END');
\echo go
SELECT idempotency.outbox_enqueue('a', 'meanwhile', 't', '1');
END
IdemTest::wait_for($node, <<"END");
SELECT wait_event_type = 'Lock' OR state = 'idle' AND query ~ 'meanwhile' FROM pg_stat_activity WHERE pid = $pid
END
$dba->query_safe('COMMIT');
$dba->quit;
$writer->quit;
is( $node->safe_psql('postgres', q{SELECT string_agg(aggregate_id, ',' ORDER BY seq) FROM t.read(NULL, t.snapshot(), 0, 10)}),
	'before,meanwhile', 'an event that was enqueued while the index moved is read');
$node->stop;
done_testing();
