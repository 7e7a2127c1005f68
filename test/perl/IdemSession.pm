
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemSession - one session that answers many queries

=head1 SYNOPSIS

  my $session = IdemSession->new($node, 'postgres');
  my $answer = $session->ask('SELECT ...');		# undef: the connection is lost

=head1 DESCRIPTION

To start psql and to connect for each look takes more than 50 ms of processor time,
which is more than half a core for a test that looks every tenth of a second.  The session
ends with the object, or with its connection.

=cut

package IdemSession;

use strict;
use warnings FATAL => 'all';

use IPC::Open2 qw(open2);

sub new
{
	my ($class, $node, $database) = @_;
	my ($from, $to);

	local %ENV = $node->_get_env();
	my $pid = open2($from, $to, 'sh', '-c', 'exec "$@" 2>/dev/null', 'sh',
		$node->installed_command('psql'), '-XAtq', '-d', $node->connstr($database));
	return bless { pid => $pid, from => $from, to => $to }, $class;
}

# What the query returns, without the newline at its end.  A query that fails returns what
# it had returned before.
sub ask
{
	my ($self, $query) = @_;
	my $answer = '';

	local $SIG{PIPE} = 'IGNORE';
	syswrite($self->{to}, "$query\n;\n\\echo ---end---\n") or return undef;
	while (defined(my $line = readline $self->{from}))
	{
		return $answer =~ s/\n\z//r if $line eq "---end---\n";
		$answer .= $line;
	}
	return undef;
}

sub DESTROY
{
	my ($self) = @_;

	local ($?, $!);
	close $self->{$_} foreach 'to', 'from';
	waitpid $self->{pid}, 0;
	return;
}

1;
