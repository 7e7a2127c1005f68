
# Copyright (c) 2026, the idempotency developers

# Who publishes: the cluster and database a relay was made in.  A physical copy
# does not, until it is told to; a promoted standby of the same name goes on by
# itself.  Pinned horizons and many batches change nothing in the position log.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";
my $node = IdemTest::cluster('main', allows_streaming => 1, conf => "idempotency.sink_directory = '$dir'\n");

IdemRelay::pytest_server($node, 'srv', $file);
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.effects VALUES (event_id) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('p', 'srv');
SELECT idempotency.relay_create('fn', 'fn');
END
IdemRelay::enqueue($node, 'a', 'One', 3);
IdemRelay::wait_received($file, 3);
IdemTest::wait_for($node, 'SELECT count(*) = 3 FROM effects');
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

# A copy of the data directory beside its origin sends nothing.
$node->backup('copy');
IdemRelay::enqueue($node, 'a', 'Two', 2);
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'copy');
$copy->start;
IdemTest::wait_for($copy, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state = 'unadopted' AND last_error LIKE 'bound to %'});
IdemRelay::enqueue($copy, 'b', 'Copy', 2);
IdemRelay::wait_received($file, 5);
is(IdemRelay::stat($copy, 'p', 'state'), 'unadopted', 'the copy stays unadopted');
is(scalar(grep { $_->{event_type} eq 'Copy' } IdemRelay::acked($file)), 0, 'and sends nothing');
is($copy->safe_psql('postgres', 'SELECT count(*) FROM effects'), '3', 'nor calls its function');

# Nor does it keep a processor busy.
IdemRelay::worker_sleeps($copy, 'p');

# Adopted it sends what is its own.
$copy->safe_psql('postgres', "ALTER SERVER srv OPTIONS (SET file '$dir/copy.log')");
$copy->safe_psql('postgres', "SELECT idempotency.relay_adopt('p'), idempotency.relay_adopt('fn')");
IdemTest::wait_for($copy, q{SELECT count(*) >= 5 FROM effects});
IdemRelay::wait_until('the copy\'s events', sub {
	2 == IdemRelay::distinct(grep { $_->{event_type} eq 'Copy' } IdemRelay::acked("$dir/copy.log")) });
$copy->stop;

# Another name is another identity, the same one on a standby goes on.
$node->append_conf('postgresql.conf', "idempotency.publish_as = 'shop'\n");
$node->reload;
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state = 'unadopted'});
$node->safe_psql('postgres', "SELECT idempotency.relay_adopt('p'), idempotency.relay_adopt('fn')");
$node->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'standby', has_streaming => 1);
$standby->start;
IdemRelay::enqueue($node, 'a', 'Three', 3);
IdemRelay::wait_received($file, 8);
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency relay'}),
	'0', 'no worker on a standby');
$node->stop('immediate');
$standby->promote;
IdemRelay::wait_state($standby, 'p', 'streaming');
IdemRelay::enqueue($standby, 'c', 'Promoted', 4);
IdemRelay::wait_received($file, 12);
IdemTest::wait_for($standby, 'SELECT count(*) = count(DISTINCT event_id) AND count(*) = 12 FROM effects');

# Many batches beside a pinned horizon: the position log takes turns, and holds
# no dead row.
my $pin = $standby->background_psql('postgres');
$pin->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM effects');
$standby->safe_psql('postgres', <<"END");
SELECT idempotency.relay_alter('p', batch_events => 1);
SELECT idempotency.relay_alter('fn', batch_events => 1);
ALTER SERVER srv OPTIONS (SET file '/dev/null');
END
foreach my $i (1 .. 6)
{
	IdemRelay::enqueue($standby, "d$i", 'Many', 1000);
}
my $total = 12 + 6000;
IdemTest::wait_for($standby, "SELECT count(*) >= $total FROM effects");
IdemTest::wait_for($standby, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});
is($standby->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM effects'), '0', 'each event once');
is( $standby->safe_psql('postgres', q{SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE relname LIKE 'relay_log_%'}),
	'0', 'no dead rows in the position log');
$pin->quit;
$standby->stop;
done_testing();
