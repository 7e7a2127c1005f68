# Offsets and sequences.
package Bench::Report::Cursors;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Arms;
use Bench::Report::UnderPin;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

sub growth
{
	my ($section) = @_;

	return sort { $a->{part} <=> $b->{part} } @{ $section->{growth} // [] };
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('cursors') // {};
	my $run = Bench::Report::Arms::by_arm($section);
	my @growth = growth($section);

	for my $sync ('on', 'off')
	{
		$report->target(section => 'cursors', what => "claim_offset of one record vs a claim and its completion in one statement, rate, sync $sync", reads => 'ours / theirs',
			relation => '≥', goal => 1.2, format => '%.2f', profile => [ 'offset_one', 'claim_one' ],
			values => [ Bench::Report::Arms::ratios($run, 'offset_one', 'claim_one', $sync, 'rate') ]);
		$report->target(section => 'cursors', what => "$_->[0] of one record vs UPDATE of a row of a table of its own, CPU, sync $sync", reads => 'ours / theirs',
			relation => '≤', goal => 1.15, format => '%.2f', profile => [ "$_->[1]_one", "$_->[1]_floor" ],
			values => [ Bench::Report::Arms::ratios($run, "$_->[1]_one", "$_->[1]_floor", $sync, 'cpu_us') ])
		  for [ 'claim_offset', 'offset' ], [ 'claim_sequence', 'sequence' ];
		$report->target(section => 'cursors', what => "500 rows with $_->[0] and a claim of their range vs the rows alone, time, sync $sync", reads => 'ours / theirs',
			relation => '≤', goal => 1.1, format => '%.2f', values => [ Bench::Report::Arms::ratios($run, "rows_500$_->[1]", "offset_500$_->[1]", $sync, 'rate') ])
		  for [ 'a primary key', '_key' ], [ 'no index', '' ];
	}
	if (@growth)
	{
		my $half = @growth / 2;

		# The log turns, so its size goes up and down; the most in each half tells.
		$report->target(section => 'cursors', what => 'most bytes of the log in the second half of ' . thousands($growth[-1]{claims}) . ' claims in one partition vs in the first',
			reads => 'second / first', relation => '≤', goal => 2, format => '%.2f',
			values => [ max(map { $_->{bytes} } @growth[ $half .. $#growth ]) / max(map { $_->{bytes} } @growth[ 0 .. $half - 1 ]) ]);
		$report->target(section => 'cursors', what => 'the same, dead rows', reads => 'ours', relation => '≤', goal => 0, format => '%.0f', values => [ $growth[-1]{dead} ]);
	}
	Bench::Report::UnderPin::targets($report, 'cursors', 'claim_offset', $section->{offset} // []);
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('cursors') or return;
	my $run = Bench::Report::Arms::by_arm($section);
	my @arms = grep { $run->{ $_->{name} } } @{ $section->{arm} };
	my $size = $section->{size};

	$report->head('Offsets and sequences', $section);
	$report->say("pgbench -M prepared, $size->{clients} clients, a partition each, $size->{rounds} rounds of $size->{seconds} s per arm in turns, as the claims.");
	Bench::Report::Arms::arm_tables($report, $run, @arms);
	$report->say('What one more statement takes that does nothing: the 500 rows without an index and a SELECT 1 have '
		  . join('; ', map { spread('%.2f', Bench::Report::Arms::ratios($run, 'rows_500', 'rows_500_frame', $_, 'rate')) . " of the rows' time with sync $_" } 'on', 'off') . '. ')
	  if $run->{rows_500_frame};
	$report->say('A bare INSERT of one row reaches '
		  . join('; ', map { spread('%.2f', Bench::Report::Arms::ratios($run, 'floor', 'claim_one', $_, 'rate')) . " of the rate of a claim and its completion with sync $_" } 'on', 'off')
		  . '. No claim_offset can be faster: it writes such a row, too.') if $run->{floor} && $run->{claim_one};
	$report->say("\nOne session claims one record after the other in one partition, a thousand in a transaction; sync off.\n");
	$report->table([ 'claims', 'µs per claim', 'bytes of the log', 'dead rows' ],
		map { [ thousands($_->{claims}), sprintf('%.1f', $_->{us}), thousands($_->{bytes}), $_->{dead} ] } growth($section));
	$report->say("\nOne session claims in one partition over and over, a record in a transaction, while something holds the horizon; sync off, each fifth after a checkpoint.\n");
	Bench::Report::UnderPin::table($report, $section->{offset} // [], 'claims');
}

1;
