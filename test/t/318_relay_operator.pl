
# Copyright (c) 2026, the idempotency developers

# One worker serves all programs of a database: neither the open transaction of
# an operator nor an event that cannot be read may hold up more than the relay
# that they are about, nor make that one send the same again and again.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
# A wait for a lock shows in the log at once.
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
log_lock_waits = on
deadlock_timeout = 1ms
END

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
my $stops = relay('stops', q{max_attempts => 1, on_dead => 'stop'}, reject_type => 'Bad');
my $again = relay('again', 'max_attempts => 1000000', retry_type => 'Bad');
my $lags = relay('lags', q{max_lag_size => '1 MB'}, hello => 'outage');
IdemRelay::wait_state($node, 'others', 'streaming');
IdemRelay::wait_state($node, 'stops', 'streaming');
IdemRelay::wait_state($node, 'again', 'streaming');
IdemRelay::wait_state($node, 'lags', 'outage');
enqueue('again', 'Bad');
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM idempotency_data.relay_parked');

sub starts
{
	my ($file) = @_;

	return scalar(grep { exists $_->{hello} } IdemRelay::received($file));
}

# Two relays are to be halted, and a third is to repeat an event, while somebody has
# their rows.
my $operator = $node->background_psql('postgres');
$operator->query_safe(q{BEGIN; SELECT idempotency.relay_pause('stops'), idempotency.relay_pause('lags'),
	idempotency.relay_replay('again', event_id => event_id) FROM idempotency_data.relay_parked});
my $pid = $operator->query_safe('SELECT pg_backend_pid()');
enqueue('stops', 'Bad');
IdemTest::wait_for($node, q{SELECT bool_and(state = 'streaming' AND waiting_for = 'lock' AND last_error LIKE 'told to answer re%')
	FROM idempotency.stat_relay WHERE relay IN ('stops', 'again')});
IdemRelay::worker_sleeps($node, 'others');
$node->safe_psql('postgres', q{
	SELECT count(idempotency.outbox_enqueue('lags', 'k', 'E', to_jsonb(
		(SELECT string_agg(md5(i || ' ' || j), '') FROM generate_series(1, 6000) j)))) FROM generate_series(1, 12) i});
foreach my $n (1 .. 3)
{
	enqueue('others', 'E');
	IdemRelay::wait_received($others, $n);
}
my $tries = IdemRelay::received($again);
$operator->query_safe('ROLLBACK');
$operator->quit;
IdemRelay::wait_until('the event is repeated', sub { IdemRelay::received($again) > $tries });
IdemRelay::wait_state($node, 'stops', 'halted');
IdemRelay::wait_state($node, 'lags', 'halted');
is($node->safe_psql('postgres', q{SELECT string_agg(relay || ' ' || halted, ', ' ORDER BY relay) FROM idempotency_data.relays}),
	'lags max_lag_size, stops dead_letter', 'each for its reason');
is(IdemRelay::stat($node, 'lags', 'last_error'), 'max_lag_size was exceeded', 'stat_relay says which');
is(starts($stops), 1, 'the program of a relay that waits for an operator goes on');
is(starts($again), 1, 'and so does the one that has an event to repeat');
unlike(slurp_file($node->logfile), qr/holding the lock: [^.]*\b$pid\b/, 'nobody waited for a lock of the operator');

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
