
# Copyright (c) 2026, the idempotency developers

# Where max_worker_processes are fewer than relays and packers need, packers take turns, too:
# they do not keep the processes from the relays of all databases.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The launcher, and one process for each of the databases.
my @databases = qw(postgres b c);
my $node = IdemTest::cluster('main', conf => <<'END');
max_worker_processes = 4
max_logical_replication_workers = 0
idempotency.claim_segment_size = 256kB
idempotency.pack_max_rate = 1kB
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

# Claim and complete so many events.
sub claim
{
	my ($prefix, $n, $database) = @_;

	sql(<<"END", $database);
SELECT idempotency.complete_events(array_agg(event_id), 'c')
	FROM idempotency.claim_events(ARRAY(SELECT '$prefix' || i FROM generate_series(1, $n) i), 'c')
END
	return;
}

foreach my $database (@databases)
{
	if ($database ne 'postgres')
	{
		sql("CREATE DATABASE $database");
		IdemTest::create_extension($node, $database);
	}
	sql(<<'END', $database);
CREATE TABLE effect (at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect DEFAULT VALUES';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
END
}

# Each database has a segment to be packed, which at that rate takes minutes.  Its packer
# has a process before the relays want any.
foreach my $database (@databases)
{
	claim('x', 10000, $database);
}
IdemTest::wait_for($node, q{SELECT count(*) = 3 FROM pg_stat_activity WHERE backend_type = 'idempotency packer'});
sql(q{SELECT idempotency.relay_create('fn', 'fn')}, $_) foreach @databases;
foreach my $round (1 .. 3)
{
	sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}, $_) foreach @databases;
	# Claims go on, and ask for packers.
	claim("y$round.", 5000, $_) foreach @databases;
	foreach my $database (@databases)
	{
		IdemRelay::wait_until("round $round: the event of $database arrives",
			sub { sql('SELECT count(*) FROM effect', $database) == $round });
	}
}
is(sql(q{SELECT count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND state = 'searched'}, $_), '0', "$_: packing is not done")
  foreach @databases;
cmp_ok(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency packer'}), '<=', 1, 'one packer has the turn');

# With processes for all, packing goes on.
$node->append_conf('postgresql.conf', "max_worker_processes = 16\nidempotency.pack_max_rate = 0");
$node->restart;
foreach my $database (@databases)
{
	claim('last', 1, $database);
	IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM idempotency.stat_claim_segments WHERE kind = 'run' AND state = 'searched'}, 't', $database);
}

$node->stop;
done_testing();
