
# Copyright (c) 2026, the idempotency developers

# Function relays take turns in the workers that a database may have, idle ones have
# none, and one database does not keep another from its own.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

use constant {
	RELAYS => 40,
	WORKERS => 3,
	EVENTS => 5 };

my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.max_function_workers = @{[ WORKERS ]}
idempotency.max_workers = 6
idempotency.sink_idle_timeout = 300ms
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

# How many processes of function relays there are, by two looks: one that ends gives its place
# away before the view has it no more.
my %seen;

sub workers
{
	my %now = map { $_ => 1 } split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});
	my $lasting = grep { $seen{$_} } keys %now;

	%seen = %now;
	return $lasting;
}

my $set_up = <<'END';
CREATE TABLE effect (type text, event_id uuid, n int);
CREATE FUNCTION handle(event_id uuid, payload jsonb, aggregate_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.effect VALUES (aggregate_type, event_id, (payload->>'n')::int);
END $$;
CREATE FUNCTION slow(event_id uuid, payload jsonb, aggregate_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.3);
	INSERT INTO public.effect VALUES (aggregate_type, event_id, (payload->>'n')::int);
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
CREATE SERVER slow FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.slow', timeout '3600000');
END

sub fits
{
	my ($n) = @_;

	cmp_ok($n, '<=', WORKERS, 'no more workers than are allowed');
	return;
}

sub effects
{
	my ($where, $database) = @_;

	return sql("SELECT count(*) FROM effect WHERE $where", $database);
}

sql($set_up);
sql("SELECT count(idempotency.relay_create('f' || i, 'fn', aggregate_types => ARRAY['t' || i])) FROM generate_series(1, @{[ RELAYS ]}) i");

# Each is tried once, and then none has a process.
IdemTest::wait_for($node, "SELECT count(*) = @{[ RELAYS ]} FROM idempotency.stat_relay WHERE state = 'idle'");
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'idempotency function relay%'});

#
# Something for each at once, several times: all of it is done, once.
#
my $most = 0;

foreach my $n (1 .. EVENTS)
{
	sql("SELECT count(idempotency.outbox_enqueue('t' || i, 'k', 'E', jsonb_build_object('n', $n))) FROM generate_series(1, @{[ RELAYS ]}) i");
}
IdemRelay::wait_until('every relay has done its events', sub {
	my $now = workers();

	$most = $now if $now > $most;
	return effects('true') >= RELAYS * EVENTS;
});
fits($most);
is(effects('true'), RELAYS * EVENTS, 'none of them twice');
is(sql(q{SELECT count(*) FROM (SELECT type FROM effect GROUP BY type HAVING array_agg(n ORDER BY n) = '{1,2,3,4,5}') s}),
	RELAYS, 'each relay had its own');

#
# An owner with many relays whose handlers wait does not get the last worker, since
# there are relays of others.
#
sql(<<'END');
CREATE ROLE rich LOGIN;
CREATE ROLE poor LOGIN;
SELECT idempotency.grant_role('operator', 'rich'), idempotency.grant_role('operator', 'poor');
CREATE FUNCTION gate(aggregate_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(hashtext(aggregate_type));
	INSERT INTO public.effect VALUES (aggregate_type, NULL, 0);
END $$;
CREATE SERVER gate FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.gate', timeout '3600000');
GRANT USAGE ON FOREIGN SERVER gate TO rich, poor;
GRANT INSERT ON effect TO rich, poor;
END

# Relays of an owner, each with one event.
sub gated
{
	my ($owner, $type, $n) = @_;

	$node->safe_psql('postgres',
		"SELECT count(idempotency.relay_create('$type' || i, 'gate', aggregate_types => '{$type}')) FROM generate_series(1, $n) i",
		extra_params => [ '-U', $owner ]);
	sql("SELECT idempotency.outbox_enqueue('$type', 'k', 'E', '1')");
	return;
}

my $gate = $node->background_psql('postgres');
$gate->query_safe(q{SELECT pg_advisory_lock(hashtext('rich'))});
gated('rich', 'rich', 3 * WORKERS);
IdemTest::wait_for($node, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, WORKERS - 1);
IdemTest::wait_for($node, q{SELECT count(*) FROM idempotency.stat_relay WHERE relay ~ '^rich' AND waiting_for = 'worker'}, 2 * WORKERS + 1);

# Two owners, neither of whom has his all, have no more workers together than are allowed.
my $second = $node->background_psql('postgres');
$second->query_safe(q{SELECT pg_advisory_lock(hashtext('poor'))});
gated('poor', 'poor', 3);
IdemTest::wait_for($node, q{SELECT count(*) FROM idempotency.stat_relay WHERE relay ~ '^poor' AND waiting_for = 'worker'}, 2);
is(sql(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}), WORKERS, 'together as many as are allowed');
$second->quit;
IdemRelay::wait_until('the relays of another owner have their turns', sub { effects("type = 'poor'") == 3 });
is(effects("type = 'rich'"), 0, 'beside handlers that wait');
$gate->quit;
IdemRelay::wait_until('which go on', sub { effects("type = 'rich'") == 3 * WORKERS });
sql(q{SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay WHERE relay ~ '^(rich|poor)'});

#
# Slow handlers, one per worker and without an end: the others have their turns.
#
sql("SELECT count(idempotency.relay_create('s' || i, 'slow', aggregate_types => '{slow}', batch_events => 1)) FROM generate_series(1, @{[ WORKERS ]}) i");
sql(q{SELECT count(idempotency.outbox_enqueue('slow', 'k' || i, 'E', jsonb_build_object('n', i))) FROM generate_series(1, 200) i});
IdemTest::wait_for($node, q{SELECT count(*) = 3 FROM idempotency.stat_relay WHERE relay ~ '^s' AND sent > 0});
sql("SELECT count(idempotency.outbox_enqueue('t' || i, 'k', 'E', jsonb_build_object('n', 6))) FROM generate_series(1, 5) i");
IdemRelay::wait_until('relays are served beside slow ones', sub { effects("type <> 'slow' AND n = 6") == 5 });
cmp_ok(effects("type = 'slow'"), '<', WORKERS * 200, 'which had not come to their end');
workers();
fits(workers());

#
# A handler that fails, and one that cannot be committed: attempts and backoff are the
# relay's, whatever process it has.
#
sql(<<'END');
CREATE FUNCTION fails(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE 'no';
END $$;
CREATE TABLE late (n int);
CREATE FUNCTION late_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 3 THEN RAISE 'late no'; END IF; RETURN NEW; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late_check();
CREATE FUNCTION commits(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.late VALUES ((payload->>'n')::int) $$;
CREATE SERVER fails FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.fails', timeout '3600000');
CREATE SERVER commits FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.commits', timeout '3600000');
SELECT idempotency.relay_create('fails', 'fails', aggregate_types => '{fails}', max_attempts => 3, min_backoff => '20 ms', max_backoff => '500 ms');
SELECT idempotency.relay_create('commits', 'commits', aggregate_types => '{commits}', max_attempts => 2, min_backoff => '20 ms', max_backoff => '500 ms');
SELECT idempotency.outbox_enqueue('fails', 'k', 'E', '{"n": 1}');
SELECT count(idempotency.outbox_enqueue('commits', 'k' || i, 'E', jsonb_build_object('n', i))) FROM generate_series(1, 5) i;
END
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.dead_letters});
is(sql('SELECT string_agg(relay || attempts, $$,$$ ORDER BY relay) FROM idempotency.dead_letters'), 'commits2,fails3', 'with the attempts that were allowed');
is(sql('SELECT string_agg(n::text, $$,$$ ORDER BY n) FROM late'), '1,2,4,5', 'and the others of the batch were done');

#
# Another database: its own worker, and its turn in what is left.
#
sql('CREATE DATABASE other');
IdemTest::create_extension($node, 'other');
sql($set_up, 'other');
sql(q{SELECT idempotency.relay_create('f', 'fn', aggregate_types => '{t}')}, 'other');
sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{"n": 1}')}, 'other');
IdemRelay::wait_until('the other database is served', sub { effects('true', 'other') == 1 });
cmp_ok(effects("type = 'slow'"), '<', WORKERS * 200, 'while the first one still has something to do');

# More databases than are left of the slots beside function relays.
foreach my $i (1 .. 3)
{
	sql("CREATE DATABASE d$i");
	IdemTest::create_extension($node, "d$i");
	sql(q{CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('n', 'nul')}, "d$i");
	sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '1')}, "d$i");
}
foreach my $i (1 .. 3)
{
	IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay}, 't', "d$i");
}
sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{"n": 2}')}, 'other');
IdemRelay::wait_until('of the one slot that is left each database has its turn', sub { effects('n = 2', 'other') == 1 });

# One more, and all slots are those of databases: one gives way to the function relay.
sql('CREATE DATABASE d4');
IdemTest::create_extension($node, 'd4');
sql(q{CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('n', 'nul')}, 'd4');
IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM idempotency.stat_relay WHERE state <> 'not running'}, 't', 'd4');
sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{"n": 3}')}, 'other');
IdemRelay::wait_until('the function relay has its turn', sub { effects('n = 3', 'other') == 1 });
IdemRelay::wait_until('the server log says that slots are too few', sub {
	slurp_file($node->logfile) =~ /no idempotency worker is left for the function relays.*\n.*Raise idempotency\.max_workers/ });

done_testing();
