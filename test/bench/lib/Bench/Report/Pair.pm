# Two trees in turns: ratios of the new one to the base, in a file of its own.
#
# A ratio is taken within a round.  The rule: where all of the interval is on the worse
# side of 1 the new tree is "slower", where all of it is on the better side "faster";
# else the interval reaches 1, and the new tree is "no slower", as far as the interval tells.
# Fewer than six rounds have no interval of 95 %, and no verdict.
package Bench::Report::Pair;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*thousands = \&Bench::Report::thousands;

my %format = ('events/s' => \&thousands, 'µs' => sub { sprintf '%.0f', $_[0] });

# Of two lists with a value per round: in the rounds that both have.
sub ratios
{
	my ($new, $base) = @_;

	return map { $new->{$_} / $base->{$_} }
	  grep { $new->{$_} && $base->{$_} && $base->{$_} != 9**9**9 } sort { $a <=> $b } keys %$new;
}

sub verdict
{
	my ($relation, @ratios) = @_;

	return 'too few rounds' if @ratios < 6;
	my ($low, $high) = map { $relation eq '≥' ? $_ : 1 / $_ } median_interval(@ratios);

	($low, $high) = ($high, $low) if $low > $high;
	return $high < 1 ? '**slower**' : $low > 1 ? 'faster' : 'no slower';
}

sub ratio_cell
{
	my (@ratios) = @_;

	return @ratios ? sprintf '%.3f (%.3f – %.3f)', median(@ratios), median_interval(@ratios) : '';
}

# A row: what, unit, whether more is better; {side}{round} of the value, of CPU and of WAL.
sub row
{
	my ($what, $unit, $relation, $value, $cpu, $wal) = @_;
	my @r = ratios(@$value{qw(new base)});
	my @cpu = ratios(map { $_ // {} } @$cpu{qw(new base)});
	my @wal = ratios(map { $_ // {} } @$wal{qw(new base)});

	return [ $what, $unit, map({ $format{$unit}->(median(values %{ $value->{$_} })) } qw(base new)),
		ratio_cell(@r), verdict($relation, @r), ratio_cell(@cpu), @cpu ? verdict('≤', @cpu) : '',
		@wal ? sprintf('%.3f', median(@wal)) : '' ];
}

# {side}{round} of what a function says of each.
sub by_round
{
	my ($value, @runs) = @_;
	my %v;

	$v{ $_->{side} }{ $_->{round} } = $value->($_) for @runs;
	return \%v;
}

# In the order in which they came, each key once.
sub groups
{
	my ($key, @runs) = @_;
	my (%group, @order);

	for my $r (@runs)
	{
		push @order, $key->($r) unless $group{ $key->($r) };
		push @{ $group{ $key->($r) } }, $r;
	}
	return map { $group{$_} } @order;
}

sub arm_rows
{
	my ($section, $title) = @_;

	return map {
		my @r = @$_;
		row("$title->{$r[0]{arm}}, sync $r[0]{sync}", 'events/s', '≥',
			map { my $field = $_; by_round(sub { $_[0]{$field} }, @r) } qw(rate cpu_us wal))
	} groups(sub { "$_[0]{arm} $_[0]{sync}" }, @{ $section->{run} // [] });
}

sub drain_rows
{
	my ($section, $title) = @_;

	return map {
		my @r = @$_;
		row($title->{ $r[0]{arm} }, 'events/s', '≥',
			by_round(sub { $_[0]{events} / $_[0]{seconds} }, @r),
			by_round(sub { ($_[0]{server_cpu} + $_[0]{consumer_cpu}) / $_[0]{events} }, @r),
			by_round(sub { $_[0]{wal} }, @r))
	} groups(sub { $_[0]{arm} }, @{ $section->{drain} // [] });
}

# Since the stamp of the commit; events without a stamp count as later than any.
sub latency_rows
{
	my ($section) = @_;
	my @rows;

	for my $group (groups(sub { $_[0]{rate} }, @{ $section->{latency} // [] }))
	{
		my @r = @$group;
		my $rate = $r[0]{rate};

		for my $q ([ 0.5, 'p50' ], [ 0.99, 'p99' ])
		{
			push @rows, row("commit to read by the sink program at $rate events/s, $q->[1]", 'µs', '≤',
				by_round(sub { Bench::Report::Latency::in_round($section, $q->[0], $_[0], 'commit') }, @r),
				$q->[0] == 0.5 ? by_round(sub { $_[0]{cpu_us} }, @r) : {}, {});
		}
	}
	return @rows;
}

sub write_report
{
	my ($dir, $data) = @_;
	my $report = Bench::Report->new($dir, $data);
	my $section = $report->section('pair') or die "no data of a pair in $data\n";
	my $m = $section->{machine};
	my %title = map { $_->{name} => $_->{title} } @{ $section->{arm} };
	my $rounds = max(map { $_->{round} } map { @{ $section->{$_} // [] } } qw(run drain latency));

	$report->part('pair');
	$report->say("# This tree against $m->{base}\n");
	$report->say("Written by `make bench BASE=...`; how the arms measure: [test/bench/README.md](../README.md).\n");
	$report->say('Machine: ', Bench::Report::machine($section), "; load before $m->{load}. Took $m->{duration}.\n");
	delete $section->{rival};
	$report->{machine} = Bench::Report::machine($section);
	$report->provenance($section);
	my ($others, $stolen) = $report->shares_of_others($section);
	$report->say("Others' CPU $others of all cores, stolen $stolen.\n") if $others;
	$report->say('Two servers are up at once, one of each tree, and a third as the target of relays. In each round both sides take ',
		"their turn of each measurement, new and base in odd rounds, base and new in even ones. A ratio is new / base within a round; ",
		'the table shows the median of ', $rounds, ' rounds and, in brackets, ',
		$rounds < 6 ? 'the least and the greatest' : 'the rounds between which the median of ever more would lie 19 times of 20', '. ',
		'**slower**: all of the interval is on the worse side of 1; faster: all of it on the better side; no slower: the interval ',
		"reaches 1. Of a wide interval \"no slower\" says little. CPU is per event, of all processes of the server, for drains of ",
		"the relay's worker and program; less is better. WAL is per event.\n");
	$report->table([ 'what', 'unit', 'base', 'new', 'new / base', 'speed', 'CPU, new / base', 'CPU', 'WAL, new / base' ],
		arm_rows($section, \%title), drain_rows($section, \%title), latency_rows($section));
	$report->write_part('pair', 'pair.md');
}

1;
