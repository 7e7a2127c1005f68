
# Copyright (c) 2026, the idempotency developers

# Relays at rest stay so while a session has locked the log: none of them could read it,
# and no program is started for that.  A server that is recovered to an earlier time
# starts each program once: the targets may be ahead of it.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', allows_streaming => 1, conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_idle_timeout = 200ms
autovacuum = off
END
my @relays = map { "relay$_" } 1 .. 4;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sub rollbacks
{
	return sql(q{SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'});
}

sub hellos
{
	my ($relay) = @_;

	return scalar grep { exists $_->{hello} } IdemRelay::received("$dir/$relay.log");
}

IdemRelay::own_relay($node, $dir, $_) foreach @relays;
IdemRelay::wait_state($node, $_, 'idle') foreach @relays;

#
# The worker sees the event only when the log is locked.
#
my $worker = IdemRelay::stat($node, 'relay1', 'pid');
my $locker = $node->background_psql('postgres', on_error_stop => 1);
my %before = map { $_ => hellos($_) } @relays;

kill 'STOP', $worker;
sql(q{SELECT idempotency.outbox_enqueue('relay1', 'k', 'Locked', '1')});
$locker->query_safe(<<'END');
BEGIN;
DO $$
DECLARE
	segment regclass;
BEGIN
	FOR segment IN SELECT c.oid FROM pg_class c WHERE relname LIKE 'outbox\_segment\__' AND relkind = 'r'
	LOOP
		EXECUTE 'LOCK TABLE ' || segment || ' IN ACCESS EXCLUSIVE MODE';
	END LOOP;
END $$;
END

my $failed = rollbacks();

kill 'CONT', $worker;
IdemTest::wait_for($node, "SELECT xact_rollback >= $failed + 10 FROM pg_stat_database WHERE datname = 'postgres'");
is_deeply([ IdemRelay::children($worker) ], [], 'no program runs while the log is locked');
$locker->query_safe('COMMIT');
$locker->quit;
IdemRelay::arrives("$dir/relay1.log", 'Locked');
foreach my $relay (@relays)
{
	is(hellos($relay), $before{$relay} + ($relay eq 'relay1' ? 1 : 0), "$relay started its program for an event only");
}

#
# A cold copy in place of the cluster, recovered.
#
IdemRelay::wait_state($node, $_, 'idle') foreach @relays;
%before = map { $_ => hellos($_) } @relays;
$node->restart;
IdemTest::wait_for($node, "SELECT count(*) = @{[ scalar @relays ]} FROM idempotency.stat_relay WHERE state = 'idle'");
is(hellos($_), $before{$_}, "$_ rests after a clean restart") foreach @relays;
$node->stop;
$node->append_conf('postgresql.conf', "restore_command = 'false'");
append_to_file($node->data_dir . '/recovery.signal', '');
$node->start;
IdemTest::wait_for($node, 'SELECT NOT pg_is_in_recovery()');
foreach my $relay (@relays)
{
	IdemRelay::wait_until("$relay starts its program after the recovery", sub { hellos($relay) > $before{$relay} });
}

$node->stop;
done_testing();
