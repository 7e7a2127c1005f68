# Cost over remembered ids and over a backlog, with the slopes.
package Bench::Report::Growth;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*cell = \&Bench::Report::cell;
*thousands = \&Bench::Report::thousands;

my @sides = ([ 'ours', 'random' ], [ 'usual', 'random' ], [ 'ours', 'ordered' ], [ 'usual', 'ordered' ]);
my %ids = (random => 'random (UUIDv4)', ordered => 'time-ordered (UUIDv7)');

sub of_ids
{
	my ($section, $kind, $side, $ids) = @_;

	return grep { $_->{side} eq $side && $_->{ids} eq $ids } @{ $section->{$kind} // [] };
}

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
	my $ids = $report->section('ids') // {};
	my $backlog = $report->section('backlog') // {};
	my @ours = grep { $_->{side} eq 'ours' } @{ $backlog->{backlog} // [] };

	for my $field ([ 'enqueue_us', 'CPU of an enqueue' ], [ 'deliver_us', 'CPU of relaying an event' ], [ 'wal', 'WAL of an enqueue' ])
	{
		slope_target($report, 'backlog', "$field->[1] over a backlog" . (@ours ? ' of ' . range(@ours) : ''), undef,
			map { [ number_of($_), $_->{ $field->[0] } ] } @ours);
	}
	for my $field ([ 'cpu_us', 'CPU' ], [ 'wal', 'WAL', 'cost-over-remembered-ids' ])
	{
		for my $kind (qw(random ordered))
		{
			my @o = of_ids($ids, 'ids', 'ours', $kind);

			slope_target($report, 'ids', "$field->[1] of a claim over remembered $kind ids" . (@o ? ', ' . range(@o) : ''), $field->[2],
				map { [ number_of($_), $_->{ $field->[0] } ] } @o);
		}
	}
	for my $kind (qw(random ordered))
	{
		my ($o) = sort { $b->{n} <=> $a->{n} } of_ids($ids, 'bytes', 'ours', $kind);
		my ($u) = sort { $b->{n} <=> $a->{n} } of_ids($ids, 'bytes', 'usual', $kind);

		$report->target(section => 'ids', what => "bytes per remembered id vs the usual table, $kind ids" . ($o ? ', ' . thousands(number_of($o)) : ''),
			reads => 'ours / theirs', relation => '≤', goal => 0.5, format => '%.2f', part => 'cost-over-remembered-ids',
			values => [ $o && $u ? $o->{bytes} / $u->{bytes} : () ]);
	}
}

sub render
{
	my ($report) = @_;

	render_ids($report, $report->section('ids')) if $report->section('ids');
	render_backlog($report, $report->section('backlog')) if $report->section('backlog');
}

sub render_ids
{
	my ($report, $s) = @_;
	my @sizes = sizes(@{ $s->{ids} });
	my $title = sub { ($_[0][0] eq 'ours' ? 'claim_event' : 'INSERT … ON CONFLICT') . ", $_[0][1]" };

	$report->head('Cost over remembered ids', $s);
	$report->say('Single claims beside so many remembered ids of 36 characters, sync off: random (UUIDv4) and time-ordered (UUIDv7) ones, ',
		"$s->{size}{growth_transactions} after a checkpoint, $s->{size}{growth_rounds} rounds in turns; medians. ",
		'The server makes the ids, which is part of the CPU of each. The number of ids is the one in the middle of each measurement. ',
		'Slopes in log-log, with their standard error. ',
		'The WAL of random ids grows with their number, ours as the usual table\'s: an id falls on any page of the index, and the first ',
		'change of a page after a checkpoint logs the whole page. The more pages there are, the fewer ids share that cost; it ends at ',
		'one page per id and falls again the longer the last checkpoint is ago. Measured right after one, as here, the level is the worst there is.');
	for my $f ([ 'cpu_us', 'CPU per claim, µs', 'ids', '%.1f' ], [ 'wal', 'WAL per claim, B', 'ids', '%.0f' ],
		[ 'pages', 'Of that, images of whole pages, B', 'ids', '%.0f' ],
		[ 'bytes', 'Bytes per remembered id, indexes included', 'bytes', '%.0f' ],
		[ 'heap', 'Of them, of the row itself, with its header and its share of the page', 'bytes', '%.0f' ])
	{
		my ($field, $what, $kind, $format) = @$f;
		my $part = $what =~ /^Of /;

		next if $part && !grep { defined $_->{$field} } @{ $s->{$kind} };
		my @series = map { my $side = $_; [ $title->($side), map { [ number_of($_), $_->{$field} ] } of_ids($s, $kind, @$side) ] } @sides;

		$report->say("\n$what:\n");
		$report->table([ 'ids remembered', map { $title->($_) } @sides ],
			(map { my $n = $_; [ label($n, map { of_ids($s, $kind, @$_) } @sides), map { cell($format, map { $_->{$field} } grep { $_->{n} == $n } of_ids($s, $kind, @$_)) } @sides ] } @sizes),
			$part ? () : [ 'slope', map { slope_shown(log_slope(@{$_}[ 1 .. $#$_ ])) } @series ]);
		next if $part;
		my $file = $report->image("ids-$field", "$what over remembered ids");
		Bench::Svg::lines($file, log_x => 1, x => 'ids remembered', y => $what,
			series => [ map { [ $_->[0], medians(@{$_}[ 1 .. $#$_ ]) ] } @series ]);
	}
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
