#!/usr/bin/perl
# Make the report of the data that measure.pl left.
#
#	report.pl DIR		reads DIR/data/*.tsv, writes DIR/report.md and its plots
#
# Rates are medians over the rounds.  A ratio is taken within each round and
# then the median of those, so that what slows the whole machine for a while
# cancels; behind it stands the least and the greatest.  A target is judged by
# an interval, never by the figure in the middle.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Bench::Report;

my ($dir) = @ARGV;
die "usage: report.pl DIR\n" unless $dir;

my @order = qw(claims enqueues drain latency memory backlog ids pin-snapshot pin-writer pin-reader pin-prepared);
my @parts = grep { -f "$FindBin::Bin/lib/Bench/Report/$_.pm" } qw(Arms Drain Parked Latency Memory Growth Pin);
my $report = Bench::Report->new($dir);

# One line per section: they may come from different days.
sub overview
{
	my @sections = grep { $report->section($_) } @order;
	my $any = $report->section($sections[0]) or die "$dir/data is empty\n";
	my $m = $any->{machine};

	$report->say("# Benchmark report\n");
	$report->say('Written by `make bench`; what is measured and how: [test/bench/README.md](../README.md). ',
		"Each section can be measured alone; its raw results lie in [data](data).\n");
	$report->say("Machine: $m->{cpu}, $m->{cores} cores, $m->{memory}, $m->{kernel}, $m->{'file system'}.\n");
	$report->table([ 'section', 'date', 'commit', 'took', 'load before', 'others\' CPU', 'stolen', 'remark' ],
		map { my $s = $report->section($_); my $x = $s->{machine};
			[ $_ . ($s->{size}{quick} ? ' (quick)' : ''), @$x{qw(date commit duration load)}, shares_of_others($s), $x->{remark} ] } @sections);
	$report->say("\nOthers' CPU: what processes that are not the benchmark's, and kernel threads, took of all cores while the section ran; ",
		'stolen: what the hypervisor gave to other machines. Empty where it was not recorded.');
	pinning(@sections);
	rivals(@sections);
	$report->say("\n\"sync on\" is synchronous_commit = on and idempotency.durable_complete = on; ",
		'"sync off" is both off, so that a completion is no more durable than the rivals\' rows are.');
	settings(@sections);
}

sub shares_of_others
{
	my ($section) = @_;
	my $o = ($section->{others} // [])->[0] or return ('', '');

	return map { sprintf '%.1f %%', 100 * $o->{$_} / $o->{seconds} / $o->{cores} } qw(cpu stolen);
}

sub pinning
{
	my @pinned = grep { $report->section($_)->{machine}{pinned} } @_;

	$report->say("\nServer and load generator on cores of their own (", join(', ', @pinned), '): ',
		$report->section($pinned[0])->{machine}{pinned}, '.') if @pinned;
}

# Versions, with the sections that ran against them.
sub rivals
{
	my %by;

	for my $name (@_)
	{
		my $s = join ', ', map { "$_->{name} $_->{version}" } @{ $report->section($name)->{rival} // [] };
		push @{ $by{$s} }, $name if $s;
	}
	$report->say("\nRivals (", join(', ', @{ $by{$_} }), "): $_.") for sort keys %by;
}

sub settings
{
	my @sections = @_;
	my %by;

	for my $name (@sections)
	{
		my $s = join ', ', map { "$_->{name} = $_->{value}" } @{ $report->section($name)->{server} };
		push @{ $by{$s} }, $name;
	}
	$report->say("\nServer (", join(', ', @{ $by{$_} }), "): $_.") for sort keys %by;
}

# Of parts that do not exist yet.
sub not_built
{
	$report->verdict(what => $_->[0], goal => $_->[1],
		reads => 'ours / theirs, ' . ($_->[1] =~ /≥/ ? 'larger is better' : 'smaller is better'),
		verdict => 'not measured: not built yet')
	  for [ 'relay into Kafka vs the client library\'s own producer', '≥ 0.70' ],
	  [ 'exactly-once vs at-least-once relay into Kafka', '≥ 0.90' ],
	  [ 'expiring 1e7 ids vs DELETE + VACUUM, time and WAL', '≤ 0.001' ];
}

for my $part (@parts)
{
	require "Bench/Report/$part.pm";
	"Bench::Report::$part"->can('targets')->($report);
}
not_built();
overview();
$report->say("\n## Targets\n");
$report->say('A verdict is by the interval in brackets, whose kind the row names: *met* if all of it keeps to the target, ',
	'*missed* if none of it does, *open* if the target lies within, so that more rounds or a quieter machine have to tell. ',
	'Rounds: median, and the two rounds between which the median of ever more would lie 19 times of 20; of fewer than six rounds ',
	'the least and the greatest, which hold it 7 times of 8 with four of them. One run has no spread. ',
	'Slopes: twice the standard error. Pins: 95 % of the mean logarithm, see there. ',
	"Those that are not met link to the profile that shows where the time goes.\n");
$report->table([ 'what', 'reads', 'target', 'measured', 'bracket', '' ], @{ $report->{targets} });
"Bench::Report::$_"->can('render')->($report) for @parts;

open(my $md, '>', "$dir/report.md") or die "$dir/report.md: $!\n";
print $md $report->{md} =~ s/\n{3,}/\n\n/gr;
close $md;
