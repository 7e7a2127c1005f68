
# Copyright (c) 2026, the idempotency developers

# A parked event is known by its number, which in a database in use is another event's,
# or will be: parked events of a dump are restored into a new database only, and get
# numbers of their own there as rows.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');
my $dump = $node->basedir . '/dump';
my $parked = 'SELECT count(*) FROM idempotency_data.relay_parked';

# Two events of a paused relay, parked by hand
$node->safe_psql('postgres', 'CREATE DATABASE source');
IdemTest::create_extension($node, 'source');
$node->safe_psql('source', q{
CREATE SERVER s FOREIGN DATA WRAPPER idempotency_null;
BEGIN;
SELECT idempotency.relay_create('r', 's'), idempotency.relay_pause('r');
COMMIT;
SELECT idempotency.outbox_enqueue('a', n::text, 't', '1') FROM generate_series(1, 4) n;
SELECT idempotency.relay_replay('r', event_id => event_id) FROM idempotency.outbox_events WHERE aggregate_id IN ('2', '3');
});
# Their transaction ids are those of a cluster that is far ahead, and somebody has written tries that nobody counts
$node->safe_psql('source', q{UPDATE idempotency_data.relay_parked SET xid = '4000000000', attempts = 2147483647, deferrals = 2147483647});
command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('source') ], 'dumped');
my ($text) = run_command([ 'pg_restore', '-f', '-', $dump ]);
unlike($text, qr/relay_parked_parked_id_seq/, 'no sequence is in the dump');

# Into a database in use
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('a', 'mine', 't', '1')});
foreach my $option ('--data-only', '--inserts')
{
	my $file = "$dump$option";

	command_ok([ 'pg_dump', '--data-only', $option, '-f', $file, '-d', $node->connstr('source') ], "dumped $option");
	my ($out, $err) = run_command([ 'psql', '-qX', '-f', $file, '-d', $node->connstr('postgres') ]);
	like($err, qr/cannot restore events into "relay_parked": the outbox is in use/, "$option: refused");
	is($node->safe_psql('postgres', $parked), '0', "$option: and nothing is parked");
}

# Into a new one, where more are parked afterwards
$node->safe_psql('postgres', 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $dump ], 'restored into a new database');
is($node->safe_psql('copy', q{SELECT string_agg(aggregate_id, ' ' ORDER BY seq) FROM idempotency_data.relay_parked}),
	'2 3', 'with what was parked');
$node->safe_psql('copy', q{
SELECT idempotency.relay_replay('r', event_id => event_id) FROM idempotency.outbox_events WHERE aggregate_id IN ('1', '4')});
is($node->safe_psql('copy', $parked), '4', 'more can be parked');

# They are sent, also where an operator has moved the position before the adoption
$node->safe_psql('copy', q{SELECT idempotency.relay_resume('r'), idempotency.relay_alter('r', start_at => 'latest')});
is($node->safe_psql('copy', 'SELECT state FROM idempotency.stat_relay'), 'unadopted', 'a move of the position is no adoption');
$node->safe_psql('copy', q{SELECT idempotency.relay_adopt('r')});
IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked', 't', 'copy');

# An id of a relay may be another relay's, in a database whose relays were made in
# another order: nobody gets the events of another relay.
$node->safe_psql('postgres', 'CREATE DATABASE ordered');
IdemTest::create_extension($node, 'ordered');
$node->safe_psql('ordered', q{
CREATE SERVER s FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('q', 's'), idempotency.relay_create('r', 's')});
my @into_ordered = ('pg_restore', '--data-only', '-d', $node->connstr('ordered'), $dump);
my ($out, $err) = run_command(\@into_ordered);
like($err, qr/cannot restore events into "relay_parked": the relay with relay_id 1 is another one here/, 'refused');
like($err, qr/HINT:  Restore the dump before relays are created, or drop the relays first/, 'with a hint');
is($node->safe_psql('ordered', $parked), '0', 'nothing is parked for another relay');
$node->safe_psql('ordered', q{SELECT idempotency.relay_drop('q'), idempotency.relay_drop('r')});
command_ok([ @into_ordered, '-t', 'relays', '-t', 'relay_parked' ], 'without relays both are restored');
is($node->safe_psql('ordered', 'SELECT count(*) FROM idempotency_data.relay_parked JOIN idempotency_data.relays USING (relay_id)'),
	'2', 'the events with their relay');

# The relay first, from the same dump; both at once
$node->safe_psql('postgres', 'CREATE DATABASE first');
IdemTest::create_extension($node, 'first');
foreach my $table (qw(relays relay_parked))
{
	command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '-t', $table, '-d', $node->connstr('first'), $dump ], "restored $table");
	IdemTest::wait_for($node, 'SELECT state FROM idempotency.stat_relay', 'unadopted', 'first');
	$node->safe_psql('first', q{SELECT idempotency.relay_adopt('r')});
}
$node->safe_psql('postgres', 'CREATE DATABASE parallel');
command_ok([ 'pg_restore', '--exit-on-error', '-j', '3', '-d', $node->connstr('parallel'), $dump ], 'restored in parallel');
is($node->safe_psql($_, $parked), '2', "$_: with what was parked") foreach qw(first parallel);

# The events first, then a relay of another dump: it cannot be adopted.
$node->safe_psql('parallel', q{UPDATE idempotency_data.relays SET created_at = created_at - interval '1 h'});
my ($rc, $none, $why) = $node->psql('parallel', q{SELECT idempotency.relay_adopt('r')});
like($why, qr/relay "r" has parked events of another relay/, 'with parked events of another relay it is not adopted');

# Events are restored before the claims that tell of them: a relay that is at work
# here leaves them alone until it is told that all is there.
$node->safe_psql('postgres', 'CREATE DATABASE migrated');
IdemTest::create_extension($node, 'migrated');
$node->safe_psql('migrated', q{
CREATE TABLE effects (n text);
CREATE FUNCTION effect(aggregate_id text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (aggregate_id)';
CREATE SERVER s FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.effect');
SELECT idempotency.relay_create('work', 's')});
IdemTest::wait_for($node, q{SELECT state IN ('idle', 'streaming') FROM idempotency.stat_relay}, 't', 'migrated');
command_ok([ 'pg_restore', '--exit-on-error', '--data-only', (map { ('-t', "outbox_segment_$_") } 0 .. 7),
		'-d', $node->connstr('migrated'), $dump ], 'events restored beside a relay');
IdemTest::wait_for($node, 'SELECT state FROM idempotency.stat_relay', 'unadopted', 'migrated');
is($node->safe_psql('migrated', 'SELECT count(*) FROM effects'), '0', 'it handles none');
$node->safe_psql('migrated', q{SELECT idempotency.relay_adopt('work')});
IdemTest::wait_for($node, q{SELECT string_agg(n, ' ' ORDER BY n) FROM effects}, '1 2 3 4', 'migrated');

# Nobody gets a first number while parked events are being restored.
$node->safe_psql('postgres', 'CREATE DATABASE slow');
IdemTest::create_extension($node, 'slow');
my $restore = $node->background_psql('slow');
$restore->query_safe(q{
BEGIN;
INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at, aggregate_type,
	aggregate_id, event_type, payload) VALUES (1, 'dead', 1, '5', 70, gen_random_uuid(), now(), 'a', 'k', 't', '1')});
my $producer = $node->background_psql('slow');
my $pid = $producer->query_safe('SELECT pg_backend_pid()');
$producer->query_until(qr/go/, "\\echo go\nSELECT idempotency.outbox_enqueue('a', 'first', 't', '1');\n");
IdemTest::wait_for($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$restore->query_safe('COMMIT');
$producer->quit;
$restore->quit;
is($node->safe_psql('slow', 'SELECT seq FROM idempotency.outbox_events'), '71', 'the first number is after the restored ones');

$node->stop;
done_testing();
