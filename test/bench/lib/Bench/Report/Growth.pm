# Cost over a backlog, with the slopes; and what is common to it and to the cost over
# remembered ids (Bench::Report::Ids).
package Bench::Report::Growth;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*cell = \&Bench::Report::cell;
*thousands = \&Bench::Report::thousands;

# Sizes that were asked for.
sub sizes
{
	my %seen;

	return sort { $a <=> $b } grep { !$seen{$_}++ } map { $_->{n} } @_;
}

# What was there in the middle of a measurement: more than was asked for, as
# what is measured adds to it.
sub number_of
{
	return $_[0]{at} // $_[0]{n};
}

sub label
{
	my ($n, @rows) = @_;
	my @at = map { number_of($_) } grep { $_->{n} == $n } @rows;

	return @at && max(@at) > min(@at) ? thousands(min(@at)) . ' – ' . thousands(max(@at)) : thousands($at[0] // $n);
}

sub range
{
	my @at = map { number_of($_) } @_;

	return thousands(min(@at)) . ' to ' . thousands(max(@at));
}

sub slope_shown
{
	my ($slope, $error) = @_;

	return defined $slope ? sprintf('%.3f ± %.3f', $slope, $error) : '';
}

sub slope_target
{
	my ($report, $section, $what, $part, @points) = @_;
	my ($slope, $error) = log_slope(@points);
	my $verdict = defined $slope ? Bench::Report::judge('≤', 0.03, $slope - 2 * $error, $slope + 2 * $error) : 'not measured';

	$report->verdict(section => $section, what => "slope of $what, log-log", reads => 'ours, smaller is better', goal => '≤ 0.03',
		seen => slope_shown($slope, $error), bracket => 'standard error; twice it counts', verdict => $verdict,
		$part ? (part => $part) : (profile => 'growth'));
}

sub targets
{
	my ($report) = @_;
	my $backlog = $report->section('backlog') // {};
	my @ours = grep { $_->{side} eq 'ours' } @{ $backlog->{backlog} // [] };

	for my $field ([ 'enqueue_us', 'CPU of an enqueue' ], [ 'deliver_us', 'CPU of relaying an event' ], [ 'wal', 'WAL of an enqueue' ])
	{
		slope_target($report, 'backlog', "$field->[1] over a backlog" . (@ours ? ' of ' . range(@ours) : ''), undef,
			map { [ number_of($_), $_->{ $field->[0] } ] } @ours);
	}
}

sub render
{
	my ($report) = @_;

	render_backlog($report, $report->section('backlog')) if $report->section('backlog');
}

# Points whose x are near each other, as one.
sub medians
{
	my %at;

	push @{ $at{ int(log($_->[0]) / log(10) + 0.2) } }, $_ for @_;
	return map { my @p = @{ $at{$_} }; [ median(map { $_->[0] } @p), median(map { $_->[1] } @p) ] } sort { $a <=> $b } keys %at;
}

sub render_backlog
{
	my ($report, $s) = @_;
	my @sizes = sizes(@{ $s->{backlog} });
	my %of = map { my $side = $_; $side => [ grep { $_->{side} eq $side } @{ $s->{backlog} } ] } qw(ours usual);
	my @columns = map { my $f = $_; map { [ $_, $f ] } qw(ours usual) } qw(enqueue_us deliver_us wal);
	my %what = (enqueue_us => 'enqueue, µs', deliver_us => 'delivery, µs', wal => 'WAL of an enqueue, B');
	my %whole = map { $_->{n} => $_ } @{ $s->{whole} };

	$report->head('Cost over a backlog', $s);
	$report->say('CPU per event beside so many events that wait, sync off; medians. Ours: outbox_enqueue, and a relay to the null sink that ',
		'delivers the new events while another stands at the beginning. Usual: the usual outbox table, and two SKIP LOCKED pollers ',
		'that take the oldest by 100, right after a VACUUM. ',
		$s->{size}{growth_relays}
		? "Delivery is that of $s->{size}{growth_transactions} events by each of $s->{size}{growth_relays} relays, less what the same relay took to start and to deliver one. "
		: 'Delivery contains the start of the program, which is most of it; its slope says little. ',
		(defined $s->{backlog}[0]{at} ? '' : 'The events were not counted: the numbers are those asked for, and ours was larger by what each measurement added. '),
		'What was enqueued for a measurement stays in our backlog, and is taken from the usual one. The last column: our relay carries out the whole backlog, ',
		"start of the program included.\n");
	$report->table([ 'ours: events waiting', 'usual', (map { "$_->[0]: $what{$_->[1]}" } @columns), 'ours: whole backlog, µs' ],
		(map { my $n = $_;
			[ label($n, @{ $of{ours} }), label($n, @{ $of{usual} }), (map { my ($side, $f) = @$_; cell($f eq 'wal' ? '%.0f' : '%.2f', map { $_->{$f} } grep { $_->{n} == $n } @{ $of{$side} }) } @columns),
				$whole{$n} ? sprintf('%.2f', $whole{$n}{us}) : '' ] } @sizes),
		[ 'slope', '', (map { my ($side, $f) = @$_; slope_shown(log_slope(map { [ number_of($_), $_->{$f} ] } @{ $of{$side} })) } @columns), '' ]);
	my $file = $report->image('backlog', 'CPU per event over a backlog');
	Bench::Svg::lines($file, log_x => 1, log_y => 1, x => 'events waiting', y => 'CPU per event, µs', series => [
		map { my ($side, $f) = @$_;
			[ "$side: " . ($f eq 'enqueue_us' ? 'enqueue' : 'delivery'), medians(map { [ number_of($_), $_->{$f} ] } @{ $of{$side} }) ] } @columns[ 0 .. 3 ] ]);
}

1;
