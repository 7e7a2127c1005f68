
# Copyright (c) 2026, the idempotency developers

# An event that was enqueued after relay_alter had added its type is sent, whatever the
# relay's worker is doing at that moment: by a relay that rests, one whose program
# runs, and one to a function; in the transaction of relay_alter itself; by a session
# that sees the new types before the COMMIT of relay_alter has returned; with a prepared
# transaction, also one from before a crash.  Relays that are changed without a pause
# hold no event back.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Relays that make a look at all of them take its time, and the gap after it.
use constant BYSTANDERS => 200;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_idle_timeout = 300ms
autovacuum = off
END
my $log = "$dir/program.log";
my $types = 0;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

IdemRelay::pytest_server($node, 's_program', $log);
sql(<<"END");
CREATE FUNCTION test_hold_commit(file text) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_hold_commit_fn';
CREATE TABLE effect (event_type text);
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE sql
	AS 'INSERT INTO public.effect VALUES (event_type)';
CREATE SERVER s_function FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '3600000');
CREATE SERVER s_null FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('program', 's_program', aggregate_types => '{first}');
SELECT idempotency.relay_create('function', 's_function', aggregate_types => '{first}');
SELECT count(idempotency.relay_create('r' || i, 's_null', aggregate_types => '{nothing}'))
	FROM generate_series(1, @{[BYSTANDERS]}) i;
END

sub wait_idle
{
	IdemTest::wait_for($node, "SELECT bool_and(state = 'idle') FROM idempotency.stat_relay");
	return;
}

sub came
{
	my ($relay, $event) = @_;

	return IdemRelay::came($log, $event) if $relay eq 'program';
	return sql("SELECT count(*) FROM effect WHERE event_type = '$event'");
}

sub enqueue
{
	my ($type, $event) = @_;

	return "SELECT idempotency.outbox_enqueue('$type', 'k', '$event', '1');\n";
}

# A type that both relays do not have yet, and the statement that gives it to them.
sub next_type
{
	my $type = 'type' . ++$types;

	return ($type, join("\n", map { "SELECT idempotency.relay_alter('$_', aggregate_types => '{first,$type}');" } qw(program function)));
}

# The event of the new type came to both; one of a type that they always had shows that
# the log was read past it.
sub is_sent
{
	my ($event, $name) = @_;

	sql(enqueue('first', "$event, later"));
	foreach my $relay (qw(program function))
	{
		IdemRelay::wait_until("an event after it came to relay $relay", sub { came($relay, "$event, later") });
		is(came($relay, $event), 1, "$name: relay $relay sent it once");
	}
	return;
}

# Both have read an event of now: their workers know the relays of now.
sub wait_known
{
	my ($what) = @_;

	sql(enqueue('first', "after $what"));
	IdemRelay::wait_until("relay $_ has passed $what", sub { came($_, "after $what") }) foreach qw(program function);
	return;
}

#
# The worker has just looked at the relays, and looks again after a while.
#
sub alter_and_enqueue
{
	my ($how) = @_;

	foreach my $n (1 .. 4)
	{
		my ($type, $alter) = next_type();

		sql(<<"END");
DO \$\$ BEGIN FOR i IN 1..20 LOOP PERFORM idempotency.relay_alter('r' || i, max_attempts => 3 + $n); COMMIT; PERFORM pg_sleep(0.01); END LOOP; END \$\$;
$alter
@{[ enqueue($type, "$how $n") ]}
END
		is_sent("$how $n", "relays $how");
	}
	return;
}

wait_idle();
alter_and_enqueue('at rest');
wait_idle();
sql("ALTER SYSTEM SET idempotency.sink_idle_timeout = '1h'");
$node->reload;
sql(enqueue('first', 'up'));
IdemRelay::wait_until('both are busy', sub { came('program', 'up') && came('function', 'up') });
alter_and_enqueue('at work');

#
# What is enqueued after relay_pause is not sent.
#
foreach my $n (1 .. 4)
{
	sql(<<"END");
DO \$\$ BEGIN FOR i IN 1..20 LOOP PERFORM idempotency.relay_alter('r' || i, max_attempts => 3 + $n); COMMIT; PERFORM pg_sleep(0.01); END LOOP; END \$\$;
SELECT idempotency.relay_pause(relay) FROM unnest('{program,function}'::text[]) relay;
@{[ enqueue('first', "paused $n") ]}
END
	IdemRelay::wait_state($node, $_, 'paused') foreach qw(program function);
	is(came($_, "paused $n"), 0, "relay $_ sent nothing that came after relay_pause") foreach qw(program function);
	sql("SELECT idempotency.relay_resume(relay) FROM unnest('{program,function}'::text[]) relay");
	is_sent("paused $n", 'after relay_resume');
}

#
# A transaction that others see, and whose COMMIT has not returned: its own event, and one
# of a session that has seen the new types.
#
{
	my ($type, $alter) = next_type();
	my $hold = "$dir/hold";
	my $session = $node->background_psql('postgres', on_error_stop => 1);
	# the notice of a type that no event has yet
	$session->query_safe('SET client_min_messages = warning');

	append_to_file($hold, '');
	$session->query_safe(<<"END");
BEGIN;
$alter
@{[ enqueue($type, 'of the same transaction') ]}
SELECT test_hold_commit('$hold');
END
	$session->query_until(qr/committing/, "\\echo committing\nCOMMIT;\n");
	IdemTest::wait_for($node,
		"SELECT count(*) = 2 FROM idempotency_data.relays WHERE '$type' = ANY (aggregate_types)");
	sql(enqueue($type, 'of another session'));
	is_sent($_, 'before COMMIT returned') foreach 'of another session', 'of the same transaction';
	ok(-e $hold, 'which it has not yet');
	unlink $hold;
	$session->quit;
}

#
# Prepared transactions.  What another one has to tell at its end does not matter.
#
my ($type, $alter) = next_type();

sql(<<"END");
BEGIN;
SELECT idempotency.relay_alter('r1', max_attempts => 20);
PREPARE TRANSACTION 'another';
BEGIN;
CREATE TABLE stranger ();
PREPARE TRANSACTION 'stranger';
BEGIN;
$alter
@{[ enqueue($type, 'prepared') ]}
PREPARE TRANSACTION 'alter';
COMMIT PREPARED 'stranger';
ROLLBACK PREPARED 'another';
CREATE TABLE stranger_2 ();
BEGIN;
INSERT INTO stranger_2 SELECT;
PREPARE TRANSACTION 'stranger';
COMMIT PREPARED 'stranger';
END
wait_known('what the others told');
sql("COMMIT PREPARED 'alter'");
is_sent('prepared', 'in a prepared transaction');

($type, $alter) = next_type();
sql(<<"END");
BEGIN;
$alter
@{[ enqueue($type, 'prepared before a crash') ]}
PREPARE TRANSACTION 'alter';
END
$node->stop('immediate');
$node->start;
wait_known('the crash');
sql("COMMIT PREPARED 'alter'");
is_sent('prepared before a crash', 'in a transaction prepared before a crash');

sql(q{
BEGIN;
SELECT idempotency.relay_pause('function');
PREPARE TRANSACTION 'pause'});
$node->restart;
sql("COMMIT PREPARED 'pause'");
IdemRelay::wait_state($node, 'function', 'paused');
sql("SELECT idempotency.relay_resume('function')");

#
# Relays that are changed again and again, until the event has come.
#
my @changers = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 3;
$_->query_safe('SET client_min_messages = warning') foreach @changers;

wait_known('all that');
foreach my $n (0 .. $#changers)
{
	sql("CREATE TABLE changed_$n ()");
	$changers[$n]->query_until(qr/changing/, <<"END");
\\echo changing
DO \$\$ BEGIN WHILE to_regclass('enough') IS NULL LOOP GRANT SELECT ON changed_$n TO PUBLIC; COMMIT; END LOOP; END \$\$;
END
}
wait_known('changes that do not end');
sql('CREATE TABLE enough ()');
$_->quit foreach @changers;

$node->stop;
done_testing();
