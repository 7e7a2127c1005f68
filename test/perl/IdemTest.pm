
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemTest - clusters that use the staged extension

=head1 SYNOPSIS

  use IdemTest;

  my $node = IdemTest::cluster('main');                  # initialised and started
  my $node = IdemTest::cluster('p', allows_streaming => 1, start => 0,
      preload => 0, extension => 0, conf => "wal_level = logical\n");
  my $node = IdemTest::cluster('old', old => 1);         # of the server to upgrade from
  my $node = IdemTest::cluster('new', install_path => $prefix);
  my $node = IdemTest::upgraded($old, 'new', conf => ...);   # by pg_upgrade; not started
  my ($version, $next) = IdemTest::versions($node);      # of the extension; $next in the area "update"
  IdemTest::wait_for($node, 'SELECT ...');               # until it returns t
  IdemTest::kill9_backend($node, $pid);

=head1 DESCRIPTION

What test/setup/run.sh installed into its work directory is made known to each
cluster through IDEM_EXTENSION_CONF; nothing is installed system-wide.  A node
made from a backup of such a cluster has the same configuration.

=cut

package IdemTest;

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use IdemSession;
use List::Util qw(max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# The lines that make a server find the staged extension.
sub extension_conf
{
	my ($variable) = @_;
	my $file = $ENV{$variable}
	  or BAIL_OUT("$variable is not set: run \"make test AREA=tap\"");

	return slurp_file($file);
}

# A cluster with the extension: preloaded, created in database postgres and
# started, unless told otherwise.
sub cluster
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		install_path => $opt{old} ? dirname($ENV{IDEM_OLD_BINDIR}) : $opt{install_path});

	$node->init(
		allows_streaming => $opt{allows_streaming} // 0,
		extra => $opt{extra} // []);
	$node->append_conf('postgresql.conf', 
		extension_conf($opt{old} ? 'IDEM_OLD_EXTENSION_CONF' : 'IDEM_EXTENSION_CONF'));
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\n")
	  if $opt{preload} // 1;
	$node->append_conf('postgresql.conf', <<'END');
max_worker_processes = 32
max_prepared_transactions = 10
restart_after_crash = on
END
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};
	return $node unless $opt{start} // 1;

	$node->start;
	create_extension($node) if $opt{extension} // 1;
	return $node;
}

# The server as it is when the extension is installed into it: its programs, which
# find their directories from where they lie, and links to the rest.  pg_upgrade 18
# looks for '$libdir/...' in the one directory only.  The server may have the extension
# already: the staged one takes its place.
sub installed
{
	my $root = PostgreSQL::Test::Utils::tempdir();

	foreach my $dir (@ENV{qw(IDEM_BINDIR IDEM_PKGLIBDIR IDEM_SHAREDIR)})
	{
		my $how = $dir eq $ENV{IDEM_BINDIR} ? '-aL' : '-as';

		system_or_bail('mkdir', '-p', "$root$dir");
		system_or_bail('cp', $how, "$dir/.", "$root$dir/");
	}
	system_or_bail('cp', '-asf', "$ENV{IDEM_STAGE_LIBDIR}/.", "$root$ENV{IDEM_PKGLIBDIR}/");
	system_or_bail('cp', '-asf', "$ENV{IDEM_STAGE_SHAREDIR}/.", "$root$ENV{IDEM_SHAREDIR}/");
	return "$root$ENV{IDEM_BINDIR}";
}

# Upgrade a stopped cluster of the server to upgrade from; options as for cluster().
sub upgraded
{
	my ($old, $name, %opt) = @_;
	my $bindir = installed();
	my $new = cluster($name, %opt, start => 0, install_path => dirname($bindir));
	# It has the extension among its own; below the staged directory it has no directory.
	$new->append_conf('postgresql.conf', "extension_destdir = ''\n") if extension_conf('IDEM_EXTENSION_CONF') =~ /^extension_destdir/m;
	my @upgrade = (
		"$bindir/pg_upgrade", '--no-sync',
		'--old-datadir' => $old->data_dir, '--new-datadir' => $new->data_dir,
		'--old-bindir' => $ENV{IDEM_OLD_BINDIR}, '--new-bindir' => $bindir,
		'--socketdir' => $new->host, '--old-port' => $old->port, '--new-port' => $new->port);

	chdir PostgreSQL::Test::Utils::tempdir() or die "could not change directory: $!";
	command_ok(\@upgrade, 'pg_upgrade')
	  or system_log('sh', '-c', 'cd "$1" && tail -n 30 */*.txt */log/*.log', 'sh', $new->data_dir . '/pg_upgrade_output.d');
	return $new;
}

sub create_extension
{
	my ($node, $database) = @_;

	$node->safe_psql($database // 'postgres',
		'SET client_min_messages = warning; CREATE EXTENSION idempotency CASCADE');
	return;
}

# The version of the extension in a database, and the version that a staged script updates it
# to, if there is one.  The tests' own versions (lib.sh, idem_stage_updates) do not count.
sub versions
{
	my ($node, $database) = @_;
	my $version = $node->safe_psql($database // 'postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'idempotency'});
	my ($next) = map { /--\Q$version\E--([^-]+)\.sql$/ && $1 !~ /test$/ ? $1 : () }
		sort glob("$ENV{IDEM_STAGE_SHAREDIR}/extension/idempotency--*.sql");

	return ($version, $next);
}

# Poll until the query returns t; a connection that is refused in between, as
# after a crash, is tried again.  Fails the test when it never does.
sub wait_for
{
	my ($node, $query, $expected, $database) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my ($session, $answer);

	$expected //= 't';
	$database //= 'postgres';
	while (time < $until)
	{
		$session //= IdemSession->new($node, $database);
		$answer = $session->ask($query);
		return pass("reached: $query") if ($answer // '') eq $expected;
		$session = undef unless defined $answer;
		usleep(100_000);
	}
	fail("reached: $query");
	diag(join "\n", "expected: $expected", 'the last answer: ' . ($answer // 'no connection'), $node->psql($database, $query));
	return;
}

# How many times slower than usual this machine is at the moment, at least 1: by a
# database that is made and dropped, in half a second on a quiet machine.  A limit that
# the server promises in seconds is multiplied by it.
sub slowness
{
	my ($node) = @_;
	my $began = time;

	$node->safe_psql('postgres', $_) foreach 'CREATE DATABASE slowness', 'DROP DATABASE slowness';
	return max(1, 2 * (time - $began));
}

# A synchronous standby of a cluster that allows streaming, in use when this returns.
sub synchronous_standby
{
	my ($primary) = @_;
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$primary->backup('b');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "primary_conninfo = '" . $primary->connstr . " application_name=sync'\n");
	$standby->start;
	$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'sync'});
	$primary->reload;
	wait_for($primary, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'});
	return $standby;
}

# Make view dead: the dead tuples of each catalog and of each table of ours.
sub watch_dead_tuples
{
	my ($node, $database) = @_;

	$node->safe_psql($database // 'postgres', <<'END');
CREATE EXTENSION pgstattuple;
CREATE VIEW dead AS
SELECT oid::regclass AS rel, (pgstattuple(oid)).dead_tuple_count AS tuples FROM pg_class
 WHERE relkind IN ('r', 't', 'm') AND relpersistence = 'p'
   AND relnamespace IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace, 'idempotency_data'::regnamespace);
CREATE TABLE dead_before (rel regclass, tuples bigint);
END
	return;
}

# Note how many there are now.
sub note_dead_tuples
{
	my ($node, $database) = @_;
	my $db = $database // 'postgres';

	$node->safe_psql($db, 'TRUNCATE dead_before; INSERT INTO dead_before SELECT * FROM dead');
	is( $node->safe_psql($db, q{SELECT count(*) FILTER (WHERE rel::text LIKE 'pg\_%') > 60, count(*) FILTER (WHERE rel::text LIKE 'idempotency\_data.%') > 20 FROM dead_before}),
		't|t', "$db: catalogs and tables of ours are looked at");
	return;
}

# The tables with more dead tuples than noted; pruning while reading may make some fewer.
sub new_dead_tuples
{
	my ($node, $database) = @_;

	return $node->safe_psql($database // 'postgres',
		'SELECT rel, dead.tuples - b.tuples FROM dead JOIN dead_before AS b USING (rel) WHERE dead.tuples > b.tuples');
}

# Kill one process of the server with -9 and wait until the server, which
# restarts itself, accepts connections again as another incarnation.
sub kill9_backend
{
	my ($node, $pid) = @_;
	my $log_at = -s $node->logfile;

	kill 'KILL', $pid or die "could not kill process $pid: $!";
	$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
	$node->poll_query_until('postgres', 'SELECT true')
	  or die "server did not come back after kill -9 of $pid";
	return;
}

1;
