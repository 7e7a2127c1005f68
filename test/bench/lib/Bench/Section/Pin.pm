# Sections "pin-snapshot", "pin-writer", "pin-reader", "pin-prepared": what a
# held horizon, or a held table, does to claims, enqueues and their delivery.
#
# Two servers, alike but that one is pinned for the whole section.  Windows of
# load alternate between them, so that a pair of windows is as close in time
# as it can be, while what the pin holds back piles up for the whole duration.
# Two databases of one server would not do: a snapshot sees the transactions of
# all databases, so a writer in one holds the horizon of the other.
#
# autovacuum is on, with a naptime of 5 s: the rivals live by it.
package Bench::Section::Pin;
use strict;
use warnings;
use Time::HiRes qw(time sleep);
use Bench::Arm;
use Bench::Relay;
use Bench::Server;

# A transaction that has read each table once.
sub read_all
{
	my ($server) = @_;

	return join '; ', 'BEGIN', map { "SELECT count(*) FROM $_" } 'idempotency.outbox_events',
	  $server->tables("$Bench::Server::store bench.conflict bench.usual\\_outbox");
}

# How it is held, and how it is let go; a function is given the server.
our %pin = (
	snapshot => [ 'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1', 'ROLLBACK' ],
	writer => [ 'BEGIN; INSERT INTO bench.floor_claim VALUES (gen_random_uuid())', 'ROLLBACK' ],
	reader => [ \&read_all, 'ROLLBACK' ],
	prepared => [
		"BEGIN; INSERT INTO bench.floor_claim VALUES (gen_random_uuid()); PREPARE TRANSACTION 'pin'",
		"ROLLBACK PREPARED 'pin'" ]);

# The consumers of the rivals: two pollers, one reader of batches.
my $poll = <<'END';
BEGIN;
WITH batch AS MATERIALIZED (
	SELECT event_id FROM bench.usual_outbox WHERE published_at IS NULL
	 ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED),
done AS (
	UPDATE bench.usual_outbox o SET published_at = now() FROM batch b WHERE o.event_id = b.event_id
	RETURNING o.*)
SELECT count(*) AS n, max(payload::text) AS payload FROM done \gset
INSERT INTO bench.drained VALUES ('skip', :n);
COMMIT;
\if :n = 0
\sleep 10 ms
\endif
END
my $pgq = <<'END';
SELECT coalesce(pgq.next_batch('bench', 'bench'), 0) AS batch \gset
\if :batch = 0
\sleep 100 ms
SELECT pgq.ticker('bench');
\else
SELECT count(*) AS n FROM pgq.get_batch_events(:batch) \gset
BEGIN;
SELECT pgq.finish_batch(:batch);
INSERT INTO bench.drained VALUES ('pgq', :n);
COMMIT;
\endif
END

# What each side of the comparison runs in a window: scripts of the producers,
# and the script of a consumer.  Ours has a relay instead.
sub sides
{
	my ($run) = @_;
	my @sides = (
		{ name => 'ours', produce => [ 'claim_one', 'enq_ours' ] },
		{ name => 'skip', produce => [ 'conflict', 'enq_usual' ], consume => $run->write_script('poll', $poll),
			consumers => 2 });

	push @sides, { name => 'pgq', produce => [ 'conflict', 'enq_pgq' ], consume => $run->write_script('pgq', $pgq) }
	  if Bench::Arm::present($run->{server}, 'pgq');
	return @sides;
}

sub drained
{
	my ($server, $side) = @_;

	return $server->{relay}->status->{sent} if $side->{name} eq 'ours';
	return $server->sql("SELECT coalesce(sum(n), 0) FROM bench.drained WHERE side = '$side->{name}'");
}

# A window of load on one server; round 0 is for warming up.
sub window
{
	my ($run, $side, $pinned, $round, $seconds) = @_;
	my $server = $run->{servers}[ $pinned ? 1 : 0 ];
	my $on = $run->on_server($server);
	my $before = drained($server, $side);
	my $lsn = $server->lsn;
	my $cpu = $server->cpu;
	my $consumer = $side->{consume}
	  && $on->start_pgbench('off', '-c', $side->{consumers} // 1, '-T', $seconds, '-f', $side->{consume});
	my $r = $on->pgbench('off', $run->load, '-T', $seconds,
		map { ('-f', $run->arm_file($_)) } @{ $side->{produce} });

	$on->end_pgbench($consumer) if $consumer;
	my $drained = drained($server, $side) - $before;
	$server->wait_until_gone($server->{pin_pid} // ());
	return unless $round;
	$run->note('window', side => $side->{name}, pinned => $pinned, round => $round, at => sprintf('%.1f', time - $run->{started}),
		rate => $r->{tps}, drained => $drained / $seconds, cpu_us => 1e6 * ($server->cpu - $cpu) / ($r->{done} || 1),
		wal => $server->wal_since($lsn) / ($r->{done} || 1));
	printf "   %-5s %-8s %9.0f transactions/s, %9.0f events/s delivered\n", $side->{name},
	  $pinned ? 'held' : 'not held', $r->{tps}, $drained / $seconds;
}

sub note_tables
{
	my ($run, $when) = @_;

	for my $pinned (0, 1)
	{
		my %t = $run->{servers}[$pinned]->all_tables;

		$run->note('table', when => $when, pinned => $pinned, name => $_, dead => $t{$_}{dead}, bytes => $t{$_}{bytes})
		  for sort keys %t;
		$run->note('about', when => $when, pinned => $pinned, catalog => $_->[0], whose => $_->[1], dead => $_->[2])
		  for $run->{servers}[$pinned]->dead_about;
	}
}

sub set_up
{
	my ($run) = @_;

	for my $server (@{ $run->{servers} })
	{
		$server->truncate("$Bench::Server::store idempotency_data.outbox_segment_% bench.% pgq.event\\_1%");
		$server->{relay} = Bench::Relay->new($run->on_server($server), 'pin')->create;
		$server->{relay}->stream;
	}
}

sub hold
{
	my ($server, $name) = @_;

	$server->{pin} = $server->session;
	$server->{pin_pid} = Bench::Server::ask($server->{pin}, 'SELECT pg_backend_pid()');
	my $begin = $pin{$name}[0];
	Bench::Server::ask($server->{pin}, ref $begin ? $begin->($server) : $begin);
}

sub let_go
{
	my ($server, $name) = @_;

	Bench::Server::ask($server->{pin}, $pin{$name}[1]);
	Bench::Server::end_session(delete $server->{pin});
	delete $server->{pin_pid};
}

# What pgqd does beside ticking; each step is a transaction.
sub rotate_pgq
{
	my ($run) = @_;

	for my $server (@{ $run->{servers} })
	{
		$server->sql("SELECT pgq.maint_rotate_tables_step1('bench')");
		$server->sql('SELECT pgq.maint_rotate_tables_step2()');
	}
}

sub run
{
	my ($run, $section) = @_;
	my ($name) = $section =~ /^pin-(.*)/;
	my @sides = sides($run);
	my $seconds = $run->{duration} / 12 / @sides;
	my $round = 0;

	$seconds = $seconds < 1 ? 1 : $seconds > 5 ? 5 : int $seconds;
	print "== $section, $run->{duration} s, windows of $seconds s\n";
	set_up($run);
	for my $pinned (0, 1)
	{
		window($run, $_, $pinned, 0, $seconds) for @sides;
		$run->{servers}[$pinned]->sql($_) for 'VACUUM ANALYZE', 'VACUUM pg_statistic', 'CHECKPOINT';
	}
	$run->{started} = time;
	hold($run->{servers}[1], $name);
	$run->note('pin', name => $name, window => $seconds, duration => $run->{duration});
	note_tables($run, 'before');
	while ($round < 2 || time - $run->{started} < $run->{duration})
	{
		my @order = $round % 2 ? reverse @sides : @sides;

		$round++;
		for my $side (@order)
		{
			window($run, $side, $_, $round, $seconds) for $round % 2 ? (1, 0) : (0, 1);
		}
		rotate_pgq($run) if $sides[-1]{name} eq 'pgq';
		$round % 5 or $_->sql('CHECKPOINT') for @{ $run->{servers} };
	}
	note_tables($run, 'after');
	let_go($run->{servers}[1], $name);
	$_->{relay}->drop for @{ $run->{servers} };
}

1;
