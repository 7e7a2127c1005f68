# nginx on loopback, as the receiver of requests, and a server that takes five seconds for
# each; both live as long as these objects.
#
#	my $nginx = Bench::Nginx->new($dir);	url, address, port; cpu, requests, stop
#	my $slow = Bench::Nginx->slow($dir);	url; stop
#
# nginx has one worker process, writes no log, and answers 204.
package Bench::Nginx;
use strict;
use warnings;
use IO::Socket::INET;
use Bench::Server;

sub free_port
{
	my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1) or die "no free port: $!\n";

	return $s->sockport;
}

sub listens
{
	my ($self) = @_;

	return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}, Timeout => 1);
}

sub spawn
{
	my ($self, @command) = @_;

	$self->{pid} = fork // die "fork: $!\n";
	if (!$self->{pid})
	{
		open STDIN, '<', '/dev/null';
		exec @command or exit 127;
	}
	Bench::Server::until_true(30, "$command[0] does not listen", sub { listens($self) });
	return $self;
}

sub object
{
	my ($class) = @_;
	my $port = free_port();

	return bless { address => '127.0.0.1', port => $port, url => "http://127.0.0.1:$port" }, $class;
}

sub new
{
	my ($class, $dir) = @_;
	my $self = object($class);
	my $own = "$dir/nginx";

	mkdir $own;
	open(my $conf, '>', "$own/nginx.conf") or die "$own/nginx.conf: $!\n";
	print $conf <<"END";
worker_processes 1;
daemon off;
pid $own/pid;
error_log $own/error.log;
events { worker_connections 1024; }
http {
	access_log off;
	keepalive_requests 100000000;
	keepalive_timeout 600s;
	@{[ map { "${_}_temp_path $own/$_;" } qw(client_body proxy fastcgi uwsgi scgi) ]}
	server {
		listen 127.0.0.1:$self->{port};
		location / { return 204; }
		location = /status { stub_status; }
	}
}
END
	close $conf;
	$self->spawn((grep { -x } map { "$_/nginx" } split(/:/, $ENV{PATH}), '/usr/sbin')[0], '-p', $own, '-e', "$own/error.log",
		'-c', "$own/nginx.conf");
	open(my $children, '<', "/proc/$self->{pid}/task/$self->{pid}/children") or die "children of nginx: $!\n";
	($self->{worker}) = split ' ', <$children> // '';
	die "nginx has no worker\n" unless $self->{worker};
	return $self;
}

# A server that answers each request after five seconds.
sub slow
{
	my ($class, $dir) = @_;
	my $self = object($class);

	return $self->spawn('/usr/bin/python3', '-B', "$dir/slow.py", $self->{port});
}

sub cpu
{
	my ($self) = @_;

	return Bench::Server::precise_cpu_seconds($self->{worker});
}

# How many requests nginx has got, this one among them.
sub requests
{
	my ($self) = @_;
	my $s = listens($self) or die "nginx does not listen\n";

	print $s "GET /status HTTP/1.0\r\n\r\n";
	local $/;
	my ($n) = <$s> =~ /^\s*\d+ \d+ (\d+)\s*$/m or die "nginx tells no number of requests\n";
	return $n;
}

sub stop
{
	my ($self) = @_;

	kill 'TERM', $self->{pid};
	waitpid $self->{pid}, 0;
}

1;
