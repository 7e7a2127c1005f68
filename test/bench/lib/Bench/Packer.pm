# The packer of the dedup store: what it costs, apart from the claims.
#
#	my $watch = Bench::Packer::watch($server, 0.02);	... load ...
#	my $cpu = Bench::Packer::end_watch($watch);			seconds of all packers meanwhile
#
#	my $cost = Bench::Packer::settle($server);			pack what waits, with nothing beside it
#
# The CPU is read from /proc/PID/schedstat by a process of its own, again and again,
# because a packer may live for milliseconds.  What a packer took after the last look
# does not count.
package Bench::Packer;
use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time);
use Bench::Server;

# Seconds between two looks of settle(), and for how long it may go on.
my $often = 0.0005;
my $patience = 1800;

# undef: the process has not said yet.
sub is_packer
{
	my $title = Bench::Server::proc_title($_[0]);

	return $title =~ /^postgres: / ? $title =~ /idempotency packer/ ? 1 : 0 : undef;
}

sub packers
{
	my ($server) = @_;

	return grep { is_packer($_) } $server->children;
}

sub watch
{
	my ($server, $interval) = @_;
	my %before = map { $_ => Bench::Server::precise_cpu_seconds($_) } packers($server);

	pipe(my $told, my $tell) or die "pipe: $!\n";
	pipe(my $read, my $write) or die "pipe: $!\n";
	my $pid = fork // die "fork: $!\n";
	if (!$pid)
	{
		close $tell;
		my $seconds = eval { look_on($server, $interval, $told, %before) } // "$@";
		syswrite $write, "$seconds\n";
		# Nothing of the parent's may be ended here.
		POSIX::_exit(0);
	}
	close $told;
	close $write;
	return { pid => $pid, tell => $tell, read => $read };
}

# Until the other end of the pipe is closed.
sub look_on
{
	my ($server, $interval, $told, %before) = @_;
	my (%is_packer, %last);
	my $over = 0;
	my $sum = 0;

	until ($over)
	{
		my $set = '';

		vec($set, fileno($told), 1) = 1;
		$over = select($set, undef, undef, $interval);
		for my $pid (grep { $is_packer{$_} //= is_packer($_) } $server->children)
		{
			$last{$pid} = Bench::Server::precise_cpu_seconds($pid) || $last{$pid} || 0;
		}
	}
	$sum += $last{$_} - ($before{$_} // 0) for keys %last;
	return sprintf '%.6f', $sum;
}

sub end_watch
{
	my ($watch) = @_;

	close $watch->{tell};
	my $seconds = readline($watch->{read}) // '';
	waitpid $watch->{pid}, 0;
	die "nobody watched the packer: $seconds\n" unless $seconds =~ /^[\d.]+$/;
	return $seconds + 0;
}

# End the packer that stays when there is nothing to do, and wait until it is gone.
sub dismiss
{
	my ($server) = @_;

	$server->sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'idempotency packer'");
	Bench::Server::until_true(30, 'the packer is still there', sub { !packers($server) });
}

# {number} = [kind of step that made it, entries] of the runs that there are, replaced
# ones included.
sub runs
{
	my ($server) = @_;

	return map { my ($number, $level, $entries) = split /\t/; ($number => [ $level ? 'merged' : 'packed', $entries ]) }
	  $server->sql("SELECT number, level, entries FROM idempotency.stat_claim_segments WHERE kind = 'run'");
}

# What the packer still has to do.
sub waiting
{
	my ($server) = @_;

	return join ', ', $server->sql("SELECT concat_ws(' ', kind, number, state, held_by) FROM idempotency.stat_claim_segments"
		  . " WHERE state NOT IN ('current', 'empty', 'searched')");
}

# Pack and merge and empty until nothing waits; no packer stays.  No claim may go on.
# Returns cpu and seconds, of the packers and of the session that called them; wal;
# packed and merged, the entries of the runs that were made of segments and of runs.
#
# A call cannot empty what it has packed, because its own snapshot is older.  So it is
# called again, and the runs that it replaced can be counted before they are gone.
sub settle
{
	my ($server) = @_;
	my %cost = map { $_ => 0 } qw(cpu seconds wal packed merged);
	my %before = runs($server);
	my $end = time + $patience;
	my $waiting;

	do
	{
		my $watch = watch($server, $often);
		my $lsn = $server->lsn;
		my $cpu = Bench::Server::precise_cpu_seconds($server->{control});
		my $start = time;
		my $called = $server->sql('SELECT idempotency.claims_maintain()');

		$cost{seconds} += time - $start;
		$cost{cpu} += Bench::Server::precise_cpu_seconds($server->{control}) - $cpu;
		$cost{wal} += $server->wal_since($lsn);
		$cost{cpu} += end_watch($watch);
		die "no packer could be started\n" if $called ne 't';
		my %now = runs($server);
		$cost{ $now{$_}[0] } += $now{$_}[1] for grep { !exists $before{$_} } keys %now;
		%before = %now;
		$waiting = waiting($server);
		die "not packed after $patience s: $waiting\n" if $waiting && time > $end;
	} while ($waiting);
	dismiss($server);
	return \%cost;
}

# How often an entry was packed and merged, by the levels of the runs: it was merged once
# for each level that it has risen.  Of so many remembered events.
sub written
{
	my ($server, $remembered) = @_;
	my ($packed, $merged) = split /\t/, $server->sql("SELECT coalesce(sum(entries), 0) / $remembered.0,"
		  . " coalesce(sum(entries * level), 0) / $remembered.0"
		  . " FROM idempotency.stat_claim_segments WHERE kind = 'run' AND state = 'searched'");

	return (packed => $packed, merged => $merged);
}

1;
