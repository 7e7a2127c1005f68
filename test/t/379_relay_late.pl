
# Copyright (c) 2026, the idempotency developers

# A receiver that hangs for one key and takes all others.  While the request is open, ten other
# keys get an event each every 100 ms, and all of them arrive, whether the relay orders keys or
# not.  stat_relay says that an answer is awaited.  Kills of the program and of the server repeat
# what has no answer, lose nothing, and keep the order of the key; so does an answer that
# refuses the event after all.

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

my $port = PostgreSQL::Test::Cluster::get_free_port();
my $rounds = $ENV{LATE_ROUNDS} // 30;

# The receiver's side: by relay, the numbers that were accepted and requested of each key; the
# requests that are open, of key "slow" and of key "again"; what those of "slow" are answered when the
# door opens; and when the last event of another key came.
my (%accepted, %requested, %open, %again, %door, %other_at);

sub respond
{
	my ($client, $status, $body) = @_;

	$body //= '';
	syswrite($client, "HTTP/1.1 $status Done\r\nContent-Length: " . length($body) . "\r\n\r\n$body");
	return;
}

# /RELAY: an event.  /door/RELAY/STATUS: open requests get that, and later ones, 0: they hang.
# /seen/RELAY/KEY and /asked/RELAY/KEY: the numbers accepted and requested.  /open/RELAY: how many hang.
# An event of key "again" is refused with 503 at first, and then hangs.  /free/RELAY accepts it, and says
# how long before the last event of another key that request came.
sub take
{
	my ($client, $request) = @_;
	my ($what, $relay, $arg) = $request =~ m{^\w+ /(?:(door|seen|asked|open|free)/)?(\w+)(?:/(\w+))?} or return;

	if (!defined $what)
	{
		my ($key, $n) = $request =~ /"key": *"(\w+)".*"n": *(\d+)|"n": *(\d+), *"key": *"(\w+)"/ ? ($1 // $4, $2 // $3) : ('?', 0);

		push @{ $requested{$relay}{$key} }, $n;
		if ($key eq 'slow' && !$door{$relay})
		{
			push @{ $open{$relay} }, [ $client, $n ];
			return;
		}
		if ($key eq 'again')
		{
			respond($client, 503) if 1 == grep { $_ == $n } @{ $requested{$relay}{again} };
			$again{$relay} = [ $client, $n, time ] if 1 < grep { $_ == $n } @{ $requested{$relay}{again} };
			return;
		}
		$other_at{$relay} = time;
		push @{ $accepted{$relay}{$key} }, $n if $key ne 'slow' || $door{$relay} == 200;
		respond($client, $key eq 'slow' ? $door{$relay} : 200);
	}
	elsif ($what eq 'door')
	{
		$door{$relay} = $arg;
		foreach my $waiting ($arg ? splice @{ $open{$relay} // [] } : ())
		{
			push @{ $accepted{$relay}{slow} }, $waiting->[1] if $arg == 200;
			respond($waiting->[0], $arg);
		}
		respond($client, 200);
	}
	elsif ($what eq 'free')
	{
		my $waiting = delete $again{$relay};

		push @{ $accepted{$relay}{again} }, $waiting->[1];
		respond($waiting->[0], 200);
		respond($client, 200, $other_at{$relay} - $waiting->[2]);
	}
	elsif ($what eq 'open')
	{
		respond($client, 200, scalar @{ $open{$relay} // [] });
	}
	else
	{
		my $numbers = $what eq 'seen' ? \%accepted : \%requested;

		respond($client, 200, join(' ', @{ $numbers->{$relay}{$arg} // [] }));
	}
	return;
}

# Serve kept connections until the test ends.
sub serve
{
	my ($test) = @_;
	my $server = IO::Socket::INET->new(Listen => 256, LocalAddr => '127.0.0.1', LocalPort => $port, ReuseAddr => 1)
	  or POSIX::_exit(1);
	my $select = IO::Select->new($server);
	my %got;

	local $SIG{PIPE} = 'IGNORE';
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
				$_ = [ grep { $_->[0] != $client } @$_ ] foreach values %open;
				delete $got{$client};
				$select->remove($client);
				close $client;
			}
			elsif ((my $end = index($got{$client}, "\r\n\r\n")) > 0)
			{
				my $length = $got{$client} =~ /^content-length: *(\d+)/mi ? $1 : 0;

				next if length($got{$client}) < $end + 4 + $length;
				my $request = delete $got{$client};
				take($client, $request);
			}
		}
	}
	POSIX::_exit(0);
}

sub ask { return HTTP::Tiny->new->get("http://127.0.0.1:$port/" . join('/', @_))->{content} // ''; }

my $test = $$;
my $receiver = fork // die "could not fork: $!";
serve($test) if !$receiver;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'");
my $next = 0;

sub sql { return $node->safe_psql('postgres', @_); }

sub send_events
{
	my ($relay, $key, $n) = @_;

	sql("SELECT count(idempotency.outbox_enqueue('$relay', '$key', 'E', jsonb_build_object('n', i, 'key', '$key')))"
		  . " FROM generate_series($n->[0], $n->[1]) i");
	return;
}

sub state_of_parked
{
	my ($relay) = @_;

	return sql("SELECT string_agg(p.state || ' ' || n, ', ' ORDER BY p.state::text) FROM (SELECT state::text, count(*) AS n"
		  . " FROM idempotency_data.relay_parked JOIN idempotency_data.relays USING (relay_id)"
		  . " WHERE relay = '$relay' GROUP BY 1) p");
}

sub wait_parked
{
	my ($relay, $expected) = @_;
	my $seen = '';

	IdemRelay::wait_until("$relay: parked $expected", sub { ($seen = state_of_parked($relay)) eq $expected })
	  or diag("parked: $seen");
	return;
}

sub wait_seen
{
	my ($relay, $key, @numbers) = @_;
	my $seen = '';

	IdemRelay::wait_until("$relay: $key has @numbers", sub { ($seen = ask('seen', $relay, $key)) eq "@numbers" })
	  or diag("seen: $seen");
	return;
}

# Ten keys get an event each, and all arrive, while one request hangs.
sub others_arrive
{
	my ($relay, $first, $last) = @_;

	foreach my $n ($first .. $last)
	{
		sql("SELECT count(idempotency.outbox_enqueue('$relay', 'k' || i, 'E', jsonb_build_object('n', $n, 'key', 'k' || i)))"
			  . ' FROM generate_series(1, 10) i');
		usleep(100_000);
	}
	IdemRelay::wait_until("$relay: the events of ten other keys arrive",
		sub { return 10 == grep { ask('seen', $relay, "k$_") =~ /\b$last$/ } 1 .. 10; });
	foreach my $key (1 .. 10)
	{
		my %seen = map { $_ => 1 } split / /, ask('seen', $relay, "k$key");

		is(scalar(grep { $seen{$_} } 1 .. $last), $last, "$relay: k$key has all its events");
	}
	return;
}

foreach my $ordering (qw(key none))
{
	my $relay = "by_$ordering";

	# one event per batch: what the relay has in flight is eight events at most
	sql(<<"END");
CREATE SERVER $relay FOREIGN DATA WRAPPER idempotency_http
	OPTIONS (url 'http://127.0.0.1:$port/$relay', allowed_addresses '127.0.0.1', timeout '600000');
CREATE USER MAPPING FOR CURRENT_USER SERVER $relay;
SELECT idempotency.relay_create('$relay', '$relay', '{$relay}', ordering => '$ordering', batch_events => 1,
	min_backoff => '50 ms', max_backoff => '200 ms');
END
	send_events($relay, 'slow', [ 1, 1 ]);
	IdemRelay::wait_until("$relay: a request hangs", sub { ask('open', $relay) eq '1' });
	others_arrive($relay, 1, $rounds);
	is(ask('open', $relay), '1', "$relay: all the time the request was open");
	is(ask('asked', $relay, 'slow'), '1', "$relay: it is the first request");

	# on record, and visible
	wait_parked($relay, 'in_flight 1');
	is(IdemRelay::stat($node, $relay, q{waiting_for || ' ' || state}), 'answer streaming', "$relay: an answer is awaited");
	is(IdemRelay::stat($node, $relay, q{retrying || ' ' || lag_events || ' ' || (oldest_waiting < now()) || ' ' || dead}),
		'0 1 true 0', "$relay: nothing is to be tried again, one event is in flight");
	cmp_ok(IdemRelay::stat($node, $relay, q{extract(epoch FROM clock_timestamp() - waiting_since)}), '>=', $rounds / 10 - 1,
		"$relay: since the request hangs");
	my ($hanging) = split /\n/, sql("SELECT event_id FROM idempotency_data.relay_parked WHERE state = 'in_flight' AND aggregate_type = '$relay'");
	my ($out, $err) = ('', '');
	$node->psql('postgres', "SELECT idempotency.relay_replay('$relay', event_id => '$hanging')", stdout => \$out, stderr => \$err);
	like($err, qr/NOTICE: .* has been sent, and its answer is awaited/, "$relay: a replay has nothing to do") or diag($out);

	# later events of the key: in order behind the one that hangs; or each hangs by itself
	send_events($relay, 'slow', [ 2, 4 ]);
	if ($ordering eq 'key')
	{
		wait_parked($relay, 'in_flight 1, waiting 3');
		is(ask('asked', $relay, 'slow'), '1', "$relay: nothing of the key is sent meanwhile");
	}
	else
	{
		IdemRelay::wait_until("$relay: all requests hang", sub { ask('open', $relay) eq '4' });
	}

	# the end of the program: the event is sent again, and no other
	my $program = IdemRelay::stat($node, $relay, 'sink_pid');
	my $twice = $ordering eq 'key' ? '1 1' : '1 2 3 4 1 2 3 4';

	kill 'KILL', $program;
	IdemRelay::wait_until("$relay: what hung is sent again", sub { length(ask('asked', $relay, 'slow')) == length($twice) });
	is(join(' ', sort split / /, ask('asked', $relay, 'slow')), join(' ', sort split / /, $twice), "$relay: and nothing else");
	others_arrive($relay, $rounds + 1, $rounds + 5);

	# the end of the server
	$node->stop('immediate');
	$node->start;
	IdemRelay::wait_until("$relay: and once more", sub { length(ask('asked', $relay, 'slow')) > length($twice) });
	others_arrive($relay, $rounds + 6, $rounds + 10);
	wait_parked($relay, $ordering eq 'key' ? 'in_flight 1, waiting 3' : 'in_flight 4');

	ask('door', $relay, 200);
	if ($ordering eq 'key')
	{
		wait_seen($relay, 'slow', 1 .. 4);
	}
	else
	{
		IdemRelay::wait_until("$relay: all arrive", sub { 4 == keys %{ { map { $_ => 1 } split / /, ask('seen', $relay, 'slow') } } });
	}
	wait_parked($relay, '');
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: no dead letter");
}

# An event of the key "slow" hangs until it is late, and the two after it wait for it.
# Meanwhile others arrive, in three rounds.
sub late_before_two
{
	my ($event, $round) = @_;

	ask('door', 'by_key', 0);
	send_events('by_key', 'slow', [ $event, $event ]);
	IdemRelay::wait_until('a request hangs', sub { ask('open', 'by_key') eq '1' });
	others_arrive('by_key', $round, $round + 2);
	wait_parked('by_key', 'in_flight 1');
	send_events('by_key', 'slow', [ $event + 1, $event + 2 ]);
	wait_parked('by_key', 'in_flight 1, waiting 2');
	return;
}

# An answer that refuses a late event: it is tried again, and the key goes on in order.
late_before_two(5, $rounds + 11);
ask('door', 'by_key', 422);
wait_parked('by_key', 'retry 1, waiting 2');
is(sql(q{SELECT (attempts + deferrals > 0) || ' ' || sqlstate || ' ' || (first_failed_at IS NOT NULL)
	FROM idempotency_data.relay_parked WHERE state = 'retry'}), 'true ID005 true', 'as an event that was refused');
cmp_ok(IdemRelay::stat($node, 'by_key', 'retrying'), '==', 3, 'and counts as one');
ask('door', 'by_key', 200);
wait_seen('by_key', 'slow', 1 .. 7);
wait_parked('by_key', '');

# One event hangs, later events of its key wait, and the retry of another key's event hangs, too:
# meanwhile ten others arrive, before the second is over after which the retry counts as late.
late_before_two(8, $rounds + 14);
my $beside = 0;
IdemRelay::wait_until('others arrive while a retry hangs', sub {
	$beside++;
	send_events('by_key', 'again', [ $beside, $beside ]);
	IdemRelay::wait_until('the retry hangs', sub { ask('asked', 'by_key', 'again') =~ /\b$beside $beside$/ }) or return 1;
	send_events('by_key', 'fast', [ 10 * $beside, 10 * $beside + 9 ]);
	my $last = 10 * $beside + 9;
	IdemRelay::wait_until('the others arrive', sub { ask('seen', 'by_key', 'fast') =~ /\b$last$/ });
	my $took = ask('free', 'by_key');
	wait_seen('by_key', 'again', 1 .. $beside);
	wait_parked('by_key', 'in_flight 1, waiting 2');
	note("ten events took $took s");
	return $took < 0.5;
});
ask('door', 'by_key', 200);
wait_seen('by_key', 'slow', 1 .. 10);
wait_parked('by_key', '');

# The window is counted in events: batches of one event each, of which none has an answer.
sql(<<"END");
CREATE SERVER wide FOREIGN DATA WRAPPER idempotency_http
	OPTIONS (url 'http://127.0.0.1:$port/wide', allowed_addresses '127.0.0.1', timeout '600000', concurrency '32');
CREATE USER MAPPING FOR CURRENT_USER SERVER wide;
SELECT idempotency.relay_create('wide', 'wide', '{wide}', ordering => 'none');
END
foreach my $n (1 .. 20)
{
	send_events('wide', 'slow', [ $n, $n ]);
	IdemRelay::wait_until("$n requests are open", sub { ask('open', 'wide') == $n }) or last;
}
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' AND waiting_since < now() - interval '3 s' FROM idempotency.stat_relay WHERE relay = 'wide'});
is(state_of_parked('wide'), '', 'while nothing is accepted, no event is late');
ask('door', 'wide', 200);
IdemRelay::wait_until('all arrive', sub { 20 == split / /, ask('seen', 'wide', 'slow') });

# An event that was passed over for one without an answer: it is not settled before that one, or
# it would come first.
IdemRelay::own_relay($node, $dir, 'passed', late_type => 'Late', late_ms => 3000, answer => 'each');
sql(q{SELECT count(idempotency.outbox_enqueue('passed', 'a', t, '{}')) FROM unnest('{Late,Next,Last}'::text[]) t});
IdemRelay::arrives("$dir/passed.log", 'Last', 1);
is(join(' ', map { $_->{event_type} } IdemRelay::acked("$dir/passed.log")), 'Late Next Last', 'in order of the key');

# While it waits so, the relay looks at it again when an answer has come, and not in each turn of its worker.
# With on_dead => 'stop' each look locks the relay's row, and leaves its transaction there.
IdemRelay::own_relay($node, $dir, 'looks', late_type => 'Late', late_ms => 600000, answer => 'each');
IdemRelay::own_relay($node, $dir, 'beside', answer => 'each');
sql(q{SELECT idempotency.relay_alter('looks', on_dead => 'stop')});
sql(q{SELECT count(idempotency.outbox_enqueue('looks', 'a', t, '{}')) FROM unnest('{Late,Next}'::text[]) t});
my $locker = q{SELECT xmax FROM idempotency_data.relays WHERE relay = 'looks'};
IdemRelay::wait_until('the answer is looked at', sub { sql($locker) ne '0' });
my $seen_by = sql($locker);
foreach my $n (1 .. 20)
{
	sql(q{SELECT idempotency.outbox_enqueue('beside', 'a', 'E', '{}')});
	IdemRelay::arrives("$dir/beside.log", 'E', $n);
}
is(sql($locker), $seen_by, 'and not again in the turns of another relay');
is(state_of_parked('looks'), '', 'nothing is late, as nothing was accepted');
is(scalar(IdemRelay::acked("$dir/looks.log")), 0, 'nor is there an answer');
sql(q{SELECT idempotency.relay_drop('looks')});

# Nor does it hold the others, for as long as the answer before it is awaited.
IdemRelay::own_relay($node, $dir, 'jam', late_type => 'Late', late_ms => 25000, answer => 'each');
sql(q{SELECT idempotency.relay_alter('jam', batch_events => 1)});
sql(q{SELECT count(idempotency.outbox_enqueue('jam', 'a', t, '{}')) FROM unnest('{Late,Next}'::text[]) t});
sql(q{SELECT count(idempotency.outbox_enqueue('jam', 'k' || i, 'Other', '{}')) FROM generate_series(1, 60) i});
IdemRelay::wait_until('all others arrive', sub { 60 <= grep { $_->{event_type} eq 'Other' } IdemRelay::acked("$dir/jam.log") });
is(scalar(grep { $_->{event_type} ne 'Other' } IdemRelay::acked("$dir/jam.log")), 0, 'before the answer');
IdemRelay::arrives("$dir/jam.log", 'Next', 1);
is(join(' ', map { $_->{event_type} } grep { $_->{event_type} ne 'Other' } IdemRelay::acked("$dir/jam.log")), 'Late Next', 'in order');

# The program dies of an event after seconds, in which others are accepted: the event is found.
IdemRelay::own_relay($node, $dir, 'killer', late_type => 'Late', late_ms => 2500, late_crash => 'on', answer => 'each');
sql(q{SELECT idempotency.relay_alter('killer', max_attempts => 1)});
sql(q{SELECT idempotency.outbox_enqueue('killer', 'a', 'Late', '{}')});
IdemRelay::wait_until('the killer is dead', sub {
	sql(q{SELECT idempotency.outbox_enqueue('killer', gen_random_uuid()::text, 'Other', '{}')});
	usleep(50_000);
	return IdemRelay::stat($node, 'killer', 'dead') == 1;
});
is(sql(q{SELECT aggregate_id FROM idempotency.dead_letters JOIN idempotency.outbox_events USING (event_id) WHERE relay = 'killer'}), 'a', 'and no other event');

# A relay that is paused waits for the answer.
ask('door', 'by_key', 0);
send_events('by_key', 'slow', [ 11, 11 ]);
IdemRelay::wait_until('a request hangs', sub { ask('open', 'by_key') eq '1' });
others_arrive('by_key', $rounds + 17, $rounds + 19);
wait_parked('by_key', 'in_flight 1');
sql(q{SELECT idempotency.relay_pause('by_key')});
ask('door', 'by_key', 200);
IdemRelay::wait_state($node, 'by_key', 'paused');
wait_parked('by_key', '');
wait_seen('by_key', 'slow', 1 .. 11);

$node->stop;
kill 'KILL', $receiver;
waitpid $receiver, 0;
done_testing();
