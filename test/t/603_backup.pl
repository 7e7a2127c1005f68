
# Copyright (c) 2026, the idempotency developers

# The commands of doc/howto/backup.md, in their order, on servers that restore what
# the page backs up.  A block ```sql NAME runs in the database "shop" of that server,
# a block ```sh with the connections and directories of the test.  A block is repeated
# until it prints the block ```text that follows.  After each restore each
# event has had its effect once, and a copy has published nothing.  The servers have
# another extension, "ledger", whose trigger enqueues.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $page = slurp_file("$FindBin::RealBin/../../doc/howto/backup.md");
my $files = PostgreSQL::Test::Utils::tempdir();

# A copy of the stage, with the files of the extension "ledger"
{
	my $stage = $ENV{IDEM_STAGE_LIBDIR} =~ s/\Q$ENV{IDEM_PKGLIBDIR}\E$//r;
	my $extensions = "$files/stage$ENV{IDEM_SHAREDIR}/extension";

	system_or_bail('cp', '-R', $stage, "$files/stage");
	append_to_file("$files/extension.conf", IdemTest::extension_conf('IDEM_EXTENSION_CONF') =~ s/\Q$stage\E/$files\/stage/gr);
	append_to_file("$extensions/ledger.control", "default_version = '1.0'\nrequires = 'idempotency'\nschema = 'ledger'\nrelocatable = false\n");
	append_to_file("$extensions/ledger--1.0.sql", <<'END');
CREATE TABLE ledger.entries (id int PRIMARY KEY);
SELECT pg_catalog.pg_extension_config_dump('ledger.entries', '');
CREATE FUNCTION ledger.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idempotency.outbox_enqueue('entry', NEW.id::text, 'Booked', '{}');
	RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON ledger.entries FOR EACH ROW EXECUTE FUNCTION ledger.tell();
END
}
local $ENV{IDEM_EXTENSION_CONF} = "$files/extension.conf";

# No relay becomes idle while a slow machine comes to the next block.
my $conf = "idempotency.publish_as = 'shop'\nidempotency.sink_idle_timeout = '10min'\n";
my $old = IdemTest::cluster('old', allows_streaming => 1, start => 0, conf => $conf);
$old->enable_archiving;
$old->start;
my $new = IdemTest::cluster('new', extension => 0, conf => $conf);
my $warehouse = IdemTest::cluster('warehouse');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $restored = "$files/restored";
my %servers = (
	'shop-db' => [ $old->host, $old->port ],
	'new-db' => [ $new->host, $new->port ],
	'restored-db' => [ $old->host, $port ]);
my ($target_host, $target_port) = ($warehouse->host, $warehouse->port);

$ENV{PGCTLTIMEOUT} = $PostgreSQL::Test::Utils::timeout_default;
chdir $files or die "could not change directory: $!";

sub trimmed
{
	my ($text) = @_;

	$text =~ s/[ \t]+$//mg;
	$text =~ s/\n+\z//;
	return $text;
}

# A block of SQL, or a query of the test.
sub sql
{
	my ($server, $text) = @_;
	my ($host, $at) = @{ $servers{$server} };
	my $out;

	IPC::Run::run([ 'psql', '-X', '-h', $host, '-p', $at, '-d', 'shop', '-f', '-' ], '<', \$text, '>', \$out, '2>&1');
	return trimmed($out);
}

# The last line that a query of the test prints.
sub value
{
	my ($server, $query) = @_;
	my $out = sql($server, "\\set QUIET on\n\\pset format unaligned\n\\pset tuples_only on\n$query");

	return (split /\n/, $out)[-1];
}

sub reached
{
	my ($server, $query, $expected, $name, $of) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $out;

	while (time < $until)
	{
		$out = ($of // \&sql)->($server, $query) // '';
		last if $out eq $expected;
		usleep(100_000);
	}
	is($out, $expected, $name);
	return;
}

# A block of the shell.  The restored server listens at a port of its own.
sub shell
{
	my ($text, $name) = @_;

	$text =~ s{-h ([a-z]+-db)}{-h $servers{$1}[0] -p $servers{$1}[1]}g;
	$text =~ s{/srv/restored}{$restored}g;
	$text =~ s{/srv/archive}{$old->archive_dir}ge;
	$text =~ s{^(pg_ctl -D \S+)(.* start)$}{$1 -l $files/restored.log$2}mg;
	is(system('sh', '-ec', $text), 0, $name // 'the shell');
	append_to_file("$restored/postgresql.conf", "port = $port\n") if $text =~ /^pg_basebackup/;
	return;
}

# The blocks of a page or part, a block of output with the one before it.
sub blocks
{
	my ($text) = @_;
	my @blocks;

	while ($text =~ /^```(sql|sh|text)([^\n]*)\n(.*?)^```$/msg)
	{
		my ($kind, $info, $body) = ($1, $2, $3);

		if ($kind eq 'text')
		{
			$blocks[-1]{expected} = trimmed($body);
			next;
		}
		# Run with packages: test/packages/backup.sh
		next if $info =~ /debian/;
		push @blocks, { kind => $kind, server => $info =~ /(\S+-db)/ ? $1 : undef, text => $body };
	}
	return @blocks;
}

# Run what stands under a heading of the page.
sub run_part
{
	my ($heading) = @_;
	my ($part) = $page =~ /^##+ \Q$heading\E\n(.*?)(?=^##+ |\z)/ms or die "no part $heading";

	foreach my $block (blocks($part))
	{
		my $name = "$heading: " . (split /\n/, $block->{text})[0];

		if ($block->{kind} eq 'sh')
		{
			shell($block->{text}, $name);
		}
		elsif (defined $block->{expected})
		{
			reached($block->{server}, $block->{text}, $block->{expected}, $name);
		}
		else
		{
			unlike(sql($block->{server}, $block->{text}), qr/(ERROR|FATAL|error): /, $name);
		}
	}
	return;
}

sub stop_restored
{
	system_or_bail('pg_ctl', '-D', $restored, '-s', '-w', '-m', 'fast', 'stop');
	system_or_bail('rm', '-rf', $restored);
	return;
}

END
{
	my $status = $?;

	system('pg_ctl', '-D', $restored, '-s', '-m', 'immediate', 'stop') if defined $restored && -e "$restored/postmaster.pid";
	$? = $status;
}

# Wait until so many events have had their effect, at the function and at the
# warehouse, none of them twice.
sub effects
{
	my ($server, $handled, $copied, $name) = @_;

	reached($server, "SELECT count(*) || ' ' || count(DISTINCT event_id) FROM done", "$handled $handled", "$name: handled", \&value);
	IdemTest::wait_for($warehouse, "SELECT count(*) = $copied AND count(DISTINCT event_id) = $copied FROM arrived");
	return;
}

sub enqueue
{
	my ($server, $events) = @_;

	unlike(sql($server, "SELECT idempotency.outbox_enqueue('order', n::text, 'Placed', '{}') FROM generate_series(1, $events) n"),
		qr/ERROR/, 'events');
	return;
}

$old->safe_psql('postgres', 'CREATE DATABASE shop');
IdemTest::create_extension($old, 'shop');
$warehouse->safe_psql('postgres', 'CREATE ROLE feeder LOGIN');
$old->safe_psql('shop', <<"END");
CREATE TABLE done (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.done VALUES (event_id)';
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
CREATE SERVER warehouse FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$target_host', port '$target_port', dbname 'postgres', function 'public.arrive');
CREATE USER MAPPING FOR CURRENT_USER SERVER warehouse OPTIONS (user 'feeder');
SELECT idempotency.relay_create('handled', 'handler'), idempotency.relay_create('copied', 'warehouse');
END
$warehouse->safe_psql('postgres', <<'END');
CREATE TABLE arrived (event_id uuid);
CREATE FUNCTION arrive(event_id uuid) RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.arrived VALUES (event_id)';
SELECT idempotency.grant_role('consumer', 'feeder');
END
$warehouse->safe_psql('postgres', $old->safe_psql('shop', q{SELECT idempotency.sink_setup_sql('warehouse')}));
enqueue('shop-db', 5);
effects('shop-db', 5, 5, 'before');

# A dump while the relays run, and events that it does not have
run_part('Dump');
$old->safe_psql('postgres', 'CREATE ROLE reader LOGIN IN ROLE pg_read_all_data');
command_ok([ 'pg_dump', '-U', 'reader', '-f', 'read.sql', '-d', $old->connstr('shop') ], 'a member of pg_read_all_data dumps');
enqueue('shop-db', 3);
effects('shop-db', 8, 8, 'after the dump');

$old->safe_psql('postgres', 'CREATE DATABASE books');
$old->safe_psql('books', <<'END');
SET client_min_messages = warning;
CREATE EXTENSION ledger CASCADE;
INSERT INTO ledger.entries SELECT generate_series(1, 5);
END
my $booked = q{SELECT event_id, aggregate_id FROM idempotency.outbox_events ORDER BY event_id};
my $events = $old->safe_psql('books', $booked);
command_ok([ 'pg_dump', '-Fc', '-f', 'books.dump', '-d', $old->connstr('books') ], 'a dump with events of a trigger');

# A schema that is restored before its data
$old->safe_psql('postgres', 'CREATE DATABASE sales');
$old->safe_psql('sales', <<'END');
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE done (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.done VALUES (event_id)';
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idempotency.outbox_enqueue('order', NEW.id::text, 'Placed', '{}');
	RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION tell();
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('handled', 'handler');
INSERT INTO orders SELECT generate_series(1, 5);
END
IdemTest::wait_for($old, 'SELECT count(*) = 5 FROM done', undef, 'sales');
my $placed = $old->safe_psql('sales', $booked);
command_ok([ 'pg_dump', '-Fc', '-f', 'sales.dump', '-d', $old->connstr('sales') ], 'a dump with events of a trigger of its own');
command_ok([ 'pg_dump', '-s', '-f', 'schema.sql', '-d', $old->connstr('sales') ], 'its schema');

# A base backup beside the live server.  The copy has an event of its own.
run_part('Base backup');
enqueue('restored-db', 1);
is(value('restored-db', 'SELECT count(*) FROM done'), '8', 'the copy handles nothing');
is(value('restored-db', 'SHOW archive_mode'), 'off', 'and archives nothing');
enqueue('shop-db', 1);
effects('shop-db', 9, 9, 'beside a copy');
stop_restored();

# To a point in time: two events before the mistake, four after it.
shell((grep { /^pg_basebackup/ } map { $_->{text} } blocks($page))[0]);
enqueue('shop-db', 2);
effects('shop-db', 11, 11, 'before the mistake');
value('shop-db', q{SELECT pg_create_restore_point('before the mistake')});
enqueue('shop-db', 4);
effects('shop-db', 15, 15, 'after the mistake');
my $wal = value('shop-db', 'SELECT pg_walfile_name(pg_switch_wal())');
reached('shop-db', "SELECT last_archived_wal >= '$wal' FROM pg_stat_archiver", 't', 'archived', \&value);
$old->stop;
run_part('To a point in time');
enqueue('restored-db', 1);
effects('restored-db', 12, 16, 'after the recovery');
stop_restored();

# The dump, when nobody else publishes: what it has was delivered.
run_part('Restore a dump');
enqueue('new-db', 1);
effects('new-db', 6, 17, 'after the restore');

# A dump with a table whose trigger enqueues as soon as the extension is there
run_part('Another extension that enqueues');
is($new->safe_psql('books', $booked), $events, 'the restored events are those that were dumped');
$new->safe_psql('books', 'INSERT INTO ledger.entries VALUES (6)');
is($new->safe_psql('books', q{SELECT count(*), count(DISTINCT event_id) FROM idempotency.outbox_events}), '6|6', 'the trigger is on again');
$new->safe_psql('postgres', 'CREATE DATABASE sales');
command_ok([ 'psql', '-q', '-v', 'ON_ERROR_STOP=1', '-f', 'schema.sql', '-d', $new->connstr('sales') ], 'the schema is restored');
run_part('The schema first, the data later');
is($new->safe_psql('sales', $booked), $placed, 'no event is enqueued once more');
$new->safe_psql('sales', q{SELECT idempotency.relay_adopt('handled'); INSERT INTO orders VALUES (6)});
IdemTest::wait_for($new, 'SELECT count(*) = 6 AND count(DISTINCT event_id) = 6 FROM done', undef, 'sales');
$_->stop foreach $new, $warehouse;
done_testing();
