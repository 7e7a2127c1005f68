#!/usr/bin/perl
# Fold what perf sampled and what Bench::Watch saw to Markdown: per kind of
# process, per shared object and per symbol.
#
#	perf report --stdio -q --sort pid,dso,symbol -t '|' | fold.pl WATCHED
#
# Processes that were not watched are others', whatever they are called; who asks
# the server what it waits for is left out.
use strict;
use warnings;

my (%type, %observer, %events, %samples, %ran, %ready, %number);
my $seconds = 0;

sub kind
{
	return { 'client backend' => 'sessions', 'idempotency relay' => 'relay worker', walwriter => 'WAL writer',
		'idempotency launcher' => 'launcher' }->{ $_[0] } // $_[0];
}

sub table
{
	my ($head, @rows) = @_;

	print "\n| ", join(' | ', @$head), " |\n|", '---|' x @$head, "\n";
	print "| ", join(' | ', @$_), " |\n" for @rows;
}

sub largest
{
	my ($most, %of) = @_;
	my @names = sort { $of{$b} <=> $of{$a} || $a cmp $b } keys %of;

	splice @names, $most if @names > $most;
	return @names;
}

sub read_watched
{
	my ($file) = @_;
	my (%pids, %event_of);

	open(my $in, '<', $file) or die "$file: $!\n";
	while (my $line = <$in>)
	{
		chomp $line;
		my ($what, @f) = split /\t/, $line, -1;

		$observer{ $f[0] } = 1 if $what eq 'observer';
		$type{ $f[0] } = kind($f[1]) if $what eq 'process';
		$event_of{ $f[0] }{ $f[1] }++ if $what eq 'wait';
		$pids{ $f[0] } = [ @f[ 1, 2 ] ] if $what eq 'time';
		$seconds = $f[0] if $what eq 'watched';
	}
	for my $pid (keys %pids)
	{
		my $kind = $type{$pid} // next;

		$number{$kind}++;
		$ran{$kind} += $pids{$pid}[0];
		$ready{$kind} += $pids{$pid}[1];
		for my $event (keys %{ $event_of{$pid} // {} })
		{
			$events{$kind}{$event} += $event_of{$pid}{$event};
			$samples{$kind} += $event_of{$pid}{$event};
		}
	}
}

# What each kind of process did; those that hardly ran are not shown.
sub times_of
{
	my @rows;

	for my $kind (sort { $ran{$b} <=> $ran{$a} } keys %ran)
	{
		my $all = $number{$kind} * $seconds;
		my %of = %{ $events{$kind} // {} };
		my $none = delete $of{''};
		my @waits = map { sprintf '%s %.0f %%', $_, 100 * $of{$_} / $samples{$kind} } grep { $of{$_} >= 0.005 * $samples{$kind} } largest(5, %of);

		next if $ran{$kind} < 0.002 * $seconds;
		unshift @waits, sprintf 'none %.0f %%', 100 * $none / $samples{$kind} if $none;
		push @rows, [ $kind, $number{$kind}, (map { sprintf '%.1f %%', 100 * $_ / $all } $ran{$kind}, $ready{$kind},
				$all - $ran{$kind} - $ready{$kind}), join(', ', @waits) || '(not recorded)' ];
	}
	table([ 'processes', 'number', 'on a core', 'waiting for one', 'asleep', 'wait events' ], @rows);
}

read_watched(shift // die "usage: fold.pl WATCHED\n");

my (%object, %symbol, %of_machine, %of_kind);
my ($machine, $server) = (0, 0);

while (my $line = <STDIN>)
{
	my ($share, $pid, $comm, $object, $symbol) = $line =~ /^\s*([\d.]+)%\s*\|\s*(\d+):([^|]*?)\s*\|\s*([^|]*?)\s*\|\s*([^|]*?)\s*(?:\||$)/ or next;

	next if $observer{$pid};
	my $kind = $type{$pid};
	$machine += $share;
	$of_machine{ $kind ? 'the server and its sinks' : $comm eq 'pgbench' ? 'pgbench' : $comm eq 'swapper' ? 'idle' : 'others' } += $share;
	next unless $kind;
	$symbol =~ s/^\[.\] //;
	$symbol = '(not named: no debug symbols)' if $symbol =~ /^0x/;
	$object =~ s/\[kernel.*\]/kernel/;
	$server += $share;
	$of_kind{$kind} += $share;
	$object{"$kind | $object"} += $share;
	$symbol{"$kind | $object | $symbol"} += $share;
}
die "no samples of the server\n" unless $server;

times_of();
print "\nSamples: ", join(', ', map { sprintf '%s %.1f %%', $_, 100 * $of_machine{$_} / $machine } largest(4, %of_machine)),
  ". Below, shares of the server's and its sinks' own.\n";
table([ 'share', 'process', 'shared object' ], map { [ sprintf('%.1f %%', 100 * $object{$_} / $server), $_ ] } largest(12, %object));
table([ 'share', 'process', 'shared object', 'symbol' ],
	map { [ sprintf('%.1f %%', 100 * $symbol{$_} / $server), $_ ] } grep { $symbol{$_} >= 0.01 * $server } largest(40, %symbol));
