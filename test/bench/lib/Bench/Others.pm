# What others took of the machine while a section ran: /proc/stat less what is ours.
#
#	my $others = Bench::Others->new(@servers);
#	... measure, end all sessions ...
#	my %took = $others->took;		cpu, stolen: seconds of one core
#
# Ours are the servers with all their children, this program, and the
# children of it that have ended.
package Bench::Others;
use strict;
use warnings;
use List::Util qw(sum);
use POSIX qw(sysconf _SC_CLK_TCK);
use Time::HiRes qw(time);
use Bench::Server;

my $ticks = sysconf(_SC_CLK_TCK);

sub new
{
	my ($class, @servers) = @_;
	my $self = bless { servers => \@servers }, $class;

	$self->{begun} = $self->now;
	return $self;
}

# Seconds since the machine, the servers and this program were started.
sub now
{
	my ($self) = @_;

	open(my $f, '<', '/proc/stat') or die "/proc/stat: $!\n";
	my (undef, $user, $nice, $system, undef, undef, $irq, $softirq, $stolen) = split ' ', <$f>;
	my $ours = sum(times, map { $_->cpu_of_all } @{ $self->{servers} });
	return { time => time, stolen => $stolen / $ticks,
		cpu => ($user + $nice + $system + $irq + $softirq) / $ticks - $ours };
}

sub took
{
	my ($self) = @_;
	my ($begun, $now) = ($self->{begun}, $self->now);
	my $cores = grep { /^processor\s/ } do { open(my $f, '<', '/proc/cpuinfo') or die "/proc/cpuinfo: $!\n"; <$f> };
	my %took = map { $_ => $now->{$_} - $begun->{$_} } qw(cpu stolen);

	# Ticks of many short processes do not add up exactly.
	$took{cpu} = 0 if $took{cpu} < 0;
	return (seconds => $now->{time} - $begun->{time}, cores => $cores, map { $_ => $took{$_} } sort keys %took);
}

1;
