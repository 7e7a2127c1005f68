
# Copyright (c) 2026, the idempotency developers

# Function relays with nothing to do that no time ends (sink_idle_timeout = 0): all have
# their turns, and then no process comes or goes.
#
# Usually two keep their workers.  A worker that needs more than two seconds to give way,
# as on a machine that stands still for a while, has another one asked in its place, and
# then fewer keep theirs.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.max_function_workers = 2
idempotency.sink_idle_timeout = 0
autovacuum = off
END
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
SELECT idempotency.relay_create('f' || i, 'good', aggregate_types => '{t}') FROM generate_series(1, 8) i;
END
IdemTest::wait_for($node, q{SELECT count(*) = 8 AND count(*) FILTER (WHERE state = 'idle') >= 6
	FROM idempotency.stat_relay WHERE state = 'idle' OR waiting_for = 'events'});
my $workers = q{SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'};
my @workers = $node->safe_psql('postgres', $workers);
like($workers[0], qr/^(\d+( \d+)?)?$/, 'at most two keep their workers');
$node->safe_psql('postgres', q{CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('n', 'nul', aggregate_types => '{n}')});
foreach my $n (1 .. 5)
{
	$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('n', 'k', 'E', '1')});
	IdemTest::wait_for($node, qq{SELECT sent = $n FROM idempotency.stat_relay WHERE relay = 'n'});
	push @workers, $node->safe_psql('postgres', $workers);
}
is($workers[-1], $workers[0], 'and have the same ones while others work');
$node->stop;
done_testing();
