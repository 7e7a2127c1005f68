
# Copyright (c) 2026, the idempotency developers

# What a login of the kind operator may lock, fill, read, stop and learn, with
# wrappers that it may use and a handler of its own.  The relays of others are the
# operator's to pause and to replay; they are not its to have, and not to be stopped by
# what the operator makes.

use strict;
use warnings FATAL => 'all';

use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemAttack;
use IdemTest;

use constant MAX_RELAYS => 24;

my $node = IdemAttack::victim('operator', 'mallory', conf => <<"END");
idempotency.max_workers = 8
idempotency.max_relays = @{[ MAX_RELAYS ]}
END

IdemAttack::common($node, 'mallory', 'operator');
$node->safe_psql('postgres', <<'END');
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function, idempotency_postgres, idempotency_null, idempotency_program TO mallory;
CREATE SCHEMA mine AUTHORIZATION mallory;
CREATE TABLE app.rights (what text);
END

# Read, stop: relays and servers of others, and what only superusers may name
foreach my $attack (
	[ q{SELECT idempotency.relay_alter('orders', batch_events => 1)}, qr/must be owner|belongs|not the owner|permission/ ],
	[ q{SELECT idempotency.relay_alter('orders', server => 'copies')}, qr/must be owner|belongs|not the owner|permission/ ],
	[ q{SELECT idempotency.relay_drop('orders')}, qr/must be owner|belongs|not the owner|permission/ ],
	[ q{SELECT idempotency.relay_adopt('orders')}, qr/must be owner|belongs|not the owner|permission/ ],
	[ q{SELECT idempotency.relay_create('x', 'orders')}, qr/permission denied for foreign server/ ],
	[ q{SELECT idempotency.relay_create('x', 'elsewhere')}, qr/permission denied for foreign server/ ],
	[ q{SELECT idempotency.relay_create('x', 'nowhere')}, qr/does not exist/ ],
	[ q{SELECT idempotency.relay_create('@x', 'orders')}, qr/"@"|reserved|relay/ ],
	[ q{SELECT idempotency.relay_create(repeat('x', 256), 'orders')}, qr/"relay" is too long/ ],
	[ q{SELECT idempotency.consumer_create('@relay/orders', private_locks => true)}, qr/reserved/ ],
	[ q{SELECT idempotency.consumer_drop('@relay/orders')}, qr/reserved|does not exist/ ],
	[ q{SELECT idempotency.outbox_mend_seq()}, qr/permission denied/ ],
	[ q{SELECT idempotency.grant_role('operator', 'mallory')}, qr/permission denied/ ],
	[ q{SELECT idempotency.claim_event('paid', 'billing')}, qr/permission denied/ ],
	[ q{SELECT idempotency.outbox_enqueue('order', 'k', 't', '1')}, qr/permission denied/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'null')}, qr/superuser/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_program OPTIONS (program '../../bin/sh')}, qr/superuser|program/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'x', function 'a.b', sslrootcert '/etc/passwd')}, qr/superuser/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'x', function 'a.b', service 'x')}, qr/service/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'x', function 'a.b', passfile '/x')}, qr/passfile/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'x', function 'a.b', options '-c x=y')}, qr/options/ ],
	[ q{CREATE SERVER p FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'pg_catalog.pg_reload_conf'); SELECT idempotency.relay_create('x', 'p')},
		qr/permission denied|argument|event_id|not/ ])
{
	IdemAttack::refused($node, 'mallory', @$attack);
}
IdemAttack::alive($node, 'what is not the operator\'s is refused');

# A target of one's own
IdemAttack::sql($node, 'mallory', <<'END');
CREATE SERVER dark FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '127.0.0.1', dbname 'x', function 'a.b');
CREATE USER MAPPING FOR CURRENT_USER SERVER dark OPTIONS (user 'u', password 'p');
CREATE SERVER nothing FOREIGN DATA WRAPPER idempotency_null;
END
IdemAttack::refused($node, 'mallory', q{ALTER USER MAPPING FOR CURRENT_USER SERVER dark OPTIONS (ADD secret_file '/etc/passwd')}, qr/superuser/);
IdemAttack::refused($node, 'mallory', q{ALTER USER MAPPING FOR CURRENT_USER SERVER dark OPTIONS (ADD sslkey '/etc/passwd')}, qr/superuser/);

# Stop: a target that takes connections and says nothing holds up its own relay only
my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 16, Proto => 'tcp') or die "no socket: $!";
IdemAttack::sql($node, 'mallory', "ALTER SERVER dark OPTIONS (ADD port '" . $silent->sockport . "')");
IdemAttack::sql($node, 'mallory', q{SELECT idempotency.relay_create('dark', 'dark', min_backoff => '1 ms', max_backoff => '1 ms', max_attempts => 1000000)});
IdemTest::wait_for($node, q{SELECT state IN ('starting', 'outage', 'misconfigured') FROM idempotency.stat_relay WHERE relay = 'dark'});
IdemAttack::alive($node, 'a relay to a target that says nothing');
unlike(IdemAttack::try($node, 'mallory', 'SELECT * FROM idempotency.stat_relay; SELECT * FROM idempotency.dead_letters'),
	qr/s3cret of the mapping/, 'no error has a secret');
IdemAttack::sql($node, 'mallory', q{SELECT idempotency.relay_drop('dark')});

# Stop: handlers of one's own.  Each is called as the operator, bounded in time, and no
# other relay waits for it.
my @handlers = (
	[ 'becomes', q{EXECUTE 'RESET ROLE'; EXECUTE 'INSERT INTO app.rights VALUES (current_user)'} ],
	[ 'session', q{EXECUTE 'SET SESSION AUTHORIZATION DEFAULT'; EXECUTE 'INSERT INTO app.rights VALUES (current_user)'} ],
	[ 'config', q{PERFORM set_config('role', 'none', false); EXECUTE 'INSERT INTO app.rights VALUES (current_user)'} ],
	[ 'superuser', q{EXECUTE 'ALTER ROLE mallory SUPERUSER'} ],
	[ 'terminates', q{PERFORM pg_terminate_backend(pid) FROM pg_stat_activity} ],
	[ 'myself', q{PERFORM pg_terminate_backend(pg_backend_pid())} ],
	[ 'sleeps', q{PERFORM pg_sleep(3600)} ],
	[ 'spins', q{LOOP NULL; END LOOP} ],
	[ 'recurses', q{PERFORM mine.recurses(event_id)} ],
	[ 'timeouts', q{SET statement_timeout = 1; SET lock_timeout = 1; SET idle_in_transaction_session_timeout = 1} ],
	[ 'advisory', q{PERFORM pg_advisory_lock(i) FROM generate_series(1, 100) i} ],
	[ 'listens', q{LISTEN x; NOTIFY x} ],
	[ 'commits', q{COMMIT} ],
	[ 'long', q{RAISE EXCEPTION '%', repeat('x', 10000000)} ],
	[ 'forges', q{RAISE WARNING E'a\n2026-11-22 12:00:00.000 UTC [1] LOG:  forged'; RAISE EXCEPTION E'a\n2026-11-22 12:00:00.000 UTC [1] LOG:  forged'} ],
	[ 'drops', q{DROP FUNCTION mine.drops(uuid)} ]);
foreach my $handler (@handlers)
{
	my ($name, $body) = @$handler;

	$node->safe_psql('postgres', "SELECT idempotency.outbox_enqueue('mine', '$name', 'Made', '1')");
	IdemAttack::sql($node, 'mallory', <<"SQL");
CREATE FUNCTION mine.$name(event_id uuid) RETURNS void LANGUAGE plpgsql AS \$\$BEGIN $body; END\$\$;
CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'mine.$name', timeout '200');
SELECT idempotency.relay_create('$name', '$name', aggregate_types => '{mine}', min_backoff => '1 ms', max_backoff => '10 ms', max_attempts => 2);
SQL
	$node->poll_query_until('postgres', <<"SQL") or fail("handler $name was not tried");
SELECT last_error IS NOT NULL OR sent > 0 OR dead > 0 FROM idempotency.stat_relay WHERE relay = '$name'
SQL
	IdemAttack::alive($node, "a handler that $name");
	# Not as mallory, whose sessions her own handler may terminate.
	$node->safe_psql('postgres', "SELECT idempotency.relay_drop('$name'); DROP SERVER $name; DROP FUNCTION IF EXISTS mine.$name");
}
is($node->safe_psql('postgres', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}), 'f', 'no handler has made its owner a superuser');
is($node->safe_psql('postgres', q{SELECT string_agg(what, ' ') FROM app.rights}), '', 'none has had more rights than its owner');
my $log = slurp_file($node->logfile);
unlike($log, qr/^2026-11-22 12:00:00\.000 UTC \[1\] LOG:  forged/m, 'no line of the log is forged');
unlike($log, qr/x{20000}/, 'no error fills the log');

# Fill: relays until there is no room for more, with handlers that keep every worker
IdemAttack::sql($node, 'mallory', <<'SQL');
CREATE FUNCTION mine.sleeps(event_id uuid) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); END';
CREATE SERVER sleeps FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'mine.sleeps', timeout '3600000');
SQL
my $made = 0;
foreach my $i (1 .. 2 * MAX_RELAYS)
{
	my $server = $i % 2 == 1 ? 'sleeps' : 'nothing';

	last if IdemAttack::try($node, 'mallory', "SELECT idempotency.relay_create('more $i', '$server')") =~ /53400/;
	$made++;
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency.stat_relay'), MAX_RELAYS, 'relays are made up to the limit');
IdemAttack::refused($node, 'mallory', q{SELECT idempotency.relay_create('one more', 'nothing')}, qr/too many relays/);
cmp_ok($made, '>', 8, 'and half of them have a handler that sleeps, more than there are workers');
IdemAttack::alive($node, 'handlers that sleep, more than there are workers') foreach 1 .. 3;
IdemAttack::sql($node, 'mallory', 'DROP OWNED BY CURRENT_USER CASCADE');
$node->safe_psql('postgres', q{SELECT idempotency.grant_role('operator', 'mallory')});
is($node->safe_psql('postgres', q{SELECT string_agg(relay, ' ' ORDER BY relay) FROM idempotency.stat_relay}),
	'cards copies elsewhere orders', 'DROP OWNED takes the operator\'s relays, and no others');
IdemAttack::alive($node, 'as many relays as there can be, all dropped');

# Stop: what the documents give to an operator is undone by the same functions
IdemAttack::sql($node, 'mallory', q{SELECT idempotency.relay_pause('orders'), idempotency.relay_pause('copies')});
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency.stat_relay WHERE state = 'paused'});
IdemAttack::sql($node, 'mallory', q{SELECT idempotency.relay_resume('orders'), idempotency.relay_resume('copies')});
my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM app.got');
IdemAttack::sql($node, 'mallory', q{SELECT idempotency.relay_replay('orders', since => '-infinity')});
IdemAttack::alive($node, 'relays were paused, resumed and replayed');
is($node->safe_psql('postgres', 'SELECT count(*) FROM app.got'), $before + 1, 'a replay has no second effect');

$node->stop;
done_testing();
