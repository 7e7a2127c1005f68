
# Copyright (c) 2026, the idempotency developers

# What a relay says of itself, in stat_relay and in the server log.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\nlog_statement = none\n");

sub enqueue
{
	my ($relay, $type, $n) = @_;

	$n //= 1;
	$node->safe_psql('postgres',
		"SELECT count(idempotency.outbox_enqueue('$relay', '$type ' || i, '$type', to_jsonb(i))) FROM generate_series(1, $n) i");
	return;
}

# What the log says of a relay, without the times and processes.
sub logged
{
	my ($relay) = @_;

	return map { /LOG:  (relay "$relay".*)/ ? $1 : () } split /\n/, slurp_file($node->logfile);
}

# Refusals of single events are the last error, whoever says them.
foreach my $type (qw(retry rejected))
{
	my $option = $type eq 'retry' ? 'retry_type' : 'reject_type';

	foreach my $position (qw(off on))
	{
		my $name = "${type}_$position";

		IdemRelay::own_relay($node, $dir, $name, $option => 'Bad', position => $position);
		enqueue($name, 'Good');
		IdemRelay::arrives("$dir/$name.log", 'Good');
		is(IdemRelay::stat($node, $name, 'num_nulls(last_error, last_error_at)'), '2', "$name: nothing was refused");
		enqueue($name, 'Bad');
		IdemTest::wait_for($node, qq{SELECT last_error = 'told to answer $type' AND last_error_at > pg_postmaster_start_time()
			FROM idempotency.stat_relay WHERE relay = '$name'});
	}
}

# A dead letter is a line of the log, of many the first ones are, and the number of the others.
IdemRelay::own_relay($node, $dir, 'dies', reject_type => 'Bad', sqlstate => '22P02');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('dies', max_attempts => 1)});
enqueue('dies', 'Bad', 100);

# While nothing passes, the target is to blame; and then one after the other is.
is(IdemRelay::stat($node, 'dies', 'dead <= 1'), 't', 'a target that refuses all makes no dead letters');
IdemRelay::wait_until('dead letters while others pass', sub {
	enqueue('dies', 'Good');
	return IdemRelay::stat($node, 'dies', 'dead = 100') eq 't';
});
IdemTest::wait_for($node, q{SELECT dead = 100 FROM idempotency.stat_relay WHERE relay = 'dies'});
my (@lines, @ids, $more);
IdemRelay::wait_until('all are in the log', sub {
	enqueue('dies', 'Good');
	@lines = logged('dies');
	@ids = map { /^relay "dies": event (\S+) is a dead letter, SQLSTATE 22P02$/ ? $1 : () } @lines;
	$more = 0;
	$more += $_ foreach map { /^relay "dies": (\d+) more events are dead letters$/ ? $1 : () } @lines;
	return @ids + $more >= 100;
});
my %known = map { $_ => 1 } split /\n/, $node->safe_psql('postgres',
	q{SELECT event_id FROM idempotency.dead_letters WHERE relay = 'dies'});
is(scalar(grep { !$known{$_} } @ids), 0, 'the lines name dead letters');
cmp_ok(scalar(@ids), '>=', 20, 'twenty at once');
is(@ids + $more, 100, 'and count the others');

# A failure is the state until something disproves it, however often the relay starts anew
# meanwhile, and the log has it once.
sub stays
{
	my ($name, $state, $tries, $n) = @_;
	my %seen;

	IdemRelay::wait_state($node, $name, $state);
	IdemRelay::wait_until("$n tries of $name",
		sub { $seen{ IdemRelay::stat($node, $name, 'state') }++; return $tries->() >= $n });
	is(join(' ', keys %seen), $state, "$name: $state at each look");
	is(scalar(grep { $_ eq qq{relay "$name" is $state} } logged($name)), 1, "$name: which the log has once");
	is(scalar(grep { /is streaming/ } logged($name)), 0, "$name: and nothing else");
	return;
}

sub starts
{
	my ($name) = @_;

	return sub { scalar grep { exists $_->{hello} } IdemRelay::received("$dir/$name.log") };
}

sub failing_relay
{
	my ($name, %opt) = @_;

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", %opt);
	$node->safe_psql('postgres', qq{SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}',
		min_backoff => '10 ms', max_backoff => '20 ms')});
	return;
}

failing_relay('unreachable', hello => 'outage');
stays('unreachable', 'outage', starts('unreachable'), 12);
failing_relay('wrong', hello => 'rejected');
stays('wrong', 'misconfigured', starts('wrong'), 12);

# After READY only an event that is accepted shows that the failure is over.
foreach my $position (qw(off on))
{
	my $name = "falls_$position";

	failing_relay($name, failed_type => 'Down', fault_times => 1000, position => $position);
	IdemRelay::wait_state($node, $name, 'streaming');
	enqueue($name, 'Down');
	stays($name, 'outage', starts($name), 8);
	append_to_file("$dir/$name.log", qq({"fault": "failed"}\n) x 1000);
	IdemRelay::arrives("$dir/$name.log", 'Down');
	IdemRelay::wait_state($node, $name, 'streaming');
	is(join(', ', logged($name)), qq{relay "$name" is outage, relay "$name" is streaming}, "$name: one line for each change");
}

# The workers of a function relay come and go.
$node->safe_psql('postgres', <<'END');
CREATE SEQUENCE calls;
CREATE TABLE well ();
CREATE FUNCTION ends() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('public.calls');
	IF NOT EXISTS (SELECT FROM public.well) THEN
		PERFORM pg_terminate_backend(pg_backend_pid());
		PERFORM pg_sleep(600);
	END IF;
END $$;
CREATE SERVER ends FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.ends');
SELECT idempotency.relay_create('ends', 'ends', aggregate_types => '{ends}');
CREATE SERVER lacks FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.lacks');
BEGIN;
CREATE FUNCTION lacks() RETURNS void LANGUAGE sql AS '';
SELECT idempotency.relay_create('lacks', 'lacks', aggregate_types => '{lacks}', min_backoff => '10 ms', max_backoff => '20 ms');
DROP FUNCTION lacks;
COMMIT;
END
my %failed_at;
stays('lacks', 'misconfigured', sub {
	$failed_at{ IdemRelay::stat($node, 'lacks', 'last_error_at') } = 1;
	return scalar keys %failed_at;
}, 6);
enqueue('ends', 'E');
stays('ends', 'outage', sub { $node->safe_psql('postgres', 'SELECT last_value FROM calls') }, 5);
$node->safe_psql('postgres', 'INSERT INTO well DEFAULT VALUES');
IdemTest::wait_for($node, q{SELECT state = 'streaming' AND sent = 1 FROM idempotency.stat_relay WHERE relay = 'ends'});

# The text of a handler is not for the log, neither of an event that fails alone nor of
# one that makes its batch fail at COMMIT.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Raises' THEN
		RAISE EXCEPTION 'no such card: 4111';
	ELSIF event_type = 'Leaves' THEN
		PERFORM idempotency.claim_event('card 4222');
	END IF;
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{fn}', max_attempts => 1, min_backoff => '10 ms', max_backoff => '10 ms');
END
enqueue('fn', 'Raises');
IdemTest::wait_for($node, q{SELECT dead = 1 AND last_error = 'no such card: 4111' FROM idempotency.stat_relay WHERE relay = 'fn'});
enqueue('fn', 'Leaves');
IdemTest::wait_for($node, q{SELECT dead = 2 AND last_error LIKE '%card 4222%' FROM idempotency.stat_relay WHERE relay = 'fn'});
IdemRelay::wait_until('the log has both', sub { 2 <= grep { /is a dead letter, SQLSTATE/ } logged('fn') });
ok((grep { $_ eq 'relay "fn" is outage' } logged('fn')), 'the log has the outage');
my $log = slurp_file($node->logfile);
unlike($log, qr/card: 4111|card 4222|told to answer retry/, 'and no text of a handler or of a receiver');

# An answer that is outstanding: since when, whatever becomes of later events.
sub waits
{
	my ($name, $word) = @_;

	IdemTest::wait_for($node, "SELECT state = 'streaming' AND waiting_for = '$word' FROM idempotency.stat_relay WHERE relay = '$name'");
	return IdemRelay::stat($node, $name, 'waiting_since');
}

IdemRelay::own_relay($node, $dir, 'mute', mute_type => 'Mute');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('mute', batch_events => 1)});
is(IdemRelay::stat($node, 'mute', 'delivered_at'), '', 'nothing is delivered');
enqueue('mute', 'Good');
IdemTest::wait_for($node, q{SELECT delivered_at BETWEEN pg_postmaster_start_time() AND clock_timestamp() FROM idempotency.stat_relay WHERE relay = 'mute'});
my $delivered_at = IdemRelay::stat($node, 'mute', 'delivered_at');
enqueue('mute', 'Mute');
my $since = waits('mute', 'answer');
cmp_ok($since, 'gt', $delivered_at, 'it began after the last delivery');
enqueue('mute', 'Late', 3);
IdemRelay::arrives("$dir/mute.log", 'Late', 3);
IdemTest::wait_for($node, "SELECT clock_timestamp() > '$since'::timestamptz + interval '1 s'");
is(IdemRelay::stat($node, 'mute', 'waiting_for, waiting_since'), "answer|$since", 'answers for later events change nothing of that');
cmp_ok(IdemRelay::stat($node, 'mute', 'delivered_at'), 'gt', $delivered_at, 'but these are delivered');

# Refused is not delivered.
IdemRelay::own_relay($node, $dir, 'refuses', reject_type => 'Bad');
enqueue('refuses', 'Bad');
IdemTest::wait_for($node, q{SELECT waiting_for = 'retry' AND retrying = 1 AND oldest_waiting < waiting_since AND delivered_at IS NULL
	FROM idempotency.stat_relay WHERE relay = 'refuses'});

# A handler that has the next event has got on.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION locked(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(payload::text::int)';
CREATE SERVER locked FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.locked', timeout '600000');
SELECT idempotency.relay_create('locked', 'locked', aggregate_types => '{locked}');
END
my @holders = map { $node->background_psql('postgres') } 1 .. 2;
$holders[ $_ - 1 ]->query_safe("SELECT pg_advisory_lock($_)") foreach 1 .. 2;
enqueue('locked', 'E', 2);
$since = waits('locked', 'function');
$holders[0]->quit;
IdemTest::wait_for($node, "SELECT waiting_for = 'function' AND waiting_since > '$since' FROM idempotency.stat_relay WHERE relay = 'locked'");
$holders[1]->quit;
IdemTest::wait_for($node, q{SELECT waiting_for = 'events' AND sent = 2 FROM idempotency.stat_relay WHERE relay = 'locked'});

$node->stop;
done_testing();
