
# Copyright (c) 2026, the idempotency developers

# A function relay under kill -9 of everything, while sessions enqueue: each
# committed event takes effect once, those of a key in the order of commit.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "idempotency.outbox_retention = 0\n");

$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, key text, n int);
CREATE FUNCTION handle(event_id uuid, aggregate_id text, payload jsonb) RETURNS void
	LANGUAGE sql AS $$ INSERT INTO public.effects (event_id, key, n) VALUES (event_id, aggregate_id, (payload->>'n')::int) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', batch_events => 50, max_backoff => '100 ms');
END

sub worker_pid
{
	return $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'idempotency relay' AND application_name LIKE '%function%'});
}

sub check_all
{
	my ($what) = @_;

	IdemTest::wait_for($node,
		'SELECT (SELECT count(*) FROM effects) >= (SELECT count(*) FROM sent)');
	is( $node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM effects'),
		'0', "$what: no event twice");
	is( $node->safe_psql('postgres',
			'SELECT count(*) FROM sent s FULL JOIN effects e USING (event_id) WHERE s.n IS NULL OR e.n IS NULL'),
		'0', "$what: no event lost, none too many");
	is( $node->safe_psql('postgres', <<'END'), '0', "$what: in order by key");
SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY id) AS before FROM effects) o
	WHERE n <= before
END
	return;
}

$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity
	WHERE backend_type = 'idempotency relay' AND application_name LIKE '%function%'");

foreach my $round (1 .. 3)
{
	my $load = IdemRelay::enqueue_by_key($node, 4, 4);

	$node->poll_query_until('postgres',
		'SELECT (SELECT count(*) FROM effects) > ' . $node->safe_psql('postgres', 'SELECT count(*) + 20 FROM effects'));
	if ($round < 3)
	{
		IdemTest::kill9_backend($node, worker_pid());
	}
	else
	{
		$node->kill9;
		$node->poll_until_connection_fails if $node->can('poll_until_connection_fails');
		IdemRelay::wait_until('everything of the dead postmaster is gone', sub {
			my ($out, $err);
			return !-e $node->data_dir . '/postmaster.pid'
			  || IPC::Run::run([ 'pg_ctl', '-D', $node->data_dir, '-w', '-l', $node->logfile, 'start' ], '>', \$out, '2>', \$err);
		});
		$node->_update_pid(1);
	}
	$load->finish;
	check_all("round $round");
}

is(IdemRelay::stat($node, 'fn', 'dead'), '0', 'no dead letters');

# What a savepoint took back is not delivered; what is prepared arrives after
# its second commit, a crash in between or not.
$node->safe_psql('postgres', <<'END');
BEGIN;
SAVEPOINT a;
SELECT idempotency.outbox_enqueue('t', 'savepoint', 'E', '{"n": 1}');
ROLLBACK TO a;
SELECT idempotency.outbox_enqueue('t', 'savepoint', 'E', '{"n": 2}');
COMMIT;
BEGIN;
SELECT idempotency.outbox_enqueue('t', 'prepared', 'E', '{"n": 3}');
PREPARE TRANSACTION 'p';
END
IdemTest::wait_for($node, q{SELECT string_agg(n::text, ' ') = '2' FROM effects WHERE key = 'savepoint'});
$node->restart;
is($node->safe_psql('postgres', q{SELECT count(*) FROM effects WHERE key = 'prepared'}),
	'0', 'what is prepared is not delivered');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects WHERE key = 'prepared'});

$node->stop;
done_testing();
