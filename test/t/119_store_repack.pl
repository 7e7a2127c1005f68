
# Copyright (c) 2026, the idempotency developers

# Tools that rewrite tables, over the whole database and under load.  pg_repack copies a
# table by a trigger, which the rows of claims do not fire: it must leave the tables that C
# code writes.  The tables that SQL writes it may rewrite.  VACUUM FULL, CLUSTER and REINDEX
# may rewrite all.  Nothing that was completed is forgotten, and nothing fails.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

# REPACK (CONCURRENTLY) of 19 reads what happens meanwhile from the WAL
my $node = IdemTest::cluster('main', conf => "max_connections = 60\nwal_level = logical\nmax_wal_senders = 5\n");
my $db = 'postgres';

sub sql
{
	return $node->safe_psql($db, $_[0]);
}

# Not pg_version: to it a release candidate is older than its release.
my $server = sql('SHOW server_version_num');

sql(<<'SQL');
CREATE TABLE effects (id text, xid xid8 DEFAULT pg_current_xact_id());
CREATE SEQUENCE next;
SELECT idempotency.consumer_create('own', max_attempts => 3, min_backoff => '1 hour', max_backoff => '2 hours');
CREATE FUNCTION handle(event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Dead' THEN RAISE EXCEPTION 'refused'; END IF;
	INSERT INTO public.effects VALUES (event_id);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', max_attempts => 1);
CREATE FUNCTION work(id text, consumer text, pause float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF idempotency.claim_event(id, consumer) = 'claimed' THEN
		INSERT INTO effects VALUES (id);
		PERFORM pg_sleep(pause);
		PERFORM idempotency.complete_event(id, consumer);
	END IF;
END $$;
CREATE PROCEDURE work_leased(id text) LANGUAGE plpgsql AS $$
DECLARE
	held bigint := (SELECT token FROM idempotency.lease_event(id));
BEGIN
	COMMIT;
	INSERT INTO effects VALUES (id);
	PERFORM idempotency.complete_event(id, token => held);
END $$;
CREATE FUNCTION send() RETURNS void LANGUAGE sql AS $$
	SELECT idempotency.outbox_enqueue('t', gen_random_uuid()::text, CASE WHEN random() < 0.05 THEN 'Dead' ELSE 'Fine' END, '{}')
$$;
SQL

# A claim that takes its time, so that a copy which waits for open transactions is between
# two of its steps while others complete; one that takes none; a lease; an event of the outbox.
my %scripts = (
	slow => q{SELECT work('s' || nextval('next'), 'default', 0.01 + random() * 0.05)},
	quick => q{SELECT work('q' || nextval('next'), 'own', 0)},
	leased => q{CALL work_leased('l' || nextval('next'))},
	sent => q{SELECT send(), pg_sleep(0.02)});
my @files;
foreach my $name (sort keys %scripts)
{
	append_to_file($node->basedir . "/$name.sql", "$scripts{$name};\n");
	push @files, '-f', $node->basedir . "/$name.sql";
}
my ($out, $err) = ('', '');
my $load = IPC::Run::start([ 'pgbench', '-n', '-c', '10', '-j', '2', '-T', '600', @files,
		$node->connstr($db) . ' application_name=load' ], '>', \$out, '2>', \$err);

# Wait until the load has completed so many more events.
sub completed
{
	my ($more) = @_;
	my $now = sql('SELECT count(*) FROM effects');

	IdemTest::wait_for($node, "SELECT count(*) > $now + $more FROM effects");
	return;
}

# The numbers of the files of tables.
sub files
{
	my ($condition) = @_;
	my %number = map { split /\|/ } split /\n/, sql("SELECT relname, relfilenode FROM pg_class
		WHERE relnamespace = 'idempotency_data'::regnamespace AND relkind = 'r' AND $condition");

	return \%number;
}

my $by_sql = q{relname IN ('consumers', 'relays', 'relay_parked', 'relay_attempts', 'relay_blocked', 'outbox_restored')};
my $triggers = q{SELECT string_agg(concat_ws(' ', tgrelid::regclass, tgname, tgenabled), ', ' ORDER BY tgrelid::regclass::text, tgname)
	FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'idempotency_data'::regnamespace)};
my $triggers_before = sql($triggers);

completed(100);

# pg_repack is needed for each server for which a Debian release has it.
my $repack = eval { sql('CREATE EXTENSION pg_repack'); 1 };
ok($repack || $server >= 180000, 'pg_repack is installed');
if ($repack)
{
	my ($before_sql, $before_c) = (files($by_sql), files("NOT $by_sql"));

	foreach my $round (1 .. 2)
	{
		command_ok([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', $db ], "round $round: pg_repack over the database")
		  or last;
		completed(20);
	}
	my ($after_sql, $after_c) = (files($by_sql), files("NOT $by_sql"));

	is(join(' ', grep { $before_sql->{$_} == $after_sql->{$_} } sort keys %$before_sql), '',
		'all tables that SQL writes were rewritten');
	is_deeply($after_c, $before_c, 'no table that C code writes was');
	# nor by name, nor in its other way: another index, whose file takes the place of the first one's
	my %said = map { $_ => (run_command([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', $db, '-t', "idempotency_data.$_" ]))[1] }
	  grep { !/_(?:[2-9]|\d\d)$/ } sort keys %$after_c;
	is(join(' ', grep { $said{$_} !~ /must have a primary key/ } sort keys %said), '', 'nor can be by its name');
	like((run_command([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', $db, '-x', '-t', 'idempotency_data.lease_log_0' ]))[1],
		qr/cannot add an index/, 'nor its indexes');
	is(sql($triggers), $triggers_before, 'the triggers are those of before');
}

# What rewrites tables under a lock that stops claims meanwhile
foreach my $table (sort keys %{ files('true') })
{
	next if $table =~ /_([2-9]|\d\d)$/;
	sql("VACUUM FULL idempotency_data.$table");
	sql("REINDEX TABLE CONCURRENTLY idempotency_data.$table");
}

# 19 has a command that copies a table by logical decoding.  It needs a primary key, or an
# index as replica identity.
if ($server >= 190000)
{
	my ($before_sql, $before_c) = (files($by_sql), files("NOT $by_sql"));
	my %said = map { $_ => ($node->psql($db, "REPACK (CONCURRENTLY) idempotency_data.$_"))[2] } sort keys %$before_c;

	is(join(' ', grep { $said{$_} !~ /has no identity index/ } sort keys %said), '',
		'REPACK (CONCURRENTLY) refuses each table that C code writes');
	foreach my $table (sort keys %$before_sql)
	{
		sql("REPACK (CONCURRENTLY) idempotency_data.$table");
		completed(20);
	}
	my $after_sql = files($by_sql);

	is(join(' ', grep { $before_sql->{$_} == $after_sql->{$_} } sort keys %$before_sql), '',
		'and rewrites each table that SQL writes');
	sql("REPACK idempotency_data.$_") foreach grep { !/_(?:[2-9]|\d\d)$/ } sort keys %$before_c;
}

completed(100);
$load->signal('INT');
$load->finish;
unlike($err, qr/aborted|ERROR/, 'no client had an error');
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'load'});

# Each effect is remembered, and was made once.
is(sql('SELECT count(*) - count(DISTINCT id) FROM effects'), '0', 'no effect was made twice');
is( sql(q{BEGIN; SELECT result, count(*) = (SELECT count(*) FROM effects WHERE id ~ '^[sl]\d') FROM idempotency.claim_events(
		ARRAY(SELECT id FROM effects WHERE id ~ '^[sl]\d')) GROUP BY result; ROLLBACK}),
	'duplicate|t', 'no event that was completed is claimed again');
is( sql(q{BEGIN; SELECT result, count(*) = (SELECT count(*) FROM effects WHERE id ~ '^q\d') FROM idempotency.claim_events(
		ARRAY(SELECT id FROM effects WHERE id ~ '^q\d'), 'own') GROUP BY result; ROLLBACK}),
	'duplicate|t', 'nor of the other consumer');

# The relay goes on: every event is delivered, or is a dead letter.  A refusal counts only
# beside events that are accepted, so such events follow until no refused one is left to try.
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND state IN ('streaming', 'idle') FROM idempotency.stat_relay});
my $end = time + $PostgreSQL::Test::Utils::timeout_default;
while (sql('SELECT retrying FROM idempotency.stat_relay') > 0 && time < $end)
{
	my $id = sql(q{SELECT idempotency.outbox_enqueue('t', gen_random_uuid()::text, 'Fine', '{}')});

	IdemTest::wait_for($node, "SELECT count(*) = 1 FROM effects WHERE id = '$id'");
}
is( sql(q{SELECT count(*) FILTER (WHERE event_type = 'Fine' AND e.id IS NULL), count(*) FILTER (WHERE event_type = 'Dead' AND d.event_id IS NULL),
	count(d.event_id) > 0 FROM idempotency.outbox_events o LEFT JOIN effects e ON e.id = o.event_id::text LEFT JOIN idempotency.dead_letters d USING (event_id)}),
	'0|0|t', 'every event has arrived, or is a dead letter');
is(sql(q{SELECT max_attempts, min_backoff FROM idempotency.claim_consumers WHERE consumer = 'own'}), '3|01:00:00',
	'the consumer is what it was');

$node->stop;
done_testing();
