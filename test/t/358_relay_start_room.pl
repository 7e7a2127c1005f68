
# Copyright (c) 2026, the idempotency developers

# Relays that cannot go on take no program's place from those that can: new ones to a
# target that says nothing, also after a crash; one that was asked to give way and whose
# sink does not answer; one whose former program was killed and does not end; one whose
# target takes nothing, with hundreds of events in flight.
#
# What holds those relays up lasts longer than the test, so whoever waits for it fails.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();

append_to_file("$dir/idempotency-sink-silent", "#!/bin/sh\nexec sleep 100000\n");
chmod 0755, "$dir/idempotency-sink-silent";

my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 1h
idempotency.sink_idle_timeout = 300ms
idempotency.max_sink_programs = 4
autovacuum = off
END
my $sent = 0;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sub set
{
	my ($name, $value) = @_;

	sql("ALTER SYSTEM SET idempotency.$name = '$value'");
	$node->reload;
	return;
}

# The relay that has nothing to do with any of it.
sub one_is_served
{
	my ($name) = @_;
	my $event = 'one' . ++$sent;

	sql("SELECT idempotency.outbox_enqueue('one', 'k', '$event', '1')");
	IdemRelay::arrives("$dir/one.log", $event);
	IdemRelay::wait_state($node, 'one', 'idle');
	is(IdemRelay::came("$dir/one.log", $event), 1, "the other relay is served: $name");
	return;
}

my $one = IdemRelay::own_relay($node, $dir, 'one');
IdemRelay::wait_state($node, 'one', 'idle');

#
# Three times as many new relays to a silent program as there is room for.
#
sql(q{CREATE SERVER silent FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'silent')});
sql(q{SELECT count(idempotency.relay_create('silent' || i, 'silent', aggregate_types => '{silent}')) FROM generate_series(1, 12) i});
IdemTest::wait_for($node, q{SELECT count(*) > 0 FROM idempotency.stat_relay WHERE relay LIKE 'silent%' AND sink_pid IS NOT NULL});
one_is_served('beside new relays to a silent target');

$node->stop('immediate');
$node->start;
one_is_served('after a crash');
sql(q{SELECT count(idempotency.relay_drop('silent' || i)) FROM generate_series(1, 12) i});

#
# Both programs are in use; the older one has a batch at a sink that does not answer.
#
set('max_sink_programs', 2);
IdemRelay::own_relay($node, $dir, 'hung', delay_ms => 100_000_000);
sql(q{SELECT idempotency.outbox_enqueue('hung', 'k', 'Hung', '1')});
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' AND state = 'streaming' FROM idempotency.stat_relay WHERE relay = 'hung'});
IdemRelay::own_relay($node, $dir, 'busy', delay_ms => 20);
sql(q{SELECT idempotency.relay_alter('busy', batch_events => 1)});
sql(q{SELECT count(idempotency.outbox_enqueue('busy', 'k', 'Busy', '1')) FROM generate_series(1, 20000)});
IdemTest::wait_for($node, q{SELECT sent > 0 FROM idempotency.stat_relay WHERE relay = 'busy'});
one_is_served('the relay that is to give way cannot');
sql(q{SELECT idempotency.relay_drop(relay) FROM unnest('{hung,busy}'::text[]) relay});

#
# There is one program.  It was sent BYE and does not end: its parent cannot reap it.
# Its relay has asked for the next one before the worker kills it.
#
set('max_sink_programs', 1);
IdemRelay::own_relay($node, $dir, 'held');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.stat_relay WHERE relay = 'held' AND sink_pid IS NULL AND state = 'idle'});
# It rests when it is held, however long that takes.
set('sink_idle_timeout', '1h');
sql(q{SELECT idempotency.outbox_enqueue('held', 'k', 'Held', '1')});
IdemTest::wait_for($node, q{SELECT sink_pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'held'});

my $tracer = IdemRelay::hold(IdemRelay::stat($node, 'held', 'sink_pid'));

set('sink_idle_timeout', '300ms');

IdemRelay::wait_state($node, 'held', 'idle');
sql(q{SELECT idempotency.outbox_enqueue('held', 'k', 'Held again', '1')});
one_is_served('a program that was killed does not end');
IdemRelay::release($tracer);
IdemRelay::arrives("$dir/held.log", 'Held again');

#
# Its target takes nothing, and the rest of what was sent has no answer: neither another relay nor a
# pause waits for the rest.
#
sub create_refused
{
	my ($relay) = @_;

	IdemRelay::own_relay($node, $dir, $relay, retry_type => 'R', mute_type => 'Mute', answer => 'each');
	sql(qq{SELECT count(idempotency.outbox_enqueue('$relay', 'k' || i, CASE WHEN i <= 10 THEN 'R' ELSE 'Mute' END, '1')) FROM generate_series(1, 200) i});
	IdemTest::wait_for($node, qq{SELECT state = 'outage' AND sink_pid IS NOT NULL FROM idempotency.stat_relay WHERE relay = '$relay'});
	return;
}

sql(q{SELECT idempotency.relay_drop('held')});
set('max_sink_programs', 4);
create_refused('refused');
set('max_sink_programs', 1);
one_is_served('a target takes nothing');
sql(q{SELECT idempotency.relay_drop('refused')});
set('max_sink_programs', 4);
create_refused('paused');
sql(q{SELECT idempotency.relay_pause('paused')});
IdemRelay::wait_state($node, 'paused', 'paused');
sql(q{SELECT idempotency.relay_drop('paused')});

#
# Relays that share a place have little in flight to a slow target.
#
set('max_sink_programs', 1);
IdemRelay::own_relay($node, $dir, 'slow', mute_type => 'Mute');
sql(q{SELECT count(idempotency.outbox_enqueue('slow', 'k' || i, 'Mute', '1')) FROM generate_series(1, 500) i});
IdemTest::wait_for($node, q{SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'slow'});
sql(q{SELECT idempotency.outbox_enqueue('one', 'k', 'Waits', '1')});
IdemTest::wait_for($node, q{SELECT waiting_for = 'sink program' FROM idempotency.stat_relay WHERE relay = 'one'});
is(scalar(grep { $_->{event} } IdemRelay::received("$dir/slow.log")), 16, 'no more in flight than the target is known to take soon');
sql(q{SELECT idempotency.relay_drop('slow')});
IdemRelay::arrives("$dir/one.log", 'Waits');

$node->stop;
done_testing();
