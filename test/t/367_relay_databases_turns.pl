
# Copyright (c) 2026, the idempotency developers

# Where max_workers are fewer than the databases with relays need, the databases' own
# workers take turns, and one slot is left to function relays: everything arrives.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.max_workers = 2
idempotency.sink_idle_timeout = 300ms
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

sub database
{
	my ($name) = @_;

	sql("CREATE DATABASE $name");
	IdemTest::create_extension($node, $name);
	return;
}

sub effects
{
	my ($database) = @_;

	return sql('SELECT count(*) FROM effect', $database);
}

sub enqueue
{
	my ($type, $database) = @_;

	sql("SELECT idempotency.outbox_enqueue('$type', 'k', 'E', '{}')", $database);
	return;
}

my $set_up = <<'END';
CREATE TABLE effect (type text);
CREATE FUNCTION good(aggregate_type text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect VALUES (aggregate_type)';
CREATE FUNCTION endless(aggregate_type text) RETURNS void LANGUAGE sql AS $$ SELECT idempotency.outbox_enqueue(aggregate_type, 'k', 'E', '{}') $$;
CREATE SERVER good FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.good');
CREATE SERVER endless FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.endless');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
END

#
# A relay without an event in another database does not keep the last slot.
#
sql($set_up);
sql(q{SELECT idempotency.relay_create('f', 'good', aggregate_types => '{f}')});
IdemTest::wait_for($node, q{SELECT state = 'idle' FROM idempotency.stat_relay});
database('b');
sql($set_up, 'b');
sql(q{SELECT idempotency.relay_create('n', 'nul', aggregate_types => '{none}')}, 'b');
IdemTest::wait_for($node, q{SELECT state = 'idle' FROM idempotency.stat_relay}, 't', 'b');
enqueue('f', 'postgres');
IdemRelay::wait_until('a function relay has its turn beside an idle database', sub { effects('postgres') == 1 });

#
# Three databases with function relays that always have something to do, and relays to
# programs: each has its turn.
#
database('c');
sql($set_up, 'c');
sql(q{SELECT idempotency.relay_create('f', 'good', aggregate_types => '{f}')}, $_) foreach 'b', 'c';
sql(q{SELECT idempotency.relay_create('p', 'nul', aggregate_types => '{p}'),
	idempotency.relay_create('e', 'endless', aggregate_types => '{e}', batch_events => 1)}, $_) foreach 'postgres', 'b', 'c';
enqueue('e', $_) foreach 'postgres', 'b', 'c';
my %had = map { $_ => effects($_) } 'postgres', 'b', 'c';
foreach my $database ('postgres', 'b', 'c')
{
	enqueue($_, $database) foreach 'f', 'p';
}
foreach my $database ('postgres', 'b', 'c')
{
	IdemRelay::wait_until("the function relay of $database has its turn", sub { effects($database) == $had{$database} + 1 });
	IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'p'}, 't', $database);
}

#
# A database that cannot be connected to takes no slot; it goes on when it can be.
#
sql(q{SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay WHERE relay = 'e'}, $_) foreach 'postgres', 'b', 'c';
# The launcher would look again after a minute by itself.
sub noticed
{
	my ($alter, $workers) = @_;
	my $limit = 20 * IdemTest::slowness($node);
	my $began = time;

	sql($alter);
	IdemTest::wait_for($node, "SELECT count(*) = $workers FROM pg_stat_activity WHERE datname = 'c' AND backend_type = 'idempotency relay' AND application_name LIKE '% database %'");
	cmp_ok(time - $began, '<', $limit, "$alter is noticed at once");
	return;
}
noticed('ALTER DATABASE c ALLOW_CONNECTIONS false', 0);
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'c'});
my $failures = () = slurp_file($node->logfile) =~ /not currently accepting connections/g;
enqueue('f', $_) foreach 'postgres', 'b';
foreach my $database ('postgres', 'b')
{
	IdemRelay::wait_until("$database is served beside a database that allows no connections", sub { effects($database) == $had{$database} + 2 });
}
is(() = slurp_file($node->logfile) =~ /not currently accepting connections/g, $failures, 'where no worker is tried');
noticed('ALTER DATABASE c ALLOW_CONNECTIONS true', 1);
enqueue('f', 'c');
IdemRelay::wait_until('which goes on when it allows them', sub { effects('c') == $had{c} + 2 });

#
# Handlers that do not give way when they are asked: the databases share out what is left.
# First it is one slot, in which their own workers take turns, then two.
#
$node->append_conf('postgresql.conf', "idempotency.max_workers = 4\n");
$node->restart;
sql(<<'END');
CREATE FUNCTION gate(aggregate_type text) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(right(aggregate_type, 1)::int)';
CREATE SERVER gate FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.gate', timeout '3600000');
END
# The other databases need no slot until the handlers have theirs.
sql("ALTER DATABASE $_ ALLOW_CONNECTIONS false") foreach 'b', 'c';
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname IN ('b', 'c')});
my @gates = map { $node->background_psql('postgres') } 1 .. 3;
foreach my $n (1 .. 3)
{
	$gates[$n - 1]->query_safe("SELECT pg_advisory_lock($n)");
	sql("SELECT idempotency.relay_create('g$n', 'gate', aggregate_types => '{g$n}')");
	enqueue("g$n", 'postgres');
}
my $hanging = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted};
IdemTest::wait_for($node, $hanging, 3);
sql("ALTER DATABASE $_ ALLOW_CONNECTIONS true") foreach 'b', 'c';
foreach my $round (1, 2)
{
	enqueue('p', $_) foreach 'postgres', 'b', 'c';
	IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = 'p'}, 't', $_) foreach 'b', 'c', 'postgres';
}
is(sql($hanging), 3, 'each database has its turn beside handlers that do not end');
(pop @gates)->quit;
IdemTest::wait_for($node, $hanging, 2);
%had = map { $_ => effects($_) } 'b', 'c';
enqueue('f', $_) foreach 'b', 'c';
foreach my $database ('b', 'c')
{
	IdemRelay::wait_until("and the function relay of $database", sub { effects($database) == $had{$database} + 1 });
}
is(sql($hanging), 2, 'beside those');
$_->quit foreach @gates;

$node->stop;
done_testing();
