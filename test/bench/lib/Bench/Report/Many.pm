# What a thousand idle relays cost.
package Bench::Report::Many;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Latency;

*thousands = \&Bench::Report::thousands;
*spread = \&Bench::Report::spread;

sub targets
{
}

# The rounds of a kind and a number of relays, each with the quantiles of its latency.
sub rounds
{
	my ($section, $kind, $relays) = @_;

	return map {
		my $m = $_;
		my ($l) = grep { $_->{who} eq "$m->{kind}-$m->{relays}" && $_->{round} == $m->{round} } @{ $section->{latency} };
		+{ %$m, cpu_us => $l->{cpu_us}, map({ ("p$_" => Bench::Report::Latency::in_round($section, $_ / 100, $l, 'commit')) } 50, 99) }
	} sort { $a->{round} <=> $b->{round} } grep { $_->{kind} eq $kind && $_->{relays} == $relays } @{ $section->{many} };
}

my @columns = ([ 'p50', '%.0f' ], [ 'p99', '%.0f' ], [ 'cpu_us', '%.0f' ], [ 'idle_ms', '%.1f' ], [ 'look_ms', '%.2f' ]);

sub render
{
	my ($report) = @_;
	my $section = $report->section('many') or return;
	my $size = $section->{size};
	my @rows;

	for my $kind (qw(program function))
	{
		my @alone = rounds($section, $kind, 0);
		my @beside = rounds($section, $kind, $size->{many_relays});

		for my $of ([ 'none', @alone ], [ thousands($size->{many_relays}) . " to ${kind}s", @beside ])
		{
			my ($title, @r) = @$of;

			push @rows, [ $title, map { my ($field, $format) = @$_; spread($format, map { $_->{$field} } @r) } @columns ];
		}
		my @r = map { $beside[$_]{p50} / $alone[$_]{p50} } 0 .. $#beside;
		push @rows, [ 'p50, with / without', sprintf('%.2f (%.2f – %.2f)', median(@r), median_interval(@r)), ('') x (@columns - 1) ];
	}
	$report->head('Relays that rest', $section);
	$report->say("A relay with 100 events a second, alone and beside relays that rest, which want other types; $size->{many_rounds} rounds of ",
		"$size->{many_seconds} s. Microseconds from the stamp of the commit to the read by the sink program; CPU of the whole server per event; ",
		'CPU of the server in milliseconds a second while nothing happens; milliseconds of a look at all of stat_relay. ',
		"Medians (least – greatest round); of the ratio the interval of the median.\n");
	$report->table([ 'idle relays beside it', 'p50, µs', 'p99, µs', 'CPU per event, µs', 'CPU without load, ms/s', 'stat_relay, ms' ], @rows);
}

1;
