
# Copyright (c) 2026, the idempotency developers

# The clock is set ten years forward and back between a lease, its extension, a take-over
# and the completions: an event is completed once, by the greatest token that was given
# out.  Tokens rise when the server is started with a wrong clock, and with the right one
# again.  Whatever the clock says after a time of rest, nothing is forgotten; and setting
# it makes nothing expire.

use strict;
use warnings FATAL => 'all';

use IdemClock;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

use constant YEAR => 365 * 24 * 3600;
my @offsets = (0, 10 * YEAR, -10 * YEAR);
my %name = (0 => 'right', 10 * YEAR, 'ahead', -10 * YEAR, 'behind', 200 * YEAR, 'far ahead');

my $clock = IdemClock->new;
my $node = IdemTest::cluster('main', start => 0, conf => "autovacuum = off\n");
$clock->start($node);
IdemTest::create_extension($node);
$node->safe_psql('postgres', <<'END');
CREATE TABLE tokens (n serial, event_id text, token bigint);
CREATE TABLE effects (event_id text, token bigint);
CREATE FUNCTION lease(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	l record := idempotency.lease_event(id, duration => '1 hour');
BEGIN
	IF l.token IS NOT NULL THEN INSERT INTO tokens (event_id, token) VALUES (id, l.token); END IF;
	RETURN l.result;
END $$;
CREATE FUNCTION token(id text, nth int) RETURNS bigint LANGUAGE sql AS $$
	SELECT token FROM tokens WHERE event_id = id ORDER BY n OFFSET nth - 1 LIMIT 1 $$;
-- The effect and the completion, both or neither
CREATE FUNCTION complete(id text, nth int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effects VALUES (id, token(id, nth));
	PERFORM idempotency.complete_event(id, token => token(id, nth));
	RETURN 'completed';
EXCEPTION WHEN SQLSTATE 'ID007' THEN
	RETURN 'lost';
END $$;
CREATE FUNCTION extend(id text, nth int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idempotency.extend_lease(id, token(id, nth), duration => '1 hour');
	RETURN 'extended';
EXCEPTION WHEN SQLSTATE 'ID007' THEN
	RETURN 'lost';
END $$;
END

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Set the clock, and see that the server goes by it
sub set_clock
{
	my ($offset) = @_;

	$clock->set($offset);
	my $off = sql('SELECT extract(epoch FROM clock_timestamp())::bigint') - time - $offset;
	BAIL_OUT("the server's clock is $off s off") if abs($off) > 3600;
	return;
}

# Every order of the three clocks, on an event of its own.  The clock decides who may go
# on, and who goes on decides who completes.
my $session = $node->background_psql('postgres');
foreach my $leased (@offsets)
{
	foreach my $extended (@offsets)
	{
		foreach my $wanted (@offsets)
		{
			my $id = join ', ', map { $name{$_} } $leased, $extended, $wanted;
			my $taken = $wanted > $extended;

			set_clock($leased);
			my @got = ($session->query_safe("SELECT lease('$id')"));
			set_clock($extended);
			push @got, $session->query_safe("SELECT extend('$id', 1)");
			set_clock($wanted);
			push @got, $session->query_safe("SELECT lease('$id')");
			set_clock($leased);
			push @got, map { $session->query_safe("SELECT $_") } "extend('$id', 1)", "complete('$id', 1)", $taken ? "complete('$id', 2)" : "lease('$id')";
			is("@got", $taken ? 'claimed extended claimed lost lost completed' : 'claimed extended busy extended completed duplicate', "leased, extended, wanted: $id");
		}
	}
}
$session->quit;
is(sql('SELECT count(*), count(DISTINCT event_id) FROM effects'), '27|27', 'each event is completed once');
is(sql('SELECT event_id FROM effects JOIN tokens USING (event_id) WHERE tokens.token > effects.token'), '', 'by its greatest token');
is(sql('SELECT a.token FROM tokens a JOIN tokens b ON a.n < b.n AND a.token >= b.token'), '', 'and tokens rise, whatever the clock says');

# Servers that are started with a wrong clock leap, and later ones go on from there.
# What is open goes along: a lease from before the leap, and one from after it.
set_clock(0);
sql(q{SELECT lease('open ' || i) FROM generate_series(0, 4) i});
my $greatest = sql('SELECT max(token) FROM tokens');
my $n = 0;
foreach my $offset (10 * YEAR, 0, -10 * YEAR, 200 * YEAR, 0)
{
	my $when = "started with a clock that is $name{$offset}";

	$node->stop($n % 2 ? 'immediate' : 'fast');
	$clock->set($offset);
	$clock->start($node);
	is(sql("SELECT lease('new $n')"), 'claimed', $when);
	my $token = sql("SELECT token('new $n', 1)");
	cmp_ok($token, '>', $greatest, "$when: tokens rise");
	cmp_ok($token, '<', 2**53, "$when: and stay exact in JavaScript");
	# taken over if the clock says so; then the clock is right again
	my $taken = sql("SELECT lease('open $n')") eq 'claimed' ? 1 : 0;
	is($taken, $offset > 0 ? 1 : 0, "$when: the lease from before is " . ($taken ? 'taken over' : 'busy'));
	set_clock(0);
	is(sql("SELECT complete('open $n', 1)"), $taken ? 'lost' : 'completed', "$when: its first holder");
	is(sql("SELECT complete('open $n', 2)"), 'completed', "$when: its second holder") if $taken;
	$greatest = sql('SELECT max(token) FROM tokens');
	$n++;
}
is(sql('SELECT a.token FROM tokens a JOIN tokens b ON a.n < b.n AND a.token >= b.token'), '', 'tokens rise from one start to the next');
is(sql('SELECT count(*), count(DISTINCT event_id) FROM effects'), '32|32', 'each event is completed once');

# A primary whose last tokens are lost, and a clock that is behind the primary's: not the clock, and no time
# that has passed, keeps the successor's tokens above them
$greatest = sql(q{SELECT token FROM idempotency.lease_event('before the copy')});
set_clock(-10 * YEAR);
$node->safe_psql('template1', 'CREATE DATABASE successor TEMPLATE postgres');
cmp_ok($node->safe_psql('successor', q{SELECT token FROM idempotency.lease_event('after the copy')}), '>', $greatest + 2**17 - 1,
	'a successor leaps though the clock is behind');
set_clock(0);

# A year of rest, by the clock, with a retention of an hour: what was completed and
# answered is redelivered at once, and what is open goes on where it was
sql(<<'END');
SELECT idempotency.consumer_create('hour', retention => '1 hour');
SELECT idempotency.claim_event('claimed', 'hour'), idempotency.complete_event('claimed', 'hour', '1');
SELECT idempotency.complete_event('leased', 'hour', '2', token) FROM idempotency.lease_event('leased', 'hour');
SELECT idempotency.complete_request('answered', 's', 201, body => 'made', consumer => 'hour') FROM idempotency.claim_request('answered', 's', '\x01', 'hour');
SELECT idempotency.extend_lease('half', token, 'hour', recovery_point => 'half') FROM idempotency.lease_event('half', 'hour');
SELECT idempotency.release_lease('poison', token, 'hour', 'poison', park => true) FROM idempotency.lease_event('poison', 'hour');
SELECT idempotency.advance_request('asked', 's', token, 'charged', 'hour') FROM idempotency.claim_request('asked', 's', '\x01', 'hour', '1 min');
END
foreach my $offset (YEAR, 0)
{
	my $when = $offset ? 'a year later' : 'the clock is right again';

	$node->stop;
	$clock->set($offset);
	$clock->start($node);
	sql('SELECT idempotency.claims_maintain()');
	is(sql(<<'END'), 'duplicate|1|duplicate|2|dead', "$when: completed is completed, dead is dead");
SELECT idempotency.claim_event('claimed', 'hour'), idempotency.event_result('claimed', 'hour'), l.result, l.event_result, (idempotency.lease_event('poison', 'hour')).result
  FROM idempotency.lease_event('leased', 'hour') l
END
	is(sql(q{SELECT result, status, convert_from(body, 'UTF8') FROM idempotency.claim_request('answered', 's', '\x01', 'hour')}), 'replay|201|made', "$when: the answer is given");
	is(sql(q{SELECT result FROM idempotency.claim_request('answered', 's', '\x02', 'hour')}), 'mismatch', "$when: to the same payload only");
	is(sql(q{BEGIN; SELECT result, attempt, recovery_point FROM idempotency.lease_event('half', 'hour'); ROLLBACK}), $offset ? 'claimed|2|half' : 'busy||', "$when: a lease");
	is(sql(q{BEGIN; SELECT result, attempt, recovery_point FROM idempotency.claim_request('asked', 's', '\x01', 'hour', '1 min'); ROLLBACK}),
		$offset ? 'started|2|charged' : 'in_progress||', "$when: a request");
}

# A clock that goes forward and back a minute, again and again, makes nothing expire sooner
sql(q{CREATE FUNCTION store_time() RETURNS bigint LANGUAGE c AS 'idempotency_test', 'idem_test_store_time_fn'});
my ($began, $time) = (clock_gettime(CLOCK_MONOTONIC), sql('SELECT store_time()'));
foreach my $round (1 .. 10)
{
	foreach my $offset (60, 0)
	{
		set_clock($offset);
		sql('SELECT idempotency.claims_maintain()');
	}
}
my $gone = sql('SELECT store_time()') - $time;
my $real = clock_gettime(CLOCK_MONOTONIC) - $began;
cmp_ok($gone, '<=', $real + 1, "the store's time goes no faster than the seconds");

$node->stop;
done_testing();
