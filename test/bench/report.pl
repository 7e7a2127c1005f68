#!/usr/bin/perl
# Make the report of what measure.pl saw.
#
#	report.pl RESULTS.tsv DIR		writes DIR/report.md and DIR/plot.svg
#
# Rates are medians over the rounds.  A ratio is taken within each round and
# then the median of those, so that what slows the whole machine for a while
# cancels; behind it stands the least and the greatest.
use strict;
use warnings;
use List::Util qw(min max sum);

my ($results, $dir) = @ARGV;
die "usage: report.pl RESULTS.tsv DIR\n" unless $dir;

my (%machine, @server, %size, @arms, %arm, %run, %relay, %latency, @memory, @slope, %pin);

sub read_results
{
	open(my $f, '<', $results) or die "$results: $!\n";
	while (my $line = <$f>)
	{
		chomp $line;
		my ($kind, @words) = split /\t/, $line;
		my %v = map { /^([^=]*)=(.*)$/ ? ($1, $2) : () } @words;

		if ($kind eq 'machine') { $machine{ $v{name} } = $v{value} }
		elsif ($kind eq 'server') { push @server, \%v }
		elsif ($kind eq 'size') { %size = %v }
		elsif ($kind eq 'arm') { push @arms, \%v; $arm{ $v{name} } = \%v }
		elsif ($kind eq 'run') { $run{ $v{arm} }{ $v{sync} }[ $v{round} - 1 ] = \%v }
		elsif ($kind eq 'relay') { push @{ $relay{ $v{kind} } }, \%v }
		elsif ($kind eq 'latency') { push @{ $latency{ $v{rate} } }, \%v }
		elsif ($kind eq 'memory') { push @memory, \%v }
		elsif ($kind eq 'slope') { push @slope, \%v }
		elsif ($kind eq 'pin') { $pin{ $v{pin} }[ $v{round} - 1 ][ $v{pinned} ] = \%v }
	}
}

sub median
{
	my @s = sort { $a <=> $b } @_;

	return @s % 2 ? $s[ $#s / 2 ] : ($s[ @s / 2 - 1 ] + $s[ @s / 2 ]) / 2;
}

sub thousands
{
	my $n = sprintf '%.0f', $_[0];

	1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;
	return $n;
}

sub values_of
{
	my ($arm, $sync, $field) = @_;

	return () unless $run{$arm};
	return map { $_->{$field} } grep { defined } @{ $run{$arm}{$sync} // [] };
}

# ---------------------------------------------------------------------------
# Targets
# ---------------------------------------------------------------------------

my @targets;

# WHAT, '≥' or '≤', GOAL, FORMAT, VALUES: met if their median is.
sub target
{
	my ($what, $relation, $goal, $format, @values) = @_;
	my $verdict = 'not measured';
	my $seen = '';

	if (@values)
	{
		my $m = median(@values);

		$seen = sprintf $format, $m;
		$seen .= sprintf " ($format – $format)", min(@values), max(@values) if @values > 1;
		$verdict = ($relation eq '≥' ? $m >= $goal : $m <= $goal) ? 'met' : '**missed**';
	}
	push @targets, [ $what, "$relation " . sprintf($format, $goal), $seen, $verdict ];
}

sub ratios
{
	my ($one, $other, $sync, $field) = @_;

	return () unless $run{$one} && $run{$other};
	my @a = @{ $run{$one}{$sync} // [] };
	my @b = @{ $run{$other}{$sync} // [] };

	return map { $a[$_]{$field} / $b[$_]{$field} }
	  grep { $a[$_] && $b[$_] && $b[$_]{$field} > 0 } 0 .. $#a;
}

sub rate_target
{
	my ($what, $one, $other, $sync, $goal) = @_;

	target("$what, sync $sync", '≥', $goal, '%.2f', ratios($one, $other, $sync, 'rate'));
}

sub claim_targets
{
	rate_target('claim + complete in one transaction vs published flow', 'claim_txn', 'flow', 'on', 2);
	rate_target('claim + complete in one transaction vs published flow', 'claim_txn', 'flow', 'off', 2.2);
	rate_target('the same as one statement', 'claim_one', 'flow', 'off', 4);
	rate_target('the same, both pipelined', 'claim_pipe', 'flow_pipe', 'off', 4);
	for my $sync ('on', 'off')
	{
		rate_target('single claim vs INSERT … ON CONFLICT', 'claim_one', 'conflict', $sync, 1);
		target("WAL of a single claim vs INSERT … ON CONFLICT, sync $sync", '≤', 1, '%.2f',
			ratios('claim_one', 'conflict', $sync, 'wal'));
		rate_target('claim_events by 100 vs published flow, events/s', 'claim_100', 'flow', $sync, 25);
		rate_target('the same as one statement', 'claim_100_one', 'flow', $sync, 25);
	}
	target('bytes per remembered id vs the table of the published flow', '≤', 0.5, '%.2f',
		ratios('claim_one', 'flow', 'off', 'bytes'));
	target('bytes per remembered id vs the table of INSERT … ON CONFLICT', '≤', 0.5, '%.2f',
		ratios('claim_one', 'conflict', 'off', 'bytes'));
}

sub outbox_targets
{
	for my $sync ('on', 'off')
	{
		target("CPU of a single enqueue vs INSERT into a heap with no index, sync $sync", '≤', 1.15,
			'%.2f', ratios('enq_ours', 'enq_floor', $sync, 'cpu_us'));
	}
	target('single enqueue vs PgQue.send (absent)', '≥', 2.5, '%.2f');
	target('CPU of the usual outbox table, row by row, vs outbox_enqueue_many, per event, sync off',
		'≥', 8, '%.2f', ratios('enq_usual', 'many_ours', 'off', 'cpu_us'));
}

sub relay_targets
{
	for my $kind (['bytea', 500_000], ['jsonb', 250_000])
	{
		target("relay to the null sink, $kind->[0], events/s per core", '≥', $kind->[1], '%.0f',
			map { $_->{events} / ($_->{worker_cpu} + $_->{sink_cpu}) } @{ $relay{ $kind->[0] } // [] });
	}
	for my $rate (sort { $a <=> $b } keys %latency)
	{
		target("commit to sink at $rate events/s, p50, µs", '≤', 100, '%.0f',
			map { $_->{p50} } @{ $latency{$rate} });
		target("commit to sink at $rate events/s, p99, µs", '≤', 1000, '%.0f',
			map { $_->{p99} } @{ $latency{$rate} });
	}
	for my $m (@memory)
	{
		target("memory of the worker, "
			  . thousands($m->{events})
			  . ($m->{what} eq 'backlog' ? ' events of backlog' : ' events in one transaction')
			  . ", MB of its own", '≤', 32, '%.1f', $m->{anon_kb} / 1024);
	}
}

sub pin_ratios
{
	my ($name) = @_;

	return map { $_->[1]{rate} / $_->[0]{rate} } grep { $_->[0] && $_->[1] } @{ $pin{$name} // [] };
}

# Student's t of the 95 % interval, by degrees of freedom.
my @student = (0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26);

sub interval
{
	my @v = @_;
	my $n = @v;
	my $mean = sum(@v) / $n;
	my $t = $student[ $n - 1 ] // 2.2;

	return ($mean, $mean) if $n < 2;
	my $half = $t * sqrt(sum(map { ($_ - $mean)**2 } @v) / ($n - 1) / $n);
	return ($mean - $half, $mean + $half);
}

# Slope of the least-squares line through the logarithms.
sub log_slope
{
	my ($field) = @_;
	my @x = map { log($_->{n}) } @slope;
	my @y = map { log($_->{$field}) } @slope;
	my ($mx, $my) = (sum(@x) / @x, sum(@y) / @y);

	return sum(map { ($x[$_] - $mx) * ($y[$_] - $my) } 0 .. $#x)
	  / sum(map { ($_ - $mx)**2 } @x);
}

my %slope_title = (
	claim => 'a claim over remembered ids',
	enqueue => 'an enqueue over a standing backlog',
	relay => 'relaying an event over a standing backlog');

sub slope_targets
{
	return unless @slope;
	my $range = join ' to ', map { sprintf '%.0e', $_ } min(map { $_->{n} } @slope), max(map { $_->{n} } @slope);

	$range =~ s/e\+0/e/g;
	target("slope of the CPU of $slope_title{$_}, $range, log-log", '≤', 0.03, '%.3f', log_slope($_))
	  for qw(claim enqueue relay);
}

my %pin_title = (
	snapshot => 'a read-only snapshot',
	writer => 'an idle writer with an xid',
	reader => 'a reader that has read the outbox',
	prepared => 'a prepared transaction');

sub pin_targets
{
	for my $name (grep { $pin{$_} } qw(snapshot writer reader prepared))
	{
		my @r = pin_ratios($name);
		my ($low, $high) = interval(@r);

		push @targets, [
			"throughput under $pin_title{$name} ($size{pin_seconds} s each)",
			'1 in the 95 % interval, its lower end ≥ 0.95',
			sprintf('%.2f (95 %%: %.2f – %.2f)', median(@r), $low, $high),
			$low >= 0.95 ? 'met'
			: $high < 1 ? '**missed**' : 'open: too short to tell' ];
	}
}

sub absent_targets
{
	push @targets, [ $_, '', '', 'not measured' ]
	  for 'relay into Kafka vs the client library\'s own producer',
	  'exactly-once vs at-least-once relay into Kafka',
	  'the same slopes up to 1e7',
	  'expiring 1e7 ids vs DELETE + VACUUM';
}

# ---------------------------------------------------------------------------
# Report
# ---------------------------------------------------------------------------

my $md;

sub say_line
{
	print $md @_, "\n";
}

sub head
{
	say_line('# Benchmark report');
	say_line('');
	say_line('Written by `make bench', $size{quick} ? ' QUICK=1' : '', '`; what is measured and how: ',
		'[test/bench/README.md](../README.md).');
	say_line('');
	say_line("> $machine{remark}\n") if $machine{remark};
	say_line('| | |');
	say_line('|---|---|');
	say_line("| $_->[0] | $_->[1] |")
	  for ['date', $machine{date}], ['commit', $machine{commit}],
	  [ 'machine', "$machine{cpu}, $machine{cores} cores, $machine{memory}, $machine{kernel}, $machine{'file system'}" ],
	  [ 'load average when it began', $machine{load} ], ['took', $machine{duration}],
	  [ 'load', "pgbench -M prepared, $size{clients} clients, $size{threads} threads, unix socket; $size{rounds} rounds of $size{seconds} s per arm, in the order A B … B A" ],
	  [ 'payload', "$size{payload} bytes of JSON" ],
	  [ 'ids of events', '19 random digits, as text' ],
	  [ 'server', join ', ', map { "$_->{name} = $_->{value}" } @server ];
	say_line('');
	say_line('"sync on" is synchronous_commit = on and idempotency.durable_complete = on; ',
		'"sync off" is both off, so that a completion is no more durable than the rivals\' rows are.');
}

sub target_table
{
	say_line("\n## Targets\n");
	say_line('Median (least – greatest round). Ratios are taken within a round.', "\n");
	say_line('| what | target | measured | |');
	say_line('|---|---|---|---|');
	say_line('| ', join(' | ', @$_), ' |') for @targets;
}

sub rate_cell
{
	my @v = values_of(@_, 'rate');

	return '' unless @v;
	return sprintf '%s (%s – %s)', map { thousands($_) } median(@v), min(@v), max(@v);
}

sub cell
{
	my ($format, @v) = @_;

	return @v ? sprintf($format, median(@v)) : '';
}

sub arm_table
{
	my ($title, @names) = @_;

	say_line("\n## $title\n");
	say_line('Per event: CPU of all processes of the server, WAL, dead rows left in the arm\'s tables, ',
		'bytes of the tables with their indexes; the last column counts dead rows in the catalogs ',
		"and in metadata tables, per run.\n");
	for my $sync ('on', 'off')
	{
		say_line("synchronous_commit $sync:\n");
		say_line('| arm | events/s | CPU, µs | WAL, B | dead rows | bytes | dead elsewhere |');
		say_line('|---|---|---|---|---|---|---|');
		for my $name (@names)
		{
			next unless $run{$name}{$sync};
			my $about = $arm{$name}{about} ? "<br>$arm{$name}{about}" : '';

			say_line("| $arm{$name}{title}$about | ", rate_cell($name, $sync), ' | ',
				cell('%.2f', values_of($name, $sync, 'cpu_us')), ' | ',
				cell('%.0f', values_of($name, $sync, 'wal')), ' | ',
				cell('%.2f', values_of($name, $sync, 'dead')), ' | ',
				cell('%.0f', values_of($name, $sync, 'bytes')), ' | ',
				max(values_of($name, $sync, 'dead_elsewhere')), ' |');
		}
		say_line('');
	}
}

my @pairs = (
	[ 'claim_txn', 'flow' ], [ 'claim_one', 'flow' ], [ 'claim_pipe', 'flow_pipe' ],
	[ 'frame_txn', 'flow' ],
	[ 'claim_one', 'conflict' ], [ 'claim_one', 'floor' ], [ 'claim_100', 'flow' ],
	[ 'claim_100', 'conflict_100' ], [ 'claim_100_one', 'conflict_100' ],
	[ 'enq_ours', 'enq_floor' ], [ 'enq_ours', 'enq_usual' ], [ 'enq_ours', 'enq_emit' ],
	[ 'enq_ours', 'enq_pgq' ], [ 'enq_ours_bytes', 'enq_pgq' ],
	[ 'many_ours', 'enq_usual' ], [ 'many_ours', 'many_usual' ]);

sub ratio_cell
{
	my @r = ratios(@_);

	return @r ? sprintf('%.2f (%.2f – %.2f)', median(@r), min(@r), max(@r)) : '';
}

sub ratio_table
{
	say_line("\n## Ratios\n");
	say_line('| arm | to | rate, sync on | rate, sync off | CPU per event, off | WAL per event, off |');
	say_line('|---|---|---|---|---|---|');
	for my $p (@pairs)
	{
		next unless $run{ $p->[0] } && $run{ $p->[1] };
		say_line("| $arm{$p->[0]}{title} | $arm{$p->[1]}{title} | ", ratio_cell(@$p, 'on', 'rate'), ' | ',
			ratio_cell(@$p, 'off', 'rate'), ' | ', ratio_cell(@$p, 'off', 'cpu_us'), ' | ',
			ratio_cell(@$p, 'off', 'wal'), ' |');
	}
}

sub relay_tables
{
	say_line("\n## Relay to the null sink\n");
	say_line('A backlog of ', thousands($size{relay_events}), ' events, committed by 100, ordering by key, ',
		"batches of 1000. CPU per event, of the worker and of the sink program, start of the program included.\n");
	say_line('| payload | events/s | worker, µs | program, µs | events/s per core | WAL, B |');
	say_line('|---|---|---|---|---|---|');
	for my $kind (sort keys %relay)
	{
		my @r = @{ $relay{$kind} };

		say_line("| $kind | ",
			thousands(median(map { $_->{events} / $_->{seconds} } @r)), ' | ',
			cell('%.2f', map { 1e6 * $_->{worker_cpu} / $_->{events} } @r), ' | ',
			cell('%.2f', map { 1e6 * $_->{sink_cpu} / $_->{events} } @r), ' | ',
			thousands(median(map { $_->{events} / ($_->{worker_cpu} + $_->{sink_cpu}) } @r)), ' | ',
			cell('%.1f', map { $_->{wal} } @r), ' |');
	}
	say_line("\n## Commit to sink\n");
	say_line('From the stamp that the commit leaves to the read of the sink program; synchronous_commit on; ',
		'arrivals on a fixed schedule (pgbench -R). The program reports once a second; ',
		"medians over these reports, the maximum over all.\n");
	say_line('| events/s | p50, µs | p90 | p99 | p99.9 | max | events |');
	say_line('|---|---|---|---|---|---|---|');
	for my $rate (sort { $a <=> $b } keys %latency)
	{
		my @l = @{ $latency{$rate} };

		say_line("| $rate | ", join(' | ', map { my $q = $_; cell('%.0f', map { $_->{$q} } @l) } qw(p50 p90 p99 p999)),
			' | ', max(map { $_->{max} } @l), ' | ', sum(map { $_->{samples} } @l), ' |');
	}
	say_line("\n## Memory of the worker\n");
	say_line('| what | of its own at most, MB | VmHWM with touched shared buffers, MB | program, MB | seconds | CPU, s |');
	say_line('|---|---|---|---|---|---|');
	for my $m (@memory)
	{
		say_line('| ', thousands($m->{events}), $m->{what} eq 'backlog' ? ' events of backlog' : ' events in one transaction',
			sprintf(' | %.1f | %.1f | %.1f | %.2f | %.2f |', $m->{anon_kb} / 1024, $m->{hwm_kb} / 1024,
				$m->{sink_hwm_kb} / 1024, $m->{seconds}, $m->{cpu}));
	}
}

sub slope_table
{
	say_line("\n## Cost over what is there already\n");
	say_line("CPU per event of single claims, single enqueues and their relay, µs, sync off, medians.\n");
	say_line('| ids remembered, or events of backlog | claim | enqueue | relay |');
	say_line('|---|---|---|---|');
	my %seen;
	for my $n (sort { $a <=> $b } grep { !$seen{$_}++ } map { $_->{n} } @slope)
	{
		my @at = grep { $_->{n} == $n } @slope;

		say_line('| ', thousands($n), ' | ',
			join(' | ', map { my $what = $_; cell('%.2f', map { $_->{$what} } @at) } qw(claim enqueue relay)), ' |');
	}
}

sub pin_table
{
	say_line("\n## Under a pinned horizon\n");
	say_line('Claims and enqueues one to one, relayed to the null sink meanwhile, sync off; ',
		"$size{pin_seconds} s held, $size{pin_seconds} s not held, in pairs. Dead rows are counted over all catalogs and all tables of the extension.\n");
	say_line('| held | transactions/s | not held | ratio | dead rows, held | not held |');
	say_line('|---|---|---|---|---|---|');
	for my $name (grep { $pin{$_} } qw(snapshot writer reader prepared))
	{
		my @r = pin_ratios($name);
		my @cells = @{ $pin{$name} };

		say_line("| $pin_title{$name} | ", thousands(median(map { $_->[1]{rate} } @cells)), ' | ',
			thousands(median(map { $_->[0]{rate} } @cells)),
			sprintf(' | %.2f (%.2f – %.2f) | ', median(@r), min(@r), max(@r)),
			max(map { $_->[1]{dead} } @cells), ' | ', max(map { $_->[0]{dead} } @cells), ' |');
	}
}

sub absent
{
	my @absent = map { $_->{title} } grep { $_->{absent} } @arms;

	say_line("\n## Not measured\n");
	say_line('- Rivals that are not in Debian and therefore absent: pgmq, PgQue.');
	say_line("- Rivals whose package is not installed here: ", join(', ', @absent), '.') if @absent;
	say_line('- Draining by consumers of the rivals (PgQ batches, SKIP LOCKED); reading by a relay is compared with its target only.');
	say_line('- Pins of ten minutes and more, slopes up to 1e7, expiry, Kafka.');
}

# ---------------------------------------------------------------------------
# Plot: rates as bars on a logarithmic scale, least to greatest as a line
# ---------------------------------------------------------------------------

my ($left, $width, $row) = (430, 520, 30);
my ($decade_low, $decade_high) = (3, 6);

sub x_of
{
	my $log = log(max($_[0], 10**$decade_low)) / log(10);

	return $left + $width * ($log - $decade_low) / ($decade_high - $decade_low);
}

sub escape
{
	my ($s) = @_;

	$s =~ s/&/&amp;/g;
	$s =~ s/</&lt;/g;
	return $s;
}

sub bar
{
	my ($svg, $y, $color, @v) = @_;
	my ($x1, $x2, $xm) = map { x_of($_) } min(@v), max(@v), median(@v);

	printf $svg qq{<rect x="%d" y="%d" width="%.1f" height="11" fill="%s"/>\n}, $left, $y, $xm - $left, $color;
	printf $svg qq{<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#000"/>\n}, $x1, $y + 5.5, $x2, $y + 5.5;
	printf $svg qq{<text x="%.1f" y="%d" font-size="10">%s</text>\n}, max($x2, $xm) + 4, $y + 9, thousands(median(@v));
}

sub plot
{
	my @shown = grep { $run{ $_->{name} } } @arms;
	my $height = 60 + $row * @shown;

	open(my $svg, '>', "$dir/plot.svg") or die "plot.svg: $!\n";
	printf $svg qq{<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">\n},
	  $left + $width + 80, $height;
	print $svg qq{<rect width="100%" height="100%" fill="#fff"/>\n};
	print $svg qq{<rect x="10" y="12" width="12" height="11" fill="#2b6ca3"/><text x="26" y="22">sync on</text>\n};
	print $svg qq{<rect x="90" y="12" width="12" height="11" fill="#e0913a"/><text x="106" y="22">sync off; events per second</text>\n};
	for my $decade ($decade_low .. $decade_high)
	{
		my $x = x_of(10**$decade);

		printf $svg qq{<line x1="%.1f" y1="34" x2="%.1f" y2="%d" stroke="#ccc"/><text x="%.1f" y="30" text-anchor="middle">%s</text>\n},
		  $x, $x, $height - 10, $x, thousands(10**$decade);
	}
	for my $i (0 .. $#shown)
	{
		my $name = $shown[$i]{name};
		my $y = 42 + $row * $i;
		my $weight = $name =~ /claim_|ours/ ? ' font-weight="bold"' : '';

		printf $svg qq{<text x="%d" y="%d" text-anchor="end"%s>%s</text>\n}, $left - 6, $y + 15, $weight, escape($shown[$i]{title});
		bar($svg, $y, '#2b6ca3', values_of($name, 'on', 'rate')) if $run{$name}{on};
		bar($svg, $y + 12, '#e0913a', values_of($name, 'off', 'rate')) if $run{$name}{off};
	}
	print $svg "</svg>\n";
	close $svg;
}

read_results();
claim_targets();
outbox_targets();
relay_targets();
slope_targets();
pin_targets();
absent_targets();
open($md, '>', "$dir/report.md") or die "report.md: $!\n";
head();
target_table();
if (%run)
{
	plot();
	say_line("\n![events per second of each arm](plot.svg)");
	ratio_table();
	arm_table('Claims', grep { !/^(enq|many)_/ } map { $_->{name} } @arms);
	arm_table('Enqueues', grep { /^(enq|many)_/ } map { $_->{name} } @arms);
}
relay_tables();
slope_table() if @slope;
pin_table() if %pin;
absent();
close $md;
