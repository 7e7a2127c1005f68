#!/usr/bin/perl
# Instructions per event, counted by callgrind: the scripts to count, and the table.
#
#	count.pl script ARM FROM N		N events of an arm of arms/ for a single-user server, with the
#									values FROM, FROM + 1, ...
#	count.pl events ARM				how many events a run of its script has
#	count.pl table DIRECTORY N ARM...	from DIRECTORY/ARM.few and DIRECTORY/ARM.many, counts of
#									callgrind, the latter with N more events
#
# The difference of two runs leaves out what a process does once, such as filling its
# caches.  A count does not depend on what else the machine does; but it has no waits, no
# cache misses and no work of the kernel, so it shows where to look, not how fast an arm is.
use strict;
use warnings;
use File::Basename qw(dirname);
use List::Util qw(sum0);

my $arms = dirname(__FILE__) . '/arms';

# The share of an arm's count from which on a function of the library is listed.
my $share = 0.02;

# The statements of an arm, each in one line, its parameters and its events.  The number that
# \gset takes stands in a setting until a later statement needs it.
sub arm_of
{
	my ($name) = @_;
	my ($file) = glob("$arms/[0-9]*_$name.sql");
	my (%arm, %kept, @lines);

	die "$name: no such arm\n" unless defined $file;
	%arm = (name => $name, title => $name, events => 1);
	open(my $in, '<', $file) or die "$file: $!\n";
	while (<$in>)
	{
		chomp;
		if (/^-- (\w+): (.*)/) { $arm{$1} = $2 }
		elsif (/^\\set (\w+) random/) { }
		elsif (s{\b(\w+)( FROM .*)? \\gset$}{set_config('bench.$1', $1::text, false)@{[ $2 // '' ]};})
		{
			$kept{$1} = 1;
			push @lines, $_;
		}
		elsif (/^\\/) { die "$name: $_: cannot be counted\n" }
		else { push @lines, $_ }
	}
	@{ $arm{statements} } = map { { sql => $_ } } grep { /\S/ } split /;\s*/, join(' ', @lines) . ' ';
	for my $s (@{ $arm{statements} })
	{
		my %number;

		$s->{sql} =~ s/\s+/ /g;
		$s->{sql} =~ s/(?<!:):$_\b/current_setting('bench.$_')::bigint/g for keys %kept;
		$s->{prepared} = $s->{sql} !~ /^(?:BEGIN|COMMIT)/;
		for my $variable ($s->{sql} =~ /(?<!:):([a-z_]\w*)/g)
		{
			my $next = 1 + keys %number;

			$number{$variable} //= $next;
		}
		$s->{sql} =~ s/(?<!:):([a-z_]\w*)/\$$number{$1}/g;
		$s->{variables} = [ sort { $number{$a} <=> $number{$b} } keys %number ];
	}
	return \%arm;
}

sub events
{
	print arm_of(@_)->{events}, "\n";
}

sub script
{
	my ($name, $from, $n) = @_;
	my $arm = arm_of($name);
	my @statements = @{ $arm->{statements} };
	my $seed = unpack('%32C*', $name);

	print "$arm->{before}\n" if defined $arm->{before};
	for my $i (0 .. $#statements)
	{
		print "PREPARE s$i AS $statements[$i]{sql}\n" if $statements[$i]{prepared};
	}
	for my $run ($from .. $from + $n - 1)
	{
		# Values far from each other and from those of other arms, but the same in each call.
		my %value = (id => ($run * 7919 + $seed * 1_000_003) % 2**52, client_id => 1, payload => '{"customer": 4711, "total": "12.50"}');

		for my $i (0 .. $#statements)
		{
			my $s = $statements[$i];
			my @values = map { "'" . ($value{$_} // die "$name: no value of $_\n") . "'" } @{ $s->{variables} };

			print $s->{prepared} ? "EXECUTE s$i" . (@values ? '(' . join(', ', @values) . ')' : '') : $s->{sql}, "\n";
		}
	}
}

# Inclusive counts by function, and the functions of the library.
sub counts_of
{
	my ($file) = @_;
	my (%name, %object, %count, %ours, $callee, $in_call);
	my $object = '';

	open(my $in, '<', $file) or die "$file: $!\n";
	while (<$in>)
	{
		if (/^(c?)(fn|ob)=\((\d+)\)(?: (.*))?$/)
		{
			my ($call, $what, $number, $text) = ($1, $2, $3, $4);
			my $known = $what eq 'fn' ? \%name : \%object;

			$known->{$number} = $text if defined $text;
			if ($what eq 'fn' && $call) { $callee = $name{$number} }
			elsif ($what eq 'fn') { $ours{ $name{$number} } = 1 if $object =~ /idempotency\.so$/ }
			elsif (!$call) { $object = $object{$number} }
		}
		elsif (/^calls=/) { $in_call = 1 }
		elsif (/^[-+*\d]\S* (\d+)/ && $in_call)
		{
			$count{$callee} += $1;
			$in_call = 0;
		}
	}
	return (\%count, \%ours);
}

sub table
{
	my ($directory, $n, @names) = @_;
	my @arms = map { arm_of($_) } @names;

	for my $arm (@arms)
	{
		my ($few) = counts_of("$directory/$arm->{name}.few");
		my ($many, $ours) = counts_of("$directory/$arm->{name}.many");
		my $per_event = sub { (($many->{ $_[0] } // 0) - ($few->{ $_[0] } // 0)) / $n };

		$arm->{executed} = $per_event->('ExecuteQuery');
		$arm->{committed} = $per_event->('CommitTransactionCommand');
		$arm->{functions} = { map { ($_ => $per_event->($_)) } grep { exists $many->{$_} } keys %$ours };
	}
	print "| arm | executed | commit | sum | of $arms[0]{name} |\n|---|---|---|---|---|\n";
	my $first = $arms[0]{executed} + $arms[0]{committed};
	for my $arm (@arms)
	{
		my $all = $arm->{executed} + $arm->{committed};

		printf "| %s: %s | %.0f | %.0f | %.0f | %.2f |\n", $arm->{name}, $arm->{title}, $arm->{executed}, $arm->{committed}, $all, $all / $first;
	}
	for my $arm (@arms)
	{
		my %f = %{ $arm->{functions} };
		my $all = $arm->{executed} + $arm->{committed};
		# not the hooks around the statement, which call each other by one name
		my @shown = sort { $f{$b} <=> $f{$a} || $a cmp $b } grep { $f{$_} > $share * $all && $f{$_} < $arm->{executed} * 0.95 } keys %f;

		next unless @shown;
		print "\n## $arm->{name}\n\n| function of the library, with what it calls | instructions |\n|---|---|\n";
		printf "| `%s` | %.0f |\n", $_, $f{$_} for @shown;
	}
}

my ($what, @args) = @ARGV;
my %commands = (script => \&script, events => \&events, table => \&table);
die "usage: count.pl script|events|table ...\n" unless defined $what && $commands{$what};
$commands{$what}->(@args);
