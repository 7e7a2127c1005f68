
# Copyright (c) 2026, the idempotency developers

# What a login of the kind monitor, and one of pg_monitor, may lock, fill, read,
# stop and learn.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use IdemAttack;
use IdemTest;

my $node = IdemAttack::victim('monitor', 'mallory', conf => <<'END');
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
END
$node->safe_psql('postgres', 'CREATE ROLE watcher LOGIN IN ROLE pg_monitor');

IdemAttack::common($node, 'mallory', 'monitor');
IdemAttack::read_what_can_be_read($node, 'watcher', qr/s3cret/, 'SELECT * FROM pg_ls_logdir()',
	'SELECT * FROM pg_backend_memory_contexts', 'SELECT * FROM pg_shmem_allocations', 'SELECT * FROM pg_hba_file_rules',
	'SELECT * FROM pg_config', 'SELECT * FROM pg_stat_ssl', 'SELECT * FROM pg_show_all_file_settings()');
IdemAttack::rights($node, 'watcher', 'monitor');

# Read: a handler at work has its event in hand, and no monitor sees it
my $blocker = IdemAttack::session($node, $node->safe_psql('postgres', 'SELECT current_user'));
$blocker->query('BEGIN; LOCK TABLE app.got');
IdemAttack::sql($node, 'shop', q{SELECT idempotency.outbox_enqueue('order', 's3cret key', 's3cret type', '"s3cret of an event in hand"')});
IdemTest::wait_for($node, q{SELECT waiting_for = 'function' FROM idempotency.stat_relay WHERE relay = 'orders'});
foreach my $role (qw(mallory watcher))
{
	foreach my $query (
		q{SELECT * FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'},
		q{SELECT pg_stat_get_activity(NULL)}, 'SELECT * FROM pg_locks', 'SELECT * FROM idempotency.stat_relay',
		'SELECT * FROM idempotency.stat_outbox', 'SELECT * FROM idempotency.stat_claims', 'SELECT * FROM idempotency.outbox_segments()',
		q{SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'})
	{
		unlike(IdemAttack::try($node, $role, $query), qr/s3cret/, "$role sees no event in hand by: $query");
	}
}
$blocker->query('ROLLBACK');
$blocker->quit;
like(IdemAttack::sql($node, 'watcher', q{SELECT last_error FROM idempotency.stat_relay WHERE relay = 'cards'}),
	qr/^<insufficient privilege>$/, 'that an event was refused is seen, not with what words');

# Read: nor is a secret an argument of a process; stop: nor may those signal a worker who may signal others
IdemTest::wait_for($node, q{SELECT last_error IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'elsewhere'});
foreach my $file (glob '/proc/[0-9]*/cmdline')
{
	open(my $fh, '<', $file) or next;
	my $line = join '', <$fh>;

	fail("$file has a secret: $line") if $line =~ /s3cret of the/;
}
$node->safe_psql('postgres', 'CREATE ROLE signaller LOGIN IN ROLE pg_signal_backend');
IdemAttack::stop_what_can_be_stopped($node, 'signaller');

# Lock, fill: who has read the views and leaves the transaction open keeps nothing from being emptied
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('elsewhere')});
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $reader = IdemAttack::session($node, 'watcher');

	$reader->query("BEGIN ISOLATION LEVEL $level");
	$reader->query("SELECT * FROM idempotency.$_") foreach qw(stat_relay stat_outbox stat_claims);
	$reader->query('DECLARE c CURSOR FOR SELECT * FROM idempotency.stat_relay; FETCH 1 FROM c; CLOSE c');
	is($node->safe_psql('postgres', IdemAttack::table_locks($reader->query('SELECT pg_backend_pid()'))), '',
		"$level: a monitor's open transaction holds no lock on a table of the extension");
	$reader->query('COMMIT');
	$reader->quit;
}

# Learn: what the numbers of a monitor are made of has no names of events
foreach my $query ('SELECT * FROM idempotency.dead_letters', 'SELECT * FROM idempotency.outbox_events',
	'SELECT * FROM idempotency.processed_events', q{SELECT idempotency.event_result('paid', 'billing')},
	q{SELECT idempotency.claim_event('paid', 'billing')}, q{SELECT idempotency.relay_pause('orders')},
	q{SELECT idempotency.outbox_enqueue('order', 'k', 't', '1')})
{
	IdemAttack::refused($node, $_, $query, qr/permission denied/, "$_ is refused: $query") foreach qw(mallory watcher);
}
my @errors = map { IdemAttack::try($node, 'mallory', $_) =~ s/none/orders/gr } q{SELECT idempotency.relay_pause('orders')},
  q{SELECT idempotency.relay_pause('none')};
is($errors[0], $errors[1], 'an error does not tell whether a relay exists');

IdemAttack::alive($node, 'after all that a monitor tried');
$node->stop;
done_testing();
