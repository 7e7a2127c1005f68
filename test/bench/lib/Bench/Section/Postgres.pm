# Section "postgres": relays into another PostgreSQL, exactly once, beside COPY of the
# same rows into the same table there.
#
# The first server has the outbox, the second is the target.  An inbox table has a row per
# event and a unique index of the ids; with claims each event is claimed besides.  COPY is
# one statement from a file, from a client on the same machine.
package Bench::Section::Postgres;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Relay;
use Bench::Server;

my @arms = (
	{ name => 'copy', title => 'COPY of the rows, one statement', run => \&run_copy },
	{ name => 'inbox', title => 'our relay into the table, exactly once', run => \&run_relay },
	{ name => 'claims', title => 'the same, and each event is claimed', run => \&run_relay });

my $inbox = 'event_id uuid PRIMARY KEY, seq bigint NOT NULL, aggregate_type text NOT NULL, aggregate_id text NOT NULL,'
  . ' event_type text NOT NULL, payload jsonb, headers jsonb, enqueued_at timestamptz NOT NULL';
my $columns = 'event_id, seq, aggregate_type, aggregate_id, event_type, payload, headers, enqueued_at';

# The server objects of both relays, and what they need at the target.
sub prepare
{
	my ($source, $target) = @_;
	my %where = (inbox => q{"table" 'bench.inbox'}, claims => q{"table" 'bench.inbox', claim 'on'});

	$target->sql("CREATE TABLE bench.inbox ($inbox)");
	for my $name (sort keys %where)
	{
		$source->sql("CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_postgres OPTIONS"
			  . " (host '$target->{host}', port '$target->{port}', dbname 'postgres', $where{$name}, omit_columns 'content_type, payload_bytes', position_table 'bench.position_of_$name')");
		$source->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER $name OPTIONS (user 'postgres')");
		$target->sql(join "\n", $source->sql("SELECT idempotency.sink_setup_sql('$name')"));
	}
}

# A backlog of the same events for every arm, and how they look at the target.
sub backlog
{
	my ($run, $file) = @_;

	Bench::Relay::enqueue_backlog($run, 'jsonb', $run->{postgres_events}, 100);
	$run->{server}->sql("COPY (SELECT $columns FROM idempotency.outbox_events ORDER BY seq) TO '$file'") if $file;
}

sub run_relay
{
	my ($run, $arm, $target) = @_;
	my $server = $run->{server};
	my $relay = Bench::Relay->new($run, $arm->{name}, $arm->{name})->create;

	backlog($run);
	$_->sql('CHECKPOINT') for $server, $target;
	my $at_target = $target->cpu;
	my $r = $relay->drain($run->{postgres_events});
	my %cpu = (target_cpu => $target->cpu - $at_target, worker_cpu => $r->{worker_cpu}, client_cpu => $r->{sink_cpu});

	$relay->drop;
	$relay->empty_outbox;
	return (seconds => $r->{seconds}, %cpu);
}

sub run_copy
{
	my ($run, $arm, $target) = @_;
	my $file = "$run->{dir}/rows.copy";
	my $session = $target->session;
	my $pid = $session->{pid};

	backlog($run, $file);
	Bench::Relay->new($run, 'none')->empty_outbox;
	$target->sql('CHECKPOINT');
	my ($at_target, $of_client) = ($target->cpu, Bench::Server::precise_cpu_seconds($pid));
	my $start = time;
	Bench::Server::ask($session, "\\copy bench.inbox ($columns) FROM '$file'");
	my %seen = (seconds => time - $start, worker_cpu => 0, client_cpu => Bench::Server::precise_cpu_seconds($pid) - $of_client,
		target_cpu => $target->cpu - $at_target);

	Bench::Server::end_session($session);
	unlink $file;
	return %seen;
}

sub run_arm
{
	my ($run, $arm, $round, $target) = @_;
	my $events = $run->{postgres_events};

	# A position at the target is that of another relay, though its name is the same.
	$target->truncate("bench.inbox bench.position_of_% $Bench::Server::store");
	my %seen = $arm->{run}->($run, $arm, $target);
	my $rows = $target->sql('SELECT count(*) FROM bench.inbox');

	die "$arm->{name}: $events events, but $rows rows\n" if $rows != $events;
	$run->note('postgres', arm => $arm->{name}, round => $round, events => $events, %seen);
	printf "   %-7s %9.0f events/s, CPU per event: worker %5.2f us, client %5.2f us, target %5.2f us\n", $arm->{name}, $events / $seen{seconds},
	  map { 1e6 * $seen{$_} / $events } qw(worker_cpu client_cpu target_cpu);
}

sub run
{
	my ($run) = @_;
	my ($source, $target) = @{ $run->{servers} };

	prepare($source, $target);
	$run->note('arm', name => $_->{name}, title => $_->{title}) for @arms;
	for my $round (1 .. $run->{postgres_rounds})
	{
		print "== postgres, round $round of $run->{postgres_rounds}\n";
		run_arm($run, $_, $round, $target) for $round % 4 < 2 ? @arms : reverse @arms;
	}
}

1;
