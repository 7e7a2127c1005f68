
# Copyright (c) 2026, the idempotency developers

# An operator's move that commits late: what the relay sends meanwhile has higher
# numbers than the move, and is no contradiction to it, also once the logs of
# positions have taken turns.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 60s
END

sub relay
{
	my ($name, %opt) = @_;

	return IdemRelay::own_relay($node, $dir, $name, position => 'on', %opt);
}

sub enqueue
{
	my ($name, $type) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$name', '$type', '$type', '1')");
	return;
}

# Both logs of positions take their turn, so that only what is kept is left.
sub turn_logs
{
	my $full = $node->safe_psql('postgres', <<'END');
SELECT CASE WHEN pg_relation_size('idempotency_data.relay_log_0') = 0 THEN 1 ELSE 0 END
END

	$node->safe_psql('postgres', <<"END");
INSERT INTO idempotency_data.relay_log_$full (id, epoch, life, acked_row, acked_k, seq, at, relay_id, kind, fresh, base)
	SELECT nextval('idempotency_data.relay_log_id'), 1, 0, 0, 0, 0, now(), 999, 'r', 'n', pg_current_snapshot()
	FROM generate_series(1, 60000)
END
	IdemTest::wait_for($node, "SELECT pg_relation_size('idempotency_data.relay_log_$full') = 0");
	return;
}

# A move takes its number when it is made, and counts when it commits.  What the
# relay sends in between has higher numbers, and is older than the move.
foreach my $turns (0, 1)
{
	my $name = "moved$turns";
	my $file = relay($name);
	my $mover = $node->background_psql('postgres', on_error_stop => 1);

	enqueue($name, 'One');
	IdemRelay::arrives($file, 'One');
	$mover->query_safe('BEGIN');
	$mover->query_safe("SELECT idempotency.relay_replay('$name', since => '-infinity')");
	enqueue($name, 'Two');
	IdemRelay::arrives($file, 'Two');
	IdemTest::wait_for($node, "SELECT waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$name'");
	if ($turns)
	{
		$node->safe_psql('postgres', "ALTER SERVER s_$name OPTIONS (ADD failed_type 'One')");
	}
	$mover->query_safe('COMMIT');
	$mover->quit;
	if ($turns)
	{
		turn_logs();
		$node->safe_psql('postgres', "ALTER SERVER s_$name OPTIONS (DROP failed_type)");
	}
	IdemRelay::wait_until("$name goes on or stands",
		sub { IdemRelay::came($file, 'Two') > 1 || IdemRelay::stat($node, $name, 'state') eq 'diverged' });
	is(IdemRelay::stat($node, $name, 'state'), 'streaming', "$name: a move that commits late is no contradiction");
	is(IdemRelay::came($file, $_), 2, "$name: $_ is sent again") foreach qw(One Two);
}

$node->stop;
done_testing();
