
# Copyright (c) 2026, the idempotency developers

# A relay to a program under kill -9 of the program, its worker and the
# postmaster, while sessions enqueue: every event arrives, in the order of its
# key but for repetitions, and what is repeated is what was in flight.  No
# program outlives its worker or sees anything of the server.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use POSIX qw(SIGINT SIGTTIN SIGTTOU);
use PostgreSQL::Test::Utils;
use Test::More;

my $batch = 50;
my $dir = IdemRelay::sink_directory();
my $file = "$dir/kill.log";
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

IdemRelay::pytest_server($node, 'srv', $file);
$node->safe_psql('postgres',
	"SELECT idempotency.relay_create('kill', 'srv', batch_events => $batch, min_backoff => '100 ms', max_backoff => '100 ms')");
IdemRelay::wait_state($node, 'kill', 'streaming');

sub sink_pid
{
	return IdemRelay::stat($node, 'kill', 'sink_pid');
}

sub worker_pid
{
	return IdemRelay::stat($node, 'kill', 'pid');
}

# The program has standard input, output and error and no secret place else.
my $sink = sink_pid();
my $socket = readlink("/proc/$sink/fd/0");
my @foreign = grep { $_ ne $socket && $_ ne $file }
  map { readlink($_) // () } grep { m{/(\d+)$} && $1 > 2 } glob("/proc/$sink/fd/*");
is("@foreign", '', 'the program has no descriptor but three and those it opened');
like(slurp_file("/proc/$sink/environ"), qr/^PATH=[^\0]*\0LC_ALL=C\0(?:LC_CTYPE=[^\0]*\0)?$/, 'nor its environment');
is(slurp_file("/proc/$sink/oom_score_adj") + 0, 500, 'and dies first');
my ($blocked) = slurp_file("/proc/$sink/status") =~ /^SigBlk:\s*([0-9a-f]+)$/m;
my ($ignored) = slurp_file("/proc/$sink/status") =~ /^SigIgn:\s*[0-9a-f]*([0-9a-f]{8})$/m;
like($blocked, qr/^0+$/, 'it starts with no signal blocked');
# Python itself ignores SIGPIPE and SIGXFSZ; SIGTTIN and SIGTTOU are the server's.
is(hex($ignored) & (1 << (SIGTTIN - 1) | 1 << (SIGTTOU - 1)), 0, 'nor ignored as the server does');
isnt(hex($ignored) & 1 << (SIGINT - 1), 0, 'but for the cancel of its worker');

foreach my $round (qw(sink sink worker postmaster))
{
	my $load = IdemRelay::enqueue_by_key($node, 2, 100_000);
	my $so_far = IdemRelay::distinct(IdemRelay::acked($file));

	IdemRelay::wait_until('some events arrive', sub { IdemRelay::distinct(IdemRelay::acked($file)) > $so_far + 20 });
	$sink = sink_pid();
	if ($round eq 'sink')
	{
		kill 'KILL', $sink;
	}
	elsif ($round eq 'worker')
	{
		IdemTest::kill9_backend($node, worker_pid());
	}
	else
	{
		$node->kill9;
		IdemRelay::wait_until('the server starts again', sub {
			my ($o, $e);
			return IPC::Run::run([ 'pg_ctl', '-D', $node->data_dir, '-w', '-l', $node->logfile, 'start' ],
				'>', \$o, '2>', \$e);
		});
		$node->_update_pid(1);
	}
	# Where the server lives, until events come by the next program.
	if ($round eq 'sink')
	{
		my $then = IdemRelay::distinct(IdemRelay::acked($file));

		IdemRelay::wait_until('it goes on', sub {
			sink_pid() ne $sink && IdemRelay::distinct(IdemRelay::acked($file)) > $then + 20;
		});
		$load->signal('ALRM');
	}
	$load->finish;
	IdemRelay::wait_until("the $round\'s program is gone", sub { IdemRelay::process_is_gone($sink) });

	my $sent = $node->safe_psql('postgres', 'SELECT count(*) FROM sent');
	IdemRelay::wait_received($file, $sent);
	is(IdemRelay::distinct(IdemRelay::acked($file)), $sent, "$round: nothing lost, nothing invented");
}

# Of repetitions the first counts: in order by key, and no more than in flight.
my (%seen, %last, $repeated, $disorder);
($repeated, $disorder) = (0, 0);
foreach my $event (IdemRelay::acked($file))
{
	if ($seen{ $event->{event} }++)
	{
		$repeated++;
		next;
	}
	my ($n) = $event->{payload} =~ /n\\": (\d+)/;

	$disorder++ if $n <= ($last{ $event->{aggregate_id} } // 0);
	$last{ $event->{aggregate_id} } = $n;
}
is($disorder, 0, 'in order by key');
cmp_ok($repeated, '<=', 4 * 8 * $batch, 'at most what was in flight is repeated');

# A clean stop settles what was answered: nothing is repeated then.
IdemTest::wait_for($node, q{SELECT waiting_for = 'events' AND lag_events = 0 FROM idempotency.stat_relay});
$node->restart;
my $before = scalar IdemRelay::acked($file);
IdemRelay::wait_state($node, 'kill', 'streaming');
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('t', 'last', 'E', '{"n": 1}')});
IdemRelay::wait_until('the last event arrives', sub { scalar(IdemRelay::acked($file)) > $before });
is(scalar(IdemRelay::acked($file)), $before + 1, 'a restart repeats nothing that was settled');

$sink = sink_pid();
$node->stop;
ok(IdemRelay::process_is_gone($sink), 'no program is left after a stop');
done_testing();
