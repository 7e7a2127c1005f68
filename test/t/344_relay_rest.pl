
# Copyright (c) 2026, the idempotency developers

# A relay that rests loses nothing: what it passes is not for it, what is for it wakes
# it, a parked event wakes it at its time, and a sink that stores positions goes on
# where both sides know it to be, also if the sink was set back meanwhile.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_idle_timeout = 200ms
autovacuum = off
END

my %file = map { $_ => "$dir/$_.log" } qw(plain stores retries);

sub enqueue
{
	my ($type, $event, $n) = @_;

	$n //= 1;
	$node->safe_psql('postgres', <<"END");
SELECT count(idempotency.outbox_enqueue('$type', 'k' || i, '$event', '1')) FROM generate_series(1, $n) i
END
	return;
}

sub came
{
	my ($relay, $event) = @_;

	return scalar grep { ($_->{event_type} // '') eq $event } IdemRelay::received($file{$relay});
}

sub wait_came
{
	my ($relay, $event, $n) = @_;

	IdemRelay::wait_until("$event came to $relay", sub { came($relay, $event) >= ($n // 1) });
	return;
}

sub wait_idle
{
	my ($relay) = @_;

	IdemRelay::wait_state($node, $relay, 'idle');
	is(IdemRelay::stat($node, $relay, 'sink_pid'), '', "$relay has no program");
	return;
}

# Until the log says that it has passed everything.
sub wait_passed
{
	my ($relay) = @_;

	IdemTest::wait_for($node, "SELECT lag_events = 0 FROM idempotency.stat_relay WHERE relay = '$relay'");
	return;
}

IdemRelay::pytest_server($node, 's_plain', $file{plain});
IdemRelay::pytest_server($node, 's_stores', $file{stores}, position => 'on');
IdemRelay::pytest_server($node, 's_retries', $file{retries}, retry_type => 'Bad', retry_times => 1);
$node->safe_psql('postgres', "SELECT idempotency.relay_create('$_', 's_$_', aggregate_types => '{$_}', min_backoff => '3 s', max_backoff => '3 s')")
  foreach keys %file;
wait_idle($_) foreach sort keys %file;

#
# Events for it, and for others, again and again.
#
foreach my $n (1 .. 5)
{
	foreach my $relay (qw(plain stores))
	{
		enqueue('other', 'Other', 50);
		enqueue($relay, "E$n");
		wait_came($relay, "E$n");
	}
	wait_idle($_) foreach qw(plain stores);
}
enqueue('other', 'Other', 50);
wait_passed($_) foreach qw(plain stores);

#
# A wake-up while the log is looked at for those that rest: commits of many sessions,
# each with an event for one of them.
#
foreach my $n (1 .. 10)
{
	enqueue('other', 'Other', 200);
	enqueue('plain', 'F');
	wait_idle('plain') if $n % 3 == 0;
}
wait_came('plain', 'F', 10);

#
# Writers that stay open while it rests.
#
wait_idle('plain');
my $writer = $node->background_psql('postgres', on_error_stop => 1);

$writer->query_safe(q{BEGIN; SELECT idempotency.outbox_enqueue('plain', 'k', 'Late', '1')});
enqueue('other', 'Other', 20);
wait_passed('stores');
is(came('plain', 'Late'), 0, 'an event of an open transaction is not there');
$writer->query_safe('COMMIT');
wait_came('plain', 'Late');
$writer->quit;

#
# A parked event wakes it; so does one that an operator makes due.
#
enqueue('retries', 'Bad');
IdemTest::wait_for($node, q{SELECT waiting_for = 'retry' OR state = 'idle' FROM idempotency.stat_relay WHERE relay = 'retries'});
wait_idle('retries');
is(scalar(grep { ($_->{outcome} // '') eq 'acked' } IdemRelay::received($file{retries})), 0, 'it rests before its parked event is due');
IdemRelay::wait_until('the parked event is sent at its time', sub { IdemRelay::acked($file{retries}) >= 1 });

#
# A sink that stores positions: the log names what it has, and goes on from there.
#
wait_idle('stores');
enqueue('other', 'Other', 50);
wait_passed('stores');
my $log = q{(SELECT * FROM idempotency_data.relay_log_0 UNION ALL SELECT * FROM idempotency_data.relay_log_1) l};
my $of = q{relay_id = (SELECT relay_id FROM idempotency_data.relays WHERE relay = 'stores')};

is($node->safe_psql('postgres', "SELECT kind, acked_row = (SELECT max(id) FROM $log WHERE $of AND kind = 's'), acked_k > 0 FROM $log WHERE $of ORDER BY id DESC LIMIT 1"),
	'p|t|t', 'what was passed while it rested names what the sink has stored');
enqueue('stores', 'Next');
wait_came('stores', 'Next');
wait_idle('stores');
is(came('stores', "E$_"), 1, "E$_ came once") foreach 1 .. 5;

#
# The sink was set back while the relay rested: what it lost comes again.
#
wait_passed('stores');
my $all = slurp_file($file{stores});
my $cut = rindex($all, '"E5"');

$cut = rindex($all, "\n", $cut) + 1;
truncate($file{stores}, $cut) or die "could not truncate: $!";
is(came('stores', 'E5') + came('stores', 'Next'), 0, 'the target has lost two events');
enqueue('stores', 'After');
wait_came('stores', $_) foreach qw(E5 Next After);
is(IdemRelay::stat($node, 'stores', 'state') =~ /^(?:streaming|idle)$/, 1, 'and it is no contradiction');

#
# A restart while all of them rest, with something for each in between.
#
wait_idle($_) foreach sort keys %file;
wait_passed($_) foreach sort keys %file;
$node->restart;
enqueue($_, 'Again') foreach sort keys %file;
wait_came($_, 'Again') foreach sort keys %file;

# The same after a crash, with events that nobody has looked at.
wait_idle($_) foreach sort keys %file;
$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
$node->restart;
enqueue($_, 'Crashed') foreach sort keys %file;
$node->stop('immediate');
$node->append_conf('postgresql.conf', "max_worker_processes = 32\n");
$node->start;
wait_came($_, 'Crashed') foreach sort keys %file;
is(came($_, 'Again'), 1, "$_: nothing came twice") foreach sort keys %file;

done_testing();
