
# Copyright (c) 2026, the idempotency developers

# The operator's query of doc/howto/operate.md names a relay that does not get on, with the
# reason, two seconds after the relay has met the fault at the latest, at each look until the
# fault is mended, and no healthy relay.  A hang shows two seconds after the operator's
# patience has ended.
#
# Times are the database's: a look is late if its statement began more than two seconds after
# the time at which the relay noted the fault.  So a slow machine makes no look late.

use strict;
use warnings FATAL => 'all';

use IO::Select;
use IO::Socket::INET;
use IdemRelay;
use IdemTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'");
my $patience = POSIX::ceil(5 * IdemTest::slowness($node));
my $query = IdemRelay::operator_query($patience);

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# A relay for the events of its name, which gives up no event.
sub create_relay
{
	my ($name, $server) = @_;

	sql(qq{SELECT idempotency.relay_create('$name', '$server', aggregate_types => '{$name}', max_attempts => 0,
		min_backoff => '100 ms', max_backoff => '1 s')});
	return;
}

sub enqueue
{
	my ($name) = @_;

	return sql("SELECT idempotency.outbox_enqueue('$name', 'k', 'E', '1')");
}

# A look: is the relay named, how, is the look late, and which healthy relay is named.  Each
# healthy relay has an event to deliver.
sub look
{
	my ($name, $broken_at) = @_;

	enqueue($_) foreach qw(healthy_program healthy_function);
	my ($named, $how, $late, $healthy) = split /\|/, sql(qq{
WITH q AS MATERIALIZED ($query)
SELECT q.relay IS NOT NULL, replace(concat_ws(' ', q.state, q.waiting_for, q.last_error), '|', ' '),
	q.relay IS NULL AND (s.last_error_at > '$broken_at' AND statement_timestamp() > s.last_error_at + interval '2 s'
		OR s.waiting_for = 'answer' AND statement_timestamp() > s.waiting_since + interval '${patience} s' + interval '2 s'),
	(SELECT string_agg(concat_ws(' ', h.relay, h.state, h.waiting_for, h.last_error), ', ') FROM q AS h WHERE h.relay LIKE 'healthy%')
FROM idempotency.stat_relay s LEFT JOIN q USING (relay) WHERE s.relay = '$name'}), -1;

	return { named => $named eq 't', how => $how =~ s/\n/ /gr, late => $late eq 't', healthy => $healthy };
}

# Break what the relay needs: it is named for that reason until what was broken is mended.
sub fails
{
	my ($what, $name, $reason, $break, $mend) = @_;
	my (%wrong, $look);

	my $judge = sub {
		$wrong{"late"}++ if $look->{late};
		$wrong{"healthy: $look->{healthy}"}++ if $look->{healthy} ne '';
	};
	enqueue($name);
	IdemTest::wait_for($node, qq{SELECT sent > 0 AND lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = '$name'});
	ok(!look($name, '-infinity')->{named}, "$what: $name is healthy");
	my $broken_at = sql('SELECT clock_timestamp()');
	$break->();
	enqueue($name);
	IdemRelay::wait_until("$what: $name is named", sub {
		$look = look($name, $broken_at);
		$judge->();
		return $look->{named};
	});
	# At the end of a connection the relay may say that before it says why no other can be made.
	IdemRelay::wait_until("$what: the reason", sub {
		$look = look($name, $broken_at);
		$judge->();
		$wrong{'not named'}++ if !$look->{named};
		return $look->{how} =~ $reason;
	});
	foreach (1 .. 5)
	{
		sleep 1;
		$look = look($name, $broken_at);
		$judge->();
		$wrong{'not named'}++ if !$look->{named};
		$wrong{"another reason: $look->{how}"}++ if $look->{how} !~ $reason;
	}
	$mend->();
	$broken_at = 'infinity';
	IdemRelay::wait_until("$what: the end", sub { $look = look($name, $broken_at); $judge->(); return !$look->{named} });
	IdemTest::wait_for($node, qq{SELECT lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = '$name'});
	ok(!look($name, 'infinity')->{named}, "$what: $name is healthy again");
	is(join(', ', sort keys %wrong), '', "$what: each look named $name, and no other");
	return;
}

#
# Healthy ones.
#
sql(<<'END');
CREATE TABLE broken ();
CREATE FUNCTION handle() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM public.broken) THEN
		RAISE EXCEPTION 'the handler raises';
	END IF;
END $$;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
CREATE SERVER handle FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
CREATE SERVER nothing FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.nothing');
END
IdemRelay::pytest_server($node, 'pytest', "$dir/healthy.log");
create_relay('healthy_program', 'pytest');
create_relay('healthy_function', 'nothing');

#
# Programs and functions.
#
create_relay('raises', 'handle');
fails('a handler that raises', 'raises', qr/the handler raises/,
	sub { sql('INSERT INTO broken DEFAULT VALUES') }, sub { sql('TRUNCATE broken') });
fails('a function that is gone', 'raises', qr/misconfigured .*public\.handle/,
	sub { sql('ALTER FUNCTION handle() RENAME TO renamed') }, sub { sql('ALTER FUNCTION renamed() RENAME TO handle') });

IdemRelay::pytest_server($node, 'uninstalled', "$dir/uninstalled.log");
create_relay('uninstalled', 'uninstalled');
fails('a program that is not installed', 'uninstalled', qr/misconfigured .* is not installed/,
	sub { sql(q{ALTER SERVER uninstalled OPTIONS (SET program 'missing')}) },
	sub { symlink("$dir/idempotency-sink-pytest", "$dir/idempotency-sink-missing") or die "could not link: $!" });

#
# An HTTP server, which answers all requests that way, or none: it accepts them, and holds them.
#
my $http_port = PostgreSQL::Test::Cluster::get_free_port();
my $http_pid;

sub is_whole
{
	my ($request) = @_;
	my $head = index($request, "\r\n\r\n");
	my ($body) = $request =~ /^content-length: (\d+)/mi;

	return $head >= 0 && length($request) >= $head + 4 + ($body // 0);
}

sub serve
{
	my ($status) = @_;
	my $test = $$;
	my @held;

	$http_pid = fork // die "could not fork: $!";
	return if $http_pid;
	my $server = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', LocalPort => $http_port, ReuseAddr => 1)
	  or POSIX::_exit(1);
	while (getppid() == $test)
	{
		next if !IO::Select->new($server)->can_read(1);
		my $client = $server->accept or next;
		my $request = '';
		until (is_whole($request))
		{
			sysread($client, $request, 65536, length $request) or last;
		}
		push @held, $client;
		next if !$status;
		syswrite($client, "HTTP/1.1 $status told\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
		close(pop @held);
	}
	POSIX::_exit(0);
}

sub stop_serving
{
	kill 'KILL', $http_pid;
	waitpid $http_pid, 0;
	return;
}

sub serve_instead
{
	my ($status) = @_;

	stop_serving();
	serve($status);
	return;
}

serve(200);
sql(qq{CREATE SERVER http FOREIGN DATA WRAPPER idempotency_http
	OPTIONS (url 'http://127.0.0.1:$http_port/', allowed_addresses '127.0.0.1', timeout '900000')});
create_relay('hook', 'http');
fails('a refused connection', 'hook', qr/^outage .*refused/i, sub { stop_serving() }, sub { serve(200) });
fails('503', 'hook', qr/^(?:streaming|outage) .*503/, sub { serve_instead(503) }, sub { serve_instead(200) });
fails('a request that hangs', 'hook', qr/^streaming answer/, sub { serve_instead(undef) }, sub { serve_instead(200) });
my $other_port = PostgreSQL::Test::Cluster::get_free_port();
fails('a wrong port', 'hook', qr/^outage .*refused/i,
	sub { sql("ALTER SERVER http OPTIONS (SET url 'http://127.0.0.1:$other_port/')") },
	sub { sql("ALTER SERVER http OPTIONS (SET url 'http://127.0.0.1:$http_port/')") });
stop_serving();

#
# Another PostgreSQL.
#
my $target = IdemRelay::counting_target(allows_streaming => 1);

IdemRelay::counting_server($node, $target);
create_relay('pg', 'target');
fails('a target that is read-only', 'pg', qr/^outage .*read-only/,
	sub { $target->stop; $target->set_standby_mode; $target->start }, sub { $target->promote });
fails('a target that has changed', 'pg', qr/on_event/,
	sub { $target->safe_psql('postgres', 'ALTER FUNCTION app.on_event RENAME TO renamed') },
	sub { $target->safe_psql('postgres', 'ALTER FUNCTION app.renamed RENAME TO on_event') });
fails('a target that is down', 'pg', qr/^outage .*could not connect/, sub { $target->stop }, sub { $target->start });
$target->stop;

$node->stop;
done_testing();
