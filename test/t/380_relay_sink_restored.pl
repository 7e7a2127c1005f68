
# Copyright (c) 2026, the idempotency developers

# A sink is restored from a backup that was made while its relay was behind and an event
# was parked.  The statements of doc/patroni-pgbouncer.md, "After the sink was set back", as
# they stand there, bring everything that the backup lacks: also what was enqueued before the
# backup and delivered after it.  A relay that was only behind, to a sink that stores
# positions, sends all of that again by itself.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");
my $target = IdemTest::cluster('target', extension => 0);
my $files = PostgreSQL::Test::Utils::tempdir();
# To a database that stores positions, to a receiver that does not, and to one that does and refuses nothing
my @relays = qw(copied posted stored);
my %file = map { $_ => "$dir/$_.log" } qw(posted stored);
my $log = "(TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1)";

# The indented blocks of the page's section, without their indentation
my ($section) = slurp_file("$FindBin::RealBin/../../doc/patroni-pgbouncer.md") =~ /^## After the sink was set back\n(.*?)^## /ms;
my @blocks = map { s/^    //mgr } $section =~ /((?:^    .*\n)+)/mg;

# The block that has this, and nothing else of the page.
sub block
{
	my ($like) = @_;
	my @found = grep { $_ =~ $like } @blocks;

	is(scalar @found, 1, "the page has one block with $like");
	return $found[0];
}

sub enqueue
{
	my ($type) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$_', '$type', '$type', '1')") foreach @relays;
	return;
}

# How often the restored database has got an event.
sub got
{
	my ($type) = @_;

	return $target->safe_psql('sink', "SELECT count(*) FROM got WHERE event_type = '$type'");
}

# All sinks have the event, the database once.
sub arrives
{
	my ($type) = @_;

	IdemRelay::arrives($file{$_}, $type) foreach sort keys %file;
	return IdemRelay::wait_until("$type is copied once", sub { got($type) == 1 });
}

sub stop_relays
{
	my (@names) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.relay_pause('$_')") foreach @names;
	IdemRelay::wait_state($node, $_, 'paused') foreach @names;
	return;
}

sub resume_relays
{
	my (@names) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$_')") foreach @names;
	return;
}

$target->safe_psql('postgres', 'CREATE DATABASE sink');
IdemTest::create_extension($target, 'sink');
$target->safe_psql('sink', <<'END');
CREATE TABLE got (event_id uuid, event_type text);
CREATE TABLE refused (event_type text);
INSERT INTO refused VALUES ('Parked');
CREATE FUNCTION take(event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM public.refused r WHERE r.event_type = $2) THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	INSERT INTO public.got VALUES ($1, $2);
END $$;
END
IdemRelay::prepared_postgres_server($node, 'target', $target, 'sink', 'public.take');
IdemRelay::pytest_server($node, 'receiver', $file{posted}, retry_type => 'Parked');
IdemRelay::pytest_server($node, 'store', $file{stored}, position => 'on');
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create(relay, server, aggregate_types => ARRAY[relay], min_backoff => '1 h', max_backoff => '1 h')
	FROM (VALUES ('copied', 'target'), ('posted', 'receiver'), ('stored', 'store')) AS r (relay, server);
END

# Before the backup: one event is delivered, one is parked, one waits behind a pause, and more
# than enough others follow for a place to which a replay can go back
enqueue($_) foreach qw(Passed Parked);
foreach my $relay (qw(copied posted))
{
	IdemRelay::wait_until("an event of $relay is parked", sub { IdemRelay::stat($node, $relay, 'retrying') eq '1' });
}
arrives('Passed');
IdemRelay::arrives($file{stored}, 'Parked');
stop_relays(@relays);
enqueue('Behind');
$node->safe_psql('postgres', <<'END');
SELECT count(*) FROM generate_series(1, 10) i, LATERAL idempotency.outbox_enqueue_many('other',
	array_fill(i::text, '{10001}'), array_fill('E'::text, '{10001}'), array_fill('{}'::jsonb, '{10001}'));
END
IdemTest::wait_for($node, <<"END");
SELECT EXISTS (SELECT FROM $log l WHERE relay_id = 0 AND kind = 't'
	AND at > (SELECT max(enqueued_at) FROM idempotency.outbox_events WHERE event_type = 'Behind'))
END

# The backup, and what is delivered after it
my @sink = ('-h', $target->host, '-p', $target->port);
command_ok([ 'pg_dump', @sink, '-Fc', '-f', "$files/sink.dump", 'sink' ], 'the backup of the sink');
copy($file{$_}, "$files/$_.log") or die "could not copy: $!" foreach sort keys %file;
$target->safe_psql('sink', 'TRUNCATE refused');
$node->safe_psql('postgres', 'ALTER SERVER receiver OPTIONS (DROP retry_type)');
resume_relays(@relays);
$node->safe_psql('postgres', q{SELECT idempotency.relay_replay(aggregate_type, event_id => event_id)
	FROM idempotency.outbox_events WHERE event_type = 'Parked' AND aggregate_type <> 'stored'});
arrives($_) foreach qw(Parked Behind);
enqueue('After');
arrives('After');

# The sinks are restored
stop_relays(qw(posted stored));
copy("$files/$_.log", $file{$_}) or die "could not copy: $!" foreach sort keys %file;
resume_relays(qw(posted stored));
IdemRelay::arrives($file{stored}, $_) foreach qw(Behind After);
is(join(' ', map { IdemRelay::came($file{stored}, $_) } qw(Passed Parked Behind After)), '1 1 1 1', 'by itself each comes once');
$target->safe_psql('postgres', 'DROP DATABASE sink WITH (FORCE)');
$target->safe_psql('postgres', 'CREATE DATABASE sink');
command_ok([ 'pg_restore', @sink, '--single-transaction', '-d', 'sink', "$files/sink.dump" ], 'the restore of the sink');
$target->safe_psql('sink', 'TRUNCATE refused');
resume_relays('copied');
IdemRelay::wait_state($node, 'copied', 'diverged');
like($node->safe_psql('postgres', q{SELECT remedy FROM idempotency.doctor() WHERE finding LIKE '%copied%'}),
	qr/relay_adopt\('copied'\).*relay_replay\('copied', since => '-infinity'\)/, 'doctor() says that it takes a replay, too');
is(join(' ', map { got($_) } qw(Passed Parked Behind After)), '1 0 0 0', 'the restored sink lacks three events');

# The oldest event that the sink lacks: the parked one
my $oldest = block(qr/sink_has/);
append_to_file("$files/ids", $target->safe_psql('sink', 'SELECT event_id FROM got') . "\n");
$oldest =~ s/'event_ids'/'$files\/ids'/ or die 'no file in the block';
$oldest =~ s/'order'/'copied'/ or die 'no type in the block';
my $time = $node->safe_psql('postgres', $oldest);
is( $time,
	$node->safe_psql('postgres', q{SELECT enqueued_at FROM idempotency.outbox_events WHERE aggregate_type = 'copied' AND event_type = 'Parked'}),
	'the page finds the oldest event that the sink lacks');

# The relay whose sink stores positions: keep what is there, then the four steps
$node->safe_psql('postgres', block(qr/outbox_retention/));
$node->safe_psql('postgres', block(qr/relay_adopt/));

# The other one, since the time that was found
$node->safe_psql('postgres', "SELECT idempotency.relay_replay('posted', since => '$time')");
arrives($_) foreach qw(Passed Parked Behind After);

# And from the start: all comes once more
(my $replay = block(qr/\A[^;]*relay_replay[^;]*;\n\z/)) =~ s/copied/posted/;
my %before = map { $_ => IdemRelay::came($file{posted}, $_) } qw(Passed Parked Behind After);
$node->safe_psql('postgres', $replay);
IdemRelay::arrives($file{posted}, $_, $before{$_} + 1) foreach sort keys %before;
is($target->safe_psql('sink', 'SELECT count(*), count(DISTINCT event_id) FROM got'), '4|4', 'claims let no event in twice');
enqueue('Last');
arrives('Last');

$node->stop;
$target->stop;
done_testing();
