
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemClock - a server whose wall clock a test sets

=head1 SYNOPSIS

  my $clock = IdemClock->new;
  my $node = IdemTest::cluster('main', start => 0);
  $clock->start($node);                # instead of $node->start
  $clock->set($seconds);               # the distance to the real time, from now on

=head1 DESCRIPTION

The library of test/crash/machine/clock.c is preloaded into the server, and reads the
distance from a file.  The clock of the machine, and that of other servers, stays.

=cut

package IdemClock;

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;

sub new
{
	my ($class) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $self = bless { library => "$dir/clock.so", file => "$dir/clock" }, $class;

	system_or_bail('gcc', '-O2', '-shared', '-fPIC', '-o', $self->{library},
		dirname(__FILE__) . '/../crash/machine/clock.c');
	append_to_file($self->{file}, pack('q<', 0));
	return $self;
}

# Start a server that goes by this clock.
sub start
{
	my ($self, $node) = @_;
	local $ENV{CRASH_CLOCK} = $self->{file};
	# Behind a library that is preloaded already: the run-time of a sanitizer must be the first.
	local $ENV{LD_PRELOAD} = join ' ', grep { defined } $ENV{LD_PRELOAD}, $self->{library};

	$node->start;
	return;
}

# The file keeps its place on disk: servers have it mapped.
sub set
{
	my ($self, $seconds) = @_;

	open my $file, '+<', $self->{file} or die "could not open $self->{file}: $!";
	syswrite($file, pack('q<', $seconds)) == 8 or die "could not write $self->{file}: $!";
	close $file;
	return;
}

1;
