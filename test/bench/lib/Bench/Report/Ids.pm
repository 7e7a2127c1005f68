# Cost over remembered ids, with the slopes; and what it costs to forget them.
package Bench::Report::Ids;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Growth;
use Bench::Svg;

*cell = \&Bench::Report::cell;
*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;
*number_of = \&Bench::Report::Growth::number_of;
*label = \&Bench::Report::Growth::label;

my $part = 'cost-over-remembered-ids';
my @kinds = qw(random ordered);
my @syncs = qw(off on);
my @sides = map { [ 'ours', $_ ], [ 'usual', $_ ] } @kinds;
my %side = (ours => 'claim_event', usual => 'INSERT … ON CONFLICT', bare => 'bare INSERT');
my %way = (ours => 'ours: runs expire', delete => 'usual table: DELETE, VACUUM', drop => 'usual table: DROP of a partition');

# Rows of a kind in which all of these hold.
sub rows
{
	my ($section, $kind, %want) = @_;

	return grep { my $row = $_; !grep { ($row->{$_} // '') ne $want{$_} } keys %want } @{ ($section // {})->{$kind} // [] };
}

sub sum_of
{
	my ($field, @rows) = @_;

	return sum(0, map { $_->{$field} } @rows);
}

# What it cost to pack an entry: of those steps of the packer that merged nothing, at this
# size if there were any, else at all sizes.
sub per_packed
{
	my ($section, $n, $field) = @_;
	my @all = grep { !$_->{merged} } rows($section, 'pack');
	my @here = grep { $_->{n} == $n } @all;
	my @used = sum_of('packed', @here) ? @here : @all;
	my $packed = sum_of('packed', @used) or return;

	return sum_of($field, @used) / $packed;
}

# What it cost to merge an entry: of all steps that merged, less what they packed.  If
# none was seen, as much as to pack one, which is more.
sub per_merged
{
	my ($section, $n, $field) = @_;
	my @used = grep { $_->{merged} } rows($section, 'pack');
	my $packed = per_packed($section, $n, $field) // return;

	return $packed unless @used;
	return max(0, sum_of($field, @used) - $packed * sum_of('packed', @used)) / sum_of('merged', @used);
}

# What packing has cost for each remembered id up to a size.
sub packing
{
	my ($section, $ids, $n, $field) = @_;
	my ($written) = rows($section, 'writes', ids => $ids, n => $n) or return;
	my $packed = per_packed($section, $n, $field) // return;

	return $packed * $written->{packed} + per_merged($section, $n, $field) * $written->{merged};
}

# [number of ids, WAL of a claim and of its packing]
sub whole_wal
{
	my ($section, $ids) = @_;

	return map {
		my $packing = packing($section, $ids, $_->{n}, 'wal');
		defined $packing ? [ number_of($_), $_->{wal} + $packing, $_->{n} ] : ()
	} rows($section, 'ids', side => 'ours', ids => $ids, sync => 'off');
}

# Of [number, value, size] those of the size where the median is greatest.
sub worst
{
	my %at;

	push @{ $at{ $_->[2] } }, $_ for @_;
	my ($worst) = sort { median(map { $_->[1] } @$b) <=> median(map { $_->[1] } @$a) } values %at;
	return @{ $worst // [] };
}

# Values of one side over those of another, within rounds.
sub ratios
{
	my ($section, $other, $field, %where) = @_;
	my %theirs = map { $_->{round} => $_->{$field} } rows($section, 'ids', side => $other, %where);

	return map { $_->{$field} / $theirs{ $_->{round} } } grep { $theirs{ $_->{round} } } rows($section, 'ids', side => 'ours', %where);
}

sub largest
{
	return max(0, map { $_->{n} } @_);
}

# ---------------------------------------------------------------------------
# Targets
# ---------------------------------------------------------------------------

sub targets
{
	my ($report) = @_;
	my $section = $report->section('ids');

	slope_targets($report, $section);
	wal_targets($report, $section);
	size_targets($report, $section);
	rival_targets($report, $section);
	expiry_targets($report, $section);
}

sub row
{
	my ($report, %row) = @_;

	$report->target(section => 'ids', part => $part, %row);
}

sub slope_targets
{
	my ($report, $section) = @_;

	for my $ids (@kinds)
	{
		my @off = rows($section, 'ids', side => 'ours', ids => $ids, sync => 'off');
		my $range = @off ? ', ' . Bench::Report::Growth::range(@off) : '';

		for my $sync (@syncs)
		{
			Bench::Report::Growth::slope_target($report, 'ids', "CPU of a claim over remembered $ids ids, sync $sync$range", undef,
				map { [ number_of($_), $_->{cpu_us} ] } rows($section, 'ids', side => 'ours', ids => $ids, sync => $sync));
		}
		Bench::Report::Growth::slope_target($report, 'ids', "WAL of a claim over remembered $ids ids$range", $part,
			map { [ number_of($_), $_->{wal} ] } @off);
		Bench::Report::Growth::slope_target($report, 'ids', "WAL of a claim and its packing over remembered $ids ids$range", $part,
			whole_wal($section, $ids));
	}
}

# At the size where it is worst.
sub wal_targets
{
	my ($report, $section) = @_;

	for my $ids (@kinds)
	{
		my @alone = worst(map { [ number_of($_), $_->{wal}, $_->{n} ] } rows($section, 'ids', side => 'ours', ids => $ids, sync => 'off'));
		my @whole = worst(whole_wal($section, $ids));

		for my $t ([ 'WAL of a claim', 200, @alone ], [ 'WAL of a claim and its packing', 400, @whole ])
		{
			my ($what, $goal, @points) = @$t;

			row($report, what => "$what right after a checkpoint, B, $ids ids" . (@points ? ', worst size: ' . thousands($points[0][2]) : ''),
				reads => 'ours', relation => '≤', goal => $goal, format => '%.0f', values => [ map { $_->[1] } @points ]);
		}
	}
}

sub size_targets
{
	my ($report, $section) = @_;

	for my $ids (@kinds)
	{
		my ($last) = sort { $b->{n} <=> $a->{n} } rows($section, 'bytes', side => 'ours', ids => $ids);
		my $n = $last ? $last->{n} : 0;

		row($report, what => "bytes per remembered id, $ids ids" . ($last ? ', ' . thousands(number_of($last)) : ''),
			reads => 'ours', relation => '≤', goal => $n >= 1e8 ? 20 : 25, format => '%.1f', values => [ $last ? $last->{bytes} : () ],
			until => $n >= 1e7 ? '' : '10,000,000 ids');
	}
	my $n = largest(@{ ($section // {})->{lookup} // [] });
	row($report, what => 'look-up of an event that is not among packed ones, less the same in an empty store, µs of CPU' . ($n ? ', ' . thousands($n) : ''),
		reads => 'ours', relation => '≤', goal => 3, format => '%.2f', values => [ searches($section, 'random', $n) ],
		until => $n >= 1e8 ? '' : '100,000,000 ids');
}

# Look-ups at a size, less those in an empty store.
sub searches
{
	my ($section, $ids, $n) = @_;
	my @empty = map { $_->{cpu_us} } rows($section, 'lookup', ids => $ids, n => 0);

	return @empty ? map { $_->{cpu_us} - median(@empty) } rows($section, 'lookup', ids => $ids, n => $n) : ();
}

sub rival_targets
{
	my ($report, $section) = @_;
	my $n = largest(rows($section, 'ids', side => 'usual'));

	for my $sync (@syncs)
	{
		my %where = (ids => 'random', sync => $sync, n => $n);
		my $beside = 'random ids' . ($n ? ', ' . thousands($n) : '') . ", sync $sync";

		row($report, what => "claim + complete in one statement vs INSERT … ON CONFLICT, events/s, $beside", reads => 'ours / theirs',
			relation => '≥', goal => 1.05, format => '%.2f', values => [ ratios($section, 'usual', 'rate', %where) ]);
		row($report, what => "claim + complete in one statement vs bare INSERT into an empty table, CPU per event, $beside",
			reads => 'ours / theirs', relation => '≤', goal => 1.15, format => '%.2f', values => [ ratios($section, 'bare', 'cpu_us', %where) ]);
	}
}

# Per id, within rounds.
sub expiry_ratios
{
	my ($section, $other, $field) = @_;
	my %theirs = map { $_->{round} => $_->{$field} / $_->{ids} } rows($section, 'expire', way => $other);

	return map { $_->{$field} / $_->{ids} / $theirs{ $_->{round} } } grep { $theirs{ $_->{round} } } rows($section, 'expire', way => 'ours');
}

sub expiry_targets
{
	my ($report, $section) = @_;
	my $n = max(0, map { $_->{ids} } rows($section, 'expire', way => 'delete'));

	for my $t ([ 'cpu', 'CPU', 0.001, '%.5f' ], [ 'wal', 'WAL', 0.001, '%.7f' ], [ 'seconds', 'wall time', 0.01, '%.5f' ])
	{
		my ($field, $what, $goal, $format) = @$t;

		row($report, what => 'expiring' . ($n ? ' ' . thousands($n) : '') . " ids vs DELETE + VACUUM, $what", reads => 'ours / theirs',
			relation => '≤', goal => $goal, format => $format, values => [ expiry_ratios($section, 'delete', $field) ],
			until => $n >= 1e7 ? '' : '10,000,000 ids');
	}
}

# ---------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------

sub render
{
	my ($report) = @_;
	my $s = $report->section('ids') or return;

	$report->head('Cost over remembered ids', $s);
	$report->say('Single claims beside so many remembered ids of 36 characters: random (UUIDv4) and time-ordered (UUIDv7) ones, ',
		"$s->{size}{growth_transactions} right after a checkpoint, $s->{size}{clients} clients, $s->{size}{ids_rounds} rounds in turns; medians. ",
		'The server makes the ids, which is part of the CPU of each. The number of ids is the one in the middle of each measurement. ',
		'Slopes in log-log, with their standard error. Claims and their packing are measured apart: the sessions of a measurement ask ',
		'for no packer, and after it, right after another checkpoint, the packer works alone. ',
		'The WAL of our claims depends on how full the segment is that they write to when the checkpoint comes, which differs from round to round. ',
		'The bare INSERT goes into a table that is empty before, whatever the number of ids. ',
		'From some ten million ids on the filters do not fit the caches of the processor, and the store outgrows the shared buffers: ',
		'a claim waits for memory then, and reads pages that were driven out.');
	by_size($report, $s, @$_) for
	  [ 'cpu_us', 'CPU per claim, µs, sync off', '%.1f', 'ids', sync => 'off' ], [ 'cpu_us', 'CPU per claim, µs, sync on', '%.1f', 'ids', sync => 'on' ],
	  [ 'wal', 'WAL per claim, B', '%.0f', 'ids', sync => 'off' ], [ 'pages', 'Of that, images of whole pages, B', '%.0f', 'ids', sync => 'off' ],
	  [ 'bytes', 'Bytes per remembered id, indexes included', '%.1f', 'bytes' ];
	packing_table($report, $s);
	ratio_table($report, $s);
	growth_table($report, $s);
	lookup_table($report, $s);
	expiry_table($report, $s);
}

# A column for each side, and a plot of those with the claims' main figures.
sub by_size
{
	my ($report, $s, $field, $what, $format, $kind, %where) = @_;
	my @columns = (@sides, $kind eq 'ids' ? [ 'bare', 'random' ] : ());
	my @of = map { [ "$side{$_->[0]}, $_->[1]", rows($s, $kind, side => $_->[0], ids => $_->[1], %where) ] } @columns;
	my @series = map { my ($title, @rows) = @$_; [ $title, map { [ number_of($_), $_->{$field} ] } @rows ] } @of[ 0 .. $#sides ];

	$report->say("\n$what:\n");
	$report->table([ 'ids remembered', map { $_->[0] } @of ], (map { size_row($field, $format, $_, @of) } Bench::Report::Growth::sizes(rows($s, $kind, %where))),
		$field eq 'pages' ? () : [ 'slope', (map { Bench::Report::Growth::slope_shown(log_slope(@{$_}[ 1 .. $#$_ ])) } @series), ('') x (@columns - @series) ]);
	return if $field eq 'pages' || ($where{sync} // 'off') ne 'off';
	my $file = $report->image("ids-$field", "$what over remembered ids");
	Bench::Svg::lines($file, log_x => 1, x => 'ids remembered', y => $what,
		series => [ map { [ $_->[0], Bench::Report::Growth::medians(@{$_}[ 1 .. $#$_ ]) ] } grep { @$_ > 1 } @series ]);
}

sub size_row
{
	my ($field, $format, $n, @of) = @_;
	my @here = map { my (undef, @rows) = @$_; [ grep { $_->{n} == $n } @rows ] } @of;

	return [ label($n, map { @$_ } @here[ 0 .. $#sides ]), map { cell($format, map { $_->{$field} } @$_) } @here ];
}

sub packing_table
{
	my ($report, $s) = @_;
	my @rows;

	for my $ids (@kinds)
	{
		for my $n (Bench::Report::Growth::sizes(rows($s, 'writes', ids => $ids)))
		{
			my ($writes) = rows($s, 'writes', ids => $ids, n => $n);
			my @p = map { [ per_packed($s, $n, $_), per_merged($s, $n, $_), packing($s, $ids, $n, $_) ] } qw(wal cpu);

			push @rows, [ $ids, thousands(number_of($writes)), sprintf('%.2f', $writes->{packed}), sprintf('%.2f', $writes->{merged}),
				(map { cell('%.1f', $_ // ()) } @{ $p[0] }), (map { cell('%.2f', defined $_ ? 1e6 * $_ : ()) } @{ $p[1] }),
				cell('%.0f', map { $_->[1] } grep { $_->[2] == $n } whole_wal($s, $ids)) ];
		}
	}
	$report->say("\nPacking by the packer alone, right after a checkpoint. The levels of the runs tell how often an id was packed, and then merged, so far; ",
		'what that costs is what the packer took, over the entries of the runs that it made. ',
		(grep { $_->{merged} } rows($s, 'pack')) ? '' : 'It merged nothing here: to merge an entry counts as much as to pack one. ',
		'A run writes its filter into pages that it shares with up to eleven other runs; right after a checkpoint each of these pages is logged as a whole, ',
		"which is what merging logs beyond 16 bytes of each digest.\n");
	$report->table([ 'ids', 'remembered', 'packed', 'merged', 'WAL to pack one, B', 'to merge one', 'WAL of packing per id, B',
		'CPU to pack one, µs', 'to merge one', 'CPU of packing per id, µs', 'WAL of a claim and its packing, B' ], @rows);
}

sub ratio_table
{
	my ($report, $s) = @_;
	my @rows;

	for my $ids (@kinds)
	{
		for my $n (Bench::Report::Growth::sizes(rows($s, 'ids', side => 'ours', ids => $ids)))
		{
			push @rows, [ $ids, thousands($n), map {
				my ($other, $field) = @$_;
				map { spread('%.2f', ratios($s, $other, $field, ids => $ids, n => $n, sync => $_)) } 'on', 'off'
			} [ 'usual', 'rate' ], [ 'usual', 'cpu_us' ], [ 'bare', 'rate' ], [ 'bare', 'cpu_us' ] ];
		}
	}
	$report->say("\nClaim and completion in one statement, over the rival within a round:\n");
	$report->table([ 'ids', 'remembered', map { my $to = $_; map { my $what = $_; map { "$what to $to, sync $_" } 'on', 'off' } 'rate', 'CPU' }
			'INSERT … ON CONFLICT', 'bare INSERT' ], @rows);
}

sub growth_table
{
	my ($report, $s) = @_;

	$report->say("\nGrowth by 100, $s->{size}{clients} clients, sync off, the packer beside them; its CPU is part of that per id:\n");
	$report->table([ 'ids', 'side', 'up to', 'ids/s', 'CPU per id, µs', 'of that, packer', 'WAL per id, packing included, B' ],
		map { [ $_->{ids}, $_->{side}, thousands($_->{n}), thousands($_->{rate}), sprintf('%.2f', $_->{cpu_us}),
				$_->{side} eq 'ours' ? sprintf('%.2f', $_->{packer_us}) : '', sprintf('%.0f', $_->{wal}) ] } @{ $s->{growth} // [] });
}

sub lookup_table
{
	my ($report, $s) = @_;
	my @rows;

	for my $ids (@kinds)
	{
		for my $n (Bench::Report::Growth::sizes(rows($s, 'lookup', ids => $ids)))
		{
			my @r = rows($s, 'lookup', ids => $ids, n => $n);

			push @rows, [ $ids, label($n, @r), (map { my $f = $_; spread('%.2f', map { $_->{$f} } @r) } qw(cpu_us us)),
				$n ? spread('%.2f', searches($s, $ids, $n)) : '' ];
		}
	}
	$report->say("\nevent_status of ids that nobody knows, one session, warm caches, the making of the id included; medians (least – greatest round):\n");
	$report->table([ 'ids', 'remembered', 'CPU, µs', 'wall, µs', 'CPU less that in an empty store, µs' ], @rows);
}

sub expiry_table
{
	my ($report, $s) = @_;
	my @rows;

	for my $way (qw(ours delete drop))
	{
		my @r = rows($s, 'expire', way => $way) or next;

		push @rows, [ $way{$way}, thousands(median(map { $_->{ids} } @r)), spread('%.2f', map { 1e3 * $_->{cpu} } @r),
			spread('%.2f', map { 1e3 * $_->{seconds} } @r), spread('%.0f', map { $_->{wal} } @r),
			map { my $f = $_; $way eq 'ours' ? '' : spread('%.5f', expiry_ratios($s, $way, $f)) } qw(cpu seconds wal) ];
	}
	return unless @rows;
	$report->say("\nForgetting ids whose retention is over, right after a checkpoint; the last columns are ours over theirs, per id. ",
		'No row stays in the usual table, which is the best case for DELETE and VACUUM. A table in partitions by time tells ',
		"duplicates only within a partition:\n");
	$report->table([ 'how', 'ids', 'CPU, ms', 'wall, ms', 'WAL, B', 'CPU ratio', 'wall ratio', 'WAL ratio' ], @rows);
}

1;
