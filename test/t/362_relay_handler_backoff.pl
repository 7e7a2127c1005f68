
# Copyright (c) 2026, the idempotency developers

# A handler that fails in ways which use up no attempt is tried at growing
# distances, and stat_relay says why it waits: errors of circumstance, and the
# end of the worker itself.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = IdemTest::cluster('main', conf => "log_line_prefix = '%n [%p] '\n");

$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_type text);
CREATE TABLE mended (x int);
CREATE SEQUENCE tries;
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM mended) THEN
		CASE event_type
			WHEN 'Conflict' THEN RAISE serialization_failure USING MESSAGE = 'conflict ' || nextval('tries');
			WHEN 'End' THEN PERFORM pg_terminate_backend(pg_backend_pid());
			WHEN 'Stubborn' THEN
				LOOP
					BEGIN
						PERFORM pg_sleep(3600);
					EXCEPTION WHEN query_canceled THEN
						NULL;
					END;
				END LOOP;
			ELSE NULL;
		END CASE;
	END IF;
	INSERT INTO effects VALUES (event_type);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', min_backoff => '10 ms', max_backoff => '1 h');
SELECT idempotency.outbox_enqueue('t', 'a', 'Conflict', '1');
END

# At the n-th failure 10 ms * 2^(n-1), less up to a half of it by chance.
IdemTest::wait_for($node, 'SELECT deferrals >= 6 FROM idempotency_data.relay_parked');
is( $node->safe_psql('postgres', q{SELECT attempts, sqlstate, error = 'conflict ' || deferrals,
		next_attempt_at - last_failed_at > 10 * 2 ^ (deferrals - 2) * interval '1 ms' - interval '1 ms' FROM idempotency_data.relay_parked}),
	'0|40001|t|t', 'the distance between tries grows, and no attempt is used up');
$node->safe_psql('postgres', q{INSERT INTO mended VALUES (1)});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked'), '0', 'delivered in the end');

# A worker that its handler ends: 50 ms, doubled at each end in a row.
my $id = $node->safe_psql('postgres', q{DELETE FROM mended;
	SELECT idempotency.outbox_enqueue('t', 'b', 'End', '1')});
my @ends;

sub read_ends
{
	@ends = slurp_file($node->logfile) =~ /^(\d+\.\d+) \[\d+\] FATAL:  terminating background worker "idempotency relay"/mg;
	return scalar @ends;
}
IdemRelay::wait_until('the worker ended six times', sub { read_ends() >= 6 });
cmp_ok($ends[5] - $ends[4], '>=', 0.8, 'a worker that ends with its handler comes back later each time');
IdemTest::wait_for($node, qq{SELECT last_error = 'the worker was ended while the handler had event $id'
	AND (state, waiting_for) = ('outage', 'backoff') AND pid IS NULL FROM idempotency.stat_relay});

# It is the same worker for all that, and goes on when its handler does.
$node->safe_psql('postgres', q{INSERT INTO mended VALUES (1)});
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM effects});
IdemTest::wait_for($node, qq{SELECT (state, waiting_for, sent) = ('streaming', 'events', 1) AND last_error LIKE '%$id'
	FROM idempotency.stat_relay});

# One that catches the cancel of its timeout does not keep the worker for ever.
$id = $node->safe_psql('postgres', q{ALTER SERVER fn OPTIONS (ADD timeout '200'); DELETE FROM mended;
	SELECT idempotency.outbox_enqueue('t', 'd', 'Stubborn', '1')});
IdemTest::wait_for($node, qq{SELECT last_error = 'the worker was ended while the handler had event $id' FROM idempotency.stat_relay});
$node->safe_psql('postgres', q{INSERT INTO mended VALUES (1)});
IdemTest::wait_for($node, q{SELECT count(*) = 3 FROM effects});

# Ended by others it comes back at once.
foreach my $n (4 .. 7)
{
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 180000) FROM idempotency.stat_relay;
		SELECT idempotency.outbox_enqueue('t', 'c', 'Good', '1')});
	IdemTest::wait_for($node, "SELECT count(*) = $n FROM effects");
}
like(IdemRelay::stat($node, 'fn', 'last_error'), qr/$id$/, 'and its end is no error of the relay, whose last one stays');

# What is left of a relay that is dropped while its worker waits is nothing.
$node->safe_psql('postgres', q{DELETE FROM mended; SELECT idempotency.outbox_enqueue('t', 'b', 'End', '1')});
IdemTest::wait_for($node, q{SELECT pid IS NULL AND state = 'outage' FROM idempotency.stat_relay});
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('fn')});
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency_data.relay_status()});

$node->stop;
done_testing();
