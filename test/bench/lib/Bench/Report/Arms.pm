# Claims and enqueues: rates, ratios, targets.
package Bench::Report::Arms;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*cell = \&Bench::Report::cell;
*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

# Among them floors: what an arm of ours cannot go beyond.
my @pairs = (
	[ 'claim_txn', 'flow' ], [ 'claim_one', 'flow' ], [ 'claim_pipe', 'flow_pipe' ],
	[ 'frame_txn', 'flow' ], [ 'floor', 'conflict' ], [ 'floor', 'flow_pipe' ],
	[ 'claim_one', 'conflict' ], [ 'claim_one', 'floor' ], [ 'claim_100', 'flow' ],
	[ 'claim_100_one', 'flow' ], [ 'claim_100', 'conflict_100' ], [ 'claim_100_one', 'conflict_100' ],
	[ 'claim_100_one', 'floor_100' ], [ 'floor_100', 'conflict_100' ],
	[ 'enq_ours', 'enq_floor' ], [ 'enq_ours', 'enq_usual' ], [ 'enq_ours', 'enq_emit' ],
	[ 'enq_ours', 'enq_pgq' ], [ 'enq_ours_bytes', 'enq_pgq' ],
	[ 'enq_ours', 'enq_pgque' ], [ 'enq_floor', 'enq_pgque' ], [ 'enq_ours', 'enq_pgmq' ],
	[ 'many_ours', 'many_usual' ], [ 'many_floor', 'many_usual' ], [ 'many_ours', 'many_pgq' ], [ 'many_ours', 'many_pgque' ], [ 'many_ours', 'many_pgmq' ],
	[ 'many_ours', 'enq_usual' ]);

# {arm}{sync}[round]
sub by_arm
{
	my ($section) = @_;
	my %run;

	for my $r (@{ $section->{run} // [] })
	{
		$run{ $r->{arm} }{ $r->{sync} }[ $r->{round} - 1 ] =
		  { %$r, per_core => $r->{cpu_us} > 0 ? 1e6 / $r->{cpu_us} : 0 };
	}
	return \%run;
}

sub values_of
{
	my ($run, $arm, $sync, $field) = @_;

	return map { $_->{$field} } grep { defined } @{ $run->{$arm}{$sync} // [] };
}

# Within each round.
sub ratios
{
	my ($run, $one, $other, $sync, $field) = @_;
	my @a = @{ ($run->{$one} // {})->{$sync} // [] };
	my @b = @{ ($run->{$other} // {})->{$sync} // [] };

	return map { $a[$_]{$field} / $b[$_]{$field} }
	  grep { $a[$_] && $b[$_] && $b[$_]{$field} > 0 } 0 .. $#a;
}

sub targets
{
	my ($report) = @_;

	claim_targets($report, by_arm($report->section('claims') // {}));
	enqueue_targets($report, by_arm($report->section('enqueues') // {}));
}

sub ratio_target
{
	my ($report, $run, $what, $one, $other, $sync, $field, $relation, $goal) = @_;

	$report->target(section => $one =~ /claim/ ? 'claims' : 'enqueues', what => "$what, sync $sync", reads => 'ours / theirs', relation => $relation, goal => $goal,
		format => '%.2f', profile => [ $one, $other ], values => [ ratios($run, $one, $other, $sync, $field) ]);
}

# CPU of two calls in a transaction is compared with what no such transaction can go
# below: its frame of four round trips, and an INSERT without its own of one.
sub floor_of_txn
{
	my ($run, $sync) = @_;
	my @cpu = map { [ map { $_ && $_->{cpu_us} } @{ ($run->{$_} // {})->{$sync} // [] } ] } qw(claim_txn frame_txn floor select1);

	return map { my $i = $_; $cpu[0][$i] / ($cpu[1][$i] + $cpu[2][$i] - $cpu[3][$i]) }
	  grep { my $i = $_; 4 == grep { $_->[$i] } @cpu } 0 .. $#{ $cpu[0] };
}

sub claim_targets
{
	my ($report, $run) = @_;
	my $rate = sub {
		my ($what, $one, $other, $sync, $goal) = @_;
		ratio_target($report, $run, "$what, events/s", $one, $other, $sync, 'rate', '≥', $goal);
	};

	for my $sync ('on', 'off')
	{
		ratio_target($report, $run, 'claim + complete in one statement vs bare INSERT with a uuid key, CPU per event',
			'claim_one', 'floor', $sync, 'cpu_us', '≤', 1.15);
		$rate->('claim + complete in one statement vs INSERT … ON CONFLICT', 'claim_one', 'conflict', $sync, 1.05);
		$report->target(section => 'claims', what => "claim + complete in one transaction vs the frame of four round trips and a bare INSERT without its own, CPU per event, sync $sync",
			reads => 'ours / theirs', relation => '≤', goal => 1.15, format => '%.2f', profile => [ 'claim_txn', 'floor' ], values => [ floor_of_txn($run, $sync) ]);
		$rate->('claim + complete in one transaction vs published flow', 'claim_txn', 'flow', $sync, $sync eq 'on' ? 1.5 : 1.8);
		$rate->('claim + complete vs published flow, both pipelined', 'claim_pipe', 'flow_pipe', $sync, 1.8);
		$rate->('claim + complete of 100 in one statement vs INSERT … ON CONFLICT of 100 rows', 'claim_100_one', 'conflict_100', $sync, 2);
		$rate->('claim + complete of 100 in one transaction vs published flow', 'claim_100', 'flow', $sync, 25);
	}
}

sub enqueue_targets
{
	my ($report, $run) = @_;

	for my $sync ('on', 'off')
	{
		ratio_target($report, $run, 'single enqueue vs INSERT into a heap with no index, CPU per event',
			'enq_ours', 'enq_floor', $sync, 'cpu_us', '≤', 1.10);
	}
	ratio_target($report, $run, 'single enqueue vs PgQue.send, events/s', 'enq_ours', 'enq_pgque', $_, 'rate', '≥', 2.5)
	  for 'on', 'off';
	ratio_target($report, $run, 'outbox_enqueue_many of 100 vs the usual outbox table, one INSERT of 100 rows, events per second of CPU',
		'many_ours', 'many_usual', $_, 'per_core', '≥', 4)
	  for 'on', 'off';
}

sub render
{
	my ($report) = @_;

	for my $part ([ 'claims', 'Claims' ], [ 'enqueues', 'Enqueues' ])
	{
		my $section = $report->section($part->[0]) or next;

		$report->head($part->[1], $section);
		render_section($report, $section, $part->[0]);
	}
}

sub render_section
{
	my ($report, $section, $name) = @_;
	my $run = by_arm($section);
	my %arm = map { $_->{name} => $_ } @{ $section->{arm} };
	my @arms = grep { $run->{ $_->{name} } } @{ $section->{arm} };
	my $size = $section->{size};

	$report->say("pgbench -M prepared, $size->{clients} clients, $size->{threads} threads, unix socket; ",
		"$size->{rounds} rounds of $size->{seconds} s per arm, in the order A B … B A; ",
		$name eq 'claims' ? 'event ids of 19 random digits' : "payload $size->{payload} bytes of JSON",
		'. Ratios are taken within a round, the arm / the other; medians (least – greatest round).');
	my $file = $report->image($name, "events per second of each arm");
	Bench::Svg::bars($file, 'events per second', 0, [ 'sync on', 'sync off' ],
		map { my $n = $_->{name}; [ $_->{title}, $n =~ /claim_|ours/, map { [ values_of($run, $n, $_, 'rate') ] } 'on', 'off' ] } @arms);
	ratio_part($report, $run, \%arm, $name);
	arm_tables($report, $run, @arms);
	$report->say("- Not run: $_->{title}. To have it: $_->{absent}.") for grep { $_->{absent} } @{ $section->{arm} };
}

sub ratio_part
{
	my ($report, $run, $arm, $name) = @_;
	my @shown = grep { $run->{ $_->[0] } && $run->{ $_->[1] } } @pairs;
	my @cell = ([ 'on', 'rate' ], [ 'off', 'rate' ], [ 'off', 'cpu_us' ], [ 'off', 'wal' ]);

	$report->table([ 'arm', 'to', 'rate, sync on', 'rate, sync off', 'CPU per event, off', 'WAL per event, off' ],
		map { my $p = $_; [ (map { $arm->{$_}{title} } @$p), map { spread('%.2f', ratios($run, @$p, @$_)) } @cell ] } @shown);
	my $file = $report->image("$name-ratios", 'ratios of rates');
	Bench::Svg::bars($file, 'ratio of the rates', 1, [ 'sync on', 'sync off' ],
		map { my $p = $_; [ "$arm->{$p->[0]}{title}\n/ $arm->{$p->[1]}{title}", 0, map { [ ratios($run, @$p, $_, 'rate') ] } 'on', 'off' ] } @shown)
	  if @shown;
}

sub arm_tables
{
	my ($report, $run, @arms) = @_;

	$report->say('Per event: CPU of all processes of the server, WAL, dead rows left in the arm\'s tables, ',
		'bytes of the tables with their indexes; the last column counts dead rows gained in the catalogs ',
		'and in metadata tables, per run (0 too where a run pruned older ones).');
	for my $sync ('on', 'off')
	{
		$report->say("\nsync $sync:\n");
		$report->table([ 'arm', 'events/s', 'CPU, µs', 'WAL, B', 'dead rows', 'bytes', 'dead rows elsewhere' ],
			map {
				my $n = $_->{name};
				my @v = map { [ values_of($run, $n, $sync, $_) ] } qw(rate cpu_us wal dead bytes dead_elsewhere);
				[ $_->{title} . ($_->{about} ? "<br>$_->{about}" : ''),
					rates(@{ $v[0] }), cell('%.2f', @{ $v[1] }), cell('%.0f', @{ $v[2] }),
					cell('%.2f', @{ $v[3] }), cell('%.0f', @{ $v[4] }), max(0, @{ $v[5] }) ]
			} grep { $run->{ $_->{name} }{$sync} } @arms);
	}
	$report->say('');
}

sub rates
{
	return sprintf '%s (%s – %s)', map { thousands($_) } median(@_), min(@_), max(@_);
}

1;
