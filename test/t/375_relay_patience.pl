
# Copyright (c) 2026, the idempotency developers

# Whose fault a refusal is, seen by a webhook: while a receiver refuses all, no event is a
# dead letter, and all arrive in order when that ends.  One event that is refused for ever
# is dead after retry_for, and the others go on meanwhile.

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

my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = IdemTest::cluster('main');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $receiver;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

#
# A receiver that answers a request as the file "status" says, of its path if there is one, and with 422, or for relays
# "asks" with 429, the events whose payload says so.  It notes "relay key number status".
#
sub answer
{
	my ($client) = @_;
	my $request = '';

	until ($request =~ /\r\n\r\n/ && $request =~ /^content-length: (\d+)/mi && length($request) >= index($request, "\r\n\r\n") + 4 + $1)
	{
		sysread($client, $request, 65536, length $request) or return;
	}
	my ($n, $relay, $bad, $key) = $request =~ m{"n": (\d+), "r": "(\w+)", "bad": (\w+), "key": "(\w+)"} or return;
	my ($path) = $request =~ m{^POST /(\w*)};
	my $status = slurp_file(-e "$dir/status.$relay$path" ? "$dir/status.$relay$path" : "$dir/status.$relay");
	$status = $relay =~ /^asks/ ? 429 : 422 if $status == 200 && $bad eq 'true';
	append_to_file("$dir/log.$relay", "$key $n $status\n");
	my $wait = $status == 429 ? 'Retry-After: ' . ($relay eq 'asks' ? 5 : 1) . "\r\n" : '';
	syswrite($client, "HTTP/1.1 $status told\r\n${wait}Content-Length: 0\r\nConnection: close\r\n\r\n");
	return;
}

sub start_receiver
{
	my $test = $$;

	$receiver = fork // die "could not fork: $!";
	return if $receiver;
	my $server = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', LocalPort => $port, ReuseAddr => 1)
	  or POSIX::_exit(1);
	while (getppid() == $test)
	{
		next if !IO::Select->new($server)->can_read(1);
		my $client = $server->accept or next;
		answer($client);
		close $client;
	}
	POSIX::_exit(0);
}

sub set_status
{
	my ($relay, $status) = @_;

	# At once: the receiver may be reading it.
	append_to_file("$dir/new", $status);
	rename "$dir/new", "$dir/status.$relay" or die "could not rename: $!";
	return;
}

my $made = 0;

sub enqueue
{
	my ($relay, $key, $bad) = @_;

	$made++;
	sql(qq{SELECT idempotency.outbox_enqueue('$relay', '$key', 'E',
		jsonb_build_object('n', $made, 'r', '$relay', 'key', '$key', 'bad', @{[ $bad ? 'true' : 'false' ]}))});
	return;
}

# So many events of five keys at once: a definite no to an event that is alone counts.
sub enqueue_many
{
	my ($relay, $n, $type) = @_;

	$type //= 'k';
	sql(qq{SELECT count(idempotency.outbox_enqueue('$relay', '$type' || i % 5, '$type',
		jsonb_build_object('n', i, 'r', '$relay', 'key', '$type' || i % 5, 'bad', false)))
		FROM generate_series($made + 1, $made + $n) i});
	$made += $n;
	return;
}

# Lines "key number status" of the receiver.
sub noted
{
	my ($relay) = @_;

	my @lines = -e "$dir/log.$relay" ? split(/\n/, slurp_file("$dir/log.$relay")) : ();

	return @lines;
}

sub accepted
{
	my @lines = grep { / 200$/ } noted(@_);

	return @lines;
}

# The events of each key came in the order in which they were enqueued.
sub in_order
{
	my ($relay) = @_;
	my %last;

	foreach (accepted($relay))
	{
		my ($key, $n) = split / /;

		return "$n of $key after $last{$key}" if ($last{$key} // 0) > $n;
		$last{$key} = $n;
	}
	return 'in order';
}

sub create_relay
{
	my ($relay, $more) = @_;

	set_status($relay, 200);
	sql("SELECT idempotency.relay_create('$relay', 'hook', aggregate_types => '{$relay}', min_backoff => '10 ms', max_backoff => '100 ms', $more)");
	return;
}

start_receiver();
sql(qq{CREATE SERVER hook FOREIGN DATA WRAPPER idempotency_http
	OPTIONS (url 'http://127.0.0.1:$port/', allowed_addresses '127.0.0.1')});

#
# A receiver that refuses all for a while, whatever limits the events have.
#
foreach my $status (503, 422)
{
	my $relay = "down$status";

	create_relay($relay, q{retry_for => '50 ms', max_attempts => 2});
	enqueue($relay, 'k1');
	IdemRelay::wait_until("$relay: the first event", sub { accepted($relay) == 1 });
	set_status($relay, $status);
	enqueue_many($relay, 20);
	IdemRelay::wait_until("$relay: 40 requests are refused", sub { noted($relay) - accepted($relay) >= 40 });
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: no dead letter");
	IdemRelay::wait_state($node, $relay, 'outage');
	enqueue_many($relay, 10);
	set_status($relay, 200);
	IdemRelay::wait_until("$relay: all arrive", sub { accepted($relay) >= 31 });
	IdemTest::wait_for($node, "SELECT lag_events = 0 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = '$relay'");
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: no dead letter at the end");
	is(scalar(accepted($relay)), 31, "$relay: each once");
	is(in_order($relay), 'in order', "$relay: in order of each key");
}

#
# Many bad events in a row, each of a key of its own, and good ones behind: the target refuses
# all that is tried, and good ones arrive nevertheless, before the bad ones do or are dead.
#
sub enqueue_bad
{
	my ($relay, $n) = @_;

	sql(qq{SELECT count(idempotency.outbox_enqueue('$relay', 'bad' || i, 'E',
		jsonb_build_object('n', i, 'r', '$relay', 'key', 'bad' || i, 'bad', true))) FROM generate_series($made + 1, $made + $n) i});
	$made += $n;
	return;
}

sql(<<'END');
CREATE TABLE taken (relay text, key text, n int);
CREATE FUNCTION take(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ->> 'bad' = 'true' THEN
		RAISE EXCEPTION 'bad';
	END IF;
	INSERT INTO public.taken VALUES (payload ->> 'r', payload ->> 'key', (payload ->> 'n')::int);
END $$;
CREATE SERVER takes FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.take');
END
foreach my $relay (qw(burst fburst))
{
	set_status($relay, 200);
	sql("SELECT idempotency.relay_create('$relay', '" . ($relay eq 'burst' ? 'hook' : 'takes') . "', aggregate_types => '{$relay}')");
	my $came = sub { $relay eq 'burst' ? scalar(accepted($relay)) : sql("SELECT count(*) FROM taken WHERE relay = '$relay'") };
	enqueue_many($relay, 5);
	IdemRelay::wait_until("$relay: the first events arrive", sub { $came->() == 5 });
	enqueue_bad($relay, 600);
	IdemRelay::wait_state($node, $relay, 'outage');
	enqueue_many($relay, 20) foreach 1 .. 10;
	IdemRelay::wait_until("$relay: all good ones arrive", sub { $came->() == 205 });
	IdemTest::wait_for($node, "SELECT lag_events = 0 AND retrying = 600 FROM idempotency.stat_relay WHERE relay = '$relay'");
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: the bad ones wait");
	is(in_order($relay), 'in order', "$relay: in order of each key") if $relay eq 'burst';
	sql("SELECT idempotency.relay_drop('$relay')");
}
is(sql(q{SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY ctid) AS before FROM taken) t WHERE n < before}), '0',
	'fburst: in order of each key');

#
# All keys that there are, of a function: the key that crashed the server had a hash that is a kind of verdict.
#
sql(q{SELECT idempotency.relay_create('all', 'takes', aggregate_types => '{all}')});
sql(q{SELECT count(idempotency.outbox_enqueue('all', key, 'E', jsonb_build_object('bad', true))) FROM unnest('{1,10465174128}'::text[]) key});
IdemRelay::wait_state($node, 'all', 'outage');
is(IdemRelay::stat($node, 'all', 'dead, retrying'), '0|2', 'two keys, both refused, are an outage');
sql(q{SELECT idempotency.relay_drop('all')});

#
# A replay beside events that a handler refuses for good: those that were done before are no probes, each after a pause.
#
sql(q{CREATE TABLE done (n int)});
sql(q{CREATE FUNCTION picky(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload->>'bad' = 'true' THEN
		RAISE EXCEPTION 'never';
	END IF;
	INSERT INTO public.done VALUES ((payload->>'n')::int);
END $$});
sql(q{CREATE SERVER picky FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.picky')});
sql(q{SELECT idempotency.relay_create('picky', 'picky', aggregate_types => '{picky}', batch_events => 50)});
sql(q{SELECT count(idempotency.outbox_enqueue('picky', 'k' || i, 'E', jsonb_build_object('n', i, 'bad', i <= 12))) FROM generate_series(1, 500) i});
IdemTest::wait_for($node, q{SELECT count(*) = 488 FROM done});
IdemTest::wait_for($node, q{SELECT state = 'outage' FROM idempotency.stat_relay WHERE relay = 'picky'});
sql(q{SELECT idempotency.relay_replay('picky', since => now() - interval '1 hour')});
sql(q{SELECT count(idempotency.outbox_enqueue('picky', 'k' || i, 'E', jsonb_build_object('n', i, 'bad', false))) FROM generate_series(501, 510) i});
IdemTest::wait_for($node, q{SELECT count(*) = 498 AND count(DISTINCT n) = 498 FROM done});

#
# In an outage, what is passed over so has a bound, and all arrives in order.
#
sql(q{ALTER SYSTEM SET idempotency.max_parked = 100});
$node->reload;
create_relay('passes', 'batch_events => 1');
enqueue('passes', 'k1');
IdemRelay::wait_until('the first event arrives', sub { accepted('passes') == 1 });
set_status('passes', 503);
sql(qq{SELECT count(idempotency.outbox_enqueue('passes', 'k' || i, 'E',
	jsonb_build_object('n', i, 'r', 'passes', 'key', 'k' || i, 'bad', false))) FROM generate_series(1, 400) i});
IdemTest::wait_for($node, q{SELECT count(*) >= 45 FROM idempotency_data.relay_parked WHERE aggregate_type = 'passes' AND state = 'waiting'});
my $tried = noted('passes');
IdemRelay::wait_until('some more are refused', sub { noted('passes') >= $tried + 4 });
is(sql(q{SELECT count(*) <= 50 FROM idempotency_data.relay_parked WHERE aggregate_type = 'passes' AND state = 'waiting'}), 't',
	'half of max_parked is passed over');
set_status('passes', 200);
IdemRelay::wait_until('all arrive', sub { accepted('passes') == 401 });
is(IdemRelay::stat($node, 'passes', 'dead'), '0', 'and none is dead');
sql(q{ALTER SYSTEM RESET idempotency.max_parked});
$node->reload;

#
# A receiver that asks to wait.
#
create_relay('busy', q{retry_for => '1 ms', max_attempts => 1});
enqueue('busy', 'k0');
IdemRelay::wait_until('the first event', sub { accepted('busy') == 1 });
set_status('busy', 429);
enqueue_many('busy', 20);
IdemTest::wait_for($node, q{SELECT retrying > 0 AND last_error LIKE 'HTTP 429%' FROM idempotency.stat_relay WHERE relay = 'busy'});
is(sql(q{SELECT max(attempts) FROM idempotency_data.relay_parked WHERE aggregate_type = 'busy'}), '0', 'no try counts');
set_status('busy', 200);
IdemRelay::wait_until('all arrive', sub { accepted('busy') == 21 });
is(in_order('busy'), 'in order', 'in order of each key');
is(IdemRelay::stat($node, 'busy', 'dead'), '0', 'and none is dead');

#
# It asks for one key only: that event keeps its time when the others get on.
#
create_relay('asks', q{retry_for => '1 ms', max_attempts => 1});
enqueue('asks', 'hot', 1);
IdemRelay::wait_until('it is asked', sub { noted('asks') == 1 });
enqueue_many('asks', 20);
IdemRelay::wait_until('the others arrive', sub { accepted('asks') == 20 });
cmp_ok(noted('asks') - 20, '<', 10, 'they do not wait for the one each');
is(IdemRelay::stat($node, 'asks', 'dead'), '0', 'which is not dead');

#
# It asks for each of many keys, one after the other, and takes others behind them: a limit for each key is no rate.
#
create_relay('asks2', 'batch_events => 1000');
sql(qq{SELECT count(idempotency.outbox_enqueue('asks2', CASE WHEN i <= 12 THEN 'hot' ELSE 'k' END || i, 'E',
	jsonb_build_object('n', i, 'r', 'asks2', 'key', CASE WHEN i <= 12 THEN 'hot' ELSE 'k' END || i, 'bad', i <= 12))) FROM generate_series(1, 52) i});
IdemRelay::wait_until('all others arrive', sub { accepted('asks2') == 40 });
is(IdemRelay::stat($node, 'asks2', 'dead'), '0', 'and none is dead');

# Of many more, no other event waits for one of them each.
create_relay('asks3', 'batch_events => 1000');
sql(qq{SELECT count(idempotency.outbox_enqueue('asks3', CASE WHEN i <= 60 THEN 'hot' ELSE 'k' END || i, 'E',
	jsonb_build_object('n', i, 'r', 'asks3', 'key', CASE WHEN i <= 60 THEN 'hot' ELSE 'k' END || i, 'bad', i <= 60))) FROM generate_series(1, 800) i});
IdemRelay::wait_until('half of the others arrive', sub { accepted('asks3') >= 370 });
cmp_ok(scalar(grep { / 429$/ } noted('asks3')), '<', 185, 'they do not wait for one of the many each');

#
# One event that is refused, others that pass.
#
create_relay('one', q{retry_for => '500 ms'});
enqueue('one', 'bad', 1);
enqueue('one', 'bad');
my $others = 0;
IdemRelay::wait_until('the event is dead', sub {
	enqueue('one', 'k' . ++$others % 5);
	return IdemRelay::stat($node, 'one', 'dead') eq '1';
});
IdemRelay::wait_until('the others arrive, and what waited behind it', sub { accepted('one') == $others + 1 });
is(in_order('one'), 'in order', 'the others are in order');
is(sql(q{SELECT tried_for >= '500 ms' AND attempts > 1 AND tried_for <= last_failed_at - first_failed_at FROM idempotency_data.relay_parked
	WHERE aggregate_type = 'one'}), 't', 'it was tried for as long as retry_for says');
is(sql(q{SELECT sqlstate FROM idempotency.dead_letters WHERE relay = 'one'}), 'ID005', 'and the dead letter has the reason');

#
# One event alone: a definite no counts, and "not now" never does.
#
create_relay('no', q{retry_for => '200 ms'});
enqueue('no', 'bad', 1);
IdemTest::wait_for($node, q{SELECT dead = 1 FROM idempotency.stat_relay WHERE relay = 'no'});
create_relay('later', q{retry_for => '1 ms', max_attempts => 1});
set_status('later', 503);
enqueue('later', 'k');
IdemRelay::wait_until('it is tried again and again', sub { noted('later') >= 12 });
is(IdemRelay::stat($node, 'later', 'dead'), '0', 'and is no dead letter');
is(sql(q{SELECT attempts, tried_for FROM idempotency_data.relay_parked WHERE aggregate_type = 'later'}), '0|00:00:00', 'no try counts');
set_status('later', 200);
IdemRelay::wait_until('it arrives', sub { accepted('later') == 1 });

#
# One of two paths refuses all: its events are to blame neither for that nor for anything,
# and those of the other path go on.  When that ends, all arrive in order.
#
foreach my $status (503, 404)
{
	my $relay = "lanes$status";

	sql(qq{CREATE SERVER $relay FOREIGN DATA WRAPPER idempotency_http
		OPTIONS (url 'http://127.0.0.1:$port/{event_type}', allowed_addresses '127.0.0.1');
		SELECT idempotency.relay_create('$relay', '$relay', aggregate_types => '{$relay}', min_backoff => '10 ms',
			max_backoff => '100 ms', retry_for => '50 ms', max_attempts => 2)});
	set_status($relay, 200);
	enqueue_many($relay, 5, $_) foreach qw(Up Down);
	IdemRelay::wait_until("$relay: the first events", sub { accepted($relay) == 10 });
	set_status("${relay}Down", $status);
	enqueue_many($relay, 20, 'Down');
	my $up = 5;
	IdemRelay::wait_until("$relay: one path refuses 60 requests", sub {
		enqueue_many($relay, 1, 'Up');
		$up++;
		return scalar(grep { /^Down/ } noted($relay)) >= 65;
	});
	IdemRelay::wait_until("$relay: all others arrive", sub { grep({ /^Up/ } accepted($relay)) == $up });
	is(IdemRelay::stat($node, $relay, 'dead'), '0', "$relay: no dead letter");
	isnt(IdemRelay::stat($node, $relay, 'state'), 'outage', "$relay: the target as a whole is up");
	set_status("${relay}Down", 200);
	IdemRelay::wait_until("$relay: all arrive", sub { accepted($relay) == $up + 25 });
	IdemTest::wait_for($node, "SELECT lag_events = 0 AND retrying = 0 AND dead = 0 FROM idempotency.stat_relay WHERE relay = '$relay'");
	is(in_order($relay), 'in order', "$relay: in order of each key");
}

#
# What can never be sent is dead at once, and says nothing of the target: here the URL lacks
# a header of the event, and no other event was ever accepted or refused.
#
sql(qq{CREATE SERVER tenants FOREIGN DATA WRAPPER idempotency_http
	OPTIONS (url 'http://127.0.0.1:$port/{header:tenant}', allowed_addresses '127.0.0.1');
	SELECT idempotency.relay_create('never', 'tenants', aggregate_types => '{never}')});
set_status('never', 200);
enqueue('never', 'k' . $_ % 4) foreach 1 .. 12;
IdemTest::wait_for($node, q{SELECT dead = 12 FROM idempotency.stat_relay WHERE relay = 'never'});
is(sql(q{SELECT max(attempts), count(*) FILTER (WHERE sqlstate = '22023') FROM idempotency_data.relay_parked WHERE aggregate_type = 'never'}),
	'1|12', 'each at its first try');
isnt(IdemRelay::stat($node, 'never', 'state'), 'outage', 'and that is no outage');

#
# Without a limit of time or tries an event is tried for ever.
#
create_relay('ever', q{retry_for => '0'});
enqueue('ever', 'bad', 1);
IdemTest::wait_for($node, q{SELECT attempts > 5 AND tried_for > '0' AND state = 'retry' FROM idempotency_data.relay_parked WHERE aggregate_type = 'ever'});
IdemRelay::wait_state($node, 'ever', 'outage');
enqueue('ever', 'good');
IdemRelay::wait_until('it holds no later event back', sub { accepted('ever') == 1 });
sql(q{SELECT idempotency.relay_alter('ever', retry_for => '1 ms')});
IdemTest::wait_for($node, q{SELECT dead = 1 FROM idempotency.stat_relay WHERE relay = 'ever'});
my $before = noted('ever');
is(sql(q{SELECT idempotency.relay_redrive('ever')}), '1', 'redrive');
IdemRelay::wait_until('it is tried again', sub { noted('ever') >= $before + 2 });
IdemTest::wait_for($node, q{SELECT dead = 1 FROM idempotency.stat_relay WHERE relay = 'ever'});
is(sql(q{SELECT attempts >= 2 AND tried_for > '0' FROM idempotency_data.relay_parked WHERE aggregate_type = 'ever'}), 't', 'with a new clock');

kill 'KILL', $receiver;
waitpid $receiver, 0;
$node->stop;
done_testing();
