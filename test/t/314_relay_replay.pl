
# Copyright (c) 2026, the idempotency developers

# relay_replay: of one event, whatever has become of it, and since a time, which
# never loses what was not sent yet.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');
my $prefix = '11111111-1111-4111-8111-00000000000';

$node->safe_psql('postgres', <<"END");
CREATE TABLE effects (event_type text, n int);
CREATE FUNCTION handle(event_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	IF event_type = 'Bad' THEN
		RAISE EXCEPTION 'refused';
	END IF;
	INSERT INTO public.effects VALUES (event_type, (payload->>'n')::int);
END \$\$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{t}', max_attempts => 3,
	min_backoff => '1 h', max_backoff => '1 h');
SELECT idempotency.outbox_enqueue('t', 'k', 'Bad', '{"n": 1}', event_id => '${prefix}1');
SELECT idempotency.outbox_enqueue('t', 'k', 'Good', '{"n": 2}', event_id => '${prefix}2');
SELECT idempotency.outbox_enqueue('other', 'k', 'Good', '{"n": 3}', event_id => '${prefix}3');
SELECT idempotency.outbox_enqueue('t', 'l', 'Good', '{"n": 4}', event_id => '${prefix}4');
END
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effects WHERE n = 4');

sub replay
{
	my ($n) = @_;
	my ($ret, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT idempotency.relay_replay('fn', event_id => '$prefix$n')");

	return $err;
}

like(replay(3), qr/ERROR:  22023: relay "fn" does not send events of type "other"/, 'of another type');
like(replay(2), qr/NOTICE: .* waits behind another of its aggregate/, 'of one that waits');
is(replay(1), '', 'of one that is to be retried in an hour');
IdemTest::wait_for($node, q{SELECT attempts = 1 FROM idempotency_data.relay_parked WHERE state = 'retry'});
is(replay(1), '', 'again: its first refusal did not count');
IdemTest::wait_for($node, q{SELECT attempts = 2 FROM idempotency_data.relay_parked WHERE state = 'retry'});
is(replay(1), '', 'and again');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters});
like(replay(1), qr/ERROR:  55000: event .* is a dead letter of relay "fn".*HINT:  Use relay_redrive/s, 'of a dead one');
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effects WHERE n = 2');
is(replay(4), '', 'of one that was delivered');
IdemTest::wait_for($node, q{SELECT retried >= 3 FROM idempotency.stat_relay});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked});
is($node->safe_psql('postgres', 'SELECT count(*) FROM effects WHERE n = 4'), '1', 'which has no second effect');

# A paused relay has something to send that is older than the last note of the
# position that can be returned to.
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_pause('fn');
SELECT idempotency.outbox_enqueue('t', 'm', 'Good', '{"n": 5}');
END
$node->safe_psql('postgres', <<'END');
SELECT count(*) FROM generate_series(1, 10) i, LATERAL idempotency.outbox_enqueue_many('other',
	array_fill(i::text, '{10001}'), array_fill('E'::text, '{10001}'), array_fill('{}'::jsonb, '{10001}'));
END
IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM (SELECT relay_id FROM idempotency_data.relay_log_0
	UNION ALL SELECT relay_id FROM idempotency_data.relay_log_1) l WHERE relay_id = 0});
$node->safe_psql('postgres', q{SELECT idempotency.relay_replay('fn', since => now()), idempotency.relay_resume('fn')});
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effects WHERE n = 5');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'm', 'Good', '{"n": 6}')});
IdemTest::wait_for($node, 'SELECT count(*) = 1 FROM effects WHERE n = 6');
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT n) FROM effects'), '4|4', 'nothing lost, nothing twice');

# An event whose row an operator has changed is what the relays read: the changed row.
$node->safe_psql('postgres', qq{
CREATE FUNCTION changed(event_id uuid, payload jsonb) RETURNS void LANGUAGE sql AS
	'INSERT INTO public.effects VALUES (''Changed'', (payload->>''n'')::int)';
CREATE SERVER changed FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.changed');
SELECT idempotency.relay_create('changed', 'changed', start_at => 'latest')});
$node->safe_psql('postgres', qq{UPDATE idempotency_data.outbox_segment_$_ SET payload = '{"n": 40}' WHERE event_id = '${prefix}4'})
  foreach 0 .. 7;
$node->safe_psql('postgres', qq{SELECT idempotency.relay_replay('changed', event_id => '${prefix}4')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects WHERE event_type = 'Changed' AND n = 40});

$node->stop;
done_testing();
