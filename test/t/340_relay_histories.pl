
# Copyright (c) 2026, the idempotency developers

# One sink that stores positions, and more than one history of its relay: a
# restored copy, a twin, a standby that lagged, a target that lost its state.
# All of them have the publish identity of the original.  Whatever the sink has
# stored and the relay's log does not know is `diverged`, from the first start
# on; only an operator's move accepts a position that is older than the move.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', allows_streaming => 1, conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.publish_as = 'shop'
END

sub relay
{
	my ($name) = @_;

	return IdemRelay::own_relay($node, $dir, $name, position => 'on');
}

sub enqueue
{
	my ($on, $name, $type) = @_;

	$on->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('$name', 'k', '$type', '1')");
	return;
}

sub commits
{
	my ($file) = @_;

	return grep { exists $_->{commit} } IdemRelay::received($file);
}

# Either it goes on, which is wrong, or it stands; in both cases soon.
sub diverges
{
	my ($on, $name, $file, $type, $error) = @_;

	IdemRelay::wait_until("$name goes on or stands",
		sub { IdemRelay::came($file, $type) > 0 || IdemRelay::stat($on, $name, 'state') eq 'diverged' });
	is(IdemRelay::stat($on, $name, 'state'), 'diverged', "$name: a contradiction is a state");
	like(IdemRelay::stat($on, $name, 'last_error'), $error, "$name: which says why");
	is(IdemRelay::came($file, $type), 0, "$name: nothing is sent on a guess");
	return;
}

sub kill_sink
{
	my ($on, $name) = @_;

	kill 'KILL', IdemRelay::stat($on, $name, 'sink_pid');
	return;
}

# A target that lost its state after the first confirmation.  No row of a
# difference says that there was one: the relay was paused, or the worker ended.
foreach my $name (qw(paused restarted))
{
	my $file = relay($name);

	enqueue($node, $name, 'One');
	IdemRelay::arrives($file, 'One');
	IdemTest::wait_for($node, "SELECT waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$name'");
	$node->safe_psql('postgres', "SELECT idempotency.relay_pause('$name')");
	IdemRelay::wait_state($node, $name, 'paused');
	unlink $file;
	$node->restart if $name eq 'restarted';
	enqueue($node, $name, 'Two');
	$node->safe_psql('postgres', "SELECT idempotency.relay_resume('$name')");
	diverges($node, $name, $file, 'Two', qr/has no position, although it had stored one/);
	$node->safe_psql('postgres', "SELECT idempotency.relay_adopt('$name')");
	IdemRelay::arrives($file, 'Two');
}

# Each program stores positions of a life of its own.
my $file = relay('lives');
foreach my $type (qw(One Two Three))
{
	enqueue($node, 'lives', $type);
	IdemRelay::arrives($file, $type);
	kill_sink($node, 'lives');
}
my %lives = map { $_->{incarnation} => 1 } commits($file);
is(scalar(keys %lives), 3, 'no two programs store the same life');
enqueue($node, 'lives', 'Four');
IdemRelay::arrives($file, 'Four');
is(IdemRelay::came($file, $_), 1, "$_ came once") foreach qw(One Two Three Four);

# A target that was set back gets again what it lost, and the outbox keeps what
# follows the row that it names: the next row began right behind that.
my ($second) = (grep { /"commit"/ } split /\n/, slurp_file($file))[1];
my ($row) = $second =~ /"row_id": (\d+)/;
append_to_file($file, "$second\n");
kill_sink($node, 'lives');
IdemRelay::wait_until('what the target lost comes again', sub { IdemRelay::came($file, 'Four') == 2 });
is(IdemRelay::came($file, 'Two'), 1, 'and nothing else');
is( $node->safe_psql('postgres', <<"END"), 't', 'the outbox is held from there on');
WITH log AS (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1)
SELECT n.base::text = s.base::text FROM log AS s JOIN log AS n ON n.acked_row = s.acked_row AND n.acked_k = s.acked_k AND n.relay_id = s.relay_id
	WHERE s.acked_row = $row AND n.kind = 'n' AND s.kind = 's' ORDER BY n.id DESC, s.id LIMIT 1
END

# Not so where the target also lost an event that had been parked: no copy is left of it.
my $parked = "$dir/parked.log";
IdemRelay::pytest_server($node, 's_parked', $parked, position => 'on', retry_type => 'Later', retry_times => 1);
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('parked', 's_parked', aggregate_types => '{parked}', ordering => 'none',
	min_backoff => '50 ms', max_backoff => '100 ms');
SELECT idempotency.outbox_enqueue('parked', 'k', 'Later', '1'), idempotency.outbox_enqueue('parked', 'k', 'One', '1');
END
IdemRelay::arrives($parked, 'One');
IdemRelay::arrives($parked, 'Later');
my ($before) = grep { /"commit"/ } split /\n/, slurp_file($parked);
append_to_file($parked, "$before\n");
kill_sink($node, 'parked');
enqueue($node, 'parked', 'Two');
diverges($node, 'parked', $parked, 'Two', qr/is before row \d+, with which it had stored repeated events/);

# An operator's move accepts what the sink stored before it, and nothing else.
foreach my $move (q{relay_replay('lives', since => '-infinity')}, q{relay_alter('lives', start_at => 'earliest')})
{
	my $before = IdemRelay::came($file, 'One');

	$node->safe_psql('postgres', "SELECT idempotency.$move");
	IdemRelay::wait_until("$move sends again", sub { IdemRelay::came($file, 'One') > $before });
	IdemRelay::wait_state($node, 'lives', 'streaming');
}

# A relay that is created again under its name does not know what the former one sent.
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_drop('lives');
SELECT idempotency.relay_create('lives', 's_lives', aggregate_types => '{lives}');
SELECT idempotency.outbox_enqueue('lives', 'k', 'Five', '1');
END
diverges($node, 'lives', $file, 'Five', qr/belongs to another relay of this name/);
# A move after the adoption does not take it back.
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_pause('lives');
SELECT idempotency.relay_adopt('lives');
SELECT idempotency.relay_replay('lives', since => '-infinity');
SELECT idempotency.relay_alter('lives', start_at => 'earliest');
SELECT idempotency.relay_resume('lives');
END
IdemRelay::arrives($file, 'Five');

# Backups: of a relay that has sent nothing, and of one that has.
my %file = map { $_ => relay($_) } qw(fresh used twin);
foreach my $name (qw(used twin))
{
	enqueue($node, $name, 'Before');
	IdemRelay::arrives($file{$name}, 'Before');
}
IdemTest::wait_for($node,
	q{SELECT bool_and(waiting_for = 'events') FROM idempotency.stat_relay WHERE relay IN ('fresh', 'used', 'twin')});

# One event that is parked is on its way to the sink again while the backup is
# made.  The sink refuses it then.
$file{flight} = IdemRelay::own_relay($node, $dir, 'flight', position => 'on', reject_type => 'Refused', retry_times => 2);
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('flight', max_attempts => 1)});
# Behind an event that passes the first refusal counts.
$node->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('flight', 'other', 'Passes', '1')});
IdemTest::wait_for($node, q{SELECT sent = 1 FROM idempotency.stat_relay WHERE relay = 'flight'});
enqueue($node, 'flight', 'Refused');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE relay = 'flight'});
my $sink = IdemRelay::stat($node, 'flight', 'sink_pid');
kill 'STOP', $sink;
$node->safe_psql('postgres', q{SELECT idempotency.relay_redrive('flight')});
IdemTest::wait_for($node, q{SELECT bool_and(batch_row IS NOT NULL) FROM idempotency_data.relay_parked});
$node->backup('early');
kill 'CONT', $sink;
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.dead_letters WHERE relay = 'flight'});
copy($file{twin}, "$dir/twin-early.log") or die "could not copy: $!";
# Far enough that the copy can draw the same numbers later.
$node->safe_psql('postgres', q{SELECT setval('idempotency_data.relay_log_id', nextval('idempotency_data.relay_log_id') + 1000)});
foreach my $name (sort keys %file)
{
	enqueue($node, $name, $_) foreach qw(Later Latest);
	IdemRelay::arrives($file{$name}, 'Latest');
}

# A standby that never got that.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'early', has_streaming => 1);
$standby->append_conf('postgresql.conf', "primary_conninfo = ''\n");
$standby->start;
$node->stop('immediate');
$standby->promote;
enqueue($standby, $_, 'Promoted') foreach qw(fresh used);
diverges($standby, $_, $file{$_}, 'Promoted', qr/is not in the log of positions/) foreach qw(fresh used);
$standby->stop;

# The backup itself, restored beside the original, with events of its own.
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'early');
# At first under a name of its own: it draws the same numbers for other events.
$copy->append_conf('postgresql.conf', "idempotency.publish_as = 'copy'\n");
$copy->start;
enqueue($copy, $_, 'Restored') foreach qw(fresh used);
$copy->safe_psql('postgres', "ALTER SERVER s_twin OPTIONS (SET file '$dir/twin-early.log')");
$copy->append_conf('postgresql.conf', "idempotency.publish_as = 'shop'\n");
$copy->reload;
diverges($copy, $_, $file{$_}, 'Restored', qr/is not in the log of positions/) foreach qw(fresh used);
IdemRelay::wait_state($copy, 'flight', 'diverged');
$copy->safe_psql('postgres', q{SELECT idempotency.relay_adopt('flight')});
IdemRelay::arrives($file{flight}, 'Refused');
is(IdemRelay::came($file{flight}, 'Refused'), 1, 'what the sink refused after the backup is sent again');

# A move that is not newer than what the sink has stored does not accept it.
my ($stored) = (commits($file{fresh}))[-1];
cmp_ok($copy->safe_psql('postgres', q{SELECT last_value FROM idempotency_data.relay_log_id}), '<', $stored->{row_id} - 10,
	'the sink has stored a row that the copy has no number for');
$copy->safe_psql('postgres', q{SELECT idempotency.relay_replay('fresh', since => '-infinity')});
diverges($copy, 'fresh', $file{fresh}, 'Restored', qr/is not in the log of positions/);
$copy->safe_psql('postgres', q{SELECT idempotency.relay_adopt('fresh')});
IdemRelay::arrives($file{fresh}, 'Restored');

# The copy stored a row of the same number as the original, for another event.
# Numbers alone would take the original's position for the copy's.  No relay has
# another number to draw meanwhile: each that has sent something has noted that nothing is left.
IdemTest::wait_for($copy, q{SELECT bool_and(state = 'diverged' OR (waiting_for = 'events' AND
	(SELECT kind FROM (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1) l
	  WHERE l.relay_id = r.relay_id ORDER BY id DESC LIMIT 1) = 'p'))
	FROM idempotency.stat_relay s JOIN idempotency_data.relays r USING (relay)});
is(IdemRelay::stat($copy, 'twin', 'state'), 'streaming', 'the twin goes on');
my ($theirs) = (commits($file{twin}))[-1];
$copy->safe_psql('postgres', <<"END");
BEGIN;
SELECT setval('idempotency_data.relay_log_id', $theirs->{row_id} - 1);
SELECT idempotency.outbox_enqueue('twin', 'k', 'Own', '1');
COMMIT;
END
IdemRelay::arrives("$dir/twin-early.log", 'Own');
my ($same) = grep { $_->{row_id} == $theirs->{row_id} } commits("$dir/twin-early.log");
ok(defined $same, 'both have stored a row of the same number');
$copy->safe_psql('postgres', "ALTER SERVER s_twin OPTIONS (SET file '$file{twin}')");
enqueue($copy, 'twin', 'Last');
diverges($copy, 'twin', $file{twin}, 'Last', qr/is not in the log of positions/);
$copy->stop;
done_testing();
