# Latencies: quantiles and histograms.
package Bench::Report::Latency;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*thousands = \&Bench::Report::thousands;

my %who = (ours => 'our relay', pgq => 'PgQ', pgque => 'PgQue');
my @quantiles = ([ 0.5, 'p50' ], [ 0.9, 'p90' ], [ 0.99, 'p99' ], [ 0.999, 'p99.9' ]);

# What the ages are counted from: the rivals' events have no stamp of the commit.
sub since
{
	my ($who, $since) = @_;

	return 'the time it was due' if $since eq 'due';
	return $who eq 'ours' ? 'the stamp of the commit' : 'the begin of its transaction';
}

# The buckets of all rounds, or of one, of one side where there are two.
sub buckets
{
	my ($section, $who, $rate, $since, $round, $side) = @_;
	my %count;

	$count{ $_->{us} } += $_->{count}
	  for grep { $_->{who} eq $who && $_->{rate} == $rate && $_->{since} eq $since && (!$round || ($_->{round} // 1) == $round)
		  && (!$side || $_->{side} eq $side) }
	  @{ $section->{histogram} // [] };
	return map { [ $_, $count{$_} ] } sort { $a <=> $b } keys %count;
}

# Runs of a load, one per round.
sub runs_of
{
	my ($section, $who, $rate) = @_;

	return grep { $_->{who} eq $who && $_->{rate} == $rate } @{ $section->{latency} // [] };
}

# Loads in the order in which they were measured first, each once.
sub loads
{
	my ($section) = @_;
	my %seen;

	return grep { !$seen{"$_->{who} $_->{rate}"}++ } @{ $section->{latency} // [] };
}

sub events
{
	return sum(0, map { $_->{events} } @_);
}

# Of a table: p50, p90, p99 and the maximum of the rounds, in ms; events, and the share that
# has this age.  Nothing, if no event has it.
sub columns
{
	my ($section, $who, $rate, $since) = @_;
	my $counted = sum(0, map { $_->[1] } buckets($section, $who, $rate, $since)) or return;
	my @runs = runs_of($section, $who, $rate);
	my $events = events(@runs);

	return ((map { my $q = $_; Bench::Report::spread('%.1f', map { my @b = buckets($section, $who, $rate, $since, $_->{round});
				@b ? quantile($q, @b) / 1000 : () } @runs) } 0.5, 0.9, 0.99, 1),
		thousands($events), sprintf('%.0f %%', 100 * $counted / $events));
}

# A quantile within its bucket, of one run of one side.
sub in_round
{
	my ($section, $q, $run, $since) = @_;
	my @b = buckets($section, $run->{who}, $run->{rate}, $since, $run->{round}, $run->{side});
	my $missing = $run->{events} - sum(0, map { $_->[1] } @b);

	push @b, [ 9**9**9, $missing ] if $missing > 0;
	return quantile_within($q, @b);
}

# A quantile in each round.  An event without a stamp counts as later than any.
sub per_round
{
	my ($section, $q, $who, $rate, $since) = @_;
	my @seen;

	for my $run (runs_of($section, $who, $rate))
	{
		my @b = buckets($section, $who, $rate, $since, $run->{round} // 1) or next;
		my $missing = $run->{events} - sum(map { $_->[1] } @b);

		push @b, [ 9**9**9, $missing ] if $missing > 0;
		push @seen, quantile($q, @b);
	}
	return @seen;
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('latency') // {};
	my $rate = 1000;

	if (runs_of($section, 'ours', $rate))
	{
		$report->target(section => 'latency', what => "commit to read by the sink program at $rate events/s, $_->[0], µs", reads => 'ours', relation => '≤',
			goal => $_->[2], format => '%.0f', profile => 'latency', values => [ per_round($section, $_->[1], 'ours', $rate, 'commit') ])
		  for [ 'p50', 0.5, 100 ], [ 'p99', 0.99, 500 ];
	}
	for my $who (qw(pgque pgq))
	{
		my @ours = per_round($section, 0.5, 'ours', 100, 'commit');
		my @theirs = per_round($section, 0.5, $who, 100, 'commit');

		$report->target(section => 'latency', what => "latency vs $who{$who}'s at its default tick, p50, 100 events/s", reads => 'ours / theirs', relation => '≤',
			goal => 0.01, format => '%.4f', profile => 'latency', values => [ map { $ours[$_] / $theirs[$_] } 0 .. min($#ours, $#theirs) ]);
	}
}

# Shares of events per quarter of a power of two.
sub shares
{
	my @b = @_;
	my $all = sum(map { $_->[1] } @b);
	my %share;

	$share{ int(4 * log($_->[0] + 1) / log(2)) } += 100 * $_->[1] / $all for @b;
	my @keys = sort { $a <=> $b } keys %share;
	return map { [ 2**(($_ + 0.5) / 4), $share{$_} // 0 ] } $keys[0] - 1 .. $keys[-1] + 1;
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('latency') or return;
	my @loads = loads($section);
	my $size = $section->{size};
	my $rounds = $size->{latency_rounds} // 1;

	$report->head('Latency', $section);
	$report->say('Until the consumer has read the event; synchronous_commit on. Arrivals are a Poisson schedule that does not wait for ',
		'the server, and "due" is the scheduled time: it contains the enqueueing transaction and every delay before it, so no omission ',
		'is coordinated. ', "$size->{latency_seconds} s per line in $rounds ", $rounds == 1 ? 'round' : 'rounds in turns', '. ',
		'Ours: a relay to a sink program; events that leave in one batch of commits carry the stamp of the first, ',
		'an upper bound. Events that the relay found while it was busy with others carry no stamp: their share is shown, the quantiles since the ',
		'commit leave them out here, and the targets count them as later than any limit. ',
		"PgQ: ticker() each second, ticker_max_lag 3 s, ticker_max_count 500 (pgqd's and the queue's defaults). ",
		'PgQue, where it is there: ticker() each 100 ms, and every call may tick. Both are asked for a batch every 2 ms; ',
		"their events carry the begin of the transaction, not its commit. Microseconds; in brackets the least and the greatest round.\n");
	$report->table([ 'consumer', 'events/s', 'since', (map { $_->[1] } @quantiles), 'max', 'events', 'without stamp' ],
		map { my $load = $_; map { line($section, $load, $_) } qw(commit due) } @loads);
	for my $since (qw(commit due))
	{
		my $what = $since eq 'due' ? since('', 'due') : 'the stamp of the commit, or the begin of the transaction for rivals';
		my $file = $report->image("latency-$since", "histogram of the latencies since $what");

		Bench::Svg::lines($file, log_x => 1, no_dots => 1, x => "microseconds since $what",
			y => '% of events per quarter of a power of two', series => [
			map { my $l = $_; my @b = buckets($section, $l->{who}, $l->{rate}, $since);
				@b ? [ "$who{$l->{who}}, $l->{rate}/s", shares(@b) ] : () } @loads ]);
	}
}

# A line of the table, if there is anything to show.
sub line
{
	my ($section, $load, $since) = @_;
	my @which = (@$load{qw(who rate)}, $since);
	my @b = buckets($section, @which) or return;
	my $counted = sum(map { $_->[1] } @b);
	my $events = events(runs_of($section, @which));
	my @rounds = map { my @r = buckets($section, @which, $_->{round} // 1); @r ? [@r] : () } runs_of($section, @which);

	return [ $who{ $load->{who} }, $load->{rate}, since($load->{who}, $since),
		(map { my $q = $_->[0]; with_rounds(quantile($q, @b), map { quantile($q, @$_) } @rounds) } @quantiles),
		thousands($b[-1][0]), thousands($events), sprintf('%.1f %%', 100 * ($events - $counted) / $events) ];
}

sub with_rounds
{
	my ($all, @rounds) = @_;

	return thousands($all) if @rounds < 2;
	return sprintf '%s (%s – %s)', map { thousands($_) } $all, min(@rounds), max(@rounds);
}

1;
