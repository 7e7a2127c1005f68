
# Copyright (c) 2026, the idempotency developers

# Tokens rise from one history of a database to the next: a synchronous standby is
# promoted, and so is one that lacks the last tokens; the database is recovered to a
# point in time before the lease, twice from one backup; its disk is set back; a dump
# is restored twice; pg_upgrade.  What is open of an event goes along.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1, conf => <<'END');
wal_level = replica
archive_mode = on
archive_timeout = 1h
autovacuum = off
wal_keep_size = 1GB
END
$node->enable_archiving;
$node->restart;

# The greatest token that anybody was given so far
my $greatest = 0;

# Lease an event; the token
sub lease
{
	my ($server, $id, $duration, $database) = @_;
	my $token = $server->safe_psql($database // 'postgres',
		sprintf(q{SELECT token FROM idempotency.lease_event('%s', duration => '%s')}, $id, $duration // '1 microsecond'));

	return $token eq '' ? 0 : $token;
}

# The next token is greater than all before, whoever gave them out
sub rises
{
	my ($server, $id, $what, $database) = @_;
	my $token = lease($server, $id, undef, $database);

	cmp_ok($token, '>', $greatest, "$what: tokens rise");
	$greatest = $token if $token > $greatest;
	return $token;
}

# Give out many tokens, so that a history which lacks them is far behind
sub burn
{
	my ($server, $n, $database) = @_;
	my $token = $server->safe_psql($database // 'postgres',
		"SELECT max(token) FROM idempotency.lease_events(ARRAY(SELECT 'burnt' || i FROM generate_series(1, $n) AS i), duration => '1 microsecond')");

	$greatest = $token if $token > $greatest;
	return;
}

# The first token after a start; the server is stopped again
sub rises_after_start
{
	my ($server, $what) = @_;

	$server->start;
	rises($server, 'started', $what);
	$server->stop;
	return;
}

sub attempt
{
	my ($server, $id, $database) = @_;

	return $server->safe_psql($database // 'postgres',
		"SELECT result, attempt, recovery_point, last_error FROM idempotency.lease_event('$id')");
}

# What is open: an overdue lease with a recovery point, one that lasts, a dead event
my $overdue = lease($node, 'overdue', '1 hour');
$node->safe_psql('postgres', "SELECT idempotency.extend_lease('overdue', $overdue, duration => '1 microsecond', recovery_point => 'half')");
my $lasting = lease($node, 'lasting', '1 day');
my $dead = lease($node, 'dead', '1 day');
$node->safe_psql('postgres', "SELECT idempotency.release_lease('dead', $dead, error => 'poison', park => true)");
$greatest = $dead;

# A backup, a dump and an image of the disk, each of this moment
$node->backup('before');
my $dump = $node->basedir . '/dump';
command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'dump');
$node->safe_psql('postgres', q{SELECT pg_create_restore_point('before')});
my $segment = $node->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');
IdemTest::wait_for($node, "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver");

sub open_leases
{
	my ($server, $what, $database) = @_;

	is(attempt($server, 'overdue', $database), 'claimed|2|half|', "$what: an overdue lease is taken over, and goes on where it was");
	is(attempt($server, 'lasting', $database), 'busy|||', "$what: a lease that lasts is busy");
	is(attempt($server, 'dead', $database), 'dead|1||poison', "$what: what is dead stays dead");
	is($server->safe_psql($database // 'postgres', "SELECT idempotency.extend_lease('lasting', $lasting) IS NOT NULL"), 't', "$what: and its holder goes on");
	my ($rc, $out, $err) = $server->psql($database // 'postgres', "SELECT idempotency.complete_event('overdue', token => $overdue)",
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	like($err, qr/ID007/, "$what: the holder of the overdue lease cannot complete any more");
	return;
}

# A synchronous standby is promoted, and lacks nothing
my $standby = IdemTest::synchronous_standby($node);
my $late = lease($node, 'late', '1 day');
burn($node, 200);
$node->stop('immediate');
$standby->promote;
$standby->safe_psql('postgres', q{ALTER SYSTEM RESET synchronous_standby_names});
$standby->reload;
IdemTest::wait_for($standby, q{SELECT current_setting('synchronous_standby_names') = ''});
rises($standby, 'new', 'synchronous standby');
open_leases($standby, 'synchronous standby');
is($standby->safe_psql('postgres', "SELECT idempotency.extend_lease('late', $late) IS NOT NULL"), 't', 'a lease that was told committed is there');

# One that lags: what it lacks was given out all the same
my $lagging = PostgreSQL::Test::Cluster->new('lagging');
$standby->backup('c');
$lagging->init_from_backup($standby, 'c', has_streaming => 1);
$lagging->start;
$standby->wait_for_catchup($lagging, 'replay', $standby->lsn('flush'));
$lagging->stop;
burn($standby, 1000);
my $lost = rises($standby, 'lost', 'before the failover');
$standby->stop('immediate');
$lagging->start;
$lagging->promote;
rises($lagging, 'lost', 'standby that lagged');
my ($rc, $out, $err) = $lagging->psql('postgres', "SELECT idempotency.complete_event('lost', token => $lost)", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/ID007/, 'who has a lease that the standby lacked cannot complete');
$lagging->stop;

# Recovery to a point in time before most tokens, twice from one backup, one after the
# other.  The second server knows nothing of the tokens of the first.
$greatest = 0;
foreach my $round (1 .. 3)
{
	my $restored = PostgreSQL::Test::Cluster->new("restored$round");

	$restored->init_from_backup($node, 'before', has_restoring => 1, standby => 0);
	$restored->append_conf('postgresql.conf', "recovery_target_name = 'before'\nrecovery_target_action = promote\narchive_mode = off\n");
	$restored->start;
	IdemTest::wait_for($restored, 'SELECT NOT pg_is_in_recovery()');
	open_leases($restored, "recovery $round");
	rises($restored, "first$round", "recovery $round");
	burn($restored, 500);
	rises($restored, "last$round", "recovery $round");
	$restored->stop;
}

# A dump is restored twice
$greatest = 0;
my $other = IdemTest::cluster('other', extension => 0);
foreach my $round (1 .. 2)
{
	$other->safe_psql('postgres', "CREATE DATABASE d$round TEMPLATE template0");
	$other->command_ok([ 'pg_restore', '-e', '-d', $other->connstr("d$round"), $dump ], 'restore');
	open_leases($other, "restore $round", "d$round");
	rises($other, "first$round", "restore $round", "d$round");
	burn($other, 500, "d$round");
}

# A dump is restored into the database that it is of, and so are later ones, each of a
# database that was restored; then the first one again
$greatest = 0;
$other->safe_psql('postgres', 'CREATE DATABASE again');
IdemTest::create_extension($other, 'again');
rises($other, 'first', 'new', 'again');
foreach my $round (1 .. 4)
{
	my @dump = map { $other->basedir . "/again$_" } 1 .. $round;

	$other->command_ok([ 'pg_dump', '-Fc', '-f', $dump[-1], $other->connstr('again') ], 'dump');
	foreach my $n ($round, 1)
	{
		$other->command_ok([ 'pg_restore', '--clean', '--if-exists', '-d', $other->connstr('again'), $dump[$n - 1] ], 'restore into the same database');
		rises($other, "first$round", "restore of dump $n after dump $round", 'again');
	}
	burn($other, 500, 'again');
}
$other->stop;

# A server that was promoted again and again is lost, and an image from before is started,
# which is promoted once, or not at all
$greatest = 0;
rises_after_start($lagging, 'before the image');
$lagging->backup_fs_cold('once');
foreach my $round (1 .. 4)
{
	$lagging->set_standby_mode;
	$lagging->start;
	$lagging->promote;
	rises($lagging, "promoted$round", "promotion $round");
	burn($lagging, 500);
	$lagging->stop;
}
foreach my $promoted (1, 0)
{
	my $image = PostgreSQL::Test::Cluster->new("once$promoted");

	$image->init_from_backup($lagging, 'once');
	$image->append_conf('postgresql.conf', "archive_mode = off\nprimary_conninfo = ''\n");
	$image->set_standby_mode if $promoted;
	$image->start;
	$image->promote if $promoted;
	rises($image, 'first', $promoted ? 'image that is promoted' : 'image');
	$image->stop('immediate');
}

# The disk is set back to a former image, twice, while the number is ahead of the clock.
# Neither timeline nor database differ.
$lagging->start;
$lagging->safe_psql('postgres', q{INSERT INTO idempotency_data.lease_log_1 (number, digest, kind, state, at) VALUES (2::bigint ^ 52, md5('x')::uuid, 's', 'f', now())});
rises($lagging, 'ahead', 'beyond the clock');
cmp_ok($greatest, '>', 2**52, 'a token from elsewhere is passed over');
$lagging->stop;
$lagging->backup_fs_cold('image');
foreach my $round (1 .. 2)
{
	my $image = PostgreSQL::Test::Cluster->new("image$round");

	$image->init_from_backup($lagging, 'image');
	$image->append_conf('postgresql.conf', "archive_mode = off\nprimary_conninfo = ''\n");
	$image->start;
	rises($image, "first$round", "image $round");
	burn($image, 500);
	$image->stop('immediate');
}

# pg_upgrade.  Checksums are the default of some versions only.
my @checksums = (extra => ['--data-checksums']);
my $old = IdemTest::cluster('old', old => 1, @checksums);
$overdue = lease($old, 'overdue', '1 hour');
$old->safe_psql('postgres', "SELECT idempotency.extend_lease('overdue', $overdue, duration => '1 microsecond', recovery_point => 'half')");
$lasting = lease($old, 'lasting', '1 day');
$dead = lease($old, 'dead', '1 day');
$old->safe_psql('postgres', "SELECT idempotency.release_lease('dead', $dead, error => 'poison', park => true)");
$greatest = 0;
burn($old, 300);
$old->stop;
my $new = IdemTest::upgraded($old, 'new', @checksums);
$new->start;
open_leases($new, 'upgraded');
rises($new, 'first', 'upgraded');
$new->stop;

done_testing();
