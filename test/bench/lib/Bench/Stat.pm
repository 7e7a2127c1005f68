# The statistics of the report.
package Bench::Stat;
use strict;
use warnings;
use Exporter 'import';
use List::Util qw(min max sum);

our @EXPORT = qw(median median_interval min max sum mean interval ratio_interval log_slope quantile quantile_within);

sub median
{
	my @s = sort { $a <=> $b } @_;

	return @s % 2 ? $s[ $#s / 2 ] : ($s[ @s / 2 - 1 ] + $s[ @s / 2 ]) / 2;
}

# The two values between which the median of ever more would lie with at least 95 %,
# whatever the distribution: each of them is above it or below with even chances.
# Of fewer than six the least and the greatest, which hold it less often.
sub median_interval
{
	my @s = sort { $a <=> $b } @_;
	my $n = @s;
	my ($k, $ways, $tail) = (0, 1, 1);

	# $tail of 2 ** $n ways have no more than $k values below it.
	while (2 * $tail <= 0.05 * 2**$n)
	{
		$k++;
		$ways *= ($n + 1 - $k) / $k;
		$tail += $ways;
	}
	$k-- if $k > 0;
	return ($s[$k], $s[ $n - 1 - $k ]);
}

sub mean
{
	return sum(@_) / @_;
}

# Student's t of the 95 % interval, by degrees of freedom.
my @student = (0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16,
	2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05);

# 95 % interval of the mean.
sub interval
{
	my @v = @_;
	my $n = @v;
	my $mean = mean(@v);

	return (-9**9**9, 9**9**9) if $n < 2;
	my $half = ($student[ $n - 1 ] // 2.04) * sqrt(sum(map { ($_ - $mean)**2 } @v) / ($n - 1) / $n);
	return ($mean - $half, $mean + $half);
}

# Of ratios: geometric mean, and its 95 % interval.
sub ratio_interval
{
	my @logs = map { log } @_;

	return map { exp } mean(@logs), interval(@logs);
}

# Least-squares line through the logarithms of [x, y]: slope and its standard error.
sub log_slope
{
	return if @_ < 3;
	my @x = map { log($_->[0]) } @_;
	my @y = map { log($_->[1]) } @_;
	my ($mx, $my) = (mean(@x), mean(@y));
	my $sxx = sum(map { ($_ - $mx)**2 } @x);

	return unless $sxx > 0;
	my $slope = sum(map { ($x[$_] - $mx) * ($y[$_] - $my) } 0 .. $#x) / $sxx;
	my $residual = sum(map { ($y[$_] - $my - $slope * ($x[$_] - $mx))**2 } 0 .. $#x);
	return ($slope, sqrt($residual / (@x - 2) / $sxx));
}

# Of [value, count] in order: the value at quantile q.
sub quantile
{
	my ($q, @buckets) = @_;
	my $rank = $q * sum(map { $_->[1] } @buckets);
	my $seen = 0;

	for my $b (@buckets)
	{
		$seen += $b->[1];
		return $b->[0] if $seen > $rank;
	}
	return $buckets[-1][0];
}

# The same between the ends of its bucket, of a histogram with 16 buckets per power of
# two: ratios of quantiles would go by steps of 6 % otherwise.
sub quantile_within
{
	my ($q, @buckets) = @_;
	my $rank = $q * sum(map { $_->[1] } @buckets);
	my $seen = 0;

	for my $b (@buckets)
	{
		my ($upper, $count) = @$b;
		my $width = 1;

		return $upper if $upper == 9**9**9;
		$width *= 2 while $upper / $width >= 32;
		return $upper + 1 - $width + $width * ($rank - $seen) / $count if $seen + $count > $rank;
		$seen += $count;
	}
	return $buckets[-1][0];
}

1;
