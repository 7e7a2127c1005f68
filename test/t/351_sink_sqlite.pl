
# Copyright (c) 2026, the idempotency developers

# A relay to a sink that was written from doc/sink-protocol.md alone and stores the
# position: each event has one effect, whatever is killed; a refused event has none,
# waits, and holds back its key only.  And what the document says of a sink that
# stores none: a batch that was not answered in full comes again in full.

use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

use lib "$FindBin::RealBin/../perl";
use IdemRelay;
use IdemTest;

my $dir = IdemRelay::sink_directory();
my $sink = "$dir/idempotency-sink-sqlite";
my $file = PostgreSQL::Test::Utils::tempdir() . '/target';
my $plain = PostgreSQL::Test::Utils::tempdir() . '/plain';
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

append_to_file($sink, slurp_file("$FindBin::RealBin/../sink/idempotency-sink-sqlite"));
chmod 0755, $sink;

sub target
{
	my ($sql) = @_;
	my ($out, $err);

	IPC::Run::run([ 'python3', '-IS', '-c', <<'END', $file, $sql ], '>', \$out, '2>', \$err) or die $err;
import sqlite3, sys
for row in sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None).execute(sys.argv[2]):
    print(*row, sep="|")
END
	chomp $out;
	return $out;
}

$node->safe_psql('postgres', <<"END");
CREATE SERVER s FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'sqlite', file '$file');
SELECT idempotency.relay_create('s', 's', batch_events => 50, min_backoff => '10 ms', max_backoff => '100 ms', max_attempts => 3);
END

# Kills of the program, of the worker, of the server, while it works.
foreach my $victim (qw(sink_pid pid sink_pid server sink_pid))
{
	my $before = -e $file ? target('SELECT count(*) FROM inbox') : 0;

	IdemRelay::enqueue($node, "k$_", 'T', 400) foreach 1 .. 5;
	IdemRelay::wait_until('some are there', sub { -e $file && target('SELECT count(*) FROM inbox') > $before });
	if ($victim eq 'server')
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif ((my $pid = IdemRelay::stat($node, 's', $victim)) ne '')
	{
		$victim eq 'pid' ? IdemTest::kill9_backend($node, $pid) : kill('KILL', $pid);
	}
}
IdemRelay::wait_until('all are there', sub { target('SELECT count(*) FROM inbox') == 10000 });
is(target('SELECT count(*), count(DISTINCT event_id), count(payload) FROM inbox'), '10000|10000|10000', 'each event has one effect');
is(target('SELECT count(*) FROM (SELECT seq < lag(seq) OVER (PARTITION BY aggregate_id ORDER BY rowid) AS disorder FROM inbox) WHERE disorder'),
	'0', 'keys are in order');
cmp_ok((split /\|/, target('SELECT epoch, relay FROM position'))[0], '>', 3, 'each start took over');

# A refused event: nothing of it is in the target, later ones of its key wait, others go on.
$node->safe_psql('postgres', <<'END');
BEGIN;
SELECT idempotency.outbox_enqueue('t', 'bad', 'First', '{}');
SELECT idempotency.outbox_enqueue_bytes('t', 'bad', 'Refused', '\xff00');
SELECT idempotency.outbox_enqueue('t', 'bad', 'Behind', '{}');
SELECT idempotency.outbox_enqueue('t', 'good', 'Beside', '{}');
COMMIT;
END
IdemTest::wait_for($node, q{SELECT dead = 1 FROM idempotency.stat_relay});
IdemRelay::wait_until('what was behind it', sub { target(q{SELECT count(*) FROM inbox WHERE event_type = 'Behind'}) == 1 });
is(target(q{SELECT group_concat(event_type, ' ') FROM (SELECT event_type FROM inbox WHERE aggregate_id IN ('bad', 'good') ORDER BY rowid)}),
	'First Beside Behind', 'a refused event has no effect, and its key waited');
is($node->safe_psql('postgres', 'SELECT attempts, sqlstate FROM idempotency.dead_letters'), '3|22023', 'its attempts count');

# Another program on the same target: this one is fenced.
is(target(q{UPDATE position SET epoch = epoch + 1 RETURNING relay}), 's', 'somebody takes over');
IdemRelay::enqueue($node, 'k1', 'T');
IdemRelay::wait_state($node, 's', 'fenced');

# What a role that is no superuser's relay may not.
$node->safe_psql('postgres', <<'END');
CREATE ROLE owner;
SELECT idempotency.relay_drop('s'), idempotency.grant_role('operator', 'owner');
ALTER SERVER s OWNER TO owner;
SET ROLE owner;
SELECT idempotency.relay_create('o', 's');
END
IdemRelay::wait_state($node, 'o', 'misconfigured');
like(IdemRelay::stat($node, 'o', 'last_error'), qr/no superuser/, 'the program is told of owners who are no superusers');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('o')});

# At least once: an answer counts, whatever becomes of the rest of its batch.
IdemRelay::pytest_server($node, 'p', $plain, answer => 'each', failed_type => 'Fails', fault_times => 1);
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('p', 'p', start_at => 'latest', min_backoff => '10 ms', max_backoff => '100 ms');
BEGIN;
SELECT idempotency.outbox_enqueue('t', 'a', 'First', '{}');
SELECT idempotency.outbox_enqueue('t', 'b', 'Fails', '{}');
COMMIT;
END
IdemRelay::wait_received($plain, 2);
is(join(' ', map { $_->{event_type} } IdemRelay::acked($plain)), 'First Fails', 'of a batch that was not answered in full the rest comes again');

$node->stop;
done_testing();
