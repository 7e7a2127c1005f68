# A broker on loopback, which lives as long as this object; see serve.py.
#
#	my $broker = Bench::Broker->new($dir, $kind);	address, pid; of rabbitmq stream_address
#	$broker->ask('make', $target);				makes a target of events
package Bench::Broker;
use strict;
use warnings;
use IPC::Open2;
use Bench::Server;

my $number = 0;

sub new
{
	my ($class, $dir, $kind) = @_;
	my ($out, $in);
	my $pid = open2($out, $in, '/usr/bin/python3', '-B', "$dir/serve.py", $kind);
	my $self = bless { out => $out, in => $in, helper => $pid, kind => $kind }, $class;
	my $line = <$out> // die "the broker of $kind does not start\n";

	chomp $line;
	@$self{qw(address pid stream_address)} = split /\t/, $line;
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

# A number that no target, event type or relay had before.
sub next_number
{
	return ++$number;
}

sub cpu
{
	my ($self) = @_;

	return Bench::Server::cpu_seconds($self->{pid});
}

# The target has so many messages, at once or soon; of kafka a read_committed reader finds
# them.
sub has_messages
{
	my ($self, $target, $messages) = @_;
	my @question = ('count', $self->{kind} eq 'kafka' ? 'read_committed' : (), $target);
	my $n = 0;

	Bench::Server::until_true(60, "$messages messages in $target", sub { $n = $self->ask(@question); $n >= $messages });
	die "$messages messages were expected in $target, but it has $n\n" if $n != $messages;
}

sub stop
{
	my ($self) = @_;

	close $self->{in};
	close $self->{out};
	waitpid $self->{helper}, 0;
}

1;
