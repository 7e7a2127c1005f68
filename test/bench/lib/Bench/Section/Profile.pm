# Section "profile ARM": run an arm over and over, for someone who looks on.
#
# The file profile.on or profile.off says that the load runs, with
# synchronous_commit on or off, and holds what its processes are seen to do
# (Bench::Watch).  An arm of arms/ runs with both.  Other names: one of drain/,
# ours_bytea, ours_jsonb or ours_function; latency (1000 enqueues a second,
# relayed); growth (claims beside maxsize remembered ids); pin-NAME (claims and
# enqueues, relayed, under that pin).
package Bench::Section::Profile;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Relay;
use Bench::Section::Drain;
use Bench::Section::Ids;
use Bench::Section::Pin;
use Bench::Server;
use Bench::Watch;

sub go
{
	my ($run, $sync) = @_;

	push @{ $run->{watchers} }, Bench::Watch::start($run->{server}, "$run->{dir}/profile.$sync", $run->{profile_seconds} - 1);
}

# A relay streams while pgbench runs.
sub relayed
{
	my ($run, $sync, @load) = @_;
	my $relay = Bench::Relay->new($run, 'profile')->create;

	$relay->stream;
	go($run, $sync);
	$run->pgbench($sync, @load, '-T', $run->{profile_seconds});
	$relay->drop;
}

sub pinned
{
	my ($run, $name) = @_;
	my $server = $run->{server};

	Bench::Section::Pin::hold($server, $name);
	relayed($run, 'off', $run->load, map { ('-f', $run->arm_file($_)) } qw(claim_one enq_ours));
	Bench::Section::Pin::let_go($server, $name);
}

sub grown
{
	my ($run) = @_;
	my $rows = 0;
	my $end;

	$run->{server}->truncate($Bench::Server::store);
	Bench::Section::Ids::grow($run, 'ours', 'random', $run->{maxsize}, \$rows);
	go($run, 'off');
	$end = time + $run->{profile_seconds};
	Bench::Section::Ids::measure_one($run, 'ours', 'random', $run->{maxsize}, 1, \$rows) while time < $end;
}

# One large backlog, committed before somebody looks.
sub drained
{
	my ($run, $arm) = @_;

	$run->{relay_events} *= 4;
	$run->{drain_events} *= 4;
	$run->{go} = sub { go($run, 'off') };
	Bench::Section::Drain::run_arm($run, $arm);
}

sub run
{
	my ($run, $section, $arm) = @_;

	load_of($run, $arm);
	waitpid($_, 0) for @{ $run->{watchers} };
	die "nobody watched $arm\n" unless @{ $run->{watchers} };
}

sub load_of
{
	my ($run, $arm) = @_;
	my $file = eval { $run->arm_file($arm) };

	return pinned($run, $1) if $arm =~ /^pin-(.*)/;
	return grown($run) if $arm eq 'growth';
	return relayed($run, 'on', '-c', 4, '-j', 1, '-R', 1000, '-f', $run->arm_file('enq_ours')) if $arm eq 'latency';
	return drained($run, $arm) unless $file;
	for my $sync ('on', 'off')
	{
		go($run, $sync);
		$run->pgbench($sync, $run->load, '-T', $run->{profile_seconds}, '-f', $file);
	}
}

1;
