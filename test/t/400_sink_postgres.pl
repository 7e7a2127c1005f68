
# Copyright (c) 2026, the idempotency developers

# The postgres sink under a relay: its program and its sessions at the target
# are killed again and again, and each event has its effect there once.  The
# target has neither the extension nor a unique key: the position alone does it.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = IdemTest::cluster('sink');
my ($host, $port) = ($node->host, $node->port);

$node->safe_psql('postgres', 'CREATE DATABASE target');
$node->safe_psql('postgres', qq{
CREATE SERVER target FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'target', function 'app.on_event');
CREATE USER MAPPING FOR CURRENT_USER SERVER target OPTIONS (user '} . $node->safe_psql('postgres', 'SELECT current_user') . q{');
});

# The DDL is the sink's own.
my $setup = $node->safe_psql('postgres', q{SELECT idempotency.sink_setup_sql('target')});
$node->safe_psql('target', $setup);
$node->safe_psql('target', q{
CREATE SCHEMA app;
CREATE TABLE app.got (n bigserial, event_id uuid, key text, payload jsonb);
CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text, payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF payload->>'poison' IS NOT NULL THEN
		RAISE EXCEPTION 'poison';
	END IF;
	INSERT INTO app.got (event_id, key, payload) VALUES (event_id, aggregate_id, payload);
END
$$;
});
$node->safe_psql('postgres', q{
CREATE TABLE sent (event_id uuid);
SELECT idempotency.relay_create('r', 'target', max_attempts => 1000,
	min_backoff => '10 ms', max_backoff => '200 ms', batch_events => 50);
});

# The sink programs of this server: children of its children.
sub sink_pids
{
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	my %parent;
	my @found;

	foreach my $dir (glob '/proc/[0-9]*')
	{
		open(my $f, '<', "$dir/stat") or next;
		my $line = <$f> // next;
		close $f;
		my ($pid, $name, $ppid) = $line =~ /^(\d+) \((.*)\) \S (\d+)/ or next;
		$parent{$pid} = $ppid;
		push @found, $pid if $name =~ /^idempotency-sin/;
	}
	return grep { ($parent{ $parent{$_} } // 0) == $postmaster } @found;
}

my $rounds = 25;
my $kills = 0;
for my $round (1 .. $rounds)
{
	$node->safe_psql('postgres', q{
		INSERT INTO sent SELECT idempotency.outbox_enqueue('o', (i % 20)::text, 't', to_jsonb(i))
		FROM generate_series(1, 200) i});
	usleep(1000 * int(rand(40)));
	if ($round % 3 == 0)
	{
		$node->safe_psql('target', q{
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'idempotency sink'});
		next;
	}
	IdemRelay::wait_until('a program runs', sub { sink_pids() });
	$kills += kill 'KILL', sink_pids();
}
cmp_ok($kills, '>=', 5, "killed the program $kills times");

my $sent = $node->safe_psql('postgres', 'SELECT count(*) FROM sent');
ok($node->poll_query_until('target', "SELECT count(DISTINCT event_id) >= $sent FROM app.got"),
	"all $sent events arrived");
is($node->safe_psql('target', 'SELECT count(*) FROM app.got'), $sent, 'each of them once');
my $ids = $node->safe_psql('postgres', 'SELECT md5(string_agg(event_id::text, $$ $$ ORDER BY event_id)) FROM sent');
is($node->safe_psql('target', 'SELECT md5(string_agg(event_id::text, $$ $$ ORDER BY event_id)) FROM app.got'),
	$ids, 'and no others');

# One bad message: the others of its batch go through, it is parked.
$node->safe_psql('postgres', q{
SELECT idempotency.relay_alter('r', max_attempts => 2);
SELECT idempotency.outbox_enqueue('o', 'p' || i, 't', CASE i WHEN 3 THEN '{"poison": true}' ELSE '{}' END::jsonb)
FROM generate_series(1, 6) i;
});
ok($node->poll_query_until('target', q{SELECT count(*) = 5 FROM app.got WHERE key LIKE 'p%'}),
	'neighbours of a bad message arrived');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE sqlstate = 'P0001'}),
	'the bad message is a dead letter');
is($node->safe_psql('target', q{SELECT count(*) FROM app.got WHERE key LIKE 'p%'}), '5', 'no neighbour arrived twice');

# Put right over there, it is delivered.
$node->safe_psql('target', q{
CREATE OR REPLACE FUNCTION app.on_event(event_id uuid, aggregate_id text, payload jsonb) RETURNS void
LANGUAGE sql AS 'INSERT INTO app.got (event_id, key, payload) VALUES (event_id, aggregate_id, payload)'});
$node->safe_psql('postgres', q{SELECT idempotency.relay_redrive('r')});
ok($node->poll_query_until('target', q{SELECT count(*) = 6 FROM app.got WHERE key LIKE 'p%'}),
	'it is delivered after a redrive');

# One that raises no error before COMMIT, because its handler forgot a claim.
$node->safe_psql('target', q{
CREATE EXTENSION idempotency CASCADE;
CREATE OR REPLACE FUNCTION app.on_event(event_id uuid, aggregate_id text, payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.got (event_id, key, payload) VALUES (event_id, aggregate_id, payload);
	IF aggregate_id = 'c3' THEN
		PERFORM idempotency.claim_event(event_id, 'handler');
	END IF;
END
$$});
$node->safe_psql('postgres', q{
SELECT idempotency.outbox_enqueue('o', 'c' || i, 't', '{}') FROM generate_series(1, 60) i});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idempotency.dead_letters}),
	'an event that cannot be committed is a dead letter');
like($node->safe_psql('postgres', q{SELECT error FROM idempotency.dead_letters}), qr/neither completed nor released/,
	'with the error of COMMIT');
ok($node->poll_query_until('target', q{SELECT count(*) = 59 FROM app.got WHERE key LIKE 'c%'}), 'the others arrive');
is($node->safe_psql('target', q{SELECT count(DISTINCT event_id) FROM app.got WHERE key LIKE 'c%'}), '59', 'once each');

# A program that is gone with its server leaves nothing behind.
my @last = sink_pids();
$node->stop('fast');
is(scalar(grep { kill 0, $_ } @last), 0, 'no program outlives the server');

done_testing();
