
# Copyright (c) 2026, the idempotency developers

# A relay whose foreign table is moved out of the schema is bound to nothing from
# that moment on, and dropped in the moment of relay_drop.  A function relay stays
# with its worker meanwhile.  All of it without the reload that comes each minute.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

$node->safe_psql('postgres', <<'END');
CREATE SCHEMA elsewhere;
CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.pg_advisory_lock(1), pg_catalog.pg_advisory_unlock(1);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{fn}');
SELECT idempotency.relay_create('nul', 'nul', aggregate_types => '{nul}');
SELECT idempotency.relay_create('mark', 'nul', aggregate_types => '{mark}');
END
IdemRelay::wait_state($node, $_, 'streaming') foreach qw(fn nul mark);

sub move
{
	my ($relay, $from, $to, $and) = @_;
	my $id = $node->safe_psql('postgres', "SELECT relay_id FROM idempotency_data.relays WHERE relay = '$relay'");

	$node->safe_psql('postgres', 'BEGIN; ' . "ALTER FOREIGN TABLE $from.relay_$id SET SCHEMA $to; " . ($and // '') . '; COMMIT');
	return;
}

# While its handler runs, the worker of a function relay notices nothing of this.
my $pid = IdemRelay::stat($node, 'fn', 'pid');
my $lock = $node->background_psql('postgres', on_error_stop => 1);
$lock->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('fn', 'k', 'One', '1')});
IdemTest::wait_for($node, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = $pid");
move('fn', 'idempotency_data', 'elsewhere', q{SELECT idempotency.relay_pause('mark')});
IdemRelay::wait_state($node, 'mark', 'paused');
is(IdemRelay::stat($node, 'fn', 'pid'), $pid, 'the entry of a function relay is its worker\'s');
move('fn', 'elsewhere', 'idempotency_data', q{SELECT idempotency.relay_resume('mark')});
IdemRelay::wait_state($node, 'mark', 'streaming');
is(IdemRelay::stat($node, 'fn', 'pid'), $pid, 'also afterwards');
$lock->quit;
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay WHERE relay = 'fn'});
is(IdemRelay::stat($node, 'fn', 'pid'), $pid, 'and it goes on');
move('fn', 'idempotency_data', 'elsewhere');
IdemRelay::wait_state($node, 'fn', 'misconfigured');
like(IdemRelay::stat($node, 'fn', 'last_error'), qr/foreign table idempotency_data\.relay_\d+ does not exist/, 'which says why');

# Relays to programs: their worker looks at the configuration before it looks at
# events that were enqueued later, and serves "mark" last.
my $marks = 0;

sub enqueue_and_mark
{
	my ($type) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue(type, 'k', 'One', '1') FROM unnest('{$type,mark}'::text[]) AS type");
	$marks++;
	IdemTest::wait_for($node, "SELECT sent = $marks FROM idempotency.stat_relay WHERE relay = 'mark'");
	return;
}

enqueue_and_mark('nul');
is(IdemRelay::stat($node, 'nul', 'sent'), '1', 'an event arrives');
move('nul', 'idempotency_data', 'elsewhere');
enqueue_and_mark('nul');
is(IdemRelay::stat($node, 'nul', 'sent'), '1', 'no more once the foreign table is gone');
is(IdemRelay::stat($node, 'nul', 'state'), 'misconfigured', 'which is a state');
my $id = $node->safe_psql('postgres', q{SELECT relay_id FROM idempotency_data.relays WHERE relay = 'nul'});
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('nul')});
enqueue_and_mark('nul');
is($node->safe_psql('postgres', "SELECT count(*) FROM idempotency_data.relay_status() WHERE relay_id = $id"), '0',
	'its worker hears of relay_drop');

$node->stop;
done_testing();
