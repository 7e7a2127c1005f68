
# Copyright (c) 2026, the idempotency developers

# The end of a sink program holds up its own relay and nobody else: one that closes
# its socket and lives on, one that was killed and cannot be reaped, as in state D;
# and no process that a program starts outlives the program.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

# A relay to a sink of its own for the events of its name; returns its file.
sub relay
{
	my ($name, %opt) = @_;
	my $database = $opt{database} // 'postgres';

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", %opt);
	$node->safe_psql($database, <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}', max_attempts => 1000000,
	min_backoff => '20 ms', max_backoff => '100 ms')
END
	return "$dir/$name.log";
}

sub enqueue
{
	my ($name, $type, $database) = @_;

	$node->safe_psql($database // 'postgres', "SELECT idempotency.outbox_enqueue('$name', 'k', '$type', '{}')");
	return;
}

sub lines_with
{
	my ($file, $field) = @_;

	return -e $file ? scalar(() = slurp_file($file) =~ /"$field": /g) : 0;
}

my $others = relay('others');
IdemRelay::wait_state($node, 'others', 'streaming');
my $worker = IdemRelay::stat($node, 'others', 'pid');
my $sent = 0;

# The relay beside, by the same worker.
sub others_go_on
{
	enqueue('others', 'E');
	IdemRelay::wait_received($others, ++$sent);
	is(IdemRelay::stat($node, 'others', 'pid'), $worker, 'by the same worker');
	return;
}

others_go_on();

# A program that closes its socket sees what others do before it is killed.  Where the
# worker waits for its end, it sees nothing, however often it is started.
my $closes = relay('closes', close_type => 'Close', watch => $others);
enqueue('closes', 'Close');
my $answered = 0;
IdemRelay::wait_until('others get events while a program lives on without its socket', sub {
	my $closed = lines_with($closes, 'closed');

	for (; $answered < $closed; $answered++)
	{
		enqueue('others', 'E');
		$sent++;
	}
	return lines_with($closes, 'seen') > 0;
});
IdemRelay::wait_received($others, $sent);
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('closes')});

# Killed, and not reaped: its relay waits and says so, others go on.
my $held = relay('held', traceable => 'on');
enqueue('held', 'E');
IdemRelay::wait_received($held, 1);
my $sink = IdemRelay::stat($node, 'held', 'sink_pid');
my $tracer = IdemRelay::hold($sink);
kill 'KILL', $sink or die "could not kill $sink: $!";
others_go_on();
ok($node->poll_query_until('postgres', <<"END"), 'its relay says what it waits for');
SELECT state = 'outage' AND waiting_for = 'end of the former program' AND sink_pid = $sink
	AND last_error = 'sink program $sink was killed and has not ended'
FROM idempotency.stat_relay WHERE relay = 'held'
END
IdemRelay::worker_sleeps($node, 'others');
$node->wait_for_log(qr/relay "held" waits for the end of its former sink program, process $sink, which was killed/);
is(scalar(() = slurp_file($node->logfile) =~ /relay "held" waits for the end/g), 1, 'which is logged once');
enqueue('held', 'E');
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('held')});
IdemRelay::wait_state($node, 'held', 'paused');
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('held')});
others_go_on();
is(lines_with($held, 'hello'), 1, 'no program of the relay starts beside it');
IdemRelay::release($tracer);
IdemRelay::wait_received($held, 2);
IdemRelay::wait_state($node, 'held', 'streaming');
ok(IdemRelay::process_is_gone($sink), 'once it has ended the relay goes on');

# A program that is not there costs nobody anything, and is named.
$node->safe_psql('postgres', <<'END');
CREATE SERVER missing FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'not_there');
SELECT idempotency.relay_create('missing', 'missing');
END
ok($node->poll_query_until('postgres', <<"END"), 'a program that is not there is named');
SELECT last_error LIKE 'sink program "idempotency-sink-not\\_there" is not installed; looked in %'
	AND state = 'misconfigured'
FROM idempotency.stat_relay WHERE relay = 'missing'
END
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('missing')});
others_go_on();

# What a program leaves behind goes with it; the socket that it holds open keeps nobody.
my $litters = relay('litters', litter_type => 'Litter', crash_type => 'Crash', fault_times => 1);
enqueue('litters', 'Litter') foreach 1 .. 3;
IdemRelay::wait_received($litters, 3);

# Each writes its number by itself, perhaps after its event was answered.
sub litter
{
	my ($n) = @_;
	my @found;

	IdemRelay::wait_until("$n processes said that they are there", sub {
		@found = slurp_file($litters) =~ /"litter": (\d+)/g;
		return @found >= $n;
	});
	return @found;
}

my @litter = litter(3);
is(scalar(@litter), 3, 'a program has started processes that it is not the parent of');
$sink = IdemRelay::stat($node, 'litters', 'sink_pid');
is(join(' ', sort { $a <=> $b } grep { my $pid = $_; grep { $_ == $pid } @litter } IdemRelay::children($sink)),
	join(' ', sort { $a <=> $b } @litter), 'they are its own while it lives');
enqueue('litters', 'Crash');
IdemRelay::wait_until('they go with it', sub { !grep { !IdemRelay::process_is_gone($_) } @litter });
IdemRelay::wait_received($litters, 4);
others_go_on();

enqueue('litters', 'Litter');
IdemRelay::wait_received($litters, 5);
my $last = (litter(4))[-1];
ok(!IdemRelay::process_is_gone($last), 'another one lives');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
IdemRelay::wait_until('it goes with the worker', sub { IdemRelay::process_is_gone($last) });
IdemTest::wait_for($node, "SELECT pid <> $worker FROM idempotency.stat_relay WHERE relay = 'others'");
IdemRelay::wait_state($node, 'litters', 'streaming');
$worker = IdemRelay::stat($node, 'others', 'pid');

# A program that cannot be reaped keeps neither a command that wants the database empty
# nor the server from going on.
$node->safe_psql('postgres', 'CREATE DATABASE gone');
IdemTest::create_extension($node, 'gone');
relay('leaves', database => 'gone', traceable => 'on');
IdemTest::wait_for($node, q{SELECT sink_pid IS NOT NULL AND state = 'streaming' FROM idempotency.stat_relay}, 't', 'gone');
$sink = $node->safe_psql('gone', 'SELECT sink_pid FROM idempotency.stat_relay');
$tracer = IdemRelay::hold($sink);
my ($rc, $stdout, $stderr) = $node->psql('postgres', 'DROP DATABASE gone');
is($stderr, '', 'a database is dropped whose program is held');
ok(!IdemRelay::process_is_gone($sink), 'which it still is');
IdemRelay::release($tracer);
IdemRelay::wait_until('it goes as well', sub { IdemRelay::process_is_gone($sink) });

enqueue('held', 'E');
IdemRelay::wait_received($held, 3);
$sink = IdemRelay::stat($node, 'held', 'sink_pid');
$tracer = IdemRelay::hold($sink);
$node->stop('fast');
ok(!IdemRelay::process_is_gone($sink), 'the server stops beside a program that is held');
IdemRelay::release($tracer);
$node->start;
enqueue('held', 'E');
IdemRelay::wait_received($held, 4);

# An immediate stop, where no callback runs, leaves nothing either.
enqueue('litters', 'Litter');
IdemRelay::wait_received($litters, 6);
$last = (litter(5))[-1];
$node->stop('immediate');
ok(IdemRelay::process_is_gone($last), 'nothing is left after an immediate stop');
done_testing();
