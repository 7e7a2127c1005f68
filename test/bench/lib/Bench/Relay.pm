# Relays of the extension: made, filled, drained, dropped; on the run's server.
package Bench::Relay;
use strict;
use warnings;
use List::Util qw(sum);
use Time::HiRes qw(time);
use Bench::Server;

*until_true = \&Bench::Server::until_true;

sub new
{
	my ($class, $run, $name, $sink) = @_;

	return bless { run => $run, server => $run->{server}, name => $name, sink => $sink // 'null_sink' }, $class;
}

# Made at the end of the log, or where else, and paused; its worker is up.
sub create
{
	my ($self, $start_at) = @_;

	my $name = $self->{name};
	$start_at //= 'latest';
	$self->{server}->sql("BEGIN; SELECT idempotency.relay_create('$name', '$self->{sink}', start_at => '$start_at');"
		  . " SELECT idempotency.relay_pause('$name'); COMMIT");
	until_true(60, "relay $name is not paused", sub { $self->status->{state} eq 'paused' });
	until_true(30, "no worker for relay $self->{name}", sub { $self->status->{pid} });
	return $self;
}

sub pause
{
	my ($self) = @_;

	$self->{server}->sql("SELECT idempotency.relay_pause('$self->{name}')");
	until_true(60, "relay $self->{name} does not pause", sub { $self->status->{state} eq 'paused' });
}

sub resume
{
	my ($self) = @_;

	$self->{server}->sql("SELECT idempotency.relay_resume('$self->{name}')");
}

sub stream
{
	my ($self) = @_;

	$self->resume;
	until_true(30, "relay $self->{name} does not stream", sub { $self->status->{state} eq 'streaming' });
}

sub status
{
	my ($self) = @_;
	my $line = $self->{server}->sql('SELECT s.sent, s.pid, s.sink_pid, s.state FROM idempotency_data.relay_status() s'
		  . " JOIN idempotency_data.relays r USING (relay_id) WHERE r.relay = '$self->{name}'") // '';
	my %s;

	@s{qw(sent pid sink state)} = split /\t/, $line, -1;
	$s{$_} //= '' for qw(pid sink state);
	$s{sent} ||= 0;
	return \%s;
}

sub drop
{
	my ($self) = @_;

	$self->{server}->sql("SELECT idempotency.relay_drop('$self->{name}')");
	until_true(30, "relay $self->{name} is still there", sub { !$self->status->{pid} });
}

sub empty_outbox
{
	my ($self) = @_;

	$self->{server}->truncate('idempotency_data.outbox_segment_%');
}

# The call that enqueues one event; g counts.
sub enqueue_call
{
	my ($run, $kind) = @_;
	my $payload = $run->payload;

	return $kind eq 'jsonb'
	  ? "idempotency.outbox_enqueue('order', (g % 1000)::text, 'OrderCreated', '$payload')"
	  : "idempotency.outbox_enqueue_bytes('order', (g % 1000)::text, 'OrderCreated', convert_to('$payload', 'UTF8'))";
}

# Commit a backlog, so many events per transaction; 0: all in one.
sub enqueue_backlog
{
	my ($run, $kind, $events, $per) = @_;
	my $call = enqueue_call($run, $kind);

	if ($per)
	{
		$run->fill("SELECT count($call) FROM generate_series(1, $per) g;", $events / $per);
	}
	else
	{
		$run->{server}->sql("SELECT count($call) FROM generate_series(1, $events) g");
	}
}

# Let the paused relay send a backlog; what it took, and its memory at the most.
# A function relay that rests has a process of its own only once it is resumed: the
# CPU of all its processes counts, of the later ones from their start.
sub drain
{
	my ($self, $events) = @_;
	my $before = $self->status;
	my $worker = $before->{pid};
	my $anon = 0;
	my $now;

	if (open(my $f, '>', "/proc/$worker/clear_refs"))
	{
		print $f "5\n";
	}
	my %begun = ($worker => Bench::Server::precise_cpu_seconds($worker));
	my %cpu;
	my $start = time;
	$self->resume;
	until_true(
		900,
		"relay $self->{name} has not sent $events events",
		sub {
			my $sent = $now ? $now->{sent} : 0;

			$now = $self->status;
			die "a worker of relay $self->{name} was started again\n" if $now->{sent} < $sent;
			$worker = $now->{pid} if $now->{pid};
			my $kb = Bench::Server::proc_kilobytes($worker);
			$anon = $kb->{RssAnon} if $kb && $kb->{RssAnon} > $anon;
			$cpu{$worker} = Bench::Server::precise_cpu_seconds($worker) || $cpu{$worker} || 0;
			return $now->{sent} - $before->{sent} >= $events;
		});
	my $seconds = time - $start;
	my $sent = $now->{sent} - $before->{sent};
	my $sink = $now->{sink};

	die "relay $self->{name} sent $sent of $events events\n" if $sent != $events;
	my $kb = Bench::Server::proc_kilobytes($worker) // { VmHWM => 0 };
	$cpu{$_} = Bench::Server::precise_cpu_seconds($_) || $cpu{$_} for keys %cpu;
	return { seconds => $seconds, worker_cpu => sum(map { $cpu{$_} - ($begun{$_} // 0) } keys %cpu),
		sink_cpu => $sink ? Bench::Server::precise_cpu_seconds($sink) : 0,
		anon => $anon, hwm => $kb->{VmHWM},
		sink_hwm => $sink ? Bench::Server::proc_kilobytes($sink)->{VmHWM} : 0 };
}

1;
