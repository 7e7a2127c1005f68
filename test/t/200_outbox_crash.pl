
# Copyright (c) 2026, the idempotency developers

# The server is killed while events are enqueued, read, and segments closed and
# emptied: every event that committed is read exactly once, none that did not.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rounds = 4;
my $node = IdemTest::cluster('crash', conf => IdemOutbox::eager_conf());
IdemOutbox::create_functions($node);

# The producers' own log is the truth; recv is a sink in this very database.
$node->safe_psql('postgres', q{
CREATE TABLE sent (event_id uuid);
CREATE TABLE recv (seq bigint, event_id uuid);
CREATE TABLE pos (snap pg_snapshot);
INSERT INTO pos VALUES ('3:3:');
CREATE PROCEDURE relay(n int) LANGUAGE plpgsql AS $$
DECLARE
	done pg_snapshot;
	cur pg_snapshot;
BEGIN
	FOR i IN 1..n LOOP
		SELECT snap INTO done FROM pos;
		cur := t.snapshot();
		INSERT INTO recv SELECT seq, event_id FROM t.read(done, cur, 0, 1000000);
		UPDATE pos SET snap = cur;
		COMMIT;
		PERFORM t.maintain(ARRAY[cur]);
		COMMIT;
	END LOOP;
END
$$;
});

my $script = $node->basedir . '/enqueue.sql';
append_to_file($script, <<'END');
\set r random(1, 10)
BEGIN;
INSERT INTO sent SELECT idempotency.outbox_enqueue('a', :client_id::text, 't', to_jsonb(repeat(md5(:r::text), 20 * :r)));
SAVEPOINT s;
SELECT idempotency.outbox_enqueue('a', 'gone', 't', '1');
ROLLBACK TO s;
INSERT INTO sent SELECT idempotency.outbox_enqueue_many('a', ARRAY['x', 'y'], ARRAY['t', 't'], ARRAY['1', '2']::jsonb[]);
\if :r = 1
ROLLBACK;
\else
COMMIT;
\endif
END

sub start_load
{
	my ($out, $err) = ('', '');

	return IPC::Run::start(
		[
			'pgbench', '-n', '-c', '4', '-T', '600',
			'-f', $script, '-h', $node->host, '-p', $node->port, 'postgres'
		],
		'<', \undef, '>', \$out, '2>', \$err);
}

sub count_of
{
	return $node->safe_psql('postgres', "SELECT count(*) FROM $_[0]");
}

my $turns = 0;
for my $round (1 .. $rounds)
{
	my $want = count_of('sent') + 1000;
	my $load = start_load();
	my $relay = $node->background_psql('postgres', on_error_stop => 0);

	$relay->{stdin} .= "CALL relay(1000000);\n";
	$relay->{run}->pump_nb;
	ok( $node->poll_query_until('postgres', "SELECT count(*) >= $want FROM sent"),
		"round $round: events are enqueued");
	ok( $node->poll_query_until(
			'postgres', "SELECT generation > $turns + 8 FROM idempotency.stat_outbox"),
		"round $round: the ring has turned");
	$node->stop('immediate');
	eval { $load->finish };
	eval { $relay->{run}->kill_kill };
	$node->start;
	$turns = $node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox');
}

$node->safe_psql('postgres', 'CALL relay(3)');
my $sent = count_of('sent');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM sent LEFT JOIN recv USING (event_id) WHERE recv IS NULL'),
	'0', "no event of $sent is lost");
is( $node->safe_psql('postgres', 'SELECT count(*) FROM recv LEFT JOIN sent USING (event_id) WHERE sent IS NULL'),
	'0', 'no event is a phantom');
is(count_of('recv'), $sent, 'each event is read once');
is( $node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'),
	'0', 'all segments are empty in the end');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.outbox_events'),
	'0', 'and to SQL as well');

# What a crash between the steps of emptying leaves: the index without a block,
# the rest of the segment still there.
my $segment = $node->safe_psql('postgres', q{
SELECT idempotency.outbox_enqueue('a', 'old', 't', to_jsonb(string_agg(md5(g::text), ''))) FROM generate_series(1, 1000) AS g;
SELECT current_segment FROM idempotency.stat_outbox;
}) =~ s/.*\n//rs;
my $done = $node->safe_psql('postgres', 'SELECT t.snapshot()');
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[]::pg_snapshot[])');
$node->safe_psql('postgres',
	"SELECT idempotency.outbox_enqueue('a', 'new', 't', '1')");
my $file = $node->safe_psql('postgres',
	"SELECT pg_relation_filepath('idempotency_data.outbox_segment_${segment}_xid_seq_idx')");
$node->stop;
truncate($node->data_dir . "/$file", 0) or die "could not truncate $file: $!";
$node->start;
is( $node->safe_psql('postgres',
		'SELECT aggregate_id FROM t.read(NULL, t.snapshot(), 0, 10)'),
	'new', 'half emptied: the reader sees the segment empty');
is( $node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'),
	'1', 'half emptied: so does the view of the state');
is($node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[]::pg_snapshot[])'),
	'1', 'half emptied: the housekeeping finishes it, without a position');
is( $node->safe_psql('postgres', 'SELECT aggregate_id FROM idempotency.outbox_events'),
	'new', 'half emptied: all plans work again');

# The other order of events: the index is back, TOAST is not yet empty.
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[t.snapshot()])');
is( $node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox'),
	'0', 'empty again');
my $spare = $node->safe_psql('postgres', 'SELECT (current_segment + 1) % 8 FROM idempotency.stat_outbox');
my $toast = $node->safe_psql('postgres',
	"SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = 'idempotency_data.outbox_segment_$spare'::regclass");
$node->stop;
append_to_file($node->data_dir . "/$toast", "\0" x 8192);
$node->start;
my $generation = $node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox');
$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('a', 'next', 't', '1')");
$node->safe_psql('postgres', 'SELECT t.maintain(ARRAY[]::pg_snapshot[])');
is( $node->safe_psql('postgres',
		"SELECT generation - $generation FROM idempotency.stat_outbox"),
	'2', 'a segment with remains in TOAST is stepped over');
is( $node->safe_psql('postgres',
		"SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'idempotency_data.outbox_segment_$spare'::regclass"),
	'0', 'and was cleaned by the same call');

$node->stop;
done_testing();
