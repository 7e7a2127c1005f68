
# Copyright (c) 2026, the idempotency developers

# doctor() names each fault, with a remedy that mends it when it is followed, and finds
# nothing on a sound server.  A monitor sees the same rows as a superuser, and nothing of
# what sinks and handlers say.  It does not fail, and waits for no lock for long.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1, conf => "fsync = on\nmax_connections = 30\n");

sub sql
{
	my ($query, %opt) = @_;

	return ($opt{node} // $node)->safe_psql('postgres', $query, $opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());
}

# The rows of an area that are not well, as the role "monitor" sees them: finding, remedy.
sub findings
{
	my ($area, $on) = @_;

	return map { [ split /\|/, $_, 2 ] } split /\n/,
	  sql(qq{SELECT replace(finding, '|', ' '), remedy FROM idempotency.doctor() WHERE area = '$area' AND ok IS NOT TRUE}, as => 'monitor', node => $on);
}

# Break something, and see its finding; mend it by what the remedy says, which the
# callback gets, and see that the area is well.
sub finds
{
	my ($what, $area, $finding, $remedy, $break, $mend) = @_;

	is(scalar(findings($area)), 0, "$what: all is well before");
	$break->() if $break;
	my @rows = grep { $_->[0] =~ $finding } findings($area);
	is(scalar(@rows), 1, "$what: is found") or diag(explain([ findings($area) ]));
	like($rows[0][1], $remedy, "$what: has a remedy");
	my ($instruction) = $rows[0][1] =~ $remedy;
	$mend->($instruction);
	is(scalar(findings($area)), 0, "$what: the remedy mends it") or diag(explain([ findings($area) ]));
	return;
}

# A configuration that the server has read.
sub configured
{
	my ($statement) = @_;
	my $before = sql('SELECT pg_conf_load_time()');

	sql($statement);
	sql('SELECT pg_reload_conf()') unless $statement =~ /pg_reload_conf/;
	IdemTest::wait_for($node, "SELECT pg_conf_load_time() > '$before'");
	return;
}

# A new launcher looks at the labels of all databases at once, an old one within a minute.
sub restart_launcher
{
	my $launcher = q{FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'};
	my $pid = sql("SELECT pid $launcher");

	sql("SELECT pg_terminate_backend($pid)");
	IdemTest::wait_for($node, "SELECT count(*) = 1 $launcher AND pid <> $pid");
	return;
}

# A session that keeps a transaction open.
sub open_transaction
{
	my ($statement) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 1);

	$session->query_safe("BEGIN; $statement");
	$session->{pid} = $session->query_safe('SELECT pg_backend_pid()');
	return $session;
}

sql(q{CREATE ROLE monitor LOGIN; SELECT idempotency.grant_role('monitor', 'monitor')});

#
# A server on which all is well, with a relay at work, events and claims.
#
sql(q{
CREATE TABLE done (event_id uuid);
CREATE FUNCTION handle(event_id uuid, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'secret' THEN RAISE EXCEPTION 'the secret is %', payload->>'secret'; END IF;
	INSERT INTO public.done VALUES (event_id);
END $$;
CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('works', 'handler', max_attempts => 1);
SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}');
SELECT idempotency.claim_event('e'), idempotency.complete_event('e')});
IdemTest::wait_for($node, 'SELECT sent = 1 FROM idempotency.stat_relay');
is(sql(q{SELECT string_agg(area, ' ') FROM idempotency.doctor() WHERE ok AND remedy IS NULL AND finding <> ''}),
	'version preload settings locks disk transactions roles store tables counters workers witness programs relays', 'a sound server has one good row per area');
# Locks and disk change by themselves.
my ($of_monitor, $of_superuser) = map { sql('SELECT idempotency.doctor()', as => $_) =~ s{^\((?:locks|disk),.*$}{$& =~ s/\d+/N/gr}mger } 'monitor', undef;
is($of_monitor, $of_superuser, 'a monitor sees what a superuser sees');
like((sql("SELECT finding FROM idempotency.doctor() WHERE area = 'version'"))[0], qr/^PostgreSQL \d.*, idempotency \d.*, pgcrypto \d/, 'versions');
my ($rc, undef, $err) = $node->psql('postgres', 'CREATE ROLE nobody LOGIN; SET ROLE nobody; SELECT idempotency.doctor()');
like($err, qr/permission denied/, 'others may not call it');

#
# doctor() has the query under "Look" of operate.md once more, in C.  On rows of each state, wait
# and age both name the same relays.
#
my ($report, $area) = map { slurp_file("$FindBin::RealBin/../../src/$_") } 'relay/report.c', 'doctor/relays.c';
my %states = $report =~ /\[(IDEM_RELAY_\w+)\] = "([^"]+)"/g;
my %waits = $report =~ /\[(IDEM_WAIT_\w+)\] = "([^"]+)"/g;
my ($patience) = $area =~ /^#define PATIENCE "(.*)"$/m;
my ($healthy) = $area =~ /^is_fault\(.*?\breturn (.*?);/ms;
my ($arguments) = $area =~ /^look_at_waits\(.*?idem_spi_read\((.*?), 0, NULL, NULL\);/ms;
my $waiting = join '', ($arguments =~ s/ PATIENCE / "$patience" /gr) =~ /"([^"]*)"/g;
my $operators = IdemRelay::operator_query(5);
s/(?:%t|idempotency)\.stat_relay/looked_at/ or die "it reads no stat_relay: $_" foreach $waiting, $operators;
my ($states, $waits, $faults) = map { "'{" . join(',', map { qq{"$_"} } @$_) . "}'::text[]" }
	[ values %states ], [ values %waits ], [ map { $states{$_} } grep { $healthy !~ /\b$_\b/ } keys %states ];
cmp_ok(sql("SELECT cardinality($faults)"), '>', 5, 'states that need somebody');
is(sql(<<"END"), 't|', 'doctor() and the query of operate.md name the same relays');
BEGIN;
CREATE TEMP TABLE looked_at AS
SELECT row_number() OVER ()::text AS relay, state, waiting_for, now() - waits AS waiting_since, retrying, 0 AS dead, NULL AS last_error,
	now() - delivered AS delivered_at, now() - failed AS last_error_at, now() - oldest AS oldest_waiting
FROM unnest($states) state, unnest($waits || NULL::text) waiting_for, unnest('{NULL,1 s,4.9 s,5.1 s,1 h}'::interval[]) waits,
	unnest('{0,1}'::int[]) retrying, unnest('{NULL,2 s,2 h}'::interval[]) delivered, unnest('{NULL,3 s}'::interval[]) failed,
	unnest('{NULL,1 s,4.9 s,5.1 s,1 h}'::interval[]) oldest;
WITH operators AS (SELECT relay FROM ($operators) q),
	doctors AS (SELECT relay FROM ($waiting) q UNION SELECT relay FROM looked_at WHERE state = ANY ($faults))
SELECT (SELECT count(*) BETWEEN 1000 AND (SELECT count(*) FROM looked_at) - 1000 FROM doctors),
	(SELECT string_agg(DISTINCT concat_ws(' ', state, waiting_for, now() - waiting_since, retrying, delivered_at > last_error_at, now() - oldest_waiting), ', ')
		FROM looked_at WHERE relay IN ((TABLE operators EXCEPT TABLE doctors) UNION (TABLE doctors EXCEPT TABLE operators)));
ROLLBACK;
END

# What takes a minute begins here.
sql(q{BEGIN; SELECT idempotency.claim_event('prepared'), idempotency.complete_event('prepared'); PREPARE TRANSACTION 'left over'});
my $writer;

#
# Tables: what sessions without the library could add, each remedied by the statement.
#
sql(q{CREATE FUNCTION on_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'});
foreach my $add (
	[ 'a trigger', qr/^trigger cdc on table idempotency_data.outbox_segment_3: /,
		'CREATE TRIGGER cdc AFTER TRUNCATE ON idempotency_data.outbox_segment_3 EXECUTE FUNCTION on_change()' ],
	[ 'a rule', qr/^rule kept on table idempotency_data.store_segment_2: /,
		'CREATE RULE kept AS ON DELETE TO idempotency_data.store_segment_2 DO INSTEAD NOTHING' ],
	[ 'a constraint', qr/^constraint few of table idempotency_data.lease_log_0: /,
		'ALTER TABLE idempotency_data.lease_log_0 ADD CONSTRAINT few CHECK (number < 99)' ])
{
	my ($what, $finding, $statement) = @$add;

	finds($what, 'tables', $finding, qr/^As a superuser: (.*;)$/,
		sub { sql("SET allow_system_table_mods = on; $statement") }, sub { sql($_[0]) });
}
finds('a sequence that was set', 'tables', qr/^sequence idempotency_data\.outbox_seq was set by others than the outbox, to 1: /, qr/^As a superuser: (SELECT idempotency\.outbox_mend_seq\(\);)$/,
	sub { sql(q{SELECT setval('idempotency_data.outbox_seq', 1)}) }, sub { sql($_[0]) });
# tables that only SQL writes may have them
sql('CREATE TRIGGER seen AFTER INSERT ON idempotency_data.relay_parked EXECUTE FUNCTION on_change()');
is(scalar(findings('tables')), 0, 'a trigger on a table that SQL writes');
sql('DROP TRIGGER seen ON idempotency_data.relay_parked');

# A number near the end, in a database that has given out none.  The row was rolled back, so nobody sees it.
sql('CREATE DATABASE numbers');
sub in_numbers
{
	return $node->safe_psql('numbers', $_[0]);
}
my $used_up = q{SELECT finding, remedy FROM idempotency.doctor() WHERE area = 'tables' AND NOT ok};
in_numbers(q{CREATE EXTENSION idempotency CASCADE});
in_numbers(q{BEGIN; INSERT INTO idempotency_data.outbox_segment_3 (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)
	VALUES ('3', 4611686018427387903, gen_random_uuid(), now(), 't', 'a', 'x', '{}'); ROLLBACK});
my (undef, undef, $refused) = $node->psql('numbers', q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});
like($refused, qr/has no numbers left for events.*HINT: .*doctor\(\) names the table/s, 'a number near the end: events are refused');
my ($exhausted, $leads_out) = split /\|/, in_numbers($used_up);
like($exhausted, qr/^sequence idempotency_data\.outbox_seq has no numbers left for events: it is at 46116860184273879\d\d, after a row of idempotency_data\.outbox_segment_3\z/, 'and it is found');
my ($statements) = $leads_out =~ /^As a superuser: SELECT ctid.* Then (VACUUM .*;)$/ or die "no remedy: $leads_out";
IdemRelay::wait_until('VACUUM may take the row', sub { in_numbers($_) foreach split /; ?/, $statements; return in_numbers($used_up) eq '' });
isnt(in_numbers(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}), '', 'the remedy mends it');

# The same for those of relays and of parked events
for my $set (['relay_log_id', 1152921504606846975], ['relay_parked_parked_id_seq', 9223372036854775807])
{
	my ($sequence, $end) = @$set;
	my $near = qq{SELECT finding, remedy FROM idempotency.doctor() WHERE area = 'relays' AND finding LIKE 'sequence idempotency_data.$sequence %' AND NOT ok};

	is(in_numbers($near), '', "$sequence: nothing to find");
	in_numbers("SELECT setval('idempotency_data.$sequence', $end)");
	my ($finding, $remedy) = split /\|/, in_numbers($near);
	like($finding, qr/stands at $end, and its last number is $end: /, "$sequence is found");
	my ($statement) = $remedy =~ /^As a superuser: (SELECT .*?;)/ or die "no remedy: $remedy";
	in_numbers($statement);
	is(in_numbers($near), '', "$sequence: the remedy mends it");
}
sql('DROP DATABASE numbers');

#
# Versions
#
my $version = sql(q{SELECT extversion FROM pg_extension WHERE extname = 'idempotency'});
finds('an old extension', 'version', qr/extension of this database of version 0\.9/, qr/ALTER EXTENSION idempotency UPDATE/,
	sub { sql(q{UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'idempotency'}) },
	sub { sql("UPDATE pg_extension SET extversion = '$version' WHERE extname = 'idempotency'") });
finds('no pgcrypto', 'version', qr/pgcrypto is not in this database/, qr/CREATE EXTENSION pgcrypto/,
	sub { sql(q{UPDATE pg_extension SET extname = 'away' WHERE extname = 'pgcrypto'}) },
	sub { sql(q{UPDATE pg_extension SET extname = 'pgcrypto' WHERE extname = 'away'}) });

#
# Settings that take a guarantee away: of the server, of the database, of a role
#
foreach my $bad ('fsync off', 'full_page_writes off', 'zero_damaged_pages on', 'ignore_checksum_failure on', 'allow_system_table_mods on',
	'idempotency.durable_complete off', 'idempotency.uncompleted_claims keep', 'idempotency.store_maintenance off')
{
	my ($name, $value) = split / /, $bad;

	finds("$bad in the configuration", 'settings', qr/^\Q$name\E is $value: /, qr/^As a superuser: (ALTER SYSTEM RESET \S+); SELECT pg_reload_conf\(\)/,
		sub { configured("ALTER SYSTEM SET $name = $value") }, sub { configured($_[0]) });
}
finds('a setting of the database', 'settings', qr/^idempotency\.durable_complete is off: /, qr/whether a configuration file, the database or the role sets it/,
	sub { sql('ALTER DATABASE postgres SET idempotency.durable_complete = off') }, sub { sql('ALTER DATABASE postgres RESET idempotency.durable_complete') });
if (sql(q{SELECT count(*) FROM pg_settings WHERE name = 'vacuum_defer_cleanup_age'}) eq '1')
{
	finds('a cleanup that is deferred', 'settings', qr/^vacuum_defer_cleanup_age is 5: /, qr/(ALTER SYSTEM RESET \S+);/,
		sub { configured('ALTER SYSTEM SET vacuum_defer_cleanup_age = 5') }, sub { configured($_[0]) });
}
finds('a setting of a role', 'settings', qr/^idempotency\.durable_complete is off for role nobody: /, qr/^(ALTER ROLE nobody RESET \S+);/,
	sub { sql('ALTER ROLE nobody SET idempotency.durable_complete = off') }, sub { sql($_[0]) });
finds('a setting of a role in the database', 'settings', qr/^idempotency\.durable_complete is off for role nobody: /, qr/^(ALTER ROLE nobody IN DATABASE postgres RESET \S+);/,
	sub { sql('ALTER ROLE nobody IN DATABASE postgres SET idempotency.durable_complete = off') }, sub { sql($_[0]) });
sql('CREATE DATABASE other; ALTER DATABASE other SET idempotency.durable_complete = off');
is(scalar(findings('settings')), 0, "another database's setting is nothing to this one");

#
# Locks
#
my ($room) = sql(q{SELECT finding FROM idempotency.doctor() WHERE area = 'locks'}) =~ /of about (\d+) locks/;
finds('a budget of all locks', 'locks', qr/^idempotency\.max_claim_locks is \d+, and the server has room for about $room locks/, qr/Set idempotency\.max_claim_locks to -1/,
	sub { configured("ALTER SYSTEM SET idempotency.max_claim_locks = " . int($room / 2 + 1)) }, sub { configured('ALTER SYSTEM RESET idempotency.max_claim_locks') });
my $hog;
finds('a lock table that is nearly full', 'locks', qr/locks are held.*; process \d+ holds \d+ of them/, qr/(SELECT pg_terminate_backend\(\d+\))/,
	sub { $hog = open_transaction('SELECT count(pg_advisory_xact_lock(i)) FROM generate_series(1, ' . int($room * 0.85) . ') i') },
	sub { sql($_[0]); IdemTest::wait_for($node, q{SELECT count(*) < 100 FROM pg_locks}) });

#
# Roles
#
sql(q{CREATE ROLE watcher LOGIN; SELECT idempotency.grant_role('monitor', 'watcher')});
finds('a view without its function', 'roles', qr/^role watcher may read the view idempotency\.stat_relay, and not execute the function idempotency_data\.relay_lag\(\)/, qr/^(GRANT EXECUTE ON FUNCTION \S+ TO watcher;)$/,
	sub { sql('REVOKE EXECUTE ON FUNCTION idempotency_data.relay_lag() FROM watcher') }, sub { sql($_[0]) });
finds('no right to the schema', 'roles', qr/^role watcher may use objects of the schema idempotency, and has no USAGE/, qr/^(GRANT USAGE ON SCHEMA idempotency TO watcher;)$/,
	sub { sql('REVOKE USAGE ON SCHEMA idempotency FROM watcher') }, sub { sql($_[0]) });
finds('an owner that is gone', 'roles', qr/^consumer 'till' belongs to role temporary, which does not exist/, qr/^(SELECT idempotency\.consumer_alter\('till', owner => 'role'\))/,
	sub { sql(q{CREATE ROLE temporary; SELECT idempotency.consumer_create('till', owner => 'temporary'); DROP ROLE temporary}) },
	sub { sql($_[0] =~ s/'role'/'watcher'/r) });

#
# Counters
#
$node->append_conf('postgresql.conf', "idempotency.max_counted_consumers = 3\n");
$node->restart;
sql("SELECT idempotency.claim_event('x', 'c$_'), idempotency.release_event('x', 'c$_')") foreach 1 .. 3;
finds('more consumers than are counted', 'counters', qr/^2 verdicts were counted for no consumer: more than idempotency\.max_counted_consumers \(3\)/, qr/(raise idempotency\.max_counted_consumers and restart)/,
	sub { sql("SELECT idempotency.claim_event('x', 'c4'), idempotency.release_event('x', 'c4')") foreach 1 .. 2 },
	sub { $node->append_conf('postgresql.conf', "idempotency.max_counted_consumers = 4\n"); $node->restart;
		sql("SELECT idempotency.claim_event('x', 'c$_'), idempotency.release_event('x', 'c$_')") foreach 1 .. 4 });
# It restarts the server, so it comes before what is to stay open.
finds('a synchronous standby that is away', 'relays', qr/^relay "works" has waited for synchronous standby since /, qr/or (take it out)/,
	sub { sql(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'}); $node->restart; sql(q{SET synchronous_commit = local; SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});
		IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.doctor() WHERE area = 'relays' AND NOT ok}) },
	sub { configured('ALTER SYSTEM RESET synchronous_standby_names'); IdemTest::wait_for($node, q{SELECT lag_events = 0 FROM idempotency.stat_relay}) });
$writer = open_transaction(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});
# A GRANT locks no table before 18; of the other transaction the server does not note when it began.
my $granter = open_transaction(q{GRANT SELECT ON idempotency_data.lease_log_1 TO watcher});
my $untracked = open_transaction(q{SET track_activities = off; SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});

#
# Workers, witness, programs
#
finds('a database without its label', 'workers', qr/^the relays of this database have no worker: no slot/, qr/as a superuser: (SECURITY LABEL .* IS 'relays');/,
	sub { sql('SECURITY LABEL FOR idempotency ON DATABASE postgres IS NULL'); restart_launcher(); IdemTest::wait_for($node, q{SELECT state = 'not running' FROM idempotency.stat_relay}) },
	sub { sql($_[0]); restart_launcher(); IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay}) });
finds('a witness that says no', 'witness', qr/^there is no valid yes/, qr/^Run the command of idempotency\.publish_witness/,
	sub { configured(q{ALTER SYSTEM SET idempotency.publish_witness = '/bin/false'}); IdemTest::wait_for($node, q{SELECT state = 'unwitnessed' FROM idempotency.stat_relay}) },
	sub { configured(q{ALTER SYSTEM SET idempotency.publish_witness = '/bin/true'}); IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay}) });
is((grep { $_->[0] eq 'the witness says yes' } map { [ split /\|/ ] } split /\n/, sql(q{SELECT finding FROM idempotency.doctor() WHERE area = 'witness'}))[0][0], 'the witness says yes', 'a witness that says yes');
configured('ALTER SYSTEM RESET idempotency.publish_witness');
sql(q{CREATE SERVER nowhere FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'nowhere')});
finds('a program that is not there', 'programs', qr/^sink program "idempotency-sink-nowhere" of relay "lost" is not installed/, qr/^Install the package idempotency-sink-nowhere/,
	sub { sql(q{SELECT idempotency.relay_create('lost', 'nowhere', aggregate_types => '{none}')}) }, sub { sql(q{SELECT idempotency.relay_drop('lost')}) });

#
# Relays
#
finds('a paused relay', 'relays', qr/^relay "works" is paused$/, qr/^(SELECT idempotency\.relay_resume\('works'\))/,
	sub { sql(q{SELECT idempotency.relay_pause('works')}) },
	sub { sql($_[0]); IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay}) });
finds('a copy of the server', 'relays', qr/^relay "works" is unadopted: bound to /, qr/(SELECT idempotency\.relay_adopt\('works'\))/,
	sub { configured(q{ALTER SYSTEM SET idempotency.publish_as = 'copy'}); IdemTest::wait_for($node, q{SELECT state = 'unadopted' FROM idempotency.stat_relay}) },
	sub { sql($_[0]); IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay}) });
finds('a function that is gone', 'relays', qr/^relay "works" is misconfigured$/, qr/^As an operator: (SELECT \* FROM idempotency\.relay_check\('works'\) WHERE ok IS NOT TRUE)/,
	sub { sql('ALTER FUNCTION handle RENAME TO away'); sql(q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}); IdemTest::wait_for($node, q{SELECT state = 'misconfigured' FROM idempotency.stat_relay}) },
	sub { like(sql($_[0]), qr/function/, 'relay_check says that it is the function'); sql('ALTER FUNCTION away RENAME TO handle'); sql(q{SELECT idempotency.relay_alter('works', batch_events => 10)});
		IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') AND lag_events = 0 FROM idempotency.stat_relay}) });

# A worker that hangs has to be found by whoever asks for what does not get on.
my $look = IdemRelay::operator_query(5);
my $hung = sql(q{SELECT pid FROM idempotency.stat_relay});
finds('a worker that hangs', 'relays', qr/^relay "works" has waited for turn of worker since /, qr/is (stopped), and goes on by SIGCONT/,
	sub { kill 'STOP', $hung; IdemTest::wait_for($node, qq{SELECT waiting_for = 'turn of worker' FROM ($look) AS look}) },
	sub { kill 'CONT', $hung; IdemTest::wait_for($node, qq{SELECT count(*) = 0 FROM ($look) AS look}) });
finds('a position with an id of its own', 'relays', qr/^a row of relay_log_0 has the id 1152921504606846970, /, qr/^As a superuser: (DELETE .*;) then/,
	sub { sql(q{CREATE TEMP TABLE copied AS SELECT * FROM (TABLE idempotency_data.relay_log_0 UNION ALL TABLE idempotency_data.relay_log_1) AS l LIMIT 1;
		UPDATE copied SET id = 1152921504606846970; INSERT INTO idempotency_data.relay_log_0 TABLE copied}) },
	sub { sql($_[0]) });
finds('a position that is gone', 'relays', qr/^relay "works" is \w+: the log of positions has no position of it$/, qr/calls (relay_adopt): /,
	sub { sql(q{DELETE FROM idempotency_data.relay_log_0; DELETE FROM idempotency_data.relay_log_1; SELECT idempotency.relay_resume('works'); SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')});
		IdemTest::wait_for($node, q{SELECT state NOT IN ('starting', 'streaming', 'idle') FROM idempotency.stat_relay}) },
	sub { sql(q{SELECT idempotency.relay_adopt('works')}); IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') AND lag_events = 0 FROM idempotency.stat_relay}) });
sql(q{SELECT idempotency.outbox_enqueue('t', 'dead', 'E', '{"secret": "hunter2"}')});
IdemTest::wait_for($node, 'SELECT dead = 1 FROM idempotency.stat_relay');
my @dead = findings('relays');
is($dead[0][0], 'relay "works" has 1 dead letters', 'a dead letter');
like($dead[0][1], qr/relay_redrive\('works'\)/, 'what to do about it');
unlike(sql('SELECT string_agg(d::text, E\'\n\') FROM idempotency.doctor() d'), qr/hunter2/, 'what a handler says stays where it is');
sql(q{SELECT idempotency.relay_alter('works', on_dead => 'stop'); SELECT idempotency.outbox_enqueue('t', 'dead2', 'E', '{"secret": "hunter2"}')});
IdemTest::wait_for($node, q{SELECT state = 'halted' FROM idempotency.stat_relay});
is(scalar(grep { $_->[0] =~ /^relay "works" is halted: / && $_->[0] !~ /hunter2/ } findings('relays')), 1, 'a relay that a dead letter halted');
sql(q{UPDATE idempotency_data.relays SET halted = 'sink', halt_message = 'hunter2'});
unlike(sql(q{SELECT string_agg(d::text, ' ') FROM idempotency.doctor() d}), qr/hunter2/, 'nor does it say what a sink said');
sql(q{SELECT idempotency.relay_discard('works'); SELECT idempotency.relay_resume('works')});
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay});
is(scalar(findings('relays')), 0, 'and goes on');
sql(q{SELECT idempotency.relay_drop('works')});
like((findings('relays'))[0][0], qr/^events are enqueued and no relay is there/, 'an outbox that nobody reads');
sql(q{SELECT idempotency.relay_create('works', 'handler', start_at => 'latest')});
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay});
is(scalar(findings('relays')), 0, 'a relay reads it');

#
# Tables that somebody keeps locked
#
my $locker = open_transaction('LOCK TABLE idempotency_data.relays IN ACCESS EXCLUSIVE MODE');
my $pid = $locker->{pid};
foreach my $area ('workers', 'programs', 'relays')
{
	my @rows = findings($area);

	is(scalar(@rows), 1, "$area: the locked table is found");
	like($rows[0][0], qr/^process $pid keeps the table "relays" locked/, "$area: with who has it");
	like($rows[0][1], qr/pg_terminate_backend\($pid\)/, "$area: and what to do");
}
$locker->query_safe('ROLLBACK');
$locker->query_safe('BEGIN; LOCK TABLE idempotency_data.lease_log_0 IN ACCESS EXCLUSIVE MODE');
like((findings('store'))[0][0], qr/^could not look: .*lock/, 'a lock that nobody looked for is waited for a second');
like((findings('store'))[0][1], qr/pg_locks/, 'and has a remedy');
$locker->query_safe('ROLLBACK');
is(scalar(findings('store')), 0, 'then the area is well');
is(sql(q{BEGIN READ ONLY; SELECT count(*) FROM idempotency.doctor(); SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = pg_backend_pid() AND c.relkind <> 'v' AND c.relnamespace = 'idempotency_data'::regnamespace; COMMIT}) =~ s/.*\n//sr, '0', 'a read-only transaction keeps no lock of it');

#
# Transactions: a minute is over by now, or soon
#
IdemTest::wait_for($node, q{SELECT count(*) = 4 FROM idempotency.doctor() WHERE area = 'transactions' AND ok IS NOT TRUE});
my ($unknown, $prepared, @open) = sort { $a->[0] cmp $b->[0] } findings('transactions');
like($prepared->[0], qr/^prepared transaction 'left over' of role \S+ is open since /, 'a prepared transaction');
like($prepared->[1], qr/then COMMIT PREPARED 'left over' or ROLLBACK PREPARED 'left over'/, 'what to do about it');
like($unknown->[0], qr/^nobody can tell how long process \d+ of role \S+ has been in a transaction, with locks on tables of the extension: track_activities is off for it/, 'a transaction of unknown age');
is(sql(q{SELECT count(*) FROM idempotency.doctor() WHERE finding ~ '^nobody can tell how long' AND ok IS NULL}), '1', 'is not said to be well, nor a fault');
my %ends = map { $_->[1] =~ /(SELECT pg_terminate_backend\((\d+)\))/ ? ($2 => $1) : () } $unknown, @open;
my %holders = map { $_->[0] =~ /process (\d+) of role \S+ has been in a transaction(?: since .*idle in transaction.*)?, with (a GRANT|locks)/ ? ($1 => $2) : () } $unknown, @open;
my ($writes, $grants, $unseen) = map { $_->{pid} } $writer, $granter, $untracked;
is_deeply(\%holders, { $writes => 'locks', $grants => sql('SHOW server_version_num') < 180000 ? 'a GRANT' : 'locks', $unseen => 'locks' },
	'who holds tables up, and by what');
is_deeply([ sort keys %ends ], [ sort keys %holders ], 'how to end them');
sql($_) foreach values %ends;
sql(q{COMMIT PREPARED 'left over'});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency.doctor() WHERE area = 'transactions' AND ok});
$node->stop;

#
# Without preload, and without any background worker
#
my $bare = IdemTest::cluster('bare', preload => 0, allows_streaming => 1, conf => "fsync = on\nmax_worker_processes = 0\n");
sql(q{CREATE ROLE monitor LOGIN; SELECT idempotency.grant_role('monitor', 'monitor')}, node => $bare);
like((findings('preload', $bare))[0][0], qr/is not preloaded/, 'no preload');
like((findings('preload', $bare))[0][1], qr/shared_preload_libraries/, 'what to do about it');
is(scalar(findings('workers', $bare)), 0, 'no worker is expected there');
is(scalar(findings('store', $bare)), 0, 'the store is well before');
sql(q{SET idempotency.claim_segment_size = '8kB'; SELECT count(*) FROM generate_series(1, 2000) i, idempotency.claim_event(i::text) c, idempotency.complete_event(i::text) e}, node => $bare);
sql(q{ALTER DATABASE postgres SET idempotency.claim_segment_size = '8kB'}, node => $bare);
like((findings('store', $bare))[0][0], qr/wait to be packed, and no packer is at work/, 'no packer');
like((findings('store', $bare))[0][1], qr/claims_maintain\(\); if it returns false, raise max_worker_processes/, 'what to do about it');
is(sql('SELECT idempotency.claims_maintain()', node => $bare), 'f', 'it returns false');
$bare->append_conf('postgresql.conf', "max_worker_processes = 8\n");
$bare->restart;
is(sql('SELECT idempotency.claims_maintain()', node => $bare), 't', 'with processes it packs');
is(scalar(findings('store', $bare)), 0, 'and the store is well');

# The slot of a standby that is gone
sql(q{SELECT pg_create_physical_replication_slot('gone')}, node => $bare);
$bare->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($bare, 'copy', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1\nprimary_slot_name = 'gone'\n");
$standby->start;
IdemTest::wait_for($bare, 'SELECT xmin IS NOT NULL FROM pg_replication_slots');
$standby->stop;
sql(q{SELECT count(*) FROM generate_series(1, 2000) i, idempotency.claim_event('s' || i) c, idempotency.complete_event('s' || i) e; SELECT idempotency.claims_maintain()}, node => $bare);
IdemTest::wait_for($bare, q{SELECT count(*) = 1 FROM idempotency.doctor() WHERE area = 'transactions' AND finding ~ '^replication slot gone, which is not in use' AND remedy ~ 'pg_drop_replication_slot'});
sql(q{SELECT pg_drop_replication_slot('gone')}, node => $bare);
IdemTest::wait_for($bare, q{SELECT bool_and(ok) FROM idempotency.doctor() WHERE area = 'transactions'});

# The server's own launcher has the only process, then ours has the second and last one.
$bare->append_conf('postgresql.conf', "max_worker_processes = 1\nshared_preload_libraries = 'idempotency'\n");
$bare->restart;
is(scalar(findings('preload', $bare)), 0, 'it is preloaded');
sql(q{CREATE SERVER n FOREIGN DATA WRAPPER idempotency_null; SELECT idempotency.relay_create('r', 'n')}, node => $bare);
like((findings('workers', $bare))[0][0], qr/^the launcher of relays does not run: all max_worker_processes \(1\) are in use/, 'no process for the launcher');
like((findings('workers', $bare))[0][1], qr/raise max_worker_processes and restart/, 'what to do about it');
$bare->append_conf('postgresql.conf', "max_worker_processes = 2\n");
$bare->restart;
IdemTest::wait_for($bare, q{SELECT finding ~ 'all max_worker_processes \(2\) are in use' AND remedy ~ '^Raise max_worker_processes' FROM idempotency.doctor() WHERE area = 'workers'});
pass('no process for a worker');
$bare->append_conf('postgresql.conf', "max_worker_processes = 8\n");
$bare->restart;
IdemTest::wait_for($bare, q{SELECT bool_and(ok) FROM idempotency.doctor() WHERE area IN ('workers', 'relays')});
pass('with more processes it has one');

# One slot, which the database's worker has: a function relay never gets one.
$bare->append_conf('postgresql.conf', "idempotency.max_workers = 1\n");
$bare->restart;
sql(q{CREATE FUNCTION never(event_id uuid) RETURNS void LANGUAGE sql AS '';
	CREATE SERVER f FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.never');
	SELECT idempotency.relay_create('f', 'f'); SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')}, node => $bare);
IdemTest::wait_for($bare, q{SELECT count(*) = 1 FROM idempotency.doctor() WHERE area = 'relays' AND finding ~ '^relay "f" .*worker slot' AND remedy ~ '^Raise idempotency.max_workers'});
pass('a function relay without a slot');
$bare->stop;

done_testing();
