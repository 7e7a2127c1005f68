
# Copyright (c) 2026, the idempotency developers

# Receivers that allow so many requests a second: by a bucket of tokens, or by a count that
# begins anew each second; they refuse the others with 429 or 503, with or without
# Retry-After, or as SQS does.  Each gets a backlog in order of its keys, without a
# dead letter, and refuses at most two requests of a hundred.
#
# PACE_EVENTS (2000) and PACE_RATE (100 a second) are for longer runs.  With 10000 events and a
# rate of 10 all checks held; the run took 1180 s, on two cores that others used, too.

use strict;
use warnings FATAL => 'all';

use HTTP::Tiny;
use IO::Select;
use IO::Socket::INET;
use IdemRelay;
use IdemTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $events = $ENV{PACE_EVENTS} // 2000;
my $rate = $ENV{PACE_RATE} // 100;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my %relays = (
	bucket429after => { status => 429, after => 1 },
	bucket429 => { status => 429 },
	bucket503after => { status => 503, after => 1 },
	window429after => { status => 429, after => 1, window => 1 },
	window429 => { status => 429, window => 1 },
	window503after => { status => 503, after => 1, window => 1 },
	sqs => { status => 400, sqs => 1 });

# Does the limit of a relay allow a request now?
sub allows
{
	my ($l) = @_;
	my $now = time;

	$l->{tokens} //= $rate;
	$l->{at} //= $now;
	if ($l->{window})
	{
		$l->{tokens} = $rate if int($now) != int($l->{at});
	}
	else
	{
		$l->{tokens} += ($now - $l->{at}) * $rate;
		$l->{tokens} = $rate if $l->{tokens} > $rate;
	}
	$l->{at} = $now;
	return 0 if $l->{tokens} < 1;
	$l->{tokens}--;
	return 1;
}

# The response to a request.
sub answer
{
	my ($request) = @_;
	my $relay = $request =~ m{^\w+ /(?:count/)?(\w+)} ? $1 : 'sqs';
	my $l = $relays{$relay};
	my @seen = $request =~ /n\\*": *(\d+), *\\*"key\\*": *\\*"(\w+)/g;
	my $body = '';
	my $head = '200 OK';

	if ($request =~ /^GET/)
	{
		$body = join(' ', map { $_ // 0 } @$l{qw(accepted requests refused disorder)});
	}
	elsif ($l->{requests}++, !allows($l))
	{
		$l->{refused}++;
		$head = "$l->{status} Later" . ($l->{after} ? "\r\nRetry-After: $l->{after}" : '');
		$body = '{"__type": "com.amazonaws.sqs#RequestThrottled", "message": "slow down"}' if $l->{sqs};
	}
	else
	{
		while (my ($n, $key) = splice(@seen, 0, 2))
		{
			$l->{accepted}++;
			$l->{disorder}++ if ($l->{last}{$key} // 0) >= $n;
			$l->{last}{$key} = $n;
		}
		$body = '{"Failed": [], "Successful": [' . join(',', map { qq({"Id": "$_"}) } $request =~ /\{"Id":"(\d+)"/g) . ']}' if $l->{sqs};
	}
	return "HTTP/1.1 $head\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
}

# Serve kept connections until the test ends.
sub serve
{
	my ($test) = @_;
	my $server = IO::Socket::INET->new(Listen => 256, LocalAddr => '127.0.0.1', LocalPort => $port, ReuseAddr => 1)
	  or POSIX::_exit(1);
	my $select = IO::Select->new($server);
	my %got;

	while (getppid() == $test)
	{
		foreach my $client ($select->can_read(1))
		{
			if ($client == $server)
			{
				$select->add($server->accept // next);
			}
			elsif (!sysread($client, $got{$client}, 65536, length($got{$client} // '')))
			{
				delete $got{$client};
				$select->remove($client);
				close $client;
			}
			elsif ((my $end = index($got{$client}, "\r\n\r\n")) > 0)
			{
				my $length = $got{$client} =~ /^content-length: *(\d+)/mi ? $1 : 0;

				next if length($got{$client}) < $end + 4 + $length;
				syswrite($client, answer($got{$client}));
				$got{$client} = '';
			}
		}
	}
	POSIX::_exit(0);
}

sub counts
{
	my ($relay) = @_;

	return split / /, HTTP::Tiny->new->get("http://127.0.0.1:$port/count/$relay")->{content};
}

my $test = $$;
my $receiver = fork // die "could not fork: $!";
serve($test) if !$receiver;

my $node = IdemTest::cluster('main');
foreach my $relay (sort keys %relays)
{
	my $more = $relays{$relay}{sqs} ? ", service 'sqs', region 'eu-central-1', batch_events '2'" : '';

	$node->safe_psql('postgres', qq{CREATE SERVER $relay FOREIGN DATA WRAPPER idempotency_http
		OPTIONS (url 'http://127.0.0.1:$port/$relay', allowed_addresses '127.0.0.1'$more);
		CREATE USER MAPPING FOR CURRENT_USER SERVER $relay @{[ $more ? q{OPTIONS (user 'id', password 'a secret of this queue')} : '' ]};
		SELECT idempotency.relay_create('$relay', '$relay')});
}
$node->safe_psql('postgres', qq{SELECT count(idempotency.outbox_enqueue('t', 'k' || i % 300, 'E', jsonb_build_object('n', i, 'key', 'k' || i % 300)))
	FROM generate_series(1, $events) i});

my $until = time + 3 * $events / $rate + $PostgreSQL::Test::Utils::timeout_default;
foreach my $relay (sort keys %relays)
{
	usleep(200_000) while (counts($relay))[0] < $events && time < $until;
	my ($accepted, $requests, $refused, $disorder) = counts($relay);

	is($accepted, $events, "$relay: each event arrives once");
	is($disorder, 0, "$relay: in order of each key");
	cmp_ok(100 * $refused, '<=', 2 * $requests, "$relay: at most two of a hundred requests are refused: $refused of $requests");
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: no dead letter");
}

kill 'KILL', $receiver;
waitpid $receiver, 0;
$node->stop;
done_testing();
