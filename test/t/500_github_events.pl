
# Copyright (c) 2026, the idempotency developers

# Real payloads, delivered one to three times over eight connections while
# backends are killed with -9: every event has its effect exactly once.
#
# The 329 example events of GitHub's webhooks lie in the table inbox, which
# plays the broker.  Eight consumers work off their own deliveries in random
# order, as a broker with at-least-once delivery would hand them out: what was
# not acknowledged after COMMIT, because the server crashed or another consumer
# was busy with the event, is delivered again.  The table of effects has no
# constraint, so that a second effect would be seen.  Each effect also enqueues
# an event, and two relays carry it on: one into a function of this database, one
# into another database; nothing there has a constraint either.
#
# The kills are part of the consumers' work and so neither early nor late: a
# consumer kills its own backend at a step drawn before it starts, which crashes
# the server under all the others, wherever they are, relays included.  Relay
# workers and the sink program are killed on top of that.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use List::Util qw(shuffle);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use constant {
	EVENTS => 329,
	CONSUMERS => 8,
	PREFETCH => 10,
	KILLS_EACH => 2,
	RELAY_KILLS => 4,
	ROUNDS => 3000,
};

my $input = $ENV{IDEM_REAL_INPUT} or BAIL_OUT('IDEM_REAL_INPUT is not set');
my $seed = $ENV{IDEM_SEED} // time ^ $$;
srand($seed);
note("seed $seed; IDEM_SEED=$seed repeats this schedule");

my $node = IdemTest::cluster('github', conf => "log_statement = none\n");

$node->safe_psql('postgres', <<"END");
CREATE TABLE inbox AS
SELECT e->>'name' || '/' || x.ord - 1 AS event_id,
	   e->>'name' AS event_name,
	   x.payload
FROM jsonb_array_elements(pg_read_file('$input')::jsonb) AS e,
	 jsonb_array_elements(e->'examples') WITH ORDINALITY AS x (payload, ord);
CREATE TABLE effects (event_id text, payload jsonb);
END

# The relays' ends.  What they call is the same in both databases.
my $handler = <<'END';
CREATE SCHEMA app;
CREATE TABLE app.got (event_id text, payload jsonb);
CREATE FUNCTION app.on_event(aggregate_id text, payload jsonb) RETURNS void
LANGUAGE sql AS 'INSERT INTO app.got VALUES ($1, $2)';
END
$node->safe_psql('postgres', 'CREATE DATABASE target');
$node->safe_psql('postgres', $handler);
$node->safe_psql('target', $handler);
my ($host, $port, $user) = ($node->host, $node->port, $node->safe_psql('postgres', 'SELECT current_user'));
$node->safe_psql('postgres', <<"END");
CREATE SERVER here FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.on_event');
CREATE SERVER there FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname 'target', function 'app.on_event');
CREATE USER MAPPING FOR CURRENT_USER SERVER there OPTIONS (user '$user');
END
$node->safe_psql('target',
	$node->safe_psql('postgres', "SELECT idempotency.sink_setup_sql('there')"));
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create(r, r, min_backoff => '10 ms', max_backoff => '200 ms',
	batch_events => 20) FROM unnest('{here,there}'::text[]) r;
END

my @events = split /\n/, $node->safe_psql('postgres', 'SELECT event_id FROM inbox ORDER BY 1');
is(scalar @events, EVENTS, 'all example events are there');

# One to three deliveries of each event, each to another consumer.
my @queues = map { [] } 1 .. CONSUMERS;
my $deliveries = 0;
foreach my $event (@events)
{
	my @to = (shuffle 0 .. CONSUMERS - 1)[ 0 .. int(rand 3) ];

	push @{ $queues[$_] }, $event foreach @to;
	$deliveries += @to;
}
note("$deliveries deliveries");

# What a consumer does with one delivery, for psql; at step $kill_at, if any, it
# kills its backend.
sub delivery_script
{
	my ($event, $kill_at) = @_;
	my @steps = ('BEGIN;',
		<<"END",
SELECT verdict = 'claimed' AS claimed, verdict <> 'busy' AS settled
FROM idempotency.claim_event('$event', consumer => 'github') AS verdict \\gset
END
		<<"END",
\\if :claimed
INSERT INTO effects SELECT event_id, payload FROM inbox WHERE event_id = '$event';
\\endif
END
		<<"END",
\\if :claimed
SELECT FROM inbox, idempotency.outbox_enqueue('github', event_id, event_name, payload)
WHERE event_id = '$event' \\g /dev/null
\\endif
END
		<<"END",
\\if :claimed
SELECT idempotency.complete_event('$event', consumer => 'github') \\g /dev/null
\\endif
END
		'COMMIT;',
		<<"END");
\\if :settled
\\echo ack $event
\\endif
END

	splice @steps, $kill_at, 0, <<'END' if defined $kill_at;
SELECT pg_backend_pid() AS pid \gset
\setenv PID :pid
\echo killing
\! kill -9 $PID
SELECT 1 \g /dev/null
END
	return join "\n", @steps, '';
}

# Did this message come of a server that crashed and is coming back?
sub connection_lost
{
	my ($err) = @_;

	return $err =~ /connection|server closed|starting up|recovery mode|shutting down|crash/i;
}

# Work off a queue; runs in a process of its own.  Returns how often it killed
# its backend, and nothing if something else than a lost connection happened or
# if the queue never empties.
sub consume
{
	my ($name, @all) = @_;
	my @queue = @all;
	my $connection = $node->connstr('postgres') . " application_name=$name";
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";
	my $kills = 0;
	my $next_kill = 1 + int rand 3;

	foreach my $round (1 .. ROUNDS)
	{
		return $kills if !@queue && $kills == KILLS_EACH;

		# The last kill comes with deliveries that were settled already.
		@queue = shuffle(@queue ? @queue : @all);
		my @batch = splice @queue, 0, PREFETCH;
		my ($out, $err) = ('', '');
		my $kill_in = $kills < KILLS_EACH && $round >= $next_kill ? int rand @batch : -1;
		my $script = join '', map {
			delivery_script($batch[$_], $_ == $kill_in ? int rand 7 : undef)
		} 0 .. $#batch;

		# From a file: a psql that finds no server never reads its input.
		PostgreSQL::Test::Utils::append_to_file($file, $script);
		IPC::Run::run [ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $connection, '-f', $file ],
		  '>', \$out, '2>', \$err;
		unlink $file;
		my $status = $?;
		my %acked = map { $_ => 1 } $out =~ /^ack (.*)$/mg;

		push @queue, grep { !$acked{$_} } @batch;
		if ($out =~ /^killing$/m)
		{
			$kills++;
			$next_kill = $round + 1 + int rand 4;
		}
		if ($status != 0 && !connection_lost($err))
		{
			diag("$name: $err");
			return;
		}
		# A round that finds no server is none.
		wait_answer('SELECT true') if $status != 0;
	}
	diag("$name: " . @queue . ' deliveries were never settled');
	return;
}

# The first line that a query gives, as soon as it gives one.  It is no input: a
# psql that finds no server would not read it, which is an error to those who write.
sub wait_answer
{
	my ($query) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $until)
	{
		my ($out, $err) = ('', '');

		IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $query ],
			'<', \undef, '>', \$out, '2>', \$err);
		return $1 if $out =~ /^(.+)$/m;
		usleep(50_000);
	}
	return;
}

my @pids;
foreach my $i (0 .. CONSUMERS - 1)
{
	my $pid = fork // die "could not fork: $!";

	if ($pid == 0)
	{
		srand($seed + $i + 1);
		my $kills = eval { consume("consumer$i", @{ $queues[$i] }) };
		diag($@) if $@;
		# No END blocks: they belong to the parent, which owns the server.
		POSIX::_exit(defined $kills && $kills == KILLS_EACH ? 0 : 1);
	}
	push @pids, $pid;
}

# Kill the worker of one relay and the sink program of the other in turn, as soon
# as there is one.
my $relay_kills = 0;
foreach my $k (1 .. RELAY_KILLS)
{
	my $query = $k % 2
	  ? "SELECT pid FROM idempotency.stat_relay WHERE relay = 'here'"
	  : "SELECT sink_pid FROM idempotency.stat_relay WHERE relay = 'there'";

	foreach my $try (1 .. 100)
	{
		my $pid = wait_answer($query) or last;

		# It may be gone since, with the server.
		next unless kill 'KILL', $pid;
		$relay_kills++;
		last;
	}
}
is($relay_kills, RELAY_KILLS, 'relays and sink programs were killed');

my $good = 0;
foreach my $pid (@pids)
{
	waitpid $pid, 0;
	$good++ if $? == 0;
}
is($good, CONSUMERS,
	'every consumer settled all its deliveries and killed its backend as often as it was to');

# The last crash may be going on.
$node->poll_query_until('postgres', 'SELECT true') or die 'server did not come back';
my @crashes = slurp_file($node->logfile) =~ /was terminated by signal 9/g;
cmp_ok(scalar @crashes, '>=', 2, @crashes . ' crashes of the server');

is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT event_id) FROM effects'),
	EVENTS . '|' . EVENTS, 'one effect per event');
is( $node->safe_psql('postgres',
		'SELECT count(*) FROM effects JOIN inbox USING (event_id, payload)'),
	EVENTS, 'with the payload that was delivered');
is( $node->safe_psql('postgres', <<'END'), EVENTS . '|' . EVENTS,
SELECT count(*), count(DISTINCT event_id) FROM effects, idempotency.event_status(event_id, 'github') s
WHERE s.status = 'completed'
END
	'one completion per event');
is( $node->safe_psql('postgres', <<'END'), EVENTS . '|' . EVENTS,
SELECT count(*), count(DISTINCT (e.event_type, e.aggregate_id))
FROM idempotency.outbox_events e
JOIN inbox i ON e.aggregate_type = 'github' AND i.event_id = e.aggregate_id
			 AND i.event_name = e.event_type AND i.payload = e.payload
END
	'one event in the outbox per effect');

# What the relays delivered, each to its own end.
foreach my $end ([ 'postgres', 'here' ], [ 'target', 'there' ])
{
	my ($database, $relay) = @$end;

	ok( $node->poll_query_until($database,
			'SELECT count(DISTINCT event_id) >= ' . EVENTS . ' FROM app.got'),
		"relay $relay: every event arrived");
	ok( $node->poll_query_until('postgres',
			"SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$relay'"),
		"relay $relay: nothing is left");
	is( $node->safe_psql($database, 'SELECT count(*), count(DISTINCT event_id) FROM app.got'),
		EVENTS . '|' . EVENTS,
		"relay $relay: each of them once");
	# The sum of the digests tells payloads apart; the order does not matter.
	my $digest = q{SELECT sum(hashtextextended(event_id || payload::text, 0)) FROM};
	is($node->safe_psql($database, "$digest app.got"),
		$node->safe_psql('postgres', "$digest inbox"),
		"relay $relay: with the payload that was delivered");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.dead_letters'),
	0, 'and none was given up');

$node->stop;
done_testing();
