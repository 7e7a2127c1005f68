
# Copyright (c) 2026, the idempotency developers

# One worker serves all programs of a database: neither the open transaction of
# an operator nor an event that cannot be read may hold up more than the relay
# that they are about, nor make that one send the same again and again.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

# A relay to a sink of its own for the events of its name; returns its file.
sub relay
{
	my ($name, $settings, %opt) = @_;
	my $database = $opt{database} // 'postgres';

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", %opt);
	$node->safe_psql($database, <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}',
	min_backoff => '50 ms', max_backoff => '100 ms', $settings)
END
	return "$dir/$name.log";
}

sub enqueue
{
	my ($name, $type, $payload) = @_;

	$payload //= '1';
	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$name', 'k', '$type', '$payload')");
	return;
}

my $others = relay('others', 'max_attempts => 5');
relay('stops', q{max_attempts => 1, on_dead => 'stop'}, reject_type => 'Bad');
my $lags = relay('lags', q{max_lag_size => '1 MB'}, hello => 'outage');
IdemRelay::wait_state($node, 'others', 'streaming');
IdemRelay::wait_state($node, 'stops', 'streaming');
IdemRelay::wait_state($node, 'lags', 'outage');

# Both relays are to be halted while somebody has their rows.
my $operator = $node->background_psql('postgres');
$operator->query_safe(q{BEGIN; SELECT idempotency.relay_pause('stops'), idempotency.relay_pause('lags')});
enqueue('stops', 'Bad');
IdemTest::wait_for($node,
	q{SELECT last_error ~ 'lock timeout' FROM idempotency.stat_relay WHERE relay = 'stops'});
$node->safe_psql('postgres', q{
	SELECT count(idempotency.outbox_enqueue('lags', 'k', 'E', to_jsonb(
		(SELECT string_agg(md5(i || ' ' || j), '') FROM generate_series(1, 6000) j)))) FROM generate_series(1, 12) i});
foreach my $n (1 .. 3)
{
	enqueue('others', 'E');
	IdemRelay::wait_received($others, $n);
}
$operator->query_safe('ROLLBACK');
$operator->quit;
IdemRelay::wait_state($node, 'stops', 'halted');
IdemRelay::wait_state($node, 'lags', 'halted');

# Of an event whose payload is lost on disk: the relay stands there, and what
# comes before it is done with.
my $damaged = relay('damaged', 'batch_events => 1');
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('damaged')});
$node->safe_psql('postgres', q{
	SELECT idempotency.outbox_enqueue('damaged', key, 'E', CASE key WHEN 'd' THEN
		(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 1000) i) ELSE '1' END)
	FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS key});
my $file = $node->safe_psql('postgres', q{
	SELECT pg_relation_filepath(c.reltoastrelid) FROM pg_class c, idempotency.outbox_segments() s
	WHERE c.oid = ('idempotency_data.outbox_segment_' || s.segment)::regclass AND s.is_current});
$node->stop;
truncate($node->data_dir . "/$file", 0) or die "could not truncate $file: $!";
$node->start;
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('damaged')});
IdemRelay::wait_until('several starts',
	sub { 8 <= grep { exists $_->{hello} } IdemRelay::received($damaged) });
IdemRelay::wait_received($damaged, 3);
cmp_ok(scalar(IdemRelay::acked($damaged)), '<=', 6, 'what comes before it is sent twice at most');
ok( $node->poll_query_until('postgres', q{SELECT state = 'outage' AND last_error ~ 'could not read block'
	FROM idempotency.stat_relay WHERE relay = 'damaged'}),
	'and the relay says why it stands');
$node->stop;
done_testing();
