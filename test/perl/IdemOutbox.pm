
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemOutbox - SQL functions that drive the outbox's reader and housekeeping

=head1 SYNOPSIS

  use IdemOutbox;

  IdemOutbox::create_functions($node);    # schema t: snapshot, read, scan, maintain

=head1 DESCRIPTION

The functions are in a module that the tests install (test/module).

=cut

package IdemOutbox;

use strict;
use warnings FATAL => 'all';

sub create_functions
{
	my ($node, $database) = @_;

	$node->safe_psql($database // 'postgres', q{
CREATE SCHEMA t;
CREATE FUNCTION t.snapshot() RETURNS pg_snapshot
	LANGUAGE c AS 'idempotency_test', 'idem_test_snapshot_fn';
CREATE FUNCTION t.read(done pg_snapshot, cur pg_snapshot, k bigint, max int,
	OUT seq bigint, OUT xid xid8, OUT event_id uuid, OUT aggregate_type text,
	OUT aggregate_id text, OUT event_type text, OUT payload jsonb,
	OUT payload_bytes bytea, OUT headers jsonb) RETURNS SETOF record
	LANGUAGE c AS 'idempotency_test', 'idem_test_read_fn';
CREATE FUNCTION t.scan(done pg_snapshot, cur pg_snapshot, batch int,
	OUT events bigint, OUT first_seq bigint, OUT last_seq bigint,
	OUT ordered bool, OUT bytes bigint, OUT memory bigint)
	LANGUAGE c AS 'idempotency_test', 'idem_test_scan_fn';
CREATE FUNCTION t.maintain(done pg_snapshot[]) RETURNS int
	LANGUAGE c AS 'idempotency_test', 'idem_test_maintain_fn';
});
	return;
}

# Settings with which each call of t.maintain closes and empties what it can.
sub eager_conf
{
	return <<'END';
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
idempotency.outbox_dump_size = 0
END
}

1;
