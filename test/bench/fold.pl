#!/usr/bin/perl
# Fold what perf sampled to Markdown: shares per shared object and per symbol.
#
#	perf report --stdio -q --sort comm,dso,symbol -t '|' | fold.pl
#
# Only processes of the server and the sinks are counted.
use strict;
use warnings;

my ($all, %object, %symbol) = (0);

while (my $line = <STDIN>)
{
	my ($share, $comm, $object, $symbol) = map { s/^\s+|\s+$//gr } split /\|/, $line;

	next unless $symbol && $comm =~ /^(?:postgres|idempotency-sin)/;
	$share =~ s/%//;
	$symbol =~ s/^\[.\] //;
	$symbol = '(not named: no debug symbols)' if $symbol =~ /^0x/;
	$object =~ s/\[kernel.*\]/kernel/;
	$all += $share;
	$object{$object} += $share;
	$symbol{"$object | $symbol"} += $share;
}
die "no samples of the server\n" unless $all;

sub table
{
	my ($head, $most, %of) = @_;
	my @names = sort { $of{$b} <=> $of{$a} } keys %of;

	splice @names, $most if @names > $most;
	print "\n| share | $head |\n|---|", '---|' x ($head =~ tr/|// + 1), "\n";
	printf "| %.1f %% | %s |\n", 100 * $of{$_} / $all, $_ for @names;
}

table('shared object', 10, %object);
table('shared object | symbol', 50, %symbol);
