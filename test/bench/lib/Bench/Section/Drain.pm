# Section "drain": a backlog committed before is carried out of the server.
#
# The rivals' consumers are the scripts of drain/; their comments say besides
# those of an arm: reset, fill (commits 100 events), ready, left (events not
# yet carried out), clients, and batch (events per transaction; all).  They are
# clients that receive every event.  Ours are relays.
package Bench::Section::Drain;
use strict;
use warnings;
use Bench::Arm;
use Bench::Relay;

my @ours = (
	{ name => 'ours_bytea', title => 'our relay to the null sink program, bytea', kind => 'bytea', sink => 'null_sink' },
	{ name => 'ours_jsonb', title => 'our relay to the null sink program, jsonb', kind => 'jsonb', sink => 'null_sink' },
	{ name => 'ours_function', title => 'our relay to a SQL function that inserts a row, exactly once',
		kind => 'jsonb', sink => 'effect_sink', tables => "bench.effect $Bench::Server::store", size => 'drain_events' });

# Where a server to send to is up beside the one that is measured.
my $postgres = { name => 'ours_postgres', title => 'our relay to a function of another PostgreSQL that inserts a row, exactly once',
	kind => 'jsonb', sink => 'postgres_sink', size => 'drain_events' };

sub note_run
{
	my ($run, $arm, $round, $events, $r, $wal, $dead) = @_;

	$run->note('drain', arm => $arm->{name}, round => $round, events => $events,
		seconds => $r->{seconds}, server_cpu => $r->{server_cpu}, consumer_cpu => $r->{consumer_cpu}, whole_cpu => $r->{whole_cpu},
		wal => $wal / $events, dead => $dead / $events);
	printf "   %-18s %10.0f events/s  %10.0f per core (server %.2f us, consumer %.2f us)\n",
	  $arm->{name}, $events / $r->{seconds},
	  $events / (($r->{server_cpu} + $r->{consumer_cpu}) || 0.01),
	  1e6 * $r->{server_cpu} / $events, 1e6 * $r->{consumer_cpu} / $events;
}

sub run_ours
{
	my ($run, $arm, $round) = @_;
	my $server = $run->{server};
	my $events = $run->{ $arm->{size} // 'relay_events' };
	my $relay = Bench::Relay->new($run, $arm->{name}, $arm->{sink});

	my $effects_at = $arm->{target} // $server;

	# A position at the target is that of another relay, though its name is the same.
	$effects_at->truncate($arm->{tables} // '');
	$relay->create;
	Bench::Relay::enqueue_backlog($run, $arm->{kind}, $events, 100);
	$server->sql('CHECKPOINT');
	my $dead = $server->dead_elsewhere;
	my $lsn = $server->lsn;
	$run->{go}->() if $run->{go};
	my $cpu = $server->cpu;
	my $r = $relay->drain($events);
	$r->{whole_cpu} = $server->cpu - $cpu;
	my $wal = $server->wal_since($lsn);
	$dead = $server->dead_elsewhere - $dead;
	$relay->drop;
	$relay->empty_outbox;
	@$r{qw(server_cpu consumer_cpu)} = @$r{qw(worker_cpu sink_cpu)};
	if ($arm->{tables})
	{
		my $effects = $effects_at->sql('SELECT count(*) FROM bench.effect');
		die "$events events, but $effects effects\n" if $effects != $events;
	}
	note_run($run, $arm, $round, $events, $r, $wal, $dead);
}

sub run_rival
{
	my ($run, $arm, $round) = @_;
	my $server = $run->{server};
	my $events = $run->{ $arm->{batch} eq 'all' ? 'relay_events' : 'drain_events' };
	my $clients = $arm->{clients} // 1;

	$server->sql($arm->{reset}) if $arm->{reset};
	$run->fill("$arm->{fill};", $events / 100);
	$server->sql($arm->{ready}) if $arm->{ready};
	my $before = $server->sql($arm->{left});
	die "$arm->{name}: $before of $events events to drain\n" if $before < $events;
	my $dead = dead_of_all($server);
	$run->{go}->() if $run->{go};
	my $transactions = $arm->{batch} eq 'all' ? 1 : $before / $arm->{batch} / $clients;
	my $r = $run->cost_of('off', '-c', $clients, '-j', 1, '-t', int($transactions + 0.999), '-f', $arm->{file});
	my $left = $server->sql($arm->{left});
	my $drained = $before - $left;

	die "$arm->{name}: $left of $before events are left\n" if $left > 0.05 * $before;
	$r->{consumer_cpu} = $r->{cpu};
	$r->{whole_cpu} = $r->{server_cpu};
	note_run($run, $arm, $round, $drained, $r, $r->{wal}, dead_of_all($server) - $dead);
}

sub dead_of_all
{
	my ($server) = @_;
	my %t = $server->all_tables;
	my $sum = 0;

	$sum += $_->{dead} for values %t;
	return $sum;
}

sub arms
{
	my ($run) = @_;

	return ((map { { %$_, run => \&run_ours } } @ours),
		map { { %$_, run => \&run_rival } } Bench::Arm::take($run, 'drain', sub { 1 }));
}

# Our relays; with the one to another server.
sub relays
{
	return @ours;
}

sub all_relays
{
	return (@ours, $postgres);
}

# The relay to another server, which gets all that it needs there.
sub postgres
{
	my ($run, $target) = @_;
	my $server = $run->{server};

	$server->sql("CREATE SERVER postgres_sink FOREIGN DATA WRAPPER idempotency_postgres OPTIONS"
		  . " (host '$target->{host}', port '$target->{port}', dbname 'postgres', function 'bench.on_event',"
		  . " position_table 'bench.position_of_$run->{side}')");
	$server->sql("CREATE USER MAPPING FOR CURRENT_USER SERVER postgres_sink OPTIONS (user 'postgres')");
	$target->sql(join "\n", $server->sql("SELECT idempotency.sink_setup_sql('postgres_sink')"));
	return { %$postgres, target => $target, tables => "bench.position_of_$run->{side} bench.effect" };
}

# One of them, once; $run->{go} is told when its backlog is there.
sub run_arm
{
	my ($run, $name) = @_;
	my ($arm) = grep { $_->{name} eq $name } arms($run) or die "no arm $name\n";

	$arm->{run}->($run, $arm, 1);
}

sub run
{
	my ($run) = @_;
	my @arms = arms($run);

	$run->note('arm', name => $_->{name}, title => $_->{title}, about => '', events => 1, absent => '') for @ours;
	for my $round (1 .. $run->{drain_rounds})
	{
		print "== drain, round $round of $run->{drain_rounds}\n";
		$_->{run}->($run, $_, $round) for $round % 4 < 2 ? @arms : reverse @arms;
	}
}

1;
