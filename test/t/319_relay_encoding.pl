
# Copyright (c) 2026, the idempotency developers

# Programs are spoken to in UTF-8, whatever the encoding of the database; an
# event that cannot be said in it is a dead letter, not the end of its relay.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

sub database
{
	my ($name, $encoding) = @_;

	$node->safe_psql('postgres',
		"CREATE DATABASE $name TEMPLATE template0 ENCODING '$encoding' LOCALE 'C'");
	IdemTest::create_extension($node, $name);
	return;
}

# A relay in a database, to a sink of its own for the events of its name;
# returns the sink's file.
sub relay
{
	my ($database, $name, $settings, %opt) = @_;

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", database => $database, %opt);
	$node->safe_psql($database, "SELECT idempotency.relay_create('$name', 's_$name',"
		  . " aggregate_types => '{$name}', min_backoff => '50 ms', max_backoff => '50 ms'$settings)");
	return "$dir/$name.log";
}

# Columns of stat_relay in the database "bytes".
sub wait_stat
{
	my ($name, $what, $expected) = @_;

	ok( $node->poll_query_until('bytes',
			"SELECT $what FROM idempotency.stat_relay WHERE relay = '$name'", $expected),
		"$name: $what is $expected");
	return;
}

# Every character of LATIN1 has one in UTF-8, which takes two bytes.
database('latin', 'LATIN1');
my $latin = relay('latin', 'latin', '');
$node->safe_psql('latin', q{
	SELECT idempotency.outbox_enqueue('latin', 'caf' || chr(233), 'E',
		jsonb_build_object('n', repeat(chr(233) || 'abcdefghi', 8000)), headers => jsonb_build_object('h', chr(233)))});
IdemRelay::wait_received($latin, 1);
my ($event) = grep { exists $_->{event} } IdemRelay::received($latin);
is($event->{aggregate_id}, 'caf\u00e9', 'an id');
is($event->{payload}, '{\"n\": \"' . ('\u00e9abcdefghi' x 8000) . '\"}', 'a payload of several frames');
is($event->{headers}, '{\"h\": \"\u00e9\"}', 'headers');

# A relay whose name is longer in UTF-8 than a new one may be, as those of before, can be adopted,
# works, and can be dropped.
my $long = q{repeat(chr(233), 255)};
IdemRelay::pytest_server($node, 's_long', "$dir/long.log", database => 'latin');
$node->safe_psql('latin', qq{SELECT idempotency.relay_create('short', 's_long', aggregate_types => '{long}');
	UPDATE idempotency_data.relays SET relay = $long WHERE relay = 'short'});
command_ok([ 'pg_dump', '-Fc', '-f', "$dir/latin.dump", '-d', $node->connstr('latin') ], 'dumped');
$node->safe_psql('postgres', q{CREATE DATABASE unicode TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'});
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('unicode'), "$dir/latin.dump" ], 'restored in UTF-8');
$node->safe_psql('unicode', qq{ALTER SERVER s_long OPTIONS (SET file '$dir/unicode.log');
	SELECT idempotency.relay_adopt($long);
	SELECT idempotency.outbox_enqueue('long', 'k', 'E', '1')});
IdemRelay::wait_received("$dir/unicode.log", 1);
$node->safe_psql('unicode', qq{SELECT idempotency.relay_drop($long)});
is($node->safe_psql('unicode', 'SELECT relay FROM idempotency.stat_relay'), 'latin', 'and is gone');
my ($rc, $out, $err) = $node->psql('unicode', qq{SELECT idempotency.relay_create($long, 's_long')});
like($err, qr/"relay" .*\n.*It has 510 bytes; at most 255 are allowed/, 'a new name is no longer than before');

# No character at all are some bytes in a database without an encoding.
database('bytes', 'SQL_ASCII');
my $skips = relay('bytes', 'skips', '');
my $blocks = relay('bytes', 'blocks', q{, ordering => 'key', on_dead => 'block_key'});
my $stores = relay('bytes', 'stores', q{, batch_events => 2}, position => 'on');
foreach my $name (qw(skips blocks stores))
{
	$node->safe_psql('bytes', qq{
		WITH bad AS (SELECT convert_from('\\xff', 'SQL_ASCII') AS b)
		SELECT idempotency.outbox_enqueue('$name', 'a', 'E', '1'),
			idempotency.outbox_enqueue('$name', 'k' || b, 'E', '2'),
			idempotency.outbox_enqueue('$name', 'k', 'E' || b, '3'),
			idempotency.outbox_enqueue('$name', 'k', 'E', '4'),
			idempotency.outbox_enqueue('$name', 'p', 'E', ('"' || b || '"')::jsonb),
			idempotency.outbox_enqueue('$name', 'h', 'E', '6', headers => ('{"' || b || '": 1}')::jsonb),
			idempotency.outbox_enqueue_bytes('$name', 'z', 'E', '\\xff')
		FROM bad});
	wait_stat($name, 'dead', 4);
}
IdemRelay::wait_received($_, 3) foreach $skips, $stores;
IdemRelay::wait_received($blocks, 2);
wait_stat($_, 'state', 'streaming') foreach qw(skips blocks stores);
is( $node->safe_psql('bytes', q{
		SELECT string_agg(DISTINCT sqlstate || ' ' || error || ' ' || attempts, '') FROM idempotency.dead_letters}),
	'22021 the event cannot be converted to UTF-8 1', 'dead letters at the first attempt');

# The order of a key holds, and tried again they are dead again.
ok( $node->poll_query_until('bytes',
		q{SELECT count(*) FROM idempotency_data.relay_parked WHERE state = 'waiting'}, 1),
	'the one that can be said waits behind one that cannot');
is($node->safe_psql('bytes', q{SELECT idempotency.relay_redrive(r) FROM unnest(ARRAY['skips', 'blocks']) r}),
	"4\n4", 'all of them are tried again');
wait_stat($_, 'dead', 4) foreach qw(skips blocks);
is( $node->safe_psql('bytes', q{SELECT idempotency.relay_discard('blocks')}), 4, 'and discarded');
IdemRelay::wait_received($blocks, 3);
foreach my $file ($skips, $blocks, $stores)
{
	is_deeply([ sort map { $_->{payload} // $_->{payload_hex} } IdemRelay::acked($file) ],
		[ '1', '4', 'ff' ], 'what can be said arrived, once');
}

# A relay that stops at a dead letter: discarded, it does not come again, whether
# it was alone or beside others.
my $stops = relay('bytes', 'stops', q{, on_dead => 'stop'});
foreach my $round (1, 2)
{
	foreach my $with ("'a' || b", "'a', 'b' || b, 'c'")
	{
		$node->safe_psql('bytes', qq{
			SELECT idempotency.outbox_enqueue('stops', key, 'E', '1')
			FROM (SELECT convert_from('\\xff', 'SQL_ASCII') AS b) x, unnest(ARRAY[$with]) key});
		wait_stat('stops', 'state', 'halted');
		is($node->safe_psql('bytes', q{SELECT idempotency.relay_discard('stops')}), 1, 'one dead letter');
		$node->safe_psql('bytes', q{SELECT idempotency.relay_resume('stops')});
		wait_stat('stops', 'state', 'streaming');
	}
	IdemRelay::wait_received($stops, 2 * $round);
}
wait_stat('stops', 'dead', 0);
$node->stop;
done_testing();
