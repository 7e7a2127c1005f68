
# Copyright (c) 2026, the idempotency developers

# A relay to a sink that stores positions is altered to another server: it goes on where it
# is, whether that server leads to another target, to the same one, or back to a former one.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
shared_preload_libraries = 'idempotency_test, idempotency'
END
my ($first, $second) = map { "$dir/$_.log" } qw(first second);

IdemRelay::pytest_server($node, 'first', $first, position => 'on');
IdemRelay::pytest_server($node, 'second', $second, position => 'on', outage_type => 'Stop');
IdemRelay::pytest_server($node, 'again', $second, position => 'on');
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('r', 'first', batch_events => 10)});

sub went_to
{
	my ($server) = @_;

	$node->safe_psql('postgres', "SELECT idempotency.relay_alter('r', server => '$server')");
	return;
}

# Until it is written down that the target has all, and not before.
sub settled
{
	IdemTest::wait_for($node, q{SELECT state = 'streaming' AND waiting_for = 'events' AND lag_events = 0
		FROM idempotency.stat_relay WHERE relay = 'r'});
	return;
}

sub types
{
	my ($file) = @_;

	return join(' ', map { $_->{event_type} } IdemRelay::acked($file));
}

sub hellos
{
	my ($file) = @_;

	return scalar grep { exists $_->{hello} } IdemRelay::received($file);
}

IdemRelay::enqueue($node, 'k', 'One');
IdemRelay::wait_received($first, 1);
settled();

# To a target that knows nothing of the relay
went_to('second');
IdemRelay::enqueue($node, 'k', 'Two');
IdemRelay::wait_until('it goes on at the new target',
	sub { types($second) ne '' || IdemRelay::stat($node, 'r', 'state') eq 'diverged' });
is(IdemRelay::stat($node, 'r', 'state'), 'streaming', 'the new target is no contradiction');
is(types($second), 'Two', 'and gets what comes now');

# To the same target, in the middle of a difference: nothing comes twice.
$node->safe_psql('postgres', q{
SELECT count(idempotency.outbox_enqueue('t', 'k' || i, CASE i WHEN 55 THEN 'Stop' ELSE 'Many' END, '{}'))
	FROM generate_series(1, 100) i});
IdemRelay::wait_state($node, 'r', 'outage');
cmp_ok(scalar(IdemRelay::acked($second)), '>', 1, 'a part of it has come');
went_to('again');
IdemRelay::wait_received($second, 101);
is(scalar(IdemRelay::acked($second)), 101, 'each once, at the same target by another name');
settled();

# To the same target by another name, which was set back: a failover to a standby that lagged
my $size = -s $second;
IdemRelay::enqueue($node, 'k', 'Lost');
IdemRelay::wait_received($second, 102);
settled();
truncate($second, $size) or die "could not truncate: $!";
my $starts = hellos($second);
went_to('second');
IdemRelay::wait_until('another program starts', sub { hellos($second) > $starts });
IdemRelay::wait_until('it gets again what it lost, or the relay goes on without, or stands',
	sub { IdemRelay::came($second, 'Lost') > 0 || IdemRelay::stat($node, 'r', 'waiting_for') =~ /^(?:events|operator)$/ });
is(IdemRelay::came($second, 'Lost'), 1, 'what a target lost by another name comes again');
is(scalar(IdemRelay::acked($second)), 102, 'and nothing else');
settled();

# Back to a target that has an older position of the relay
went_to('first');
IdemRelay::enqueue($node, 'k', 'Three');
IdemRelay::wait_received($first, 2);
is(types($first), 'One Three', 'a former target goes on with what comes now');
is(scalar(IdemRelay::acked($second)), 102, 'and the other gets nothing more');

# The same server is no change: a target that lost its state is a contradiction still.
settled();
unlink $first;
kill 'KILL', IdemRelay::stat($node, 'r', 'sink_pid');
IdemRelay::wait_state($node, 'r', 'diverged');
went_to('first');
IdemRelay::wait_state($node, 'r', 'diverged');

# The parse tree of a command is not read when the command has run: it may be gone.
my $log = -s $node->logfile;
my $looks = hellos($first);
is($node->safe_psql('postgres', <<'END'), 't', 'the relay learns of a command whose tree is gone');
CREATE FUNCTION test_run_without_tree(sql text) RETURNS boolean
	LANGUAGE c AS 'idempotency_test', 'idem_test_run_without_tree_fn';
SELECT test_run_without_tree($$ALTER SERVER first OPTIONS (ADD reject_type 'None')$$);
END
IdemRelay::wait_until('another program looks', sub { hellos($first) > $looks });
unlike(slurp_file($node->logfile, $log), qr/terminated by signal/, 'and no process dies of it');

# Paused or halted in the middle of a difference, and then to another target: nothing comes to both.
# The sink holds the batch of its first refused event until the relay is told.
sub moves
{
	my ($how, $on_dead, $act, $reached, $state) = @_;
	my ($from, $to) = map { "$dir/${how}_$_.log" } qw(from to);

	IdemRelay::pytest_server($node, "${how}_from", $from, position => 'on', reject_type => 'Bad', hold => "$dir/$how");
	IdemRelay::pytest_server($node, "${how}_to", $to, position => 'on');
	append_to_file("$dir/$how", '');
	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$how', '${how}_from', batch_events => 10, aggregate_types => '{$how}', start_at => 'latest', max_attempts => 1,
	on_dead => '$on_dead', max_lag_size => '3 MB');
SELECT count(idempotency.outbox_enqueue('$how', 'k' || i, CASE WHEN i = 100 THEN 'Bad' ELSE 'E' END, '{}')) FROM generate_series(1, 5000) i;
END
	IdemRelay::wait_until('a batch is held', sub { scalar grep { exists $_->{held} } IdemRelay::received($from) });
	$node->safe_psql('postgres', $act) if $act;
	IdemTest::wait_for($node, qq{SELECT $reached FROM idempotency_data.relays WHERE relay = '$how'});
	unlink "$dir/$how" or die "could not unlink: $!";
	IdemRelay::wait_state($node, $how, $state);
	my $before = scalar(IdemRelay::acked($from));
	cmp_ok($before, '>=', 99, "$how: what was in flight is there");
	cmp_ok($before, '<', 4999, "$how: and that is not all");
	$node->safe_psql('postgres', qq{SELECT idempotency.relay_alter('$how', server => '${how}_to', max_lag_size => '0'), idempotency.relay_resume('$how')});
	IdemTest::wait_for($node, qq{SELECT lag_events = 0 AND waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$how'});
	my %came;
	$came{ $_->{aggregate_id} }++ foreach map { IdemRelay::acked($_) } $from, $to;
	is(join(' ', scalar(grep { $came{$_} > 1 } keys %came), scalar(keys %came)),
		'0 ' . ($how eq 'lags' ? 5009 : 4999), "$how: each once, at one of the two targets");
	return;
}

moves('pauses', 'skip', q{SELECT idempotency.relay_pause('pauses')}, 'paused', 'paused');
moves('lags', 'skip', q{SELECT count(idempotency.outbox_enqueue('lags', 'big' || i, 'E', to_jsonb(
	(SELECT string_agg(md5(i || '-' || j), '') FROM generate_series(1, 20000) j)))) FROM generate_series(1, 10) i}, q{halted = 'max_lag_size'}, 'halted');
moves('dies', 'stop', undef, q{halted = 'dead_letter'}, 'halted');

# Within a difference to another target and back: the former one has a position in the same difference, and goes
# on behind what the other one took.
my ($here, $there) = map { "$dir/$_.log" } qw(here there);
IdemRelay::pytest_server($node, 'here', $here, position => 'on', reject_type => 'Here', hold => "$dir/hold_here");
IdemRelay::pytest_server($node, 'there', $there, position => 'on', reject_type => 'There', hold => "$dir/hold_there");
append_to_file("$dir/hold_$_", '') foreach qw(here there);
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('back', 'here', batch_events => 10, aggregate_types => '{back}', start_at => 'latest', max_attempts => 1);
SELECT count(idempotency.outbox_enqueue('back', 'k' || i, CASE i WHEN 100 THEN 'Here' WHEN 2000 THEN 'There' ELSE 'E' END, '{}')) FROM generate_series(1, 5000) i;
END
foreach my $move ([ 'here', 'there', $here ], [ 'there', 'here', $there ])
{
	my ($from, $to, $file) = @$move;

	IdemRelay::wait_until("a batch is held $from", sub { scalar grep { exists $_->{held} } IdemRelay::received($file) });
	$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('back')});
	unlink "$dir/hold_$from" or die "could not unlink: $!";
	IdemRelay::wait_state($node, 'back', 'paused');
	$node->safe_psql('postgres', qq{SELECT idempotency.relay_alter('back', server => '$to'), idempotency.relay_resume('back')});
}
IdemTest::wait_for($node, q{SELECT lag_events = 0 AND waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = 'back'});
my %came;
$came{ $_->{aggregate_id} }++ foreach map { IdemRelay::acked($_) } $here, $there;
is(join(' ', scalar(grep { $came{$_} > 1 } keys %came), scalar(keys %came)), '0 4998', 'to another target and back: each once, at one of the two');

# A program that ends without telling what its target has, while the relay is being paused: the relay is not altered.
my ($fifth, $sixth) = map { "$dir/$_.log" } qw(fifth sixth);
IdemRelay::pytest_server($node, 'fifth', $fifth, position => 'on', lose_type => 'Lost', fault_times => 1, reject_type => 'Bad', hold => "$dir/ends");
IdemRelay::pytest_server($node, 'sixth', $sixth, position => 'on');
append_to_file("$dir/ends", '');
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('ends', 'fifth', aggregate_types => '{ends}', start_at => 'latest', max_attempts => 1, batch_events => 2);
SELECT count(idempotency.outbox_enqueue('ends', t, t, '{}')) FROM unnest('{One,Two,Lost,Bad}'::text[]) t;
END
IdemRelay::wait_until('a batch is held', sub { scalar grep { exists $_->{held} } IdemRelay::received($fifth) });
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('ends')});
unlink "$dir/ends" or die "could not unlink: $!";
IdemRelay::wait_state($node, 'ends', 'paused');
is(types($fifth), 'One Two Lost', 'the former target has them');
my (undef, undef, $refused) = $node->psql('postgres', q{SELECT idempotency.relay_alter('ends', server => 'sixth')});
like($refused, qr/the target of relay "ends" may have events that the relay's position does not tell of/, 'a position that does not tell is no place to go on from');
# As the hint says
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('ends')});
IdemRelay::wait_state($node, 'ends', 'streaming');
$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('ends')});
IdemRelay::wait_state($node, 'ends', 'paused');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('ends', server => 'sixth'), idempotency.relay_resume('ends'), idempotency.outbox_enqueue('ends', 'k', 'Next', '{}')});
IdemRelay::wait_received($sixth, 1);
is(types($fifth) . '; ' . types($sixth), 'One Two Lost; Next', 'each once, at one of the two targets');

$node->stop;
done_testing();
