
# Copyright (c) 2026, the idempotency developers

# ALTER EXTENSION UPDATE while everybody is at work: a script that locks every
# table and replaces every function, there and back many times, loses nothing,
# repeats no effect, and the relays go on by themselves.  An update that waits behind
# somebody's transaction gives up after its lock_timeout, and leaves all as it was.  In
# the area "update" the last update leads to the next version.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $updates = 20;
my $dir = IdemRelay::sink_directory();
# The ring turns and segments are emptied meanwhile.
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
idempotency.outbox_segment_size = 1MB
autovacuum = off
log_line_prefix = '%m [%p] <%e> '
END
my %file = map { $_ => "$dir/$_.log" } qw(plain storing);

# Some events are refused once, so that there are parked ones.
IdemRelay::pytest_server($node, 'plain', $file{plain}, retry_type => 'Again', retry_times => 1);
IdemRelay::pytest_server($node, 'storing', $file{storing}, retry_type => 'Again', retry_times => 1, position => 'on');
$node->safe_psql('postgres', <<'END');
CREATE TABLE sent (event_id uuid);
CREATE TABLE effects (event_id uuid);
CREATE TABLE done (id text);
CREATE FUNCTION effect(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (event_id)';
CREATE FUNCTION consume(id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF idempotency.claim_event(id, consumer => 'c') = 'claimed' THEN
		INSERT INTO public.done VALUES (id);
		PERFORM idempotency.complete_event(id, consumer => 'c');
	END IF;
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.effect');
SELECT idempotency.relay_create(name, name, min_backoff => '20 ms', max_backoff => '200 ms')
	FROM unnest('{fn,plain,storing}'::text[]) AS name;
END

# What an update may change and has to leave as it was.
my $objects = <<'END';
SELECT md5(string_agg(pg_describe_object(classid, objid, 0) || coalesce(pg_get_functiondef(p.oid), '')
		|| coalesce(pg_get_viewdef(c.oid), '') || coalesce(p.proacl::text, '') || coalesce(c.relacl::text, '') || coalesce(c.reloptions::text, '')
		|| coalesce(obj_description(objid, classid::regclass::name), ''), '' ORDER BY classid, objid))
FROM pg_depend d LEFT JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
	LEFT JOIN pg_class c ON classid = 'pg_class'::regclass AND c.oid = objid AND relkind = 'v'
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency')
END
my ($version, $next) = IdemTest::versions($node);

# A view that was made from its definition is printed with more aliases than before, once.
$node->safe_psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$version.test'; ALTER EXTENSION idempotency UPDATE TO '$version'");
my $before = $node->safe_psql('postgres', $objects);
my $replaced = q{SELECT xmin FROM pg_proc WHERE oid = 'idempotency_data.relay_status'::regproc};

my $script = PostgreSQL::Test::Utils::tempdir() . '/work';
append_to_file("$script.produce", <<'END');
\set key random(1, 8)
\set kind random(1, 20)
INSERT INTO sent SELECT idempotency.outbox_enqueue('t', :key::text, CASE :kind WHEN 1 THEN 'Again' ELSE 'E' END, '{}',
	event_id => CASE WHEN :kind > 10 THEN gen_random_uuid() END);
END
append_to_file("$script.consume", <<'END');
\set id random(1, 2000)
SELECT consume(:id::text);
END

# Until it is told to stop.  A deadlock with the update is the client's to
# repeat, as any application has to.
sub load
{
	my ($what) = @_;
	my %load = (out => '', err => '');

	$load{run} = IPC::Run::start(
		[
			'pgbench', '--no-vacuum', '--client' => 2, '--rate' => 100, '--time' => 100_000, '--max-tries' => 0,
			'--file' => "$script.$what", $node->connstr('postgres')
		],
		'>', \$load{out}, '2>', \$load{err});
	return \%load;
}

# There or back; again if it was in a circle with those at work.
sub update
{
	my ($version) = @_;
	my $was = $node->safe_psql('postgres', $replaced);

	IdemRelay::wait_until("updated to $version", sub {
		my ($rc, $out, $err) = $node->psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$version'");

		die $err if $rc != 0 && $err !~ /deadlock detected/;
		return $rc == 0;
	});
	isnt($node->safe_psql('postgres', $replaced), $was, 'the script has run');
	return;
}

sub installed
{
	return (IdemTest::versions($node))[0];
}

# A transaction that stays open has enqueued and claimed.  The update waits for it as long as
# its own lock_timeout, and nobody longer behind the update.
sub give_way
{
	my ($target) = @_;
	my $open = $node->background_psql('postgres');

	$open->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('t', 'open', 'E', '{}'); SELECT consume('open')});
	my ($rc, undef, $err) = $node->psql('postgres', "SET lock_timeout = '500ms'; ALTER EXTENSION idempotency UPDATE TO '$target'");
	isnt($rc, 0, 'an update behind an open transaction ends');
	like($err, qr/canceling statement due to lock timeout|deadlock detected/, 'by its lock_timeout');
	is(installed(), $version, 'and changes nothing');
	is($node->safe_psql('postgres', $objects), $before, 'of the objects');
	wait_progress();
	$open->query_safe('ROLLBACK');
	$open->quit;
	return;
}

# Everybody has done something since.
sub wait_progress
{
	my @counts = split /\|/, $node->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM sent), (SELECT count(*) FROM effects)');
	my %acked = map { $_ => scalar IdemRelay::acked($file{$_}) } keys %file;

	IdemTest::wait_for($node, "SELECT (SELECT count(*) FROM sent) > $counts[0] AND (SELECT count(*) FROM effects) > $counts[1]");
	foreach my $name (sort keys %file)
	{
		IdemRelay::wait_until("$name goes on", sub { IdemRelay::acked($file{$name}) > $acked{$name} });
	}
	return;
}

my @load = map { load($_) } qw(produce consume);
wait_progress();
foreach my $i (1 .. $updates)
{
	update($i % 2 ? "$version.test" : $version);
	wait_progress();
}
is(installed(), $version, 'back at its version');
is($node->safe_psql('postgres', $objects), $before, 'with the same objects');
give_way("$version.test");
if ($next)
{
	IdemRelay::wait_until("updated to $next", sub {
		my ($rc, undef, $err) = $node->psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$next'");

		die $err if $rc != 0 && $err !~ /deadlock detected/;
		return $rc == 0;
	});
	is(installed(), $next, 'at the next version');
	wait_progress();
}
ok($_->{run}->pumpable, 'the clients were there to the end') foreach @load;
foreach my $load (@load)
{
	# As when its time is over: each client ends its transaction.
	$load->{run}->signal('ALRM');
	$load->{run}->finish;
	unlike($load->{err}, qr/error:/, 'no client saw an error');
}
IdemTest::wait_for($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'});

my $sent = $node->safe_psql('postgres', 'SELECT count(*) FROM sent');
IdemTest::wait_for($node, "SELECT count(*) >= $sent FROM effects");
IdemRelay::wait_received($file{$_}, $sent) foreach sort keys %file;
IdemTest::wait_for($node, q{SELECT count(*) = 3 FROM idempotency.stat_relay WHERE state IN ('streaming', 'idle') AND lag_events = 0});
is( $node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id), count(s) FROM effects LEFT JOIN sent s USING (event_id)'),
	"$sent|$sent|$sent", 'each event had its effect once');
is(scalar(IdemRelay::acked($file{storing})), $sent, 'none came twice where the position is stored');
is(IdemRelay::distinct(IdemRelay::acked($file{plain})), $sent, 'none is missing or too many at the other program');
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked'), '0', 'nothing stayed parked');
is( $node->safe_psql('postgres', q{SELECT count(*) > 0, count(*) = count(DISTINCT id),
		count(*) = count(*) FILTER (WHERE s.status = 'completed') FROM done, idempotency.event_status(id::text, 'c') s}),
	't|t|t', 'each claim had its effect once');

# Of all that may be met, circles of locks, and the workers' lock_timeout.
my @errors = grep { /(?:ERROR|FATAL|PANIC): / && !/<(?:40P01|55P03)>/ } split /\n/, slurp_file($node->logfile);
is(join("\n", @errors), '', 'no other errors in the log');
$node->stop;
done_testing();
