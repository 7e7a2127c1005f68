
# Copyright (c) 2026, the idempotency developers

# pg_upgrade, in the matrix from the major version before: claims stand, and
# relays go on where they were, by their name as before.  In the area "update" the library
# of the new cluster is that of a next version, and the extension is updated to it afterwards.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
# Checksums are the default of some versions only.
my %like = (
	extra => ['--data-checksums'],
	conf => "idempotency.sink_directory = '$dir'\nidempotency.publish_as = 'shop'\n");
my $old = IdemTest::cluster('old', old => 1, %like);
my %file = map { $_ => "$dir/$_.log" } qw(plain storing);

IdemRelay::pytest_server($old, 'plain', $file{plain});
IdemRelay::pytest_server($old, 'storing', $file{storing}, position => 'on');
$old->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid, n int);
CREATE FUNCTION effect(event_id uuid, payload jsonb) RETURNS void LANGUAGE sql
	AS 'INSERT INTO public.effects VALUES (event_id, (payload->>''n'')::int)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function
	OPTIONS (function 'public.effect');
SELECT idempotency.relay_create(name, name) FROM unnest('{fn,plain,storing}'::text[]) AS name;
SELECT idempotency.claim_event('done'), idempotency.complete_event('done', result => '{"is": "kept"}');
END

sub wait_arrived
{
	my ($node, $n) = @_;

	IdemTest::wait_for($node, "SELECT count(*) >= $n FROM effects");
	IdemRelay::wait_received($file{$_}, $n) foreach qw(plain storing);
	return;
}

# Some delivered, some only enqueued
IdemRelay::enqueue($old, 'key', 'E', 10);
wait_arrived($old, 10);
$old->safe_psql('postgres', 'SELECT idempotency.relay_pause(relay) FROM idempotency.stat_relay');
IdemTest::wait_for($old, q{SELECT bool_and(state = 'paused') FROM idempotency.stat_relay});
IdemRelay::enqueue($old, 'key', 'E', 20);
$old->stop;

my $new = IdemTest::upgraded($old, 'new', %like);
$new->start;

is($new->safe_psql('postgres', q{SELECT idempotency.claim_event('done')}),
	'duplicate', 'what was completed before is a duplicate');
is($new->safe_psql('postgres', q{SELECT idempotency.event_result('done')}),
	'{"is": "kept"}', 'with its result');
$new->safe_psql('postgres', 'SELECT idempotency.relay_resume(relay) FROM idempotency.stat_relay');
IdemRelay::enqueue($new, 'key', 'E', 5);
wait_arrived($new, 35);

my (undef, $next) = IdemTest::versions($new);
my $all = $next ? 40 : 35;
if ($next)
{
	$new->safe_psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$next'");
	IdemRelay::enqueue($new, 'key', 'E', 5);
	wait_arrived($new, $all);
}
is($new->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'),
	"$all|$all", 'each event had its effect once');
is(scalar(IdemRelay::acked($file{$_})), $all, "nothing is repeated to the sink that is $_") foreach qw(plain storing);
$new->stop;
done_testing();
