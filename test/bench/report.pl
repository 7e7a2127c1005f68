#!/usr/bin/perl
# Make the report of the data that measure.pl left.
#
#	report.pl DIR DATA		reads DATA/*.tsv, writes DIR/report.md and its plots
#
# A section without data stays in DIR/report.md as it is: the data is not part of
# the tree.
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

my ($dir, $data) = @ARGV;
die "usage: report.pl DIR DATA\n" unless $data;

my @order = qw(claims leases cursors enqueues drain postgres parked redrive latency kafka nats redis rabbitmq mqtt http many memory backlog ids connections pin-snapshot pin-writer pin-reader pin-prepared);
my @parts = grep { -f "$FindBin::Bin/lib/Bench/Report/$_.pm" } qw(Arms Leases Cursors Drain Postgres Parked Redrive Latency Kafka Broker Http Many Memory Growth Ids Connections Pin);
my $report = Bench::Report->new($dir, $data);

# One line per section: they may come from different days.
sub overview
{

	die "$data is empty\n" unless grep { $report->section($_) } @order;

	$report->part('overview');
	$report->say("# Benchmark report\n");
	$report->say('Written by `make bench`; what is measured and how: [test/bench/README.md](../README.md). ',
		"Each section can be measured alone, and the others stay as they are.\n");
	$report->say("Machine: $report->{machine}.\n");
	$report->table([ 'section', 'date', 'commit', 'took', 'load before', 'others\' CPU', 'stolen', 'remark' ],
		map { $report->section($_) ? overview_row($_) : $report->last_rows('overview', $_) } @order);
	$report->say("\nOthers' CPU: what processes that are not the benchmark's, and kernel threads, took of all cores while the section ran; ",
		'stolen: what the hypervisor gave to other machines. Empty where it was not recorded.');
	$report->say("\n\"sync on\" is synchronous_commit = on and idempotency.durable_complete = on; ",
		'"sync off" is both off, so that a completion is no more durable than the rivals\' rows are.');
}

sub overview_row
{
	my $s = $report->section($_[0]);
	my $m = $s->{machine};

	return [ $_[0] . ($s->{size}{quick} ? ' (quick)' : ''), @$m{qw(date commit duration load)}, $report->shares_of_others($s), $m->{remark} ];
}

for my $part (@parts)
{
	require "Bench/Report/$part.pm";
	"Bench::Report::$part"->can('targets')->($report);
}
overview();
$report->part('targets');
$report->say("\n## Targets\n");
$report->say('A verdict is by the interval in brackets, whose kind the row names: *met* if all of it keeps to the target, ',
	'*missed* if none of it does, *open* if the target lies within, so that more rounds or a quieter machine have to tell. ',
	'Rounds: median, and the two rounds between which the median of ever more would lie 19 times of 20; of fewer than six rounds ',
	'the least and the greatest, which hold it 7 times of 8 with four of them. One run has no spread. ',
	'Slopes: twice the standard error. Pins: 95 % of the mean logarithm, see there. ',
	"Those that are not met link to the profile that shows where the time goes.\n");
$report->table([ 'section', 'what', 'reads', 'target', 'measured', 'bracket', '' ], map { targets_of($_) } @order);
"Bench::Report::$_"->can('render')->($report) for @parts;
$report->write_parts('targets', map { ($_ eq 'pin-snapshot' ? 'pins' : (), $_) } @order);

# Those of the last report, if there is no data.
sub targets_of
{
	my ($section) = @_;
	my @last = $report->section($section) ? () : $report->last_rows('targets', $section);

	return @last ? @last : @{ $report->{targets}{$section} // [] };
}
