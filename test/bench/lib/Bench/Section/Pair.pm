# Section "pair": two trees of the extension, a server each, in turns: the new one and
# the base, then the base and the new one.  The third server is the target of relays.
#
# Arms, drains and latencies are those of the other sections; each line says its side.
# No round begins that would end after pair_limit seconds.
package Bench::Section::Pair;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Arm;
use Bench::Section::Arms;
use Bench::Section::Drain;
use Bench::Section::Latency;

# Singles are measured with and without a wait for the disk.
my @arms = (
	map({ [ $_, 'on' ], [ $_, 'off' ] } qw(claim_one claim_100_one enq_ours many_ours)),
	map({ [ $_, 'off' ] } qw(claim_uuid enq_ours_bytes)));
my @rates = (100, 1000);

# What a side does in its turns, each with a name and called with the round.
sub turns
{
	my ($run, $target) = @_;
	my @turns;

	for my $arm (@arms)
	{
		my ($name, $sync) = @$arm;
		my $file = Bench::Arm::read_arm($run->arm_file($name));

		push @turns, [ "$name-$sync", sub { Bench::Section::Arms::run_arm($run, $file, $sync, $_[0]) } ];
	}
	for my $arm (Bench::Section::Drain::relays(), Bench::Section::Drain::postgres($run, $target))
	{
		push @turns, [ $arm->{name}, sub { Bench::Section::Drain::run_ours($run, $arm, $_[0]) } ];
	}
	Bench::Section::Latency::make_sink($run);
	for my $rate (@rates)
	{
		push @turns, [ "latency-$rate", sub { Bench::Section::Latency::ours($run, $rate, $_[0]) } ];
	}
	return [ grep { !$ENV{ONLY} || $_->[0] =~ /^(?:$ENV{ONLY})/ } @turns ];
}

sub note_titles
{
	my ($run) = @_;

	$run->note('arm', name => $_->{name}, title => $_->{title})
	  for map({ Bench::Arm::read_arm($run->arm_file($_->[0])) } @arms), Bench::Section::Drain::all_relays();
}

sub run
{
	my ($run) = @_;
	my ($new, $base, $target) = @{ $run->{servers} };
	my %sizes = (seconds => $run->{pair_seconds}, relay_events => $run->{pair_relayed}, drain_events => $run->{pair_handled},
		latency_seconds => $run->{pair_latency_seconds}, latency_rounds => 1);

	$target->sql('CREATE SCHEMA bench; CREATE TABLE bench.effect (event_id uuid NOT NULL);'
		  . ' CREATE FUNCTION bench.on_event(event_id uuid) RETURNS void'
		  . " LANGUAGE sql AS 'INSERT INTO bench.effect VALUES (event_id)'");
	note_titles($run);
	my @sides = map { turns($run->on_server($_->[1], %sizes, side => $_->[0]), $target) } [ new => $new ], [ base => $base ];
	my $begun = time;
	for my $round (1 .. $run->{pair_rounds})
	{
		last if $round > 1 && (time - $begun) * $round / ($round - 1) > $run->{pair_limit};
		my @order = $round % 2 ? @sides : reverse @sides;

		print "== pair, round $round of $run->{pair_rounds}, ", $round % 2 ? "new, base\n" : "base, new\n";
		for my $turn (0 .. $#{ $sides[0] })
		{
			$_->[$turn][1]->($round) for @order;
		}
	}
}

1;
