
# Copyright (c) 2026, the idempotency developers

# relay_adopt of a relay that is at work: its newest position is younger than the
# snapshot of the transaction that adopts it, and is a position of this cluster.
# And of a relay that was dropped, and whose row a dump brings back into the very
# database: the identity is the same, the log has rows of its former life, and it
# sends nothing before relay_adopt.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

IdemRelay::pytest_server($node, 'srv', $file);
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('p', 'srv')});
IdemRelay::enqueue($node, 'a', 'One', 3);
IdemRelay::wait_received($file, 3);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

my $operator = $node->background_psql('postgres');
$operator->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
IdemRelay::enqueue($node, 'a', 'Two', 5);
IdemRelay::wait_received($file, 8);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});

my $log = -s $node->logfile;
$operator->query_safe(q{SELECT idempotency.relay_adopt('p'); COMMIT});
$operator->quit;
ok(!$node->log_contains('has no position of this cluster', $log), 'the position is one of this cluster');

IdemRelay::wait_state($node, 'p', 'streaming');
IdemRelay::enqueue($node, 'a', 'Three', 2);
IdemRelay::wait_received($file, 10);
IdemTest::wait_for($node, q{SELECT bool_and(lag_events = 0) FROM idempotency.stat_relay});
is(scalar(IdemRelay::acked($file)), 10, 'nothing is sent again');

# Drop it, and bring row and foreign table back from a dump.  Another relay keeps
# the worker; the command on it makes the worker look.
my $dump = $node->basedir . '/dump';
my $me = $node->safe_psql('postgres', 'SELECT current_user');
my $p = $node->safe_psql('postgres', q{SELECT 'relay_' || relay_id FROM idempotency_data.relays WHERE relay = 'p'});
IdemRelay::pytest_server($node, 'other', "$dir/other.log");
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('other', 'other', start_at => 'latest')});
command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'dumped');
my ($contents) = run_command([ 'pg_restore', '-l', $dump ]);
append_to_file("$dump.list", join("\n", grep { / FOREIGN TABLE \S+ $p | TABLE DATA \S+ relays / } split(/\n/, $contents)) . "\n");
my ($script) = run_command([ 'pg_restore', '--no-owner', '-f', '-', '-L', "$dump.list", $dump ]);
ok($script =~ s/^\d+\tother\t.*\n//m, 'row and foreign table of one relay');

sub bring_back
{
	my ($owner) = @_;

	$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('p')});
	IdemRelay::enqueue($node, 'a', 'Dropped', 3);
	$node->safe_psql('postgres', $script =~ s/\tp\t\Q$me\E\t/\tp\t$owner\t/r);
	$node->safe_psql('postgres', q{SELECT idempotency.relay_pause('other')});
	return;
}
bring_back($me);
IdemRelay::wait_state($node, 'p', 'unadopted');
is(IdemRelay::stat($node, 'p', 'last_error'), 'the relay or events were restored from a dump', 'it says why it sends nothing');
$log = -s $node->logfile;
$node->safe_psql('postgres', q{SELECT idempotency.relay_adopt('p')});
ok($node->log_contains('has no position of this cluster', $log), 'the rows of its former life are no position');
IdemRelay::wait_received($file, 13);
is(scalar(grep { $_->{event_type} ne 'Dropped' } IdemRelay::acked($file)), 20, 'it sends everything that is in the outbox');

# The operator moves it before the adoption: it waits, and then goes on from there.
bring_back($me);
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('p', start_at => 'latest'), idempotency.relay_resume('p')});
IdemRelay::wait_state($node, 'p', 'unadopted');
IdemRelay::enqueue($node, 'a', 'Five', 1);
$node->safe_psql('postgres', q{SELECT idempotency.relay_adopt('p')});
IdemRelay::wait_received($file, 14);
is((IdemRelay::acked($file))[-1]->{event_type}, 'Five', 'the event after the move is sent');
is(scalar(IdemRelay::acked($file)), 24, 'and none before it');

# A role with the OID of the noted owner is not that owner renamed.
bring_back('former');
my ($rc, $out, $err) = $node->psql('postgres', q{SELECT idempotency.relay_adopt('p')});
like($err, qr/the relay was owned by role "former", which does not exist/, 'an OID of a dump is nobody\'s');
$node->stop;
done_testing();
