
# Copyright (c) 2026, the idempotency developers

# relay_check names each fault of a relay, here and at its target, with a remedy, and nothing of
# a sound one.  It changes nothing: a relay that is at work goes on with its program, without a
# new epoch.  However a call ends, its program and its descriptors are gone.

use strict;
use warnings FATAL => 'all';

use IO::Socket::INET;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'");
my $target = IdemRelay::counting_target(allows_streaming => 1);

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sub at_target
{
	return $target->safe_psql('postgres', $_[0]);
}

# What is not as it has to be: "thing: problem" in the order of the rows.  Each has a remedy.
sub faults
{
	my ($relay) = @_;
	my ($faults, $mute) = split /\|/, sql(qq{
SELECT string_agg(what || ': ' || replace(problem, '|', ' '), '; ' ORDER BY n), count(*) FILTER (WHERE remedy IS NULL)
  FROM idempotency.relay_check('$relay') WITH ORDINALITY AS c (what, ok, problem, remedy, n) WHERE ok IS NOT TRUE});

	is($mute, 0, "$relay: each fault has a remedy");
	return $faults;
}

# A relay that failed has to find out by its next try that the cause is mended.
sub sound
{
	my ($relay, $when) = @_;
	my $faults;

	IdemRelay::wait_until("$relay is sound $when", sub { return ($faults = sql(qq{
SELECT string_agg(what || ': ' || problem, '; ') FROM idempotency.relay_check('$relay') WHERE ok IS NOT TRUE})) eq '' });
	is($faults, '', "$relay is sound $when");
	return;
}

# Break what the relay needs, and mend it.
sub fails
{
	my ($what, $relay, $found, $break, $mend) = @_;

	sound($relay, "before $what");
	$break->();
	like(faults($relay), $found, "$what: is found");
	$mend->();
	sound($relay, "after $what");
	return;
}

# Rename an object at the target, and back.
sub renamed
{
	my ($kind, $name, $place) = @_;

	return (sub { at_target("ALTER $kind $place$name RENAME TO away") }, sub { at_target("ALTER $kind ${place}away RENAME TO $name") });
}

#
# A relay that is at work.
#
IdemRelay::counting_server($node, $target);
sql(q{SELECT idempotency.relay_create('pg', 'target', min_backoff => '50 ms', max_backoff => '200 ms')});
sub enqueue
{
	my ($n) = @_;

	return sql("SELECT count(idempotency.outbox_enqueue('o', (i % 5)::text, 'T', '1')) FROM generate_series(1, $n) AS i");
}
enqueue(1);
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay});
my $state = q{SELECT epoch, incarnation FROM idempotency_sink_position};
my ($before, $program) = (at_target($state), sql('SELECT sink_pid FROM idempotency.stat_relay'));
foreach my $round (1 .. 20)
{
	enqueue(50);
	is(faults('pg'), '', "round $round: a relay at work is sound");
}
IdemTest::wait_for($node, q{SELECT sent = 1001 AND lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay});
is(at_target($state), $before, 'its epoch is the one that it had');
is(sql('SELECT sink_pid FROM idempotency.stat_relay'), $program, 'so is its program');
is(at_target('SELECT count(*), count(DISTINCT event_id) FROM app.got'), '1001|1001', 'each event has come once');
is(sql(q{SELECT string_agg(what, ' ') FROM idempotency.relay_check('pg')}),
	'preload primary relay worker server options connection function position table position', 'what was looked at');

#
# Another PostgreSQL.
#
my ($port, $free) = ($target->port, PostgreSQL::Test::Cluster::get_free_port());
fails('a wrong port', 'pg', qr/^connection: [^;]*could not connect/,
	sub { sql("ALTER SERVER target OPTIONS (SET port '$free')") }, sub { sql("ALTER SERVER target OPTIONS (SET port '$port')") });
fails('a missing function', 'pg', qr/^function: function app\.on_event does not exist[^;]*$/, renamed('FUNCTION', 'on_event', 'app.'));
fails('a missing position table', 'pg', qr/^position table: [^;]*does not exist/, renamed('TABLE', 'idempotency_sink_position', 'public.'));
fails('a target that is read-only', 'pg', qr/^connection: .*(?:standby|read-only)/,
	sub { $target->stop; $target->set_standby_mode; $target->start }, sub { $target->promote });

# A name that has 128 bytes in LATIN1, and 256 in UTF-8, in which it travels: no postgres sink could claim as that consumer.
my $long = 'repeat(chr(252), 128)';
foreach my $database ([ 'latin', 'LATIN1' ], [ 'claims', 'UTF8' ])
{
	sql("CREATE DATABASE $database->[0] ENCODING $database->[1] LOCALE 'C' TEMPLATE template0");
	IdemTest::create_extension($node, $database->[0]);
}
$node->safe_psql('latin', 'CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null');
my ($ret, $out, $err) = $node->psql('latin', "\\set VERBOSITY verbose\nSELECT idempotency.relay_create($long, 'nul')");
like($err, qr/22023: argument "relay" is too long\nDETAIL:  It has 256 bytes; at most 255 are allowed\./, 'a name that is too long in UTF-8 is refused');
is($node->safe_psql('latin', q{SELECT idempotency.relay_create(repeat(chr(252), 127) || 'x', 'nul') IS NULL}), 'f', 'one that is not is taken');
# a relay that has it, of a dump or of an earlier release, is told how to go on
$node->safe_psql('claims', q{CREATE TABLE got (event_id uuid); CREATE FUNCTION on_event(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO got VALUES (event_id)'});
IdemRelay::prepared_postgres_server($node, 'claims', $node, 'claims', 'public.on_event');
sql(qq{BEGIN;
SELECT idempotency.relay_create('long', 'claims', aggregate_types => '{long}', min_backoff => '50 ms', max_backoff => '200 ms');
UPDATE idempotency_data.relays SET relay = $long WHERE relay = 'long';
SELECT idempotency.outbox_enqueue('long', '1', 'T', '1');
COMMIT});
$long = sql("SELECT $long");
my $too_long = 'has 256 bytes at the target, and at most 255 are allowed; name another consumer in the server\'s option "consumer"';
IdemTest::wait_for($node, qq{SELECT state = 'misconfigured' AND last_error LIKE '%$_%' FROM idempotency.stat_relay WHERE server = 'claims'})
  foreach $too_long =~ s/'/''/r;
like(faults($long), qr/^function: [^;]*\Q$too_long\E$/, 'a consumer that is too long: is found');
sql(q{ALTER SERVER claims OPTIONS (ADD consumer 'short')});
sound($long, 'with another consumer');
IdemTest::wait_for($node, qq{SELECT sent = 1 AND lag_events = 0 FROM idempotency.stat_relay WHERE server = 'claims'});
is($node->safe_psql('claims', q{SELECT (SELECT count(*) FROM got), consumer FROM idempotency.processed_events}), '1|short', 'and delivers as that one');
sql("SELECT idempotency.relay_drop('$long')");

# What the worker has found out, and no look at the target shows.
at_target('TRUNCATE idempotency_sink_position');
enqueue(1);
IdemTest::wait_for($node, q{SELECT state = 'diverged' FROM idempotency.stat_relay});
like(faults('pg'), qr/^relay: it is diverged: [^;]*position[^;]*$/, 'a position that the sink has lost: is found');
sql(q{SELECT idempotency.relay_adopt('pg')});
sound('pg', 'after relay_adopt');

# A role of its own, with a password and an inbox.
my $hba = $target->data_dir . '/pg_hba.conf';
my $rules = slurp_file($hba);
open(my $f, '>', $hba) or die "could not write $hba: $!";
print $f "local all limited scram-sha-256\n$rules";
close $f;
at_target(q{CREATE ROLE limited LOGIN PASSWORD 'right'; SELECT pg_reload_conf()});
my $host = $target->host;
sql(qq{
CREATE SERVER inbox FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '$host', port '$port', dbname 'postgres', "table" 'app.inbox');
CREATE USER MAPPING FOR CURRENT_USER SERVER inbox OPTIONS (user 'limited', password 'right');
SELECT idempotency.relay_create('inbox', 'inbox', aggregate_types => '{inbox}', min_backoff => '50 ms', max_backoff => '200 ms')});
like(faults('inbox'), qr/^table: table app\.inbox does not exist.*; position table: .*permission denied/, 'before sink_setup_sql was run');
at_target(sql(q{SELECT idempotency.sink_setup_sql('inbox')}) . 'GRANT USAGE ON SCHEMA app TO limited');
fails('a missing table', 'inbox', qr/^table: table app\.inbox does not exist at the target; idempotency\.sink_setup_sql\S* prints [^;]*$/, renamed('TABLE', 'inbox', 'app.'));
fails('a missing column', 'inbox', qr/^table: [^;]*no column "payload"/,
	sub { at_target('ALTER TABLE app.inbox RENAME payload TO body') }, sub { at_target('ALTER TABLE app.inbox RENAME body TO payload') });
fails('no right to insert', 'inbox', qr/^table: [^;]*permission denied for table inbox$/,
	sub { at_target('REVOKE INSERT ON app.inbox FROM limited') }, sub { at_target('GRANT INSERT ON app.inbox TO limited') });
fails('no right to store the position', 'inbox', qr/^position table: [^;]*permission denied/,
	sub { at_target('REVOKE UPDATE ON idempotency_sink_position FROM limited') }, sub { at_target('GRANT UPDATE ON idempotency_sink_position TO limited') });
fails('a wrong password', 'inbox', qr/^connection: [^;]*password authentication failed/,
	sub { at_target(q{ALTER ROLE limited PASSWORD 'other'}) }, sub { at_target(q{ALTER ROLE limited PASSWORD 'right'}) });
fails('a relay that is paused', 'inbox', qr/^relay: it is paused$/,
	sub { sql(q{SELECT idempotency.relay_pause('inbox')}) }, sub { sql(q{SELECT idempotency.relay_resume('inbox')}) });
sql(q{SELECT idempotency.relay_pause('inbox')});
at_target(q{INSERT INTO idempotency_sink_position VALUES ('inbox', 7, 'other/1', 1, 1)
	ON CONFLICT (relay) DO UPDATE SET incarnation = 'other/1', row_id = 1, k = 1});
like(faults('inbox'), qr/; position: position "inbox" .* is that of another relay/, 'a position of another relay');

#
# Others.
#
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 64, Proto => 'tcp') or die "no socket: $!";
my $heard = $listener->sockport;
sql(qq{
CREATE SERVER http FOREIGN DATA WRAPPER idempotency_http OPTIONS (url 'http://127.0.0.1:$heard/{id}', allowed_addresses '127.0.0.1');
SELECT idempotency.relay_create('http', 'http', aggregate_types => '{http}');
CREATE SERVER kafka FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (brokers '127.0.0.1:$free', timeout '1000');
SELECT idempotency.relay_create('kafka', 'kafka', aggregate_types => '{kafka}');
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS '';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{fn}');
CREATE SERVER silent FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '127.0.0.1', port '$heard', dbname 'd', function 'a.b', connect_timeout '600');
CREATE USER MAPPING FOR CURRENT_USER SERVER silent;
SELECT idempotency.relay_create('silent', 'silent'), idempotency.relay_pause('silent');
});
fails('a URL with a wrong port', 'http', qr/^connection: http:\/\/127\.0\.0\.1:$free: Connection refused$/,
	sub { sql("ALTER SERVER http OPTIONS (SET url 'http://127.0.0.1:$free/')") }, sub { sql("ALTER SERVER http OPTIONS (SET url 'http://127.0.0.1:$heard/')") });
fails('an address that is not allowed', 'http', qr/^connection: .*loopback address/,
	sub { sql("ALTER SERVER http OPTIONS (DROP allowed_addresses)") }, sub { sql("ALTER SERVER http OPTIONS (ADD allowed_addresses '127.0.0.1')") });
like(faults('kafka'), qr/^connection: [^;]*refused/, 'no brokers');
fails('a function that is gone', 'fn', qr/^function: function "public\.handle" of the sink does not exist$/,
	sub { sql('ALTER FUNCTION handle RENAME TO away') }, sub { sql('ALTER FUNCTION away RENAME TO handle') });

# What only the last try tells.
sql(q{CREATE OR REPLACE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$not today$$; END';
	SELECT count(idempotency.outbox_enqueue('fn', (i % 5)::text, 'T', '1')) FROM generate_series(1, 20) AS i});
IdemTest::wait_for($node, q{SELECT state = 'outage' FROM idempotency.stat_relay WHERE relay = 'fn'});
is(faults('fn'), 'last try: it is outage: not today', 'a function that refuses everything: is found');
sql(q{CREATE OR REPLACE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'; SELECT idempotency.relay_resume('fn')});
sound('fn', 'when it takes all');

# Rows that a role which may write all data has deleted.
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = 'fn'});
sql(qq{DELETE FROM idempotency_data.relay_log_$_ USING idempotency_data.relays WHERE relay = 'fn' AND relay_log_$_.relay_id = relays.relay_id}) foreach 0, 1;
is(faults('fn'), 'relay: the log of positions has no position of relay "fn"', 'a position that is gone: is found');
like(sql(q{SELECT remedy FROM idempotency.relay_check('fn') WHERE what = 'relay'}), qr/calls relay_adopt: /, 'and what to do about it');
sql(q{SELECT idempotency.relay_adopt('fn')});
sound('fn', 'after relay_adopt');

# A worker that hangs.
my $worker = sql(q{SELECT pid FROM idempotency.stat_relay WHERE relay = 'pg'});
kill 'STOP', $worker;
IdemTest::wait_for($node, q{SELECT waiting_for = 'turn of worker' AND waiting_since < now() FROM idempotency.stat_relay WHERE relay = 'pg'});
like(faults('pg'), qr/^worker: the worker has taken no turn since [^;]*$/, 'a worker that hangs: is found');
kill 'CONT', $worker;
sound('pg', 'when it goes on');

IdemRelay::pytest_server($node, 'pytest', "$dir/pytest.log");
sql(q{SELECT idempotency.relay_create('pytest', 'pytest', aggregate_types => '{pytest}')});
like(faults('pytest'), qr/^sink program: not supported/, 'a program that cannot look');
is(sql(q{SELECT ok IS NULL FROM idempotency.relay_check('pytest') WHERE what = 'sink program'}), 't', 'of which nobody knows');
sql(q{ALTER SERVER pytest OPTIONS (SET program 'missing')});
like(faults('pytest'), qr/^sink program: .* is not installed/, 'a program that is not installed');
like(sql(q{SELECT remedy FROM idempotency.relay_check('pytest') WHERE what = 'sink program'}),
	qr/^Install the package idempotency-sink-missing, or put the program into/, 'and what to do about it');
sql(q{ALTER SERVER pytest OPTIONS (SET program 'null', DROP file)});
sound('pytest', 'with a program that is installed');

#
# Whatever ends a call ends its program.
#
sub children
{
	my ($parent) = @_;
	my @found;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open(my $stat, '<', $file) or next;
		my ($pid, $ppid) = (<$stat> // '') =~ /^(\d+) \(.*\) \S (\d+)/;
		push @found, $pid if defined $ppid && $ppid == $parent;
	}
	return @found;
}

my $session = $node->background_psql('postgres', on_error_stop => 0);
my $backend = $session->query_safe('SELECT pg_backend_pid()');
my $look = q{SELECT count(*) FROM idempotency.relay_check('silent')};
my $descriptors = sub { return scalar(() = glob "/proc/$backend/fd/*") };
$session->query_safe(q{SELECT count(*) FROM idempotency.relay_check('http')});
my $held = $descriptors->();
$session->query(qq{SET statement_timeout = '300 ms'; $look}) foreach 1 .. 5;
like($session->{stderr}, qr/statement timeout/, 'a look that takes too long is cancelled');
$session->{stderr} = '';
is(join(' ', children($backend)), '', 'no program is left');
is($descriptors->(), $held, 'no descriptor is left');
$session->query_safe('SET statement_timeout = 0');

# A program that is deaf, and has started another one.
open($f, '>', "$dir/idempotency-sink-deaf") or die "could not write a program: $!";
print $f "#!/bin/sh\nsleep 3600 &\nwait\n";
close $f;
chmod 0755, "$dir/idempotency-sink-deaf";
sql(q{CREATE SERVER deaf FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'deaf');
	BEGIN; SELECT idempotency.relay_create('deaf', 'deaf'), idempotency.relay_pause('deaf'); COMMIT});
my (@deaf, @below);
$session->query_until(qr/looking/, "\\echo looking\nSELECT count(*) FROM idempotency.relay_check('deaf');\n");
IdemRelay::wait_until('both programs run', sub { @deaf = children($backend); @below = map { children($_) } @deaf; return @below });
sql("SELECT pg_cancel_backend($backend)");
is($session->query('SELECT 1'), '1', 'the session goes on');
like($session->{stderr}, qr/canceling statement due to user request/, 'the look was cancelled');
$session->{stderr} = '';
is(join(' ', grep { -d "/proc/$_" } @deaf, @below), '', 'a program that is deaf is gone, and what it had started');
is($descriptors->(), $held, 'and no descriptor is left');
sql(q{SELECT idempotency.relay_drop('deaf')});

$session->query_until(qr/looking/, "\\echo looking\n$look;\n");
my @programs;
IdemRelay::wait_until('the program runs', sub { @programs = children($backend) });
is(scalar @programs, 1, 'a look has one program');
sql("SELECT pg_terminate_backend($backend)");
IdemRelay::wait_until('the session ends', sub { !-d "/proc/$backend" });
IdemRelay::wait_until('and its program', sub { !-d "/proc/$programs[0]" });
is(sql(q{SELECT count(*) FROM idempotency.stat_relay}), '7', 'the server goes on');

$node->append_conf('postgresql.conf', "idempotency.sink_timeout = '1s'\n");
$node->reload;
IdemTest::wait_for($node, q{SELECT current_setting('idempotency.sink_timeout') = '1s'});
like(faults('silent'), qr/; sink program: the sink program did not answer within 1000 ms$/, 'a look ends by itself');
sql(q{SELECT idempotency.relay_drop('silent')});
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|was terminated by signal|is fenced/, 'nothing crashed, and nobody was fenced');

# An instance that took over, which the worker finds out when it sends.
enqueue(1);
IdemRelay::wait_state($node, 'pg', 'streaming');
at_target(q{UPDATE idempotency_sink_position SET epoch = epoch + 1 WHERE relay = 'pg'});
enqueue(1);
IdemTest::wait_for($node, q{SELECT state = 'fenced' FROM idempotency.stat_relay WHERE relay = 'pg'});
like(faults('pg'), qr/^relay: it is fenced: [^;]*another instance/, 'an instance that took over: is found');
sql(q{SELECT idempotency.relay_resume('pg')});
sound('pg', 'after relay_resume');
$target->stop;
$node->stop;
done_testing();
