
# Copyright (c) 2026, the idempotency developers

# The postgres sink under a relay, and events whose calls fail as if the target
# were at fault: they raise what a full disk or a missing privilege raises, or
# end the session.  Their retries come alone, also to a program that was just
# started, and nothing passes beside them.  They stop no others, and end as dead
# letters.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('sink');
my ($host, $port) = ($node->host, $node->port);

$node->safe_psql('postgres', 'CREATE DATABASE target');
$node->safe_psql('postgres', qq{
CREATE SERVER target FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'target', function 'app.on_event', claim 'off');
CREATE USER MAPPING FOR CURRENT_USER SERVER target OPTIONS (user '} . $node->safe_psql('postgres', 'SELECT current_user') . q{');
});
$node->safe_psql('target', $node->safe_psql('postgres', q{SELECT idempotency.sink_setup_sql('target')}));
$node->safe_psql('target', q{
CREATE SCHEMA app;
CREATE TABLE app.got (key text);
CREATE SEQUENCE app.ended;
CREATE FUNCTION app.on_event(aggregate_id text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.got VALUES (aggregate_id);
	IF event_type = 'ends' THEN
		PERFORM nextval('app.ended');
		PERFORM pg_terminate_backend(pg_backend_pid());
	ELSIF event_type = 'slow' THEN
		PERFORM pg_sleep(0.01);
	ELSIF event_type <> 'good' THEN
		RAISE EXCEPTION 'no' USING ERRCODE = event_type;
	END IF;
END $$;
});
$node->safe_psql('postgres', q{
SELECT idempotency.relay_create('r', 'target', max_attempts => 2, min_backoff => '100 ms', max_backoff => '1 s');
});

my $good = 0;

# Enqueue so many good events in one transaction, each with a key of its own.
sub enqueue
{
	my ($n) = @_;
	my $prefix = 'good' . ++$good . '_';

	$node->safe_psql('postgres', qq{
SELECT count(idempotency.outbox_enqueue('o', '$prefix' || i, 'good', '{}')) FROM generate_series(1, $n) i});
	return $prefix;
}

# Good events go on, however long the bad ones are tried.
sub arrive
{
	my ($n, $when) = @_;
	my $prefix = enqueue($n);

	ok($node->poll_query_until('target', "SELECT count(*) = $n FROM app.got WHERE key LIKE '${prefix}%'"),
		"$n events arrive $when");
}

arrive(10, 'at first');
for my $case ([ '42501', 1 ], [ '42501', 20 ], [ '53100', 20 ], [ '40001', 9 ])
{
	my ($state, $n) = @$case;

	# In the outbox before the others, so that the bad ones are parked.
	$node->safe_psql('postgres', qq{
SELECT count(idempotency.outbox_enqueue('o', 'bad$state${n}_' || i, '$state', '{}')) FROM generate_series(1, $n) i;
SELECT count(idempotency.outbox_enqueue('o', 'beside$state$n', 'good', '{}'));});
	ok($node->poll_query_until('postgres',
			qq{SELECT retrying + dead >= $n FROM idempotency.stat_relay}), "$n events with $state are parked");

	# A new program finds them due together, and knows nothing of what passed.
	$node->safe_psql('postgres', q{
SELECT idempotency.relay_pause('r')});
	ok($node->poll_query_until('postgres', q{SELECT sink_pid IS NULL FROM idempotency.stat_relay}), 'the program has ended');
	$node->safe_psql('postgres', q{
UPDATE idempotency_data.relay_parked SET next_attempt_at = now();
SELECT idempotency.relay_resume('r')});
	arrive(100, "beside $n with $state") for 1 .. 2;
	IdemRelay::wait_until("a dead letter with $state", sub {
		enqueue(1);
		$node->safe_psql('postgres', qq{SELECT count(*) > 0 FROM idempotency.dead_letters WHERE sqlstate = '$state'}) eq 't'
	});
	$node->safe_psql('postgres', q{
SELECT idempotency.relay_pause('r');
DELETE FROM idempotency_data.relay_parked;
SELECT idempotency.relay_resume('r')});
}

# A call that ends the session
$node->safe_psql('postgres', q{
SELECT count(idempotency.outbox_enqueue('o', 'end' || i, CASE i WHEN 4 THEN 'ends' ELSE 'good' END, '{}')) FROM generate_series(1, 7) i});
ok($node->poll_query_until('target', q{SELECT count(*) = 6 FROM app.got WHERE key LIKE 'end%'}),
	'events beside one that ends the session arrive');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE sqlstate = 'ID006'}),
	'and it is a dead letter');
is($node->safe_psql('target', 'SELECT last_value FROM app.ended'), '4', 'after four sessions');

# Several bad ones in one batch: whatever comes first uses up the other's tries
# or sessions, and nothing of the batch would ever be delivered.
foreach my $bad ([qw(40001 ends)], [qw(57P01 40001 ends 08006)])
{
	my $name = join '_', @$bad;
	my @types = map { ('good', $_) } @$bad;

	push @types, 'good';
	$node->safe_psql('postgres', q{
SELECT idempotency.relay_pause('r')});
	ok($node->poll_query_until('postgres', q{SELECT sink_pid IS NULL FROM idempotency.stat_relay}), 'paused');
	$node->safe_psql('postgres', qq{
DELETE FROM idempotency_data.relay_parked;
SELECT count(idempotency.outbox_enqueue('o', '$name' || i, t, '{}'))
	FROM unnest('{@{[ join ',', @types ]}}'::text[]) WITH ORDINALITY AS e (t, i);
SELECT idempotency.relay_resume('r')});
	ok($node->poll_query_until('target', "SELECT count(*) = @{[ @$bad + 1 ]} FROM app.got WHERE key LIKE '$name%'"),
		"events beside @$bad arrive");
	IdemRelay::wait_until("@$bad are dead letters", sub {
		enqueue(1);
		$node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters') == @$bad
	});
}

# A limit of the target for whole transactions, where it has one
if ($node->pg_version >= 17)
{
	$node->safe_psql('target', q{ALTER DATABASE target SET transaction_timeout = '700 ms'});
	$node->safe_psql('postgres', q{
SELECT idempotency.relay_pause('r');
SELECT count(idempotency.outbox_enqueue('o', 'slow' || i, 'slow', '{}')) FROM generate_series(1, 500) i;
SELECT idempotency.relay_resume('r')});
	ok($node->poll_query_until('target', q{SELECT count(*) = 500 FROM app.got WHERE key LIKE 'slow%'}),
		'events of a batch that takes longer than transaction_timeout arrive');
}

$node->stop;
done_testing();
