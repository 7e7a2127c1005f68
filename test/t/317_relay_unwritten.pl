
# Copyright (c) 2026, the idempotency developers

# The position of acknowledged batches is written for several at once.  What is
# not written yet is repeated after a crash at worst: it never passes what a
# failed transaction did not park, and a pause leaves none.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

use constant FULL => 2000;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

# A relay whose batches have one event each, to a sink of its own.
sub relay
{
	my ($name, %opt) = @_;

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", %opt);
	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}', batch_events => 1,
	min_backoff => '50 ms', max_backoff => '100 ms')
END
	IdemRelay::wait_state($node, $name, 'streaming');
	return "$dir/$name.log";
}

# In one transaction; "key:type", or just a key.
sub enqueue
{
	my ($name, @events) = @_;
	my $calls = join(', ',
		map { /^([^:]+)(?::(.*))?/; "idempotency.outbox_enqueue('$name', '$1', '" . ($2 // 'E') . "', '1')" } @events);

	$node->safe_psql('postgres', "SELECT $calls");
	return;
}

# Two events whose answers the worker finds together, each in a batch of its own.
sub answered_in_one_step
{
	my ($name, $log, @events) = @_;
	my $before = IdemRelay::received($log);
	my $sink = IdemRelay::stat($node, $name, 'sink_pid');
	my $worker = IdemRelay::stat($node, $name, 'pid');

	kill 'STOP', $sink or die "could not stop the sink: $!";
	enqueue($name, @events);
	IdemTest::wait_for($node,
		"SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = '$name'");
	kill 'STOP', $worker or die "could not stop the worker: $!";
	kill 'CONT', $sink;
	IdemRelay::wait_until('the sink has answered both',
		sub { IdemRelay::received($log) >= $before + 2 });
	kill 'CONT', $worker;
	return;
}

# Two refused events answered in one step, each in a batch of its own; the second
# cannot be parked, which takes the parking of the first back, too.
my $file = relay('refused', reject_type => 'E');

$node->safe_psql('postgres', <<'END');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no room for this one'; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON idempotency_data.relay_parked
	FOR EACH ROW WHEN (NEW.aggregate_id = 'second') EXECUTE FUNCTION refuse();
END
answered_in_one_step('refused', $file, qw(first second));
IdemTest::wait_for($node,
	q{SELECT last_error ~ 'no room' FROM idempotency.stat_relay WHERE relay = 'refused'});
$node->safe_psql('postgres', 'DROP TRIGGER refuse ON idempotency_data.relay_parked');
IdemTest::wait_for($node, <<'END');
SELECT array_agg(aggregate_id ORDER BY aggregate_id) = '{first,second}' FROM idempotency_data.relay_parked
END

# What was acknowledged before the program reported an outage counts.
$file = relay('outage', outage_type => 'Out');
answered_in_one_step('outage', $file, qw(a b:Out));
IdemRelay::wait_state($node, 'outage', 'outage');
$node->safe_psql('postgres', 'ALTER SERVER s_outage OPTIONS (DROP outage_type)');
IdemRelay::wait_received($file, 2);
is(scalar(IdemRelay::acked($file)), 2, 'each was acknowledged once');

# Batches that nobody would have to write down for a while, were it not for the pause.
$file = relay('paused');
enqueue('paused', qw(a b c));
IdemRelay::wait_received($file, 3);
$node->safe_psql('postgres', "SELECT idempotency.relay_pause('paused')");
IdemRelay::wait_state($node, 'paused', 'paused');
IdemTest::kill9_backend($node, IdemRelay::stat($node, 'paused', 'pid'));
$node->safe_psql('postgres', "SELECT idempotency.relay_resume('paused')");
enqueue('paused', 'd');
IdemRelay::wait_received($file, 4);
is(scalar(IdemRelay::acked($file)), 4, 'what was acknowledged before a pause is not repeated');

# A program that dies takes nothing back of what it has acknowledged.
IdemRelay::wait_until('the acknowledgement has arrived',
	sub { IdemRelay::stat($node, 'paused', 'waiting_for') eq 'events' });
kill 'KILL', IdemRelay::stat($node, 'paused', 'sink_pid');
enqueue('paused', 'e');
IdemRelay::wait_received($file, 5);
is(scalar(IdemRelay::acked($file)), 5, 'nor what was before the death of the program');
# No crash repeats more than eight full batches: after so many the position is written,
# however soon they were acknowledged.
sub rows
{
	return $node->safe_psql('postgres', <<'END');
SELECT count(*) FROM (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1) l
	JOIN idempotency_data.relays USING (relay_id) WHERE relay = 'full'
END
}

$node->safe_psql('postgres', q{SELECT idempotency.relay_drop(relay) FROM idempotency.stat_relay});
$node->safe_psql('postgres', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('full', 'nul', batch_events => 1);
END
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay});
my $before = rows();
$node->safe_psql('postgres', "SELECT count(idempotency.outbox_enqueue('full', i::text, 'E', '1')) FROM generate_series(1, @{[ FULL ]}) i");
IdemTest::wait_for($node, 'SELECT lag_events = 0 FROM idempotency.stat_relay');
cmp_ok(rows() - $before, '>=', FULL / 8, 'at least one row for eight full batches');
$node->stop;
done_testing();
