
# Copyright (c) 2026, the idempotency developers

# No function relay keeps the workers of its database to itself: neither those whose
# handlers end their process nor those whose handlers do not end.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.max_function_workers = 2
idempotency.sink_idle_timeout = 300ms
autovacuum = off
log_line_prefix = '%n [%p] '
END

sub sql
{
	my ($sql, @args) = @_;

	return $node->safe_psql('postgres', $sql, @args);
}

sub effects
{
	my ($type) = @_;

	return sql("SELECT count(*) FROM effect WHERE type = '$type'");
}

sub enqueue
{
	my ($type) = @_;

	return sql("SELECT idempotency.outbox_enqueue('$type', 'k', 'E', '{}')");
}

# One relay to each function, with the function's name and type.
sub relays
{
	foreach my $name (@_)
	{
		sql("CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.$name', timeout '3600000');
			SELECT idempotency.relay_create('$name', '$name', aggregate_types => '{$name}', batch_events => 1)");
	}
	return;
}

sub no_workers
{
	IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});
	return;
}

sub drop
{
	sql("SELECT idempotency.relay_drop('$_')") foreach @_;
	no_workers();
	return;
}

sql(<<'END');
CREATE TABLE effect (type text);
CREATE FUNCTION good(aggregate_type text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effect VALUES (aggregate_type)';
CREATE FUNCTION end1(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'end1 tries'; PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(3600); END $$;
CREATE FUNCTION end2(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(3600); END $$;
END
relays('good');
no_workers();

#
# As many relays as workers, each of which ends its process with every event: they
# wait for their next tries without a worker.
#
relays('end1', 'end2');
my %event = map { $_ => enqueue($_) } 'end1', 'end2';
foreach my $name ('end1', 'end2')
{
	IdemTest::wait_for($node, "SELECT state = 'outage' FROM idempotency.stat_relay WHERE relay = '$name'");
}
enqueue('good');
IdemRelay::wait_until('a relay is served beside relays whose handlers end their workers', sub { effects('good') == 1 });
foreach my $name ('end1', 'end2')
{
	IdemTest::wait_for($node, qq{SELECT (state, waiting_for, last_error) = ('outage', 'backoff', 'the worker was ended while the handler had event $event{$name}')
		FROM idempotency.stat_relay WHERE relay = '$name'});
}

# Their slots go to others meanwhile, and the time between their tries grows all the same.
my @tries;
for (my $n = 2; @tries < 6; $n++)
{
	enqueue('good');
	IdemRelay::wait_until('and again', sub { effects('good') == $n });
	@tries = slurp_file($node->logfile) =~ /^(\d+\.\d+) \[\d+\] LOG:  end1 tries/mg;
}
cmp_ok($tries[5] - $tries[4], '>=', 0.8, 'a relay that ends its workers comes back later each time');
IdemTest::wait_for($node, qq{SELECT (state, waiting_for) = ('outage', 'backoff') FROM idempotency.stat_relay WHERE relay = 'end1'});
drop('end1', 'end2');

#
# A worker that was asked first, and cannot give way since its handler waits: another
# one is asked.
#
sql(<<'END');
CREATE FUNCTION waits(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
CREATE FUNCTION endless(aggregate_type text) RETURNS void LANGUAGE sql AS $$
	SELECT pg_advisory_xact_lock_shared(2), idempotency.outbox_enqueue(aggregate_type, 'k', 'E', '{}')
$$;
END
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $second_gate = $node->background_psql('postgres');
$second_gate->query_safe('SELECT pg_advisory_lock(2)');
relays('waits', 'endless');
no_workers();
enqueue('waits');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
enqueue('endless');
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
my $had = effects('good');
enqueue('good');

# The first one has been asked.
IdemTest::wait_for($node, q{SELECT waiting_for = 'worker' FROM idempotency.stat_relay WHERE relay = 'good'});
$second_gate->quit;
IdemRelay::wait_until('a relay is served beside a handler that waits', sub { effects('good') == $had + 1 });

#
# A relay that is altered to a program while its handler works, and back.
#
sql(q{CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null});
IdemTest::wait_for($node, q{SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'waits'});
sql(q{SELECT idempotency.relay_alter('waits', server => 'nul')});

# The worker of the database has seen it when it has a relay that was made later.
sql(q{SELECT idempotency.relay_create('later', 'nul', aggregate_types => '{later}')});
IdemTest::wait_for($node, q{SELECT pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'later'});
sql(q{SELECT idempotency.relay_alter('waits', server => 'good')});
sql(q{SELECT idempotency.relay_drop('later')});
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM idempotency_data.relay_status() WHERE relay_id > (SELECT max(relay_id) FROM idempotency_data.relays)});
enqueue('waits');
$gate->quit;
IdemRelay::wait_until('a relay that was altered to and fro goes on', sub { effects('waits') >= 1 });
drop('waits', 'endless');

#
# An owner whose relays are dropped while their handlers run: the processes go on as his,
# so he is not given the last one beside relays of others.
#
sql('ALTER SYSTEM SET idempotency.max_function_workers = 3');
sql('SELECT pg_reload_conf()');
sql(<<'END');
CREATE ROLE rich LOGIN;
SELECT idempotency.grant_role('operator', 'rich');
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO rich;
CREATE FUNCTION gate(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(3)';
END
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(3)');
my $in_handler = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted};

sub as_rich
{
	return sql($_[0], extra_params => [ '-U', 'rich' ]);
}

# A relay of his, whose handler is soon at the gate if it gets a process.
sub rich_relay
{
	my ($name) = @_;

	as_rich("CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.gate', timeout '3600000');
		SELECT idempotency.relay_create('$name', '$name', aggregate_types => '{$name}')");
	return enqueue($name);
}

my $dropped = 0;
foreach my $drop (q{SELECT idempotency.relay_drop('rich1')}, 'DROP SERVER rich2 CASCADE')
{
	$dropped++;
	rich_relay("rich$dropped");
	IdemTest::wait_for($node, $in_handler, $dropped);
	as_rich($drop);

	# The worker of the database has seen it when it has a relay that was made later.
	sql(q{SELECT idempotency.relay_create('later', 'nul', aggregate_types => '{later}')});
	IdemTest::wait_for($node, q{SELECT pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'later'});
	sql(q{SELECT idempotency.relay_drop('later')});
}
rich_relay('rich3');
IdemTest::wait_for($node, q{SELECT waiting_for = 'worker' FROM idempotency.stat_relay WHERE relay = 'rich3'});
$had = effects('good');
enqueue('good');
IdemRelay::wait_until('a relay is served beside handlers of dropped relays of another owner', sub { effects('good') == $had + 1 });
is(sql($in_handler), $dropped, 'which run, and are all that their owner has');

# doctor() names the processes; without one of them the owner has another.
my $named = q{FROM idempotency.doctor() WHERE area = 'workers' AND finding ~ '^process \d+ still runs the handler of a function relay that was dropped'};
IdemTest::wait_for($node, "SELECT count(*) $named", $dropped);
my ($remedy) = sql("SELECT remedy $named LIMIT 1") =~ /as a superuser: (SELECT pg_terminate_backend\(\d+\))/;
is(sql($remedy), 't', 'doctor() says how to end such a handler');
IdemTest::wait_for($node, q{SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'rich3'});
$gate->quit;
drop('rich3');

$node->stop;
done_testing();
