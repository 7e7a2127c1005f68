
# Copyright (c) 2026, the idempotency developers

# A fleet moves from a lock and a table to claims, by the steps of
# doc/howto/migrate.md: old workers beside dual ones, which claim and keep the
# old table; then claims_backfill; then workers that only claim beside dual ones.  In
# each step every event is delivered to every worker, while clients are killed
# and backends are terminated and killed.  Each event then has one effect.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use List::Util qw(shuffle);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed = $ENV{SEED} // time;
srand $seed;
note "SEED=$seed";

my $node = IdemTest::cluster('main');
my $files = 0;

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE processed_messages (event_id text PRIMARY KEY, status text NOT NULL);
CREATE TABLE effects (event_id text NOT NULL, worker text NOT NULL);

-- Clients of the published lock, which know nothing of the extension
CREATE FUNCTION published_key(id text) RETURNS bigint LANGUAGE sql AS
$$ SELECT ('x' || left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 16))::bit(64)::bigint $$;

CREATE FUNCTION old_lock(id text, worker text = 'old') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF NOT pg_try_advisory_xact_lock(published_key(id)) THEN
		RETURN 'nack';
	ELSIF EXISTS (SELECT FROM processed_messages WHERE event_id = id AND status = 'COMPLETED') THEN
		RETURN 'ack';
	END IF;
	INSERT INTO processed_messages VALUES (id, 'PROCESSING');
	INSERT INTO effects VALUES (id, worker);
	UPDATE processed_messages SET status = 'COMPLETED' WHERE event_id = id;
	RETURN 'ack';
END
$$;

CREATE FUNCTION old_conflict(id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO processed_messages VALUES (id, 'COMPLETED') ON CONFLICT (event_id) DO NOTHING;
	IF FOUND THEN
		INSERT INTO effects VALUES (id, 'old');
	END IF;
	RETURN 'ack';
END
$$;

-- Step 1
CREATE FUNCTION dual(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim idempotency.claim_result := idempotency.claim_event(id);
BEGIN
	IF claim = 'claimed' THEN
		PERFORM old_lock(id, 'dual');
		PERFORM idempotency.complete_event(id);
	END IF;
	RETURN CASE claim WHEN 'busy' THEN 'nack' ELSE 'ack' END;
END
$$;

CREATE FUNCTION dual_batch(ids text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	mine text[];
BEGIN
	PERFORM set_config('idempotency.max_claim_locks', '3', true);
	mine := ARRAY(SELECT event_id FROM idempotency.claim_events(ids) WHERE result = 'claimed');
	WITH won AS (
		INSERT INTO processed_messages SELECT unnest(mine), 'COMPLETED'
			ON CONFLICT (event_id) DO NOTHING RETURNING event_id)
	INSERT INTO effects SELECT event_id, 'dual' FROM won;
	PERFORM idempotency.complete_events(mine);
	RETURN 'ack';
END
$$;

-- Step 3
CREATE FUNCTION claims_only(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim idempotency.claim_result := idempotency.claim_event(id);
BEGIN
	IF claim = 'claimed' THEN
		INSERT INTO effects VALUES (id, 'claims only');
		PERFORM idempotency.complete_event(id);
	END IF;
	RETURN CASE claim WHEN 'busy' THEN 'nack' ELSE 'ack' END;
END
$$;
SQL

# Statements that deliver the events, in the order given.
sub deliveries
{
	my ($worker, @events) = @_;

	return map { "SELECT $worker('$_');" } @events unless $worker eq 'dual_batch';

	my @statements;
	while (my @ids = splice @events, 0, 10)
	{
		push @statements, sprintf 'SELECT dual_batch(ARRAY[%s]);', join ', ', map { "'$_'" } @ids;
	}
	return @statements;
}

# A client: psql in a process of its own, which says its backend's number first.
sub start_client
{
	my (@statements) = @_;
	my $file = $node->basedir . '/client' . $files++;
	my %client = (out => "$file.out", statements => scalar(@statements));

	append_to_file("$file.sql", join "\n", 'SELECT pg_backend_pid();', @statements, '');
	$client{pid} = fork // die "could not fork: $!";
	if ($client{pid} == 0)
	{
		open STDOUT, '>', "$file.out" or POSIX::_exit(1);
		open STDERR, '>&', \*STDOUT or POSIX::_exit(1);
		exec 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', "$file.sql" or POSIX::_exit(1);
	}
	return \%client;
}

sub is_running
{
	my ($client) = @_;

	return 0 if $client->{ended};
	$client->{ended} = waitpid($client->{pid}, POSIX::WNOHANG) != 0;
	return !$client->{ended};
}

# Wait until the client has got so many answers; false if it ended before.
sub reached
{
	my ($client, $answers) = @_;

	while (is_running($client))
	{
		my $out = -e $client->{out} ? slurp_file($client->{out}) : '';

		($client->{backend}) = $out =~ /\A(\d+)\n/;
		return 1 if $client->{backend} && ($out =~ tr/\n//) > $answers;
		usleep(1000);
	}
	return 0;
}

sub wait_for_end
{
	my ($client) = @_;

	usleep(1000) while is_running($client);
	return;
}

# Break the client; false if it was through before.
sub break_client
{
	my ($client, $how) = @_;
	my $log_at = -s $node->logfile;

	return 0 unless is_running($client);
	return kill('KILL', $client->{pid}) if $how eq 'client';
	return kill('TERM', $client->{backend}) if $how eq 'terminate';
	kill('KILL', $client->{backend}) or return 0;
	$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
	return 1;
}

# Every worker gets every event, all at the same time, again and again until so
# much is broken.
sub storm
{
	my ($workers, $events, @breaks) = @_;

	while (@breaks)
	{
		my @clients = map { start_client(deliveries($_, shuffle @$events)) } @$workers;

		my $victim = $clients[ rand @clients ];

		shift @breaks
		  if reached($victim, int(rand($victim->{statements} / 2))) && break_client($victim, $breaks[0]);
		wait_for_end($_) foreach @clients;
		$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
	}
	return;
}

# Every worker gets every event once more, and nothing is in the way.
sub deliver_all
{
	my ($workers, @events) = @_;

	foreach my $worker (@$workers)
	{
		my $answers = $node->safe_psql('postgres', join "\n", deliveries($worker, @events));

		is(join(' ', grep { $_ ne 'ack' } split /\n/, $answers), '', "$worker acknowledges");
	}
	return;
}

sub check_effects
{
	my ($what, $events) = @_;

	is( $node->safe_psql('postgres',
			'SELECT n, count(*) FROM (SELECT count(*) AS n FROM effects GROUP BY event_id) e GROUP BY n'),
		"1|$events", "$what: one effect per event");
	return;
}

# Step 0, and both halves have made effects before they meet.
my @old = qw(old_lock old_conflict);
my @dual = qw(dual dual_batch);
my @first = map { "first-$_" } 1 .. 1200;

deliver_all([ $old[$_] ], @first[ $_ * 20 .. $_ * 20 + 19 ]) foreach 0, 1;
deliver_all([ $dual[$_] ], @first[ 40 + $_ * 20 .. 40 + $_ * 20 + 19 ]) foreach 0, 1;

# Step 1
storm([ @old, @old, @dual, @dual ],
	\@first, qw(client kill terminate client client kill terminate client));
deliver_all([ @old, @dual ], @first);
check_effects('old workers beside those of step 1', 1200);

# Step 2: what old workers alone have processed.  Backfills are broken, others go on.
my $backfill = q{CALL idempotency.claims_backfill('processed_messages', 'event_id', condition => $$status = 'COMPLETED'$$);};
my @before = map { "before-" . $_ * 200 } 1 .. 300;

$node->safe_psql('postgres', <<'SQL');
INSERT INTO processed_messages SELECT 'before-' || i, 'COMPLETED' FROM generate_series(1, 60000) i;
INSERT INTO effects SELECT 'before-' || i, 'old' FROM generate_series(1, 60000) i;
INSERT INTO processed_messages VALUES ('abandoned', 'PROCESSING');
SQL

foreach my $break ([ 'terminate', 5001 ], [ 'kill', 20001 ], [ 'client', 40001 ])
{
	my ($how, $place) = @$break;
	my $broken = 0;

	while (!$broken)
	{
		my $client = start_client($backfill);
		my @others = map { start_client(deliveries($_, shuffle @before)) } @dual;

		$node->poll_query_until('postgres',
			"SELECT status <> 'unknown' FROM idempotency.event_status('before-$place')");
		$broken = reached($client, 0) && break_client($client, $how);
		wait_for_end($_) foreach @others;
		kill 'KILL', $client->{pid} if is_running($client);
		wait_for_end($client);
		$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
	}
}

# It waits for an event that somebody has, and for nobody else's.
my $holder = $node->background_psql('postgres');
$holder->query_safe(q{INSERT INTO processed_messages VALUES ('late', 'COMPLETED'); INSERT INTO effects VALUES ('late', 'old')});
$holder->query_safe(q{SELECT pg_advisory_lock(published_key('late'))});
my $waiting = start_client($backfill);
IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'CALL%' AND wait_event = 'PgSleep'});
$holder->quit;
wait_for_end($waiting);
like(slurp_file($waiting->{out}), qr/\A\d+\n\d+\n\z/, 'backfill: ends well after the holder of the lock');
is( $node->safe_psql('postgres', q{
		SELECT count(*) FROM processed_messages m, idempotency.event_status(m.event_id) s
		 WHERE m.status = 'COMPLETED' AND s.status <> 'completed'}),
	'0', 'backfill: nothing is missing, an event that was busy included');
# VACUUM FULL moves rows to pages that were read, as they are.
$node->safe_psql('postgres', q{
CREATE TABLE rewritten WITH (autovacuum_enabled = off) AS SELECT 'rewritten-' || i AS id, repeat('x', 500) AS pad FROM generate_series(1, 300) i;
DELETE FROM rewritten WHERE id < 'rewritten-150'});
$holder = $node->background_psql('postgres');
$holder->query_safe(q{SELECT pg_advisory_lock(107)});
$waiting = start_client(q{CALL idempotency.claims_backfill('rewritten', 'id',
	condition => $$CASE WHEN id = 'rewritten-150' THEN pg_advisory_xact_lock_shared(107) IS NOT NULL ELSE true END$$);});
my $stuck = q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE };
IdemTest::wait_for($node, "$stuck 'CALL%'", 1);
my $rewriting = start_client('VACUUM FULL rewritten;');
IdemTest::wait_for($node, "$stuck 'VACUUM%'", 1);
$holder->quit;
wait_for_end($_) foreach $rewriting, $waiting;
is( $node->safe_psql('postgres', q{
		SELECT count(*) > 0, count(*) FILTER (WHERE s.status <> 'completed') FROM rewritten r, idempotency.event_status(r.id) s}),
	't|0', 'backfill: nothing is missing after VACUUM FULL');
is( $node->safe_psql('postgres', q{SELECT idempotency.claim_event('abandoned'), idempotency.release_event('abandoned')}),
	'claimed|', 'an event that is not completed is not remembered');

# Step 3
my @later = map { "later-$_" } 1 .. 600;

storm([ qw(claims_only claims_only), @dual, @dual ], [ @first[ 0 .. 299 ], @before, @later ], qw(client kill terminate client));
deliver_all([ 'claims_only', @dual ], @first, @before, @later);
check_effects('workers of step 3 beside those of step 1', 1200 + 60000 + 1 + 600);

$node->stop;
done_testing();
