# Section "redrive": many dead letters of a relay are redriven at once, while new events
# of other keys are enqueued.
#
# In each round, for a relay to a program and for one to a function: the latency of new
# events alone, and while the dead letters are delivered.  The dead letters are copied
# into the table of parked events as refused ones would be.  New events are those whose
# aggregate id is the time at which they were due.
package Bench::Section::Redrive;
use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);
use Bench::Relay;
use Bench::Section::Latency;
use Bench::Server;

my $rate = 100;
my $alone = 5;
my $keys = 1000;
my %sink = (program => 'bench_sink', function => 'stamp_sink');

# Dead letters of a relay that is not there yet: it begins after their events.
sub bury
{
	my ($run, $name, $sink) = @_;
	my $server = $run->{server};
	my $n = $run->{redrive_events};

	$server->sql("SELECT count(idempotency.outbox_enqueue('order', 'k' || (g % $keys), 'OrderCreated', '" . $run->payload
		  . "')) FROM generate_series(1, $n) g");
	my $relay = Bench::Relay->new($run, $name, $sink)->create;
	$server->sql("SELECT set_config('bench.relay', (SELECT relay_id FROM idempotency_data.relays WHERE relay = '$name')::text, false)");
	# Its trigger takes rows for those of a dump.
	$server->sql('ALTER TABLE idempotency_data.relay_parked DISABLE TRIGGER relay_parked_restore');
	for my $segment ($server->tables('idempotency_data.outbox_segment_%'))
	{
		$server->sql('INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at,'
			  . ' aggregate_type, aggregate_id, event_type, payload, sqlstate, error, first_failed_at, last_failed_at)'
			  . " SELECT current_setting('bench.relay')::int, 'dead', 10, xid, seq, event_id, enqueued_at,"
			  . " aggregate_type, aggregate_id, event_type, payload, 'P0001', 'refused', now(), now()"
			  . " FROM $segment ORDER BY seq");
	}
	$server->sql('ALTER TABLE idempotency_data.relay_parked ENABLE ALWAYS TRIGGER relay_parked_restore');
	$server->sql('VACUUM ANALYZE idempotency_data.relay_parked');
	my $dead = $server->sql("SELECT count(*) FROM idempotency.dead_letters WHERE relay = '$name'");
	die "$dead of $n dead letters\n" if $dead != $n;
	return $relay;
}

# In a process of its own: redrive all, and wait until none is parked.
# The last one is looked for first, which is cheap.
sub redrive
{
	my ($run, $name, $file) = @_;
	my $session = $run->{server}->session;
	my $ask = sub { Bench::Server::ask($session, $_[0]) };
	my $last = $ask->('SELECT max(parked_id) FROM idempotency_data.relay_parked');
	my $begun = time;

	sleep 1;
	my $call = time;
	my $n = $ask->("SELECT idempotency.relay_redrive('$name')");
	my $called = time;
	for my $left ("SELECT count(*) FROM idempotency_data.relay_parked WHERE parked_id = $last", 'SELECT count(*) FROM idempotency_data.relay_parked')
	{
		sleep 0.05 while $ask->($left) && time < $call + 300;
	}
	my $done = time;
	my $left = $ask->('SELECT count(*) FROM idempotency_data.relay_parked');
	open(my $f, '>', "$file.part") or die "$file: $!\n";
	print $f join("\t", $n, $left, $called - $call, $done - $call), "\n";
	close $f;
	rename "$file.part", $file;
	Bench::Server::end_session($session);
}

# Latencies of new events until a condition holds.
sub offer
{
	my ($run, $relay, $who, $round, $stop, @due) = @_;
	my $server = $run->{server};
	my $file = "$run->{dir}/latency.report";
	my @sessions = Bench::Section::Latency::producers($run, 8, "SELECT idempotency.outbox_enqueue('order', \$1, 'OrderCreated', \$2::jsonb)");

	unlink $file;
	$server->truncate('bench.arrival');
	my $n = Bench::Section::Latency::offer(\@sessions, $stop, @due);
	Bench::Section::Latency::end_producers(@sessions);
	if ($relay->{sink} eq 'stamp_sink')
	{
		Bench::Server::until_true(60, 'not all arrived', sub { $server->sql('SELECT count(*) FROM bench.arrival') >= $n });
		my %count;
		$count{ Bench::Section::Latency::bucket($_) }++ for $server->sql('SELECT us FROM bench.arrival');
		open(my $f, '>', $file) or die "$file: $!\n";
		print $f "due\t$_\t$count{$_}\n" for sort { $a <=> $b } keys %count;
		close $f;
	}
	Bench::Server::until_true(60, 'the sink has not reported', sub { Bench::Section::Latency::counted($file) >= $n });
	$run->note('latency', who => $who, rate => $rate, round => $round, events => $n, tick => 0, cpu_us => 0);
	Bench::Section::Latency::note_histogram($run, $who, $rate, $round, $file);
}

sub run_one
{
	my ($run, $kind, $round) = @_;
	my $server = $run->{server};
	my $file = "$run->{dir}/redrive.done";
	my $relay = Bench::Relay->new($run, 'alone', $sink{$kind})->create;

	$relay->resume;
	offer($run, $relay, "$kind-alone", $round, undef,
		Bench::Section::Latency::schedule($run->on_server($server, latency_seconds => $alone, latency_rounds => 1), $rate, $round));
	$relay->drop;
	$relay->empty_outbox;

	$relay = bury($run, 'redriven', $sink{$kind});
	$server->sql('CHECKPOINT');
	$relay->resume;
	unlink $file;
	my $pid = fork // die "fork: $!\n";
	if (!$pid)
	{
		eval { redrive($run, $relay->{name}, $file); 1 } or print STDERR $@;
		POSIX::_exit(0);
	}
	offer($run, $relay, "$kind-redrive", $round, sub { -e $file },
		Bench::Section::Latency::schedule($run->on_server($server, latency_seconds => 310, latency_rounds => 1), $rate, $round));
	waitpid $pid, 0;
	open(my $f, '<', $file) or die "nothing was redriven\n";
	my ($n, $left, $call, $seconds) = split /\t/, <$f> =~ s/\n//r;
	die "$left of $n dead letters are still parked\n" if $left;
	$relay->drop;
	$relay->empty_outbox;
	$server->truncate("bench.arrival $Bench::Server::store");
	$server->sql('VACUUM idempotency_data.relay_parked');
	$run->note('redrive', kind => $kind, round => $round, events => $n, call_seconds => $call, seconds => $seconds);
	printf "   %-8s %d redriven in %.2f s (the call %.2f s): %.0f events/s\n", $kind, $n, $seconds, $call, $n / $seconds;
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};

	Bench::Section::Latency::make_sink($run);
	for my $round (1 .. $run->{redrive_rounds})
	{
		print "== redrive, round $round of $run->{redrive_rounds}\n";
		run_one($run, $_, $round) for qw(program function);
	}
}

1;
