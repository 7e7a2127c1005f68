# What the processes of a server do for some seconds: on a core, waiting for one,
# or asleep, and what for.
#
#	Bench::Watch::start($server, $file, $seconds);		goes on beside the caller
#
# A process of its own asks pg_stat_activity fifty times a second and reads
# /proc/PID/schedstat at the beginning and the end.  Its lines, tab separated:
#
#	observer  PID				who asks, to be left out
#	process   PID  TYPE			as in backend_type; "sink program"
#	wait      PID  EVENT		a sample; without an event it runs, or could
#	time      PID  RAN  READY	seconds on a core and waiting for one
#	watched   SECONDS
package Bench::Watch;
use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);
use Bench::Server;

sub start
{
	my ($server, $file, $seconds) = @_;
	my $pid = fork // die "fork: $!\n";

	return $pid if $pid;
	# Nothing of the parent's may be ended here.
	eval { watch($server, $file, $seconds); 1 } or warn "profile: $@";
	POSIX::_exit($@ ? 1 : 0);
}

# The first line of a file, if it is there.
sub line_of
{
	open(my $f, '<', $_[0]) or return '';
	return <$f> // '';
}

# Seconds on a core, and ready for one.
sub sched
{
	my ($ran, $ready) = split ' ', line_of("/proc/$_[0]/schedstat");

	return defined $ready ? ($ran / 1e9, $ready / 1e9) : ();
}

# The sink programs among the children of these.
sub programs
{
	return grep { line_of("/proc/$_/comm") =~ /^idempotency-sin/ } map { split ' ', line_of("/proc/$_/task/$_/children") } @_;
}

sub watch
{
	my ($server, $file, $seconds) = @_;
	my $session = $server->session;
	my $observer = Bench::Server::ask($session, 'SELECT pg_backend_pid()');
	my $query = "SELECT pid, backend_type, coalesce(wait_event_type || ':' || wait_event, '') FROM pg_stat_activity"
	  . " WHERE pid NOT IN ($observer, $server->{control})";
	my (%type, %first, %last);
	my $begun = time;

	open(my $out, '>', $file) or die "$file: $!\n";
	print $out "observer\t$observer\nobserver\t$server->{control}\n";
	print $out "process\t$server->{postmaster}\tpostmaster\n";
	while (time < $begun + $seconds)
	{
		for (Bench::Server::ask($session, $query))
		{
			my ($pid, $type, $event) = split /\t/, $_, -1;

			$type{$pid} = $type;
			print $out "wait\t$pid\t$event\n";
		}
		$type{$_} = 'sink program' for programs(grep { $type{$_} eq 'idempotency relay' } keys %type);
		for my $pid (keys %type)
		{
			my @now = sched($pid) or next;

			$first{$pid} //= \@now;
			$last{$pid} = \@now;
		}
		sleep 0.02;
	}
	for my $pid (sort { $a <=> $b } keys %type)
	{
		print $out "process\t$pid\t$type{$pid}\n";
		printf $out "time\t%d\t%.6f\t%.6f\n", $pid, map { $last{$pid}[$_] - $first{$pid}[$_] } 0, 1 if $last{$pid};
	}
	printf $out "watched\t%.3f\n", time - $begun;
	close $out or die "$file: $!\n";
	Bench::Server::end_session($session);
}

1;
