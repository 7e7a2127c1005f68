# A Kafka broker on loopback, which lives as long as this object; see serve.py.
#
#	my $kafka = Bench::Kafka->new($dir);		address, pid
#	$kafka->topic($partitions);				makes a topic with a name of its own
package Bench::Kafka;
use strict;
use warnings;
use IPC::Open2;
use Bench::Server;

my $number = 0;

sub new
{
	my ($class, $dir) = @_;
	my ($out, $in);
	my $pid = open2($out, $in, '/usr/bin/python3', '-B', "$dir/serve.py");
	my $self = bless { out => $out, in => $in, helper => $pid }, $class;
	my $line = <$out> // die "the broker does not start\n";

	chomp $line;
	@$self{qw(address pid)} = split /\t/, $line;
	return $self;
}

sub ask
{
	my ($self, @words) = @_;
	my ($in, $out) = @$self{qw(in out)};
	my @lines;

	print $in join("\t", @words), "\n";
	$in->flush;
	while (defined(my $line = <$out>))
	{
		chomp $line;
		return wantarray ? @lines : $lines[0] if $line eq 'ok';
		push @lines, $line;
	}
	die "the broker's helper ended at: @words\n";
}

# A number that no topic, event type or relay had before.
sub next_number
{
	return ++$number;
}

sub cpu
{
	my ($self) = @_;

	return Bench::Server::cpu_seconds($self->{pid});
}

# A read_committed reader finds so many records, at once or soon.
sub has_records
{
	my ($self, $topic, $events) = @_;
	my $n = 0;

	Bench::Server::until_true(30, "$events events in topic $topic",
		sub { $n = $self->ask('count', 'read_committed', $topic); $n >= $events });
	die "$events events, but $n records in topic $topic\n" if $n != $events;
}

sub stop
{
	my ($self) = @_;

	close $self->{in};
	close $self->{out};
	waitpid $self->{helper}, 0;
}

1;
