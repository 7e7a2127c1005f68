
# Copyright (c) 2026, the idempotency developers

# Offsets and producers from one history of a database to the next: dump and restore into the
# same database, in the same and in another cluster, a copy of the database, a standby that lags
# and is promoted.
# Positions go along.  A producer that registers again fences whoever the new history does
# not know of.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1, conf => "autovacuum = off\n");

sub sql
{
	my ($server, $query, $database) = @_;

	return $server->safe_psql($database // 'postgres', $query);
}

# A claim under an id; the result, or the SQLSTATE
sub claim
{
	my ($server, $id, $epoch, $sequence, $database) = @_;
	my ($rc, $out, $err) = $server->psql($database // 'postgres', "SELECT result FROM idempotency.claim_sequence($id, $epoch, $sequence)",
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);

	return $rc == 0 ? $out : $err =~ /ERROR:\s+(\w+)/ ? $1 : $err;
}

# Register; id and epoch
sub register
{
	my ($server, $producer, $gapless, $database) = @_;

	return split /\|/, sql($server, "SELECT * FROM idempotency.register_producer('$producer', $gapless)", $database);
}

sql($node, <<'END');
CREATE ROLE app;
CREATE ROLE only_here;
SELECT idempotency.grant_role('producer', r) FROM unnest('{app,only_here}'::name[]) r;
SET ROLE only_here;
SELECT idempotency.register_producer('stranded');
SET ROLE app;
SELECT idempotency.register_producer('gapless'), idempotency.register_producer('gapless'), idempotency.register_producer('rising', false);
RESET ROLE;
SELECT idempotency.claim_offset('c', 't', 0, 0, 10, 3), idempotency.claim_offset('c', 't', 1, 5), idempotency.resume_offset('c', 't', 2, 4);
SELECT idempotency.claim_offset('c', 't', 3, 5), idempotency.reset_offset('c', 't', 3);
SELECT idempotency.claim_sequence(producer_id, epoch::int, 0, count => 5) FROM idempotency.producers;
SELECT idempotency.register_producer('dropped'), idempotency.producer_drop('dropped');
END
my %id = split /[|\n]/, sql($node, 'SELECT producer, producer_id FROM idempotency.producers');
my $cursors = q{SELECT consumer, producer, producer_id, topic, partition, next_offset, generation, last_sequence, epoch, records, since FROM idempotency.cursors ORDER BY consumer, producer, partition};
my $producers = q{SELECT producer, producer_id, epoch, gapless, owner, since, expires_at IS NOT NULL FROM idempotency.producers ORDER BY 1};
my $all = sql($node, "$cursors; $producers");
my $numbers = q{(SELECT number FROM idempotency_data.cursor_log_0 UNION ALL SELECT number FROM idempotency_data.cursor_log_1 UNION ALL SELECT number FROM idempotency_data.cursor_log_2) AS r};
my $rows = sql($node, "SELECT count(*) FROM $numbers");
my $greatest = sql($node, "SELECT max(number) FROM $numbers");

# What goes along, and what a registration makes of it; what: says where
sub goes_on
{
	my ($server, $what, $database) = @_;

	is(sql($server, "$cursors; $producers", $database), $all, "$what: everything is there");
	is(sql($server, q{SELECT result, new_from FROM idempotency.claim_offset('c', 't', 0, 0, 12, 3)}, $database), 'claimed|10', "$what: an offset goes on");
	is(sql($server, q{SELECT result FROM idempotency.claim_offset('c', 't', 1, 5)}, $database), 'duplicate', "$what: a duplicate is one");
	is(sql($server, q{SELECT result FROM idempotency.claim_offset('c', 't', 2, 5, NULL, 3)}, $database), 'fenced', "$what: a generation is fenced");
	is(sql($server, q{SELECT next_offset FROM idempotency.resume_offset('c', 't', 0)}, $database), '12', "$what: the newest row counts");
	is(claim($server, $id{gapless}, 1, 4, $database), 'duplicate', "$what: a sequence is a duplicate");
	is(claim($server, $id{gapless}, 1, 5, $database), 'accepted', "$what: the next one is not");
	is(sql($server, "SELECT count(*) FROM $numbers WHERE number > $greatest", $database), '2', "$what: the numbers of new rows are greater");

	my ($id, $epoch) = register($server, 'gapless', 'true', $database);
	cmp_ok($id, '>', $greatest, "$what: a gapless producer gets another id");
	is($epoch, 0, "$what: with epoch 0");
	is(claim($server, $id{gapless}, $_, 6, $database), 'fenced', "$what: the former id is fenced with epoch $_") foreach 0, 1, 2;
	is(claim($server, $id, 0, 0, $database), 'accepted', "$what: the new one begins");
	is(join(' ', register($server, 'gapless', 'true', $database)), "$id 1", "$what: within a history epochs rise");
	($id, $epoch) = register($server, 'rising', 'false', $database);
	is($id, $id{rising}, "$what: another producer keeps its id");
	cmp_ok($epoch, '>', 65535, "$what: and its epoch leaps");
	is(claim($server, $id{rising}, 7, 6, $database), 'fenced', "$what: epochs in between are fenced");
	is(claim($server, $id{rising}, $epoch, $_->[0], $database), $_->[1], "$what: its sequences go on at $_->[0]") foreach [ 4, 'duplicate' ], [ 5, 'accepted' ];
	return;
}

# May a role register the producer?
sub may
{
	my ($server, $role, $producer, $database) = @_;
	my ($rc, $out, $err) = $server->psql($database // 'postgres', "SET ROLE $role; SELECT epoch FROM idempotency.register_producer('$producer')", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);

	return $rc == 0 ? 'yes' : $err =~ /42501/ ? 'no' : $err;
}

my $dump = $node->basedir . '/dump';
command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'dump');

# A copy of the database
sql($node, 'CREATE DATABASE copied TEMPLATE postgres');
goes_on($node, 'copy', 'copied');
is(may($node, 'app', 'gapless', 'copied'), 'yes', 'copy: the owner goes on');
is(may($node, 'only_here', 'gapless', 'copied'), 'no', 'copy: nobody else does');

# The same cluster
sql($node, 'CREATE DATABASE restored TEMPLATE template0');
command_ok([ 'pg_restore', '-e', '-d', $node->connstr('restored'), $dump ], 'restore');
goes_on($node, 'restore', 'restored');
is(may($node, 'app', 'gapless', 'restored'), 'yes', 'restore: the owner goes on');
is(may($node, 'only_here', 'stranded', 'restored'), 'yes', 'restore: the other owner as well');

# The same database, again and again: whoever registered after the dump, or after an earlier restore of
# it, is fenced, and its successor's first record is no duplicate
sql($node, 'CREATE DATABASE again');
IdemTest::create_extension($node, 'again');
my @lost = ([ register($node, 'gapless', 'true', 'again') ]);
my @lost_rising = ([ register($node, 'rising', 'false', 'again') ]);
command_ok([ 'pg_dump', '-Fc', '-f', "$dump-again", $node->connstr('again') ], 'dump');
foreach my $round (1 .. 3)
{
	foreach (1, 2)
	{
		push @lost, [ register($node, 'gapless', 'true', 'again') ];
		push @lost_rising, [ register($node, 'rising', 'false', 'again') ];
	}
	is(claim($node, @{ $lost[-1] }, 0, 'again'), 'accepted', "round $round: a claim that the restore takes back");
	is(claim($node, @{ $lost_rising[-1] }, $round, 'again'), 'accepted', "round $round: and one of the other producer");
	command_ok([ 'pg_restore', '--clean', '--if-exists', '-d', $node->connstr('again'), "$dump-again" ], "restore $round into the same database");
	my @new = register($node, 'gapless', 'true', 'again');
	my @new_rising = register($node, 'rising', 'false', 'again');
	is(claim($node, @$_, 0, 'again'), 'fenced', "round $round: gapless as @$_ is fenced") foreach @lost;
	is(claim($node, @$_, 0, 'again'), 'fenced', "round $round: rising as @$_ is fenced") foreach @lost_rising;
	is(claim($node, @new, 0, 'again'), 'accepted', "round $round: the successor as @new begins");
	is(claim($node, @new_rising, 0, 'again'), 'accepted', "round $round: and that of the other one as @new_rising");
	push @lost, \@new;
	push @lost_rising, \@new_rising;
}

# Another cluster, in which roles have other OIDs, and one is missing
my $elsewhere = IdemTest::cluster('other', extension => 0);
sql($elsewhere, 'CREATE ROLE filler; CREATE ROLE stranger; CREATE ROLE app');
sql($elsewhere, 'CREATE DATABASE restored TEMPLATE template0');
$elsewhere->command_ok([ 'pg_restore', '--no-owner', '--no-privileges', '-e', '-d', $elsewhere->connstr('restored'), $dump ], 'restore elsewhere');
sql($elsewhere, q{SELECT idempotency.grant_role('producer', r) FROM unnest('{app,stranger}'::name[]) r}, 'restored');
goes_on($elsewhere, 'elsewhere', 'restored');
is(may($elsewhere, 'app', 'gapless', 'restored'), 'yes', 'elsewhere: a role is known by its name');
is(may($elsewhere, 'stranger', 'gapless', 'restored'), 'no', 'elsewhere: another role is not the owner');
is(may($elsewhere, $_, 'stranded', 'restored'), 'no', "elsewhere: a role that is missing is not $_") foreach 'app', 'stranger';
sql($elsewhere, q{CREATE ROLE only_here; SELECT idempotency.grant_role('producer', 'only_here')}, 'restored');
is(may($elsewhere, 'only_here', 'stranded', 'restored'), 'no', 'elsewhere: nor is it one that is made later');
sql($elsewhere, q{SELECT idempotency.producer_drop('stranded')}, 'restored');
is(may($elsewhere, 'only_here', 'stranded', 'restored'), 'yes', 'elsewhere: an operator frees the name');
$elsewhere->stop;

# The original is none the wiser
is(sql($node, "$cursors; $producers"), $all, 'the original has not changed');
is(claim($node, $id{gapless}, 1, 5), 'accepted', 'and its producer goes on');

# A standby that lags: it lacks the last registration, whose producer lives on
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('b');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
my ($rc, $out, $err) = $standby->psql('postgres', q{SELECT idempotency.claim_offset('c', 't', 0, 10)}, extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/25006/, 'a standby claims nothing');
$standby->stop;
my ($id, $epoch) = register($node, 'gapless', 'true');
is("$id $epoch", "$id{gapless} 2", 'registered after the standby has stopped');
is(claim($node, $id, 2, 0), 'accepted', 'and claimed under');
my (undef, $rising) = register($node, 'rising', 'false');
my ($fresh) = register($node, 'fresh', 'true');
sql($node, q{SELECT idempotency.resume_offset('c', 't', 0, 9)});
$node->stop('immediate');
$standby->start;
$standby->promote;
is(claim($standby, $id, 2, 1), '22023', 'the lost epoch is unknown until the producer registers again');
($id, $epoch) = register($standby, 'gapless', 'true');
cmp_ok($id, '>', $fresh, 'its new id is greater than those that were lost');
is($epoch, 0, 'its epochs begin anew');
is(claim($standby, $id{gapless}, $_, 1), 'fenced', "epoch $_ of the former id is fenced") foreach 1, 2, 3;
is(claim($standby, $id, 0, 0), 'accepted', 'the new id is not');
($id, $epoch) = register($standby, 'rising', 'false');
is($id, $id{rising}, 'the other producer keeps its id');
cmp_ok($epoch, '>', $rising + 65535, 'and its epoch leaps over those that were lost');
is(claim($standby, $id, $rising, 9), 'fenced', 'which are fenced');
cmp_ok((register($standby, 'fresh', 'true'))[0], '>', $fresh, 'a producer that was lost gets an id that nobody had');
is(claim($standby, $fresh, 0, 0), 'fenced', 'and the lost id is fenced');
is(sql($standby, q{SELECT result, next_offset FROM idempotency.resume_offset('c', 't', 0, 9)}), 'claimed|10', 'a reader goes on');
$standby->stop;

done_testing();
