
# Copyright (c) 2026, the idempotency developers

# Sink programs that break the protocol, give up, or claim that somebody else
# has taken over: each is told by its name, nothing is lost, and the relays that
# share the worker go on.  A program's limits are kept.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");
my %expected;    # by relay

# A relay to a sink of its own for the events of its name; returns its file.
sub relay
{
	my ($name, $settings, %opt) = @_;

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", %opt);
	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}',
	min_backoff => '20 ms', max_backoff => '100 ms'@{[ $settings ? ", $settings" : '' ]})
END
	return "$dir/$name.log";
}

# Events as "key:type", all in one transaction.
sub enqueue
{
	my ($name, @events) = @_;

	$node->safe_psql('postgres', join("\n", 'BEGIN;',
		(map { my ($key, $type) = split /:/; "SELECT idempotency.outbox_enqueue('$name', '$key', '$type', '{}');" } @events),
		'COMMIT;'));
	push @{ $expected{$name} }, @events;
	return;
}

# What was acknowledged, each event at its first time.
sub acked
{
	my ($name) = @_;
	my %seen;

	return map { "$_->{aggregate_id}:$_->{event_type}" } grep { !$seen{ $_->{event} }++ } IdemRelay::acked("$dir/$name.log");
}

# Everything, and of each key in order.
sub all_arrived
{
	my ($name) = @_;
	my $n = @{ $expected{$name} };

	IdemRelay::wait_received("$dir/$name.log", $n);
	foreach my $key (qw(a b))
	{
		is( join(' ', grep { /^$key:/ } acked($name)),
			join(' ', grep { /^$key:/ } @{ $expected{$name} }), "$name: all of key $key, in order");
	}
	IdemRelay::wait_state($node, $name, 'streaming');
	IdemTest::wait_for($node,
		"SELECT lag_events = 0 AND dead = 0 AND waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$name'");
	return;
}

relay('others');
IdemRelay::wait_state($node, 'others', 'streaming');
my $worker = IdemRelay::stat($node, 'others', 'pid');

# The relay beside, by the same worker.
sub others_go_on
{
	my ($what) = @_;

	enqueue('others', 'a:E');
	IdemRelay::wait_received("$dir/others.log", scalar @{ $expected{others} });
	is(IdemRelay::stat($node, 'others', 'pid'), $worker, "$what: the worker goes on");
	return;
}

sub hellos
{
	my ($name) = @_;

	return scalar grep { exists $_->{hello} } IdemRelay::received("$dir/$name.log");
}

# At one event, or at the first HELLO, the program does it, and its next
# instance behaves.
my $unknown = 'the sink program broke the protocol: a result for events that are not in flight';
my $verdict = 'the sink program broke the protocol: an unexpected verdict';
my %faults = (
	garbage => [ 'the sink program broke the protocol: invalid frame length', garbage_type => 'Bad' ],
	exits => [ 'the sink program exited with status 3', exit_type => 'Bad' ],
	fails => [ 'told to fail', failed_type => 'Bad' ],
	stranger => [ $unknown, lie => 'stranger' ],
	beyond => [ $unknown, lie => 'beyond' ],
	twice => [ 'the sink program broke the protocol: a second result for an event', lie => 'twice' ],
	verdict => [ $verdict, lie => 'verdict' ],
	hasty => [ $verdict, lie => 'hasty' ],
	ready => [ 'the sink program broke the protocol: a second READY', lie => 'ready' ],
	early => [ 'the sink program broke the protocol: a frame before READY', hello => 'early' ],
	dies => [ 'the sink program was terminated by signal 9', hello => 'crash' ],
	refuses => [ 'told to answer rejected', hello => 'rejected' ],
	away => [ 'told to answer outage', hello => 'outage' ]);

foreach my $fault (sort keys %faults)
{
	foreach my $position (qw(off on))
	{
		my ($name, $error, %opt) = ("${fault}_$position", @{ $faults{$fault} });

		$opt{lie_type} = 'Bad' if exists $opt{lie};
		relay($name, undef, %opt, fault_times => 1, position => $position);
		enqueue($name, qw(a:One b:One a:Bad a:Two b:Two a:Three));
		all_arrived($name);
		is(scalar(grep { exists $_->{fault} } IdemRelay::received("$dir/$name.log")), 1, "$name: it happened");
		is(IdemRelay::stat($node, $name, 'last_error'), $error, "$name: last_error says what");
		is(scalar(IdemRelay::acked("$dir/$name.log")), 6, "$name: none twice") if $position eq 'on';
	}
	others_go_on($fault);
	$node->safe_psql('postgres', "DROP SERVER s_${fault}_$_ CASCADE") foreach qw(off on);
}

# Who does it each time it sees the event is kept from it: a dead letter, for
# which the later ones of its key have waited.
foreach my $lie (qw(stranger hasty ready))
{
	relay("always_$lie", 'max_attempts => 2', lie => $lie, lie_type => 'Bad');
	enqueue("always_$lie", qw(a:One b:One a:Bad b:Two a:Two));
	IdemTest::wait_for($node, "SELECT count(*) = 1 FROM idempotency.dead_letters WHERE relay = 'always_$lie'");
	IdemRelay::wait_received("$dir/always_$lie.log", 4);
	is(join(' ', grep { /^a:/ } acked("always_$lie")), 'a:One a:Two', "always $lie: the others arrive");
	is( $node->safe_psql('postgres', "SELECT attempts, sqlstate, error ~ 'broke the protocol'
			FROM idempotency.dead_letters WHERE relay = 'always_$lie'"),
		'2|ID006|t', "always $lie: the event is found");
	others_go_on("always $lie");
	$node->safe_psql('postgres', "DROP SERVER s_always_$lie CASCADE");
}

# A program that is never ready is looked for again and again.
relay('rejected', undef, hello => 'rejected');
enqueue('rejected', qw(a:One b:One));
IdemRelay::wait_until('several tries', sub { hellos('rejected') >= 3 });
IdemTest::wait_for($node, q{SELECT state = 'misconfigured' AND waiting_for = 'backoff' AND last_error = 'told to answer rejected'
	FROM idempotency.stat_relay WHERE relay = 'rejected'});
others_go_on('rejected');
$node->safe_psql('postgres', 'ALTER SERVER s_rejected OPTIONS (DROP hello)');
all_arrived('rejected');

# Fenced, it waits for an operator: by its HELLO, and by a result.
foreach my $how ([ hello => 'fenced' ], [ fenced_type => 'Bad' ])
{
	foreach my $position (qw(off on))
	{
		my $name = "$how->[0]_$position";

		relay($name, undef, @$how, fault_times => 1, position => $position);
		enqueue($name, qw(a:One a:Bad b:One a:Two));
		IdemRelay::wait_state($node, $name, 'fenced');
		is(IdemRelay::stat($node, $name, 'waiting_for, sink_pid'), 'operator|', "$name: it waits for somebody, without a program");
		is(IdemRelay::stat($node, $name, 'last_error'), 'told to answer fenced', "$name: last_error says what");
		enqueue($name, 'a:Three');
		$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('others', batch_events => 100)});
		others_go_on($name);
		is(IdemRelay::stat($node, $name, 'state'), 'fenced', "$name: others' affairs do not take over");
		is(hellos($name), 1, "$name: nor was it tried");
		$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$name')");
		all_arrived($name);
		is(scalar(IdemRelay::acked("$dir/$name.log")), 5, "$name: none twice") if $position eq 'on';
	}
}

# A target that wants no more events halts its relay, with its reason, until it is resumed.
relay('gone', undef, hello => 'halted', fault_times => 1);
enqueue('gone', qw(a:One));
IdemRelay::wait_state($node, 'gone', 'halted');
is(IdemRelay::stat($node, 'gone', 'waiting_for, last_error'), 'operator|told to answer halted', 'gone: it waits for somebody, and says why');
is($node->safe_psql('postgres', q{SELECT halted, halt_message FROM idempotency_data.relays WHERE relay = 'gone'}),
	'sink|told to answer halted', 'gone: so does its row');
$node->restart;
IdemRelay::wait_state($node, 'gone', 'halted');
IdemRelay::wait_state($node, 'others', 'streaming');
$worker = IdemRelay::stat($node, 'others', 'pid');
is(IdemRelay::stat($node, 'gone', 'last_error'), 'told to answer halted', 'gone: a restart of the server changes nothing');
is(hellos('gone'), 1, 'gone: nor was it tried');

# A relay that may not run shows why again when the relays are read again.
foreach my $more (1000, 0)
{
	$node->safe_psql('postgres', "SELECT idempotency.relay_alter('others', aggregate_types =>
		ARRAY(SELECT 'type ' || n FROM generate_series(1, $more) n) || 'others'::text)");
	others_go_on('gone');
}
is(IdemRelay::stat($node, 'gone', 'last_error'), 'told to answer halted', 'gone: a change of another relay changes nothing');
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('gone')});
all_arrived('gone');
is($node->safe_psql('postgres', q{SELECT num_nulls(halted, halt_message) FROM idempotency_data.relays WHERE relay = 'gone'}),
	'2', 'gone: and nothing is left of it');

# The test sink fails when it is given more than it wants.
sub kept
{
	my ($name, $settings, %opt) = @_;

	foreach my $position (qw(off on))
	{
		relay("${name}_$position", $settings, position => $position, %opt);
		enqueue("${name}_$position", ('a:E', 'b:E') x 50, 'a:Again', ('a:E', 'b:E') x 50);
		all_arrived("${name}_$position");
		is(IdemRelay::stat($node, "${name}_$position", 'last_error'), $opt{retry_type} ? 'told to answer retry' : '',
			"$name: nothing else went wrong");
		is(hellos("${name}_$position"), 1, "$name: one program did it all");
	}
	return;
}

kept('two', undef, max_batch_events => 2, retry_type => 'Again', retry_times => 2);
kept('one', undef, credit_messages => 1, retry_type => 'Again', retry_times => 2);
kept('byte', undef, credit_bytes => 1, retry_type => 'Again', retry_times => 2);
kept('small', undef, max_batch_bytes => 1, max_batch_events => 7, credit_messages => 8);

# An event larger than batch_size, the sink's batches and its credit goes alone.
foreach my $position (qw(off on))
{
	my $name = "large_$position";

	relay($name, q{batch_size => '1kB'}, position => $position, max_batch_bytes => 512, credit_bytes => 2048);
	$node->safe_psql('postgres', <<"END");
SELECT count(idempotency.outbox_enqueue_bytes('$name', 'k', i::text, convert_to(repeat(i::text, size), 'UTF8')))
	FROM (SELECT i, CASE WHEN i % 3 = 0 THEN 1 WHEN i % 3 = 1 THEN 100000 ELSE 1000000 END AS size FROM generate_series(1, 9) i) s
END
	IdemRelay::wait_received("$dir/$name.log", 9);
	my @events = IdemRelay::acked("$dir/$name.log");
	is(join(' ', map { $_->{event_type} } @events), join(' ', 1 .. 9), "$name: each once, in order");
	is( join(' ', map { length($_->{payload_hex}) / 2 } @events),
		join(' ', (100000, 1000000, 1) x 3), "$name: whole");
	my %in_batch;
	$in_batch{ $_->{batch} }++ foreach grep { length $_->{payload_hex} > 1024 } @events;
	is(join(' ', values %in_batch), join(' ', (1) x 6), "$name: no two that are too large in one batch");
	is(IdemRelay::stat($node, $name, 'last_error'), '', "$name: nothing went wrong");
}

is(IdemRelay::stat($node, 'others', 'pid'), $worker, 'one worker served them all');
all_arrived('others');
$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/idempotency-sink-pytest: protocol error/, 'the worker kept to the protocol');
unlike($log, qr/(?:PANIC|TRAP|server process .* was terminated)/, 'nothing crashed');
done_testing();
