
# Copyright (c) 2026, the idempotency developers

# Random events of hot and other keys, some refused a few times and some for ever, to
# sinks of each kind under each on_dead, while programs and the server are killed: the
# order of each key holds, nothing is lost, and nothing comes twice where that is promised.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $EVENTS = 1200;
my $seed = $ENV{SEED} // int(rand(1 << 30));
srand($seed);
diag("SEED=$seed");

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.max_parked = 20
END
my $parked = $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relname = 'relay_parked'});
my $relays = $node->safe_psql('postgres', q{SELECT oid::regclass FROM pg_class WHERE relname = 'relays'});

sub sql { return $node->safe_psql('postgres', @_); }

# "Bad" is refused twice, as a sequence remembers that is not rolled back; "Dead" always.
my $handler = <<'END';
CREATE SCHEMA app;
CREATE TABLE app.got (n bigserial, relay text, event_id uuid);
CREATE FUNCTION app.handle(relay text, event_id uuid, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Dead' OR event_type = 'Bad' AND
		nextval(format('app.%I', left(relay || replace(event_id::text, '-', ''), 63))) <= 2 THEN
		RAISE EXCEPTION 'refused';
	END IF;
	INSERT INTO app.got (relay, event_id) VALUES (relay, event_id);
END $$;
END
sql('CREATE DATABASE target');
$node->safe_psql($_, $handler) foreach qw(postgres target);
IdemRelay::prepared_postgres_server($node, 'setup', $node, 'target', 'app.handle');

# The events, as they are enqueued: key, type, id.
my @events = map {
	my $dice = rand();

	{   key => rand() < 0.5 ? 'hot' : 'k' . int(rand(12)),
		type => $dice < 0.03 ? 'Bad' : $dice < 0.04 ? 'Dead' : 'Good',
		id => sprintf('%08x-0000-4000-8000-%012x', rand(1 << 30), $_) }
} 1 .. $EVENTS;

# The relays: name => kind, on_dead.
my %relay;
foreach my $kind (qw(fn pg plain stored))
{
	foreach my $on_dead (qw(skip block_key stop))
	{
		my $name = "${kind}_$on_dead";
		my $db = $kind eq 'pg' ? 'target' : 'postgres';

		$relay{$name} = { kind => $kind, on_dead => $on_dead, db => $db, file => "$dir/$name.log" };
		if ($kind eq 'fn' || $kind eq 'pg')
		{
			$node->safe_psql($db, "CREATE FUNCTION app.h_$name(event_id uuid, event_type text) RETURNS void"
				  . " LANGUAGE sql AS \$\$ SELECT app.handle('$name', event_id, event_type) \$\$;"
				  . join('', map { "CREATE SEQUENCE app.\"" . substr($name . ($_->{id} =~ s/-//gr), 0, 63) . "\";" }
					  grep { $_->{type} eq 'Bad' } @events));
		}
		if ($kind eq 'fn')
		{
			sql("CREATE SERVER s_$name FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'app.h_$name')");
		}
		elsif ($kind eq 'pg')
		{
			IdemRelay::postgres_server($node, "s_$name", $node, 'target', "app.h_$name");
		}
		else
		{
			# A program counts what it answered; 'Dead' dies of its own number of attempts.
			IdemRelay::pytest_server($node, "s_$name", $relay{$name}{file}, reject_type => 'Bad,Dead',
				retry_times => 2, position => $kind eq 'stored' ? 'on' : 'off');
		}
		sql("SELECT idempotency.relay_create('$name', 's_$name', on_dead => '$on_dead', max_attempts => 3,"
			  . " min_backoff => '5 ms', max_backoff => '10 ms', batch_events => @{[ 1 + int(rand(100)) ]})");
	}
}

# Ids of what arrived at a relay, in order.
sub arrived
{
	my ($r, $name) = @_;

	return split /\n/, $node->safe_psql($r->{db}, "SELECT event_id FROM app.got WHERE relay = '$name' ORDER BY n")
	  if $r->{kind} eq 'fn' || $r->{kind} eq 'pg';
	return map { $_->{event} =~ s/^(.{8})(.{4})(.{4})(.{4})(.{12})$/$1-$2-$3-$4-$5/r } IdemRelay::acked($r->{file});
}

# An event that programs refuse twice is accepted at the third attempt.
sub is_owed
{
	my ($r, $event) = @_;

	return $event->{type} ne 'Dead' || $r->{kind} eq 'plain' || $r->{kind} eq 'stored';
}

my $others = 0;
sub is_done
{
	my ($name) = @_;
	my $r = $relay{$name};
	my %seen = map { $_ => 1 } arrived($r, $name);

	# Others' events go on: what only refused events are left of is taken for an outage.
	my $other = $others++ % 7;
	sql("SELECT idempotency.outbox_enqueue('x', 'other$other', 'Good', '{}')");

	# What the operator does: look at dead letters, and let the rest go.
	if ($r->{on_dead} ne 'skip')
	{
		sql("SELECT idempotency.relay_discard('$name')");
		sql("SELECT idempotency.relay_resume('$name')")
		  if sql("SELECT halted IS NOT NULL FROM $relays WHERE relay = '$name'") eq 't';
	}
	return !grep { is_owed($r, $_) && !$seen{ $_->{id} } } @events;
}

# Enqueue in transactions of random sizes; what is killed, is killed in between.
my @left = @events;
my $killed = 0;
while (@left)
{
	my @some = splice(@left, 0, 1 + int(rand(60)));

	sql('BEGIN;' . join('', map { "SELECT idempotency.outbox_enqueue('x', '$_->{key}', '$_->{type}', '{}', event_id => '$_->{id}');" } @some)
		  . 'COMMIT');
	if (@left < $EVENTS / 2 && !$killed++)
	{
		IdemTest::kill9_backend($node, IdemRelay::stat($node, 'fn_skip', 'pid'));
	}
	elsif (rand() < 0.3)
	{
		my @pids = grep { $_ } split /\n/, sql('SELECT sink_pid FROM idempotency.stat_relay WHERE sink_pid IS NOT NULL');

		kill 'KILL', $pids[ rand @pids ] if @pids;
	}
}

foreach my $name (sort keys %relay)
{
	my $r = $relay{$name};

	IdemRelay::wait_until("$name has got all", sub { is_done($name) });
	IdemTest::wait_for($node, "SELECT count(*) = 0 FROM $parked JOIN $relays USING (relay_id) WHERE relay = '$name' AND state <> 'dead'")
	  if $r->{on_dead} eq 'skip';

	my @ids = arrived($r, $name);
	my %times;
	$times{$_}++ foreach @ids;
	my %seen;
	my @first = grep { !$seen{$_}++ } @ids;
	my %key = map { $_->{id} => $_->{key} } @events;
	my %dead = map { $_->{id} => 1 } grep { !is_owed($r, $_) } @events;

	is(join(' ', grep { $times{$_} > 1 } keys %times), '', "$name: nothing twice") unless $r->{kind} eq 'plain';
	is(join(' ', grep { $dead{$_} } @first), '', "$name: nothing that is dead");
	my @wrong = grep {
		my $key = $_;
		join(' ', grep { ($key{$_} // '') eq $key } @first) ne
		  join(' ', map { $_->{id} } grep { $_->{key} eq $key && is_owed($r, $_) } @events);
	} ('hot', map { "k$_" } 0 .. 11);
	is("@wrong", '', "$name: every key in order");
}

$node->stop;
done_testing();
