
# Copyright (c) 2026, the idempotency developers

# A witness that hangs, dies, is missing, or talks without end: publishing stops
# with a state that says why, nothing waits for it, and nothing of it is left
# behind.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";
my $sent = 0;

# It does what the file says.  Each process that may stay behind puts its number
# down; the shell that waits for it is not the one that holds the pipe.
append_to_file("$dir/witness", "#!/bin/sh\n" . <<'END');
dir=$1
echo $$ >>"$dir/pids"
case $(cat "$dir/mode") in
	yes) exit 0 ;;
	no) printf 'n\303\266\001 way\n'; exit 1 ;;
	hang) trap '' TERM HUP QUIT; sh -c 'echo $$ >>"$1/pids"; : >"$1/hangs"; exec sleep 100000' - "$dir"; exit 0 ;;
	leave) sh -c 'echo $$ >>"$1/pids"; exec sleep 100000' - "$dir" & exit 0 ;;
	status) echo 'first line'; echo 'second line'; exit 7 ;;
	segv) kill -SEGV $$ ;;
	lots) exec cat /dev/zero ;;
	closed) exec >&- 2>&-; exit 1 ;;
esac
END
chmod 0755, "$dir/witness";
append_to_file("$dir/plain", "no program\n");
chmod 0755, "$dir/plain";
append_to_file("$dir/locked", "#!/bin/sh\nexit 0\n");
chmod 0644, "$dir/locked";

sub set_mode
{
	my ($mode) = @_;

	append_to_file("$dir/mode.new", $mode);
	rename "$dir/mode.new", "$dir/mode" or die "could not rename: $!";
	return;
}

set_mode('yes');
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.publish_witness = '$dir/witness $dir'
idempotency.publish_witness_interval = 200ms
idempotency.publish_witness_timeout = 2s
END

sub launcher
{
	return $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'});
}

sub unwitnessed
{
	my ($reason) = @_;

	IdemTest::wait_for($node, qq{SELECT count(*) = 2 FROM idempotency.stat_relay
		WHERE state = 'unwitnessed' AND waiting_for = 'witness' AND last_error LIKE '$reason'});

	# Two turns of each worker after the commit.
	IdemRelay::enqueue($node, 'k', 'Held', 2);
	foreach my $relay (qw(p fn))
	{
		$node->safe_psql('postgres', "SELECT idempotency.relay_pause('$relay')");
		IdemRelay::wait_state($node, $relay, 'paused');
		$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$relay')");
		IdemRelay::wait_state($node, $relay, 'unwitnessed');
	}
	is(IdemRelay::distinct(IdemRelay::acked($file)), $sent, 'nothing leaves');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM effects'), $sent, 'by no function either');
	$sent += 2;
	return;
}

# After a yes everything leaves, by itself.
sub holds_and_goes_on
{
	my ($mode) = @_;

	IdemRelay::enqueue($node, 'k', 'Held', 2);
	set_mode('yes');
	$sent += 2;
	IdemTest::wait_for($node, q{SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay});
	IdemRelay::wait_received($file, $sent);
	IdemTest::wait_for($node, "SELECT count(*) = $sent FROM effects");
	pass("it goes on after $mode");
	return;
}

sub set_witness
{
	my ($command) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET idempotency.publish_witness = '$command'");
	$node->reload;
	return;
}

# Every process that the witness has been.
sub nobody_is_left
{
	my ($when) = @_;

	return IdemRelay::wait_until("no process is left $when", sub {
		!grep { -e "/proc/$_" } split /\n/, slurp_file("$dir/pids") });
}

sub wait_hanging
{
	unlink "$dir/hangs";
	set_mode('hang');
	return IdemRelay::wait_until('the command hangs', sub { -e "$dir/hangs" });
}

sub quick
{
	my ($what, $action) = @_;
	my $limit = 10 * IdemTest::slowness($node);
	my $start = time;

	$action->();
	return cmp_ok(time - $start, '<', $limit, "$what does not wait for the witness");
}

IdemRelay::pytest_server($node, 'srv', $file);
$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (event_id uuid);
CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.effects VALUES (event_id) $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('p', 'srv'), idempotency.relay_create('fn', 'fn');
CREATE ROLE nobody;
END
holds_and_goes_on('yes');
my $descriptors = sub { scalar(() = glob('/proc/' . launcher() . '/fd/*')) };
my $before = $descriptors->();

# Its environment and its descriptors are its own; the setting is a superuser's.
my ($rc, $out, $err) = $node->psql('postgres', 'SET ROLE nobody; SHOW idempotency.publish_witness');
like($err, qr/permission denied|must be superuser/, 'other roles cannot read the setting');
($rc, $out, $err) = $node->psql('postgres', q{SET idempotency.publish_witness = '/bin/true'});
like($err, qr/cannot be changed now/, 'nor can a session set it');
($rc, $out, $err) = $node->psql('postgres', q{ALTER SYSTEM SET idempotency.publish_witness = 'true'});
like($err, qr/absolute path/, 'a program without a path is refused');
($rc, $out, $err) = $node->psql('postgres', q{ALTER SYSTEM SET idempotency.publish_witness = '/bin/true "x'});
like($err, qr/not closed/, 'so is a quote that is not closed');

# A no counts at once, what it said is shown as far as it can be.
set_mode('no');
unwitnessed('the publish witness says no: n??? way');
holds_and_goes_on('no');

# What is no answer stops publishing when the last yes has run out.
my %reason = (
	status => 'the publish witness gives no answer: it exited with status 7: first line',
	segv => 'the publish witness gives no answer: it was terminated by signal 11%',
	lots => 'the publish witness gives no answer: it wrote more than 64 kB%',
	hang => 'the publish witness gives no answer: it did not end within 2000 ms',
	closed => 'the publish witness says no');
foreach my $mode (sort keys %reason)
{
	set_mode($mode);
	unwitnessed($reason{$mode});
	holds_and_goes_on($mode);
}
foreach my $program ('/nonexistent/witness', "$dir/locked", "$dir/plain")
{
	set_witness($program);
	unwitnessed('the publish witness gives no answer: it exited with status 127, as a program does that cannot be executed');
	set_witness("$dir/witness $dir");
	holds_and_goes_on($program);
}

# What a yes leaves behind is killed, and not waited for.
set_mode('leave');
IdemTest::wait_for($node, q{SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay});
IdemRelay::wait_until('three questions were answered', sub { 6 < (() = slurp_file("$dir/pids") =~ /\n/g) });
set_witness('/bin/true');
nobody_is_left('when it has answered');
IdemRelay::wait_until('the launcher has no more descriptors than before', sub { $descriptors->() <= $before });
IdemRelay::wait_until('and no child', sub { !IdemRelay::children(launcher()) });

# Another command, none, and the first one again, each by a reload.
set_witness('/bin/false');
unwitnessed('the publish witness says no');
set_witness('');
my $asked = slurp_file("$dir/pids");
set_mode('no');
holds_and_goes_on('no witness');
is(slurp_file("$dir/pids"), $asked, 'without the setting nothing is asked');

# A launcher that hangs says nothing, and so its yes runs out.
set_witness("$dir/witness $dir");
IdemTest::wait_for($node, q{SELECT bool_and(state IN ('streaming', 'idle')) FROM idempotency.stat_relay});
my $launcher = launcher();
kill 'STOP', $launcher;
unwitnessed('the last yes of the publish witness is too old');
kill 'CONT', $launcher;
holds_and_goes_on('a stop of the launcher');

# While the command hangs, and before that is noticed: the database goes, the
# launcher goes, the server goes.
$node->safe_psql('postgres', q{ALTER SYSTEM SET idempotency.publish_witness_timeout = '1h'});
$node->reload;
$node->safe_psql('postgres', 'CREATE DATABASE other');
IdemTest::create_extension($node, 'other');
IdemRelay::pytest_server($node, 'srv', "$dir/other.log", database => 'other');
$node->safe_psql('other', q{SELECT idempotency.relay_create('o', 'srv')});
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay}, 't', 'other');
wait_hanging();
quick('DROP DATABASE', sub { $node->safe_psql('postgres', 'DROP DATABASE other') });

$launcher = launcher();
quick('the launcher', sub {
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher, 60000)") });
set_mode('yes');
nobody_is_left('by a launcher that ended');

wait_hanging();
quick('a fast shutdown', sub { $node->stop('fast') });
set_mode('yes');
nobody_is_left('after a fast shutdown');
$node->start;
wait_hanging();
quick('an immediate shutdown', sub { $node->stop('immediate') });
set_mode('yes');
nobody_is_left('after an immediate shutdown');
$node->start;
holds_and_goes_on('the restarts');

# A crash forgets the answer, and asks anew.
wait_hanging();
my $worker = IdemRelay::stat($node, 'p', 'pid');
set_mode('yes');
IdemTest::kill9_backend($node, $worker);
holds_and_goes_on('a crash');

is( $node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT event_id) FROM effects'),
	'0', 'each effect once');
unlike(slurp_file($node->logfile), qr/PANIC|server process .* was terminated by signal (?!9)/, 'the server was fine');

# Relays at rest show the answer when it is there, not when they look at their tables again.
$node->safe_psql('postgres', q{ALTER SYSTEM SET idempotency.sink_idle_timeout = '100 ms'});
foreach my $round (1, 2)
{
	set_witness('');
	IdemTest::wait_for($node, q{SELECT bool_and(state = 'idle') FROM idempotency.stat_relay});
	quick("the state of relays at rest, $round", sub {
		set_witness('/bin/false');
		IdemTest::wait_for($node, q{SELECT bool_and(state = 'unwitnessed' AND last_error = 'the publish witness says no') FROM idempotency.stat_relay});
	});
}

$node->stop;
done_testing();
