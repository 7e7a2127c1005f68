
# Copyright (c) 2026, the idempotency developers

# Relays in a dump: those of the restored database send nothing until they are
# adopted, beside the original as well as in another cluster.  Then each event
# has its effect once where effects are claimed, comes once to a program that
# has seen none, and what was parked or dead can be sent or forgotten.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $conf = "idempotency.sink_directory = '$dir'\n";
my $old = IdemTest::cluster('old', conf => $conf);
my @relays = qw(fn later pg prog);
my $host = $old->host;
my $port = $old->port;
my $user = $old->safe_psql('postgres', 'SELECT current_user');

# Transaction ids that another cluster has not reached
$old->safe_psql('postgres',
	'DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');

$old->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(shop target);
IdemTest::create_extension($old, $_) foreach qw(shop target);
IdemRelay::pytest_server($old, 'prog', "$dir/prog.log", reject_type => 'Dead', database => 'shop');
IdemRelay::pytest_server($old, 'later', "$dir/later.log", retry_type => 'Later', database => 'shop');
$old->safe_psql('shop', <<"END");
CREATE TABLE effects (event_id uuid, event_type text);
CREATE FUNCTION effect(event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	IF event_type = 'Dead' THEN RAISE 'refused'; END IF;
	INSERT INTO public.effects VALUES (event_id, event_type);
END \$\$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.effect');
CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'target', function 'public.arrive');
CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (user '$user');
SELECT idempotency.relay_create(name, name, max_attempts => 1) FROM unnest('{fn,pg,prog}'::text[]) AS name;
SELECT idempotency.relay_create('later', 'later', aggregate_types => '{late}', min_backoff => '1 h', max_backoff => '1 h');
END
$old->safe_psql('target', $old->safe_psql('shop', q{SELECT idempotency.sink_setup_sql('pg')}));
$old->safe_psql('target', <<'END');
CREATE TABLE arrived (event_id uuid);
CREATE FUNCTION arrive(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.arrived VALUES (event_id)';
END

# Events as "type:key:event type"; one transaction.
sub enqueue
{
	my ($node, $database, @events) = @_;

	$node->safe_psql($database, join("\n", 'BEGIN;',
		(map { my @e = split /:/; "SELECT idempotency.outbox_enqueue('$e[0]', '$e[1]', '$e[2]', '{}');" } @events),
		'COMMIT;'));
	return;
}

sub states
{
	my ($node, $database) = @_;

	return $node->safe_psql($database,
		q{SELECT string_agg(relay || ' ' || state, ', ' ORDER BY relay) FROM idempotency.stat_relay});
}

sub wait_states
{
	my ($node, $database, $state) = @_;

	IdemTest::wait_for($node, "SELECT count(*) = 4 FROM idempotency.stat_relay WHERE state = '$state'", 't', $database);
	return;
}

# "key:event type" of what a file has acknowledged
sub acked
{
	my ($file) = @_;

	return map { "$_->{aggregate_id}:$_->{event_type}" } IdemRelay::acked($file);
}

# Some delivered, one refused for now and one behind it, one dead, and some that
# nobody has sent.
enqueue($old, 'shop', qw(shop:a:One shop:b:Dead shop:a:Two late:k:Later late:k:Behind));
IdemTest::wait_for($old, q{SELECT string_agg(relay || ' ' || p.state || ' ' || event_type, ', ' ORDER BY relay, seq)
	= 'fn dead Dead, later retry Later, later waiting Behind, prog dead Dead'
	FROM idempotency_data.relay_parked p JOIN idempotency_data.relays USING (relay_id)}, 't', 'shop');
IdemRelay::wait_received("$dir/prog.log", 4);
IdemTest::wait_for($old, 'SELECT count(*) = 5 FROM arrived', 't', 'target');
IdemTest::wait_for($old, 'SELECT count(*) = 4 FROM effects', 't', 'shop');
$old->safe_psql('shop', 'SELECT idempotency.relay_pause(relay) FROM idempotency_data.relays');
wait_states($old, 'shop', 'paused');
# Later than the end of the test, whoever restores it.
$old->safe_psql('shop', q{UPDATE idempotency_data.relay_parked SET next_attempt_at = next_attempt_at + interval '1 hour' WHERE state = 'retry'});
enqueue($old, 'shop', qw(shop:a:Three late:l:Four));

my $dump = $old->basedir . '/shop.sql';
my $config = q{SELECT r FROM (SELECT relay, owner, server, relowner::regrole, aggregate_types, ordering, on_dead, retry_for, max_attempts, min_backoff,
	max_backoff, batch_events, batch_size, max_lag_size, paused, halted FROM idempotency_data.relays JOIN idempotency.stat_relay USING (relay)
	JOIN pg_class ON relname = 'relay_' || relay_id) r ORDER BY relay};
my $parked = q{SELECT relay, p.state, attempts, tried_for, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload,
	sqlstate, error, first_failed_at, last_failed_at FROM idempotency_data.relay_parked p JOIN idempotency_data.relays USING (relay_id)
	ORDER BY relay, seq};

# What the original's sinks have, which nobody else may write to.
sub original
{
	return join(' ', (map { scalar grep { exists $_->{event} } IdemRelay::received("$dir/$_.log") } qw(prog later)),
		$old->safe_psql('target', 'SELECT count(*) FROM arrived'));
}

# A dump without what depends on who made it.
sub compared
{
	my $text = slurp_file($_[0]);

	$text =~ s/^CREATE USER MAPPING.*?;\n//msg;
	$text =~ s/^\\(un)?restrict .*\n//mg;
	return $text;
}

# The restored database before anybody adopts its relays, then after.
sub check_restored
{
	my ($what, $node, $database) = @_;
	my $before = original();
	my $files = "$dir/$what";

	is($node->safe_psql($database, $config), $old->safe_psql('shop', $config), "$what: the relays are the same");
	is($node->safe_psql($database, $parked), $old->safe_psql('shop', $parked), "$what: and what they have parked");

	# Nothing is sent, whatever else is done
	enqueue($node, $database, qw(shop:a:Four));
	$node->safe_psql($database, 'SELECT idempotency.relay_resume(relay) FROM idempotency_data.relays');
	wait_states($node, $database, 'unadopted') if $database eq 'shop';
	is(states($node, $database), join(', ', map { "$_ unadopted" } @relays), "$what: without a worker as well")
	  if $database ne 'shop';
	is($node->safe_psql($database, 'SELECT count(*) FROM effects'), '4', "$what: nothing is handled");
	is(original(), $before, "$what: nothing is sent");

	# Adopted, to sinks of their own
	$node->safe_psql($database, <<"END");
ALTER SERVER prog OPTIONS (SET file '$files.prog.log', DROP reject_type);
ALTER SERVER later OPTIONS (SET file '$files.later.log', DROP retry_type);
END
	foreach my $relay (@relays)
	{
		my ($rc, $out, $err) = $node->psql($database, "SELECT idempotency.relay_adopt('$relay')");

		like($err, qr/WARNING:  relay "$relay" has no position of this cluster/, "$what: $relay is adopted with a warning");
	}
	wait_states($node, $database, 'streaming');
	IdemTest::wait_for($node, 'SELECT count(*) = 7 FROM effects', 't', $database);
	IdemRelay::wait_received("$files.prog.log", 7);
	IdemTest::wait_for($node, q{SELECT count(*) = 4 FROM idempotency.stat_relay WHERE lag_events = 0}, 't', $database);
	is($node->safe_psql($database, 'SELECT count(DISTINCT event_id) FROM effects'), '7', "$what: each event has one effect");
	is(join(' ', sort(acked("$files.prog.log"))), 'a:Four a:One a:Three a:Two k:Behind k:Later l:Four',
		"$what: a program that has seen none is sent each once");
	is(join(' ', acked("$files.later.log")), 'l:Four', "$what: what is parked stays parked");
	return;
}

# What it has parked can be sent, or forgotten.
sub check_parked
{
	my ($what, $node, $database) = @_;
	my $files = "$dir/$what";

	# What was to be tried later: now, in order
	$node->safe_psql($database, q{
		SELECT idempotency.relay_replay('later', event_id => event_id) FROM idempotency.outbox_events WHERE event_type = 'Later'});
	IdemRelay::wait_received("$files.later.log", 3);
	is(join(' ', acked("$files.later.log")), 'l:Four k:Later k:Behind', "$what: what was parked is sent, in order");

	# What was dead
	is($node->safe_psql($database, q{SELECT idempotency.relay_redrive('prog')}), '1', "$what: redrive");
	IdemRelay::wait_received("$files.prog.log", 8);
	is((acked("$files.prog.log"))[-1], 'b:Dead', "$what: the dead letter is sent");
	is($node->safe_psql($database, q{SELECT idempotency.relay_discard('fn')}), '1', "$what: discard");
	IdemTest::wait_for($node, 'SELECT count(*) = 0 FROM idempotency_data.relay_parked', 't', $database);
	is($node->safe_psql($database, q{SELECT count(*) FROM effects WHERE event_type = 'Dead'}), '0', "$what: the other is forgotten");
	return;
}

# Beside the original: a database has the relays of a dump, but nothing that
# tells the launcher.
$old->safe_psql('shop', 'CREATE ROLE keeper LOGIN; ALTER DATABASE shop OWNER TO keeper; GRANT SELECT ON ALL TABLES IN SCHEMA public TO keeper');
my $kept = $old->basedir . '/kept.sql';
my @keep = ('pg_dump', '-U', 'keeper', '-f', $kept, '-d', $old->connstr('shop'));
command_fails_like(\@keep, qr/permission denied for schema idempotency_data/, 'who owns the database cannot dump');
$old->safe_psql('shop', q{SELECT idempotency.grant_role('backup', 'keeper')});
command_ok(\@keep, 'with the kind backup he can');
command_ok([ 'pg_dump', '-f', $dump, '-d', $old->connstr('shop') ], 'dumped');
is(compared($kept), compared($dump), 'he dumps what a superuser does, but options of user mappings');
$old->safe_psql('postgres', 'CREATE DATABASE kept TEMPLATE template0');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $kept, '-d', $old->connstr('kept') ], 'and it can be restored');
is($old->safe_psql('kept', $config), $old->safe_psql('shop', $config), 'with the relays');
$old->safe_psql('postgres', 'DROP DATABASE kept');
is($old->safe_psql('shop', <<'END'), 't|f|f', 'he reads tables, writes none, and calls nothing');
SELECT bool_and(has_table_privilege('keeper', c.oid, 'SELECT')), bool_or(has_table_privilege('keeper', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')),
	(SELECT bool_or(has_function_privilege('keeper', p.oid, 'EXECUTE')) FROM pg_proc p WHERE p.pronamespace::regnamespace::text LIKE 'idempotency%')
  FROM pg_class c WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r'
END
$old->safe_psql('postgres', 'CREATE DATABASE beside TEMPLATE template0');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $old->connstr('beside') ], 'restored beside');
check_restored('beside', $old, 'beside');
check_parked('beside', $old, 'beside');

# Into another cluster, the database itself included, and with it its label.  No
# worker may start meanwhile: one that came before the relays would remove that.
my $new = IdemTest::cluster('new', extension => 0, conf => "${conf}max_worker_processes = 0\n");
$new->safe_psql('postgres', 'CREATE ROLE keeper');
command_ok([ 'pg_dump', '--create', '-f', $dump, '-d', $old->connstr('shop') ], 'dumped with the database');
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $new->connstr('postgres') ], 'restored elsewhere');
$new->append_conf('postgresql.conf', 'max_worker_processes = 32');
$new->restart;
check_restored('elsewhere', $new, 'shop');
check_parked('elsewhere', $new, 'shop');

# Both and the original have sent to one target, which claims what it is sent.
IdemTest::wait_for($old, 'SELECT count(*) = 9 FROM arrived', 't', 'target');
is($old->safe_psql('target', 'SELECT count(DISTINCT event_id) FROM arrived'), '9', 'each event had its effect at the target once');
is(states($old, 'shop'), join(', ', map { "$_ paused" } @relays), 'the original is as it was');
$_->stop foreach $old, $new;
done_testing();
