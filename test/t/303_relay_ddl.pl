
# Copyright (c) 2026, the idempotency developers

# Sinks that hang, programs and functions, are in nobody's way: databases and
# the extension can be dropped, renamed and copied, and the server stopped, in
# less than 10 s.  A copy of a database publishes nothing.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 1h
END

# A database with two relays, both in the middle of an event that hangs.
sub hung_database
{
	my ($name) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	IdemTest::create_extension($node, $name);
	IdemRelay::pytest_server($node, 'prog', "$dir/$name.log", hang_type => 'Hang', database => $name);
	$node->safe_psql($name, <<'END');
CREATE FUNCTION public.slow(event_id uuid) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(3600)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.slow', timeout '3600000');
SELECT idempotency.relay_create('prog', 'prog');
SELECT idempotency.relay_create('fn', 'fn');
SELECT idempotency.outbox_enqueue('t', 'k', 'Hang', '{}');
END
	IdemTest::wait_for($node,
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '$name' AND wait_event = 'PgSleep'");
	IdemTest::wait_for($node,
		q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'prog'}, 't', $name);
	return $node->safe_psql($name, q{SELECT sink_pid FROM idempotency.stat_relay WHERE relay = 'prog'});
}

sub quick
{
	my ($what, $do) = @_;
	my $limit = 10 * IdemTest::slowness($node);
	my $start = time;

	$do->();
	cmp_ok(time - $start, '<', $limit, "$what in less than 10 s");
	return;
}

my $sink = hung_database('one');
quick('ALTER DATABASE RENAME', sub { $node->safe_psql('postgres', 'ALTER DATABASE one RENAME TO uno') });
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'prog'}, 't', 'uno');
ok(IdemRelay::process_is_gone($sink), 'the former program is gone');

quick('CREATE DATABASE TEMPLATE', sub { $node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE uno') });
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'prog'}, 't', 'uno');
is($node->safe_psql('copy', <<'END'), "fn|unadopted|operator|t\nprog|unadopted|operator|t", 'the relays of the copy are unadopted, without a worker');
SELECT relay, state, waiting_for, last_error ~ '^bound to ".+", this database is ".+"$' FROM idempotency.stat_relay ORDER BY 1
END
is($node->safe_psql('copy', 'SET ROLE pg_monitor; SELECT DISTINCT last_error FROM idempotency.stat_relay'),
	'<insufficient privilege>', 'who may not read errors does not learn to what they are bound');

# A relay made in the copy makes it one with a worker; the copied ones stay.
$node->safe_psql('copy', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('nul', 'nul');
END
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') AND sent = 1 FROM idempotency.stat_relay WHERE relay = 'nul'}, 't', 'copy');
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state = 'unadopted'}, 't', 'copy');
$node->safe_psql('copy', <<"END");
ALTER SERVER prog OPTIONS (SET file '$dir/copy.log', DROP hang_type);
SELECT idempotency.relay_adopt('prog');
END
IdemRelay::wait_received("$dir/copy.log", 1);

my $sink_pid = q{SELECT sink_pid FROM idempotency.stat_relay WHERE relay = 'prog'};
$sink = $node->safe_psql('uno', $sink_pid);
$node->safe_psql('postgres', 'ALTER DATABASE uno CONNECTION LIMIT 50');
is($node->safe_psql('uno', $sink_pid), $sink, 'ALTER DATABASE ... CONNECTION LIMIT ends no worker');
quick('DROP EXTENSION', sub { $node->safe_psql('uno', 'DROP EXTENSION idempotency CASCADE') });
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'uno' AND backend_type = 'idempotency relay'});
ok(IdemRelay::process_is_gone($sink), 'its program is gone');
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_shseclabel JOIN pg_database ON objoid = pg_database.oid WHERE datname = 'uno'});

# A relay that drops its last relay, and one made at once, do not miss each other.
IdemTest::create_extension($node, 'uno');
$node->safe_psql('uno', 'CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null');
foreach my $i (1 .. 20)
{
	$node->safe_psql('uno', "SELECT idempotency.relay_create('r', 'nul')");
	$node->poll_query_until('uno', q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay})
	  or fail("relay made for the ${i}th time runs");
	$node->safe_psql('uno', "SELECT idempotency.relay_drop('r')");
}
pass('relays made and dropped ran each time');

hung_database('two');
quick('DROP DATABASE', sub { $node->safe_psql('postgres', 'DROP DATABASE two') });
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_shseclabel s WHERE provider = 'idempotency'
	AND NOT EXISTS (SELECT FROM pg_database WHERE oid = s.objoid)});

# Who may not drop the database does not stop its workers either.
$sink = hung_database('three');
$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN');
foreach my $command ('DROP DATABASE three', 'ALTER DATABASE three RENAME TO tres', 'CREATE DATABASE x TEMPLATE three')
{
	my ($rc, $out, $err) = $node->psql('postgres', $command, extra_params => [ '-U', 'nobody' ]);

	isnt($rc, 0, "$command is refused");
}
ok(!IdemRelay::process_is_gone($sink), 'and the worker was not disturbed');

# Commands that want the same database without workers: the end of one does
# not let the workers of the other back in, however it ends.
sub relay_workers
{
	my ($database) = @_;

	return "SELECT count(*) FROM pg_stat_activity WHERE datname = '$database' AND backend_type = 'idempotency relay'";
}

$node->safe_psql('postgres', 'CREATE DATABASE held');
IdemTest::create_extension($node, 'held');
$node->safe_psql('held', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('nul', 'nul');
END
IdemTest::wait_for($node, relay_workers('held'), '1');
my $reader = $node->background_psql('held');
$reader->query_safe('BEGIN');
$reader->query_safe('LOCK TABLE idempotency_data.relays IN ACCESS SHARE MODE');
my @droppers;
foreach my $i (1 .. 3)
{
	my $dropper = $node->background_psql('held', on_error_stop => 0);

	push @droppers, { session => $dropper, pid => $dropper->query_safe('SELECT pg_backend_pid()') };
	$dropper->query_until(qr/going/, "\\echo going\nDROP EXTENSION idempotency CASCADE;\n");
	IdemTest::wait_for($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $droppers[-1]{pid}");
}
IdemTest::wait_for($node, relay_workers('held'), '0');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($droppers[1]{pid})");
IdemTest::wait_for($node, "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $droppers[1]{pid}");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($droppers[2]{pid})");
IdemTest::wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $droppers[2]{pid}");

# The launcher has been round when the worker of another database has come.
$node->safe_psql('postgres', 'CREATE DATABASE later');
IdemTest::create_extension($node, 'later');
$node->safe_psql('later', <<'END');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('nul', 'nul');
END
IdemTest::wait_for($node, relay_workers('later'), '1');
is($node->safe_psql('postgres', relay_workers('held')), '0', 'the first command still holds the workers');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($droppers[0]{pid})");
IdemTest::wait_for($node, relay_workers('held'), '1');
$reader->quit;
$droppers[$_]{session}->quit foreach 0, 1;
$droppers[2]{session}->{run}->finish;

# DROP EXTENSION commits between two look-ups of a session, which has found the schema and
# waits to read its name.  The lock on pg_namespace is of this database only.
$node->safe_psql('postgres', 'CREATE DATABASE gone');
IdemTest::create_extension($node, 'gone');
my $client = $node->background_psql('gone', on_error_stop => 0);
$client->query_safe(q{BEGIN; SELECT idempotency.claim_event('x'); ROLLBACK});
my $dropper = $node->background_psql('gone');
$dropper->query_safe('BEGIN; LOCK pg_catalog.pg_namespace; SET LOCAL client_min_messages = error; DROP EXTENSION idempotency CASCADE');
$client->query_until(qr/going/, "\\echo going\nSELECT idempotency.relay_pause('r');\n");
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'pg_catalog.pg_namespace'::regclass});
$dropper->query_safe('COMMIT');
$client->query('SELECT 1');
like($client->{stderr}, qr/extension "idempotency" is not installed in this database/, 'a session that used the extension is told');
$client->quit;
$dropper->quit;

# pg_cancel_backend means the handler's statement; the program does not mind.
is($node->safe_psql('three', q{SELECT pg_cancel_backend(pid) FROM idempotency.stat_relay WHERE relay = 'prog'}), 't', 'cancel');
$node->safe_psql('three', q{SELECT pg_cancel_backend(pid) FROM idempotency.stat_relay WHERE relay = 'fn'});
IdemTest::wait_for($node, q{SELECT last_error ~ 'cancel' FROM idempotency.stat_relay WHERE relay = 'fn'}, 't', 'three');
IdemTest::wait_for($node,
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'three' AND wait_event = 'PgSleep'");
ok(!IdemRelay::process_is_gone($sink), 'a cancelled worker keeps its program');

my @sinks = map { $node->safe_psql($_, q{SELECT sink_pid FROM idempotency.stat_relay WHERE sink_pid > 0}) } qw(copy three);
quick('fast shutdown', sub { $node->stop('fast') });
ok(IdemRelay::process_is_gone($_), 'no program is left') foreach map { split /\n/ } @sinks;
unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|was terminated by signal)/, 'nothing crashed');
done_testing();
