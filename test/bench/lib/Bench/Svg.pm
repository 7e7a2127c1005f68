# Plots as SVG by hand, readable on light and on dark.
package Bench::Svg;
use strict;
use warnings;
use List::Util qw(min max);

my @colors = qw(a b c d e f);
my $style = <<'END';
<style>
text{font:12px sans-serif;fill:#222}.s{font-size:10px}.t{font-weight:bold}
.bg{fill:#fff}.grid{stroke:#ccc;fill:none}.err{stroke:#222}
.a{fill:#2b6ca3;stroke:#2b6ca3}.b{fill:#d9822b;stroke:#d9822b}.c{fill:#3a8f4d;stroke:#3a8f4d}
.d{fill:#a3423b;stroke:#a3423b}.e{fill:#7a5aa6;stroke:#7a5aa6}.f{fill:#6b6b6b;stroke:#6b6b6b}
.line{fill:none;stroke-width:2}.one{stroke:#222;stroke-width:2}.band{fill-opacity:.15;stroke:none}.mean{stroke-dasharray:5 3}
@media (prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#161b22}.grid{stroke:#444}.err{stroke:#ddd}
.a{fill:#5aa0dc;stroke:#5aa0dc}.b{fill:#f0a050;stroke:#f0a050}.c{fill:#5fbf74;stroke:#5fbf74}
.d{fill:#e07a70;stroke:#e07a70}.e{fill:#a98bd6;stroke:#a98bd6}.f{fill:#aaa;stroke:#aaa}.line{fill:none}.one{stroke:#ddd}.band{stroke:none}}
</style>
END

sub escape
{
	my ($s) = @_;

	$s =~ s/&/&amp;/g;
	$s =~ s/</&lt;/g;
	return $s;
}

sub number
{
	my ($v) = @_;

	return sprintf('%g', $v) if $v < 1000;
	my $n = sprintf '%.0f', $v;
	1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;
	return $n;
}

sub write_file
{
	my ($file, $width, $height, @body) = @_;

	open(my $f, '>', $file) or die "$file: $!\n";
	printf $f qq{<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">\n%s}
	  . qq{<rect class="bg" width="100%%" height="100%%"/>\n}, $width, $height, $width, $height, $style;
	print $f @body, "</svg>\n";
	close $f;
}

# The names in rows that fit in the width, and the height they need.
sub legend
{
	my ($width, @names) = @_;
	my ($x, $y) = (10, 10);
	my @out;

	for my $i (0 .. $#names)
	{
		my $needs = 34 + 7 * length $names[$i];

		($x, $y) = (10, $y + 17) if $x > 10 && $x + $needs > $width;
		push @out, sprintf qq{<rect class="%s" x="%d" y="%d" width="12" height="11"/><text x="%d" y="%d">%s</text>\n},
		  $colors[ $i % @colors ], $x, $y, $x + 16, $y + 10, escape($names[$i]);
		$x += $needs;
	}
	return ($y + 17, @out);
}

# A scale: value to coordinate, and the values to mark.
sub scale
{
	my ($log, $low, $high, $from, $to) = @_;

	if ($log)
	{
		my ($l, $h) = (log($low), log($high));
		my @marks = map { 10**$_ } POSIX_ceil(log($low) / log(10) - 1e-9) .. int(log($high) / log(10) + 1e-9);

		@marks = ($low, $high) if @marks < 2;
		return (sub { $from + ($to - $from) * (log(max($_[0], $low)) - $l) / (($h - $l) || 1) }, @marks);
	}
	my $step = 10**int(log(($high - $low) || 1) / log(10));
	$step /= 2 while ($high - $low) / $step < 4;
	my @marks = map { $low + $_ * $step } 0 .. int(($high - $low) / $step + 1e-9);
	return (sub { $from + ($to - $from) * ($_[0] - $low) / (($high - $low) || 1) }, @marks);
}

sub POSIX_ceil
{
	my $i = int $_[0];

	return $i < $_[0] ? $i + 1 : $i;
}

# Bars on a logarithmic axis: rows of [label, bold, [values], ...], one list of
# values per series; the bar is the median, the thin line least to greatest.
# Bars begin at the left, or at the value $origin, which is drawn as a line.
# A label may have two lines.
sub bars
{
	my ($file, $unit, $origin, $series, @rows) = @_;
	my ($left, $width) = (430, 480);
	my @all = map { @$_ } map { @{$_}[ 2 .. $#$_ ] } @rows;
	my $low = 10**int(log(min(@all)) / log(10) - (min(@all) < 1 ? 1 : 0));
	my $high = max(@all);
	my $each = 12 * @$series + 6;
	my ($top, @out) = legend($left + $width - 110, @$series);
	my $height = $top + 33 + $each * @rows;
	my ($x, @marks) = scale(1, $low, 10**POSIX_ceil(log($high) / log(10)), $left, $left + $width);
	my $from = $origin ? $x->($origin) : $left;

	push @out, sprintf qq{<text class="s" x="%d" y="20" text-anchor="end">%s</text>\n}, $left + $width, escape($unit);
	push @out, sprintf qq{<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/><text class="s" x="%.1f" y="%d" text-anchor="middle">%s</text>\n},
	  $x->($_), $top + 13, $x->($_), $height - 8, $x->($_), $top + 9, number($_) for @marks;
	for my $i (0 .. $#rows)
	{
		my ($label, $bold, @values) = @{ $rows[$i] };
		my $y = $top + 19 + $each * $i;
		my @label = split /\n/, $label;

		push @out, sprintf qq{<text x="%d" y="%d" text-anchor="end"%s>%s</text>\n}, $left - 6,
		  $y + $each / 2 + (@label > 1 ? 14 * $_ - 6 : 0), $bold ? ' class="t"' : '', escape($label[$_])
		  for 0 .. $#label;
		for my $s (0 .. $#values)
		{
			next unless @{ $values[$s] };
			my @v = sort { $a <=> $b } @{ $values[$s] };
			my $m = @v % 2 ? $v[ $#v / 2 ] : ($v[ @v / 2 - 1 ] + $v[ @v / 2 ]) / 2;
			my $at = $y + 12 * $s;

			push @out, sprintf qq{<rect class="%s" x="%d" y="%d" width="%.1f" height="10"/>\n}, $colors[ $s % @colors ], min($from, $x->($m)), $at, abs($x->($m) - $from);
			push @out, sprintf qq{<line class="err" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>\n}, $x->($v[0]), $at + 5, $x->($v[-1]), $at + 5;
			push @out, sprintf qq{<text class="s" x="%.1f" y="%d">%s</text>\n}, max($from, $x->($v[-1])) + 5, $at + 9, number($m < 100 ? sprintf('%.2f', $m) : $m);
		}
	}
	push @out, sprintf qq{<line class="one" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>\n}, $from, $top + 13, $from, $height - 8 if $origin;
	write_file($file, $left + $width + 90, $height, @out);
}

# Lines: series of [name, [x, y], ...] on axes of which each may be logarithmic.
# bands: per series [mean, low, high], drawn over the whole width; one: 1 is emphasised.
sub lines
{
	my ($file, %o) = @_;
	my @series = @{ $o{series} };
	my @points = map { @{$_}[ 1 .. $#$_ ] } @series;
	my ($left, $width, $height) = (80, 640, 300);
	my ($below, @out) = legend($left + $width + 30, map { $_->[0] } @series);
	my $top = $below + 23;
	my @x = map { $_->[0] } @points;
	my @y = ((map { $_->[1] } @points), map { $_->[2] } @{ $o{bands} // [] });
	my ($ylow, $yhigh) = $o{log_y} ? (10**floor_log(min(@y)), 10**POSIX_ceil(log(max(@y)) / log(10) + 1e-9)) : (0, 1.1 * max(@y, 1e-9));
	my ($px, @xm) = scale($o{log_x}, min(@x), max(@x), $left, $left + $width);
	my ($py, @ym) = scale($o{log_y}, $ylow, $yhigh, $top + $height, $top);

	push @out, sprintf qq{<text class="s" x="10" y="%d">%s</text><text class="s" x="%d" y="%d" text-anchor="end">%s</text>\n},
	  $below + 12, escape($o{y}), $left + $width, $top + $height + 34, escape($o{x});
	push @out, sprintf qq{<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text class="s" x="%d" y="%.1f" text-anchor="end">%s</text>\n},
	  $left, $py->($_), $left + $width, $py->($_), $left - 6, $py->($_) + 4, number($_) for @ym;
	push @out, sprintf qq{<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/><text class="s" x="%.1f" y="%d" text-anchor="middle">%s</text>\n},
	  $px->($_), $top, $px->($_), $top + $height, $px->($_), $top + $height + 16, number($_) for @xm;
	push @out, sprintf qq{<line class="one" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>\n}, $left, $py->(1), $left + $width, $py->(1) if $o{one};
	for my $i (0 .. $#{ $o{bands} // [] })
	{
		my ($mean, $low, $high) = map { $py->($_) } @{ $o{bands}[$i] };
		my $color = $colors[ $i % @colors ];

		push @out, sprintf qq{<rect class="%s band" x="%d" y="%.1f" width="%d" height="%.1f"/>\n}, $color, $left, $high, $width, $low - $high;
		push @out, sprintf qq{<line class="%s mean" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>\n}, $color, $left, $mean, $left + $width, $mean;
	}
	for my $i (0 .. $#series)
	{
		my ($name, @p) = @{ $series[$i] };
		my $color = $colors[ $i % @colors ];

		push @out, sprintf qq{<polyline class="%s line" points="%s"/>\n}, $color,
		  join ' ', map { sprintf '%.1f,%.1f', $px->($_->[0]), $py->($_->[1]) } @p;
		next if $o{no_dots};
		push @out, sprintf qq{<circle class="%s" cx="%.1f" cy="%.1f" r="3"/>\n}, $color, $px->($_->[0]), $py->($_->[1]) for @p;
	}
	write_file($file, $left + $width + 30, $top + $height + 44, @out);
}

sub floor_log
{
	my $l = log($_[0]) / log(10);
	my $i = int $l;

	return $i > $l ? $i - 1 : $i;
}

1;
