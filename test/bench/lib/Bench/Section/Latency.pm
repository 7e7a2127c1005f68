# Section "latency": from the commit, and from the time at which an event was
# due, to its read by the consumer.
#
# The load is open: arrivals are scheduled beforehand (Poisson, always the same
# ones), each is handed to a session when it is due, busy or not, and carries
# the time at which it was due.  So where the server is late, the events that
# should have come meanwhile count as late, too (no coordinated omission).
#
# Ours: a relay to the sink program of sink.c, which keeps the histograms.
# Rates and rivals take turns, in rounds, each with arrivals of its own.
# PgQ and PgQue: a session that ticks as their daemon does by default, and asks
# for the next batch every 2 ms.  Their events have no stamp of the commit, but
# the time at which the enqueueing transaction began.
package Bench::Section::Latency;
use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);
use Bench::Arm;
use Bench::Relay;
use Bench::Server;

my @rates = (100, 1000, 2000);
my $rival_rate = 100;

my %rivals = (
	pgq => { enqueue => "SELECT pgq.insert_event('bench', \$1, \$2)", tick => 1,
		set_up => '' },
	pgque => { enqueue => "SELECT pgque.send('bench', \$1, \$2)", tick => 0.1,
		set_up => "SELECT pgque.set_queue_config('bench', 'ticker_max_lag', '1 ms')" });

# Seconds from the start at which events are due in a round.
sub schedule
{
	my ($run, $rate, $round) = @_;
	my $seconds = $run->{latency_seconds} / $run->{latency_rounds};
	my ($t, @due) = (0);

	srand(41 + $round);
	push @due, $t while ($t += -log(1 - rand) / $rate) < $seconds;
	return @due;
}

# Sessions that enqueue what they are told to.
sub producers
{
	my ($run, $n, $enqueue) = @_;
	my $payload = $run->payload;
	my @sessions = map { $run->{server}->session } 1 .. $n;

	for my $s (@sessions)
	{
		Bench::Server::ask($s, "SET synchronous_commit = on; PREPARE e(text, text) AS $enqueue");
		Bench::Server::ask($s, "\\set payload '''$payload'''\n\\o /dev/null\nSELECT 1");
	}
	return @sessions;
}

# Hand each event to the next session when it is due, until a condition holds; how many.
sub offer
{
	my ($sessions, $stop, @due) = @_;
	my $start = time + 0.1;
	my $i = 0;

	# The kernel's slack of 50 us would make each event late.
	if (open(my $slack, '>', '/proc/self/timerslack_ns'))
	{
		print $slack "1\n";
	}
	for my $due (@due)
	{
		my $wait = $start + $due - time;

		sleep($wait) if $wait > 0;
		last if $stop && $stop->();
		syswrite $sessions->[ $i++ % @$sessions ]{in},
		  sprintf("EXECUTE e('%.0f', :payload);\n", 1e6 * ($start + $due));
	}
	return $i;
}

sub end_producers
{
	my @sessions = @_;

	Bench::Server::end_session($_) for @sessions;
}

# Events since due in a report.
sub counted
{
	my ($file) = @_;
	my $sum = 0;

	open(my $f, '<', $file) or return 0;
	while (my $line = <$f>)
	{
		$sum += $1 if $line =~ /^due\t\d+\t(\d+)/;
	}
	return $sum;
}

sub note_histogram
{
	my ($run, $who, $rate, $round, $file) = @_;
	my %sum;

	open(my $f, '<', $file) or die "$file: $!\n";
	while (my $line = <$f>)
	{
		chomp $line;
		my ($since, $us, $count) = split /\t/, $line;

		$run->note('histogram', who => $who, rate => $rate, round => $round, since => $since, us => $us, count => $count);
		push @{ $sum{$since} }, [ $us, $count ];
	}
	for my $since (sort keys %sum)
	{
		my $n = 0;
		$n += $_->[1] for @{ $sum{$since} };
		my $at = sub { my $seen = 0; for (@{ $sum{$since} }) { $seen += $_->[1]; return $_->[0] if $seen > $_[0] * $n } $sum{$since}[-1][0] };
		printf "   %-9s at %4d/s since %-6s p50 %7d us, p99 %7d us, max %7d us (%d events)\n", $who, $rate, $since,
		  $at->(0.5), $at->(0.99), $sum{$since}[-1][0], $n;
	}
}

# $who is what the result is called by.
sub ours
{
	my ($run, $rate, $round, $who) = @_;
	my $relay = Bench::Relay->new($run, 'latency', 'bench_sink')->create;
	my $file = "$run->{dir}/latency.report";
	my @due = schedule($run, $rate, $round);
	my @sessions = producers($run, 8, "SELECT idempotency.outbox_enqueue('order', \$1, 'OrderCreated', \$2::jsonb)");

	unlink $file;
	$relay->stream;
	my $cpu = $run->{server}->cpu;
	offer(\@sessions, undef, @due);
	Bench::Server::until_true(60, 'not all was sent', sub { $relay->status->{sent} >= @due });
	$who //= 'ours';
	$run->note('latency', who => $who, rate => $rate, round => $round, events => scalar @due, tick => 0,
		cpu_us => 1e6 * ($run->{server}->cpu - $cpu) / @due);
	end_producers(@sessions);
	Bench::Server::until_true(30, 'the sink has not reported', sub { counted($file) == @due });
	$relay->drop;
	note_histogram($run, $who, $rate, $round, $file);
	$relay->empty_outbox;
}

# The server of the sink that counts; the same file for all of a run.
sub make_sink
{
	my ($run) = @_;
	my $server = $run->{server};

	$server->sql("CREATE SERVER IF NOT EXISTS bench_sink FOREIGN DATA WRAPPER idempotency_program"
		  . " OPTIONS (program 'bench', report '$run->{dir}/latency.report')");
	$server->sql('CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER bench_sink');
}

# The consumer of a rival: ticks, reads, counts; in a process of its own.
sub consume
{
	my ($run, $rival, $tick, $events, $file) = @_;
	my $session = $run->{server}->session;
	my $next = time;
	my %count;

	while ($events > 0)
	{
		if (time >= $next)
		{
			Bench::Server::ask($session, "SELECT $rival.ticker()");
			$next += $tick;
		}
		my $batch = Bench::Server::ask($session, "SELECT $rival.next_batch('bench', 'bench')");
		if ($batch)
		{
			my @got = Bench::Server::ask($session,
				"SELECT ev_type, round(1e6 * extract(epoch FROM ev_time)) FROM $rival.get_batch_events($batch)");
			my $now = 1e6 * time;

			for (@got)
			{
				my ($due, $enqueued) = split /\t/;

				$count{due}{ bucket($now - $due) }++;
				$count{commit}{ bucket($now - $enqueued) }++;
			}
			Bench::Server::ask($session, "SELECT $rival.finish_batch($batch)");
			$events -= @got;
		}
		else
		{
			sleep 0.002;
		}
	}
	open(my $f, '>', $file) or die "$file: $!\n";
	for my $since (sort keys %count)
	{
		my $c = $count{$since};

		print $f "$since\t$_\t$c->{$_}\n" for sort { $a <=> $b } keys %$c;
	}
	close $f;
	Bench::Server::end_session($session);
}

# The largest value of the bucket: 16 per power of two, as in the sink.
sub bucket
{
	my ($us) = @_;
	my $width = 1;

	$us = 0 if $us < 0;
	$width *= 2 while $us / $width >= 32;
	return (int($us / $width) + 1) * $width - 1;
}

sub rival
{
	my ($run, $rival, $round) = @_;
	my $how = $rivals{$rival};
	my $file = "$run->{dir}/latency.report";
	my @due = schedule($run, $rival_rate, $round);
	my @sessions = producers($run, 8, $how->{enqueue});

	$run->{server}->sql($how->{set_up}) if $how->{set_up};
	$run->{server}->sql($_) for "SELECT $rival.force_tick('bench')", "SELECT $rival.ticker()",
	  "SELECT $rival.unregister_consumer('bench', 'bench')", "SELECT $rival.register_consumer('bench', 'bench')";
	unlink $file;
	my $pid = fork // die "fork: $!\n";
	if (!$pid)
	{
		eval { consume($run, $rival, $how->{tick}, scalar @due, $file); 1 } or print STDERR $@;
		POSIX::_exit(0);
	}
	offer(\@sessions, undef, @due);
	waitpid $pid, 0;
	end_producers(@sessions);
	$run->note('latency', who => $rival, rate => $rival_rate, round => $round, events => scalar @due, tick => $how->{tick}, cpu_us => 0);
	note_histogram($run, $rival, $rival_rate, $round, $file);
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};

	print "== latency\n";
	make_sink($run);
	my @turns = map { my $rate = $_; sub { ours($run, $rate, $_[0]) } } @rates;
	push @turns, map { my $rival = $_; sub { rival($run, $rival, $_[0]) } }
	  grep { Bench::Arm::present($server, $_) } sort keys %rivals;
	for my $round (1 .. $run->{latency_rounds})
	{
		for my $turn ($round % 2 ? @turns : reverse @turns)
		{
			$turn->($round);
		}
	}
}

1;
