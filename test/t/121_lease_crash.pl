
# Copyright (c) 2026, the idempotency developers

# Leases across kills: a token never falls, no effect commits under a token after a
# higher one of the event, and an event is completed once.  Workers lease a few events for
# moments, so that most leases are overdue when their holder acts; backends are killed,
# and so is the server.  A prepared lease survives a crash.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => <<'END');
max_prepared_transactions = 5
synchronous_commit = off
wal_writer_delay = 10s
END

# The number of a row is its place in the order of commits: its lock is the last one
# that a transaction takes.  The two tables that have a row of each token and effect.
$node->safe_psql('postgres', <<'END');
CREATE TABLE counter (n bigint);
INSERT INTO counter VALUES (0);
CREATE TABLE given (event_id text, token bigint);
CREATE TABLE effects (n bigint, event_id text, token bigint, what text);
CREATE FUNCTION note(id text, token bigint, what text) RETURNS void LANGUAGE sql AS $$
	WITH next AS (UPDATE counter SET n = n + 1 RETURNING n)
	INSERT INTO effects SELECT n, id, token, what FROM next $$;
-- Lease an event and commit; then act under the token, as chance has it.
CREATE PROCEDURE work(rounds int, level text) LANGUAGE plpgsql AS $$
DECLARE
	l record;
	id text;
BEGIN
	FOR i IN 1 .. rounds LOOP
		BEGIN
			EXECUTE 'SET TRANSACTION ISOLATION LEVEL ' || level;
			id := 'e' || floor(random() * 20);
			l := idempotency.lease_event(id, duration => '1 microsecond');
			IF l.result = 'claimed' THEN PERFORM note(id, l.token, 'leased'); END IF;
		EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
			l := NULL;
		END;
		COMMIT;
		CONTINUE WHEN l.token IS NULL;
		PERFORM pg_sleep(random() * 0.003);
		BEGIN
			EXECUTE 'SET TRANSACTION ISOLATION LEVEL ' || level;
			CASE
				WHEN random() < 0.02 THEN
					PERFORM idempotency.complete_event(id, token => l.token);
					PERFORM note(id, l.token, 'completed');
				WHEN random() < 0.2 THEN
					PERFORM idempotency.release_lease(id, l.token, error => 'x', retry_after => '0');
				WHEN random() < 0.3 THEN
					PERFORM idempotency.extend_lease(id, l.token, duration => '1 microsecond');
				ELSE
					PERFORM idempotency.assert_lease(id, l.token);
					PERFORM note(id, l.token, 'effect');
			END CASE;
		EXCEPTION WHEN SQLSTATE 'ID007' OR serialization_failure OR deadlock_detected OR lock_not_available THEN
		END;
		COMMIT;
	END LOOP;
END $$;
END


sub check
{
	my ($when) = @_;

	is($node->safe_psql('postgres', <<'END'), '', "$when: no token after a higher one of its event");
SELECT a.event_id, a.n, a.what, b.n, b.what FROM effects a JOIN effects b USING (event_id)
WHERE b.n > a.n AND b.token < a.token
END
	is($node->safe_psql('postgres', <<'END'), '', "$when: an event is completed once");
SELECT event_id FROM effects WHERE what = 'completed' GROUP BY 1 HAVING count(*) > 1
UNION ALL SELECT a.event_id FROM effects a JOIN effects b USING (event_id) WHERE a.what = 'completed' AND b.n > a.n
END
	is($node->safe_psql('postgres', <<'END'), '', "$when: completed and remembered are the same");
SELECT event_id, status, completed FROM (SELECT DISTINCT event_id FROM effects) AS e,
	LATERAL idempotency.event_status(event_id),
	LATERAL (SELECT count(*) = 1 AS completed FROM effects AS c WHERE c.event_id = e.event_id AND what = 'completed') AS c
WHERE (status = 'completed') <> completed
END
	return;
}

sub draw
{
	my ($id) = @_;
	my $token = $node->safe_psql('postgres', "BEGIN; SELECT token FROM idempotency.lease_event('$id', duration => '1 microsecond'); ROLLBACK");

	return $token eq '' ? 0 : $token;
}

for my $round (1 .. 3)
{
	my @workers;

	$node->safe_psql('postgres', q{SELECT idempotency.forget_event('e' || i) FROM generate_series(0, 19) AS i; TRUNCATE effects});
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		foreach (1 .. 2)
		{
			my ($in, $out, $err) = ('', '', '');

			push @workers,
			  IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "CALL work(100000, '$level')" ],
				'<', \$in, '>', \$out, '2>', \$err);
		}
	}
	IdemTest::wait_for($node, 'SELECT count(*) >= 100 FROM effects');
	my $before = draw("x$round");
	if ($round == 2)
	{
		IdemTest::kill9_backend($node,
			$node->safe_psql('postgres', q{SELECT min(pid) FROM pg_stat_activity WHERE query ~ '^CALL work'}));
	}
	else
	{
		$node->stop('immediate');
		$node->start;
	}
	$_->finish foreach @workers;
	cmp_ok(draw("x$round"), '>', $before, "round $round: a token that was given out before the crash is not given out again");
	cmp_ok($before, '>', 0, 'there was one');
	check("round $round");
}

# A lease in a prepared transaction: the lock and the row survive; COMMIT PREPARED comes
# after the lease is over and after others wanted it.
my $token = $node->safe_psql('postgres', <<'END');
BEGIN;
SELECT token FROM idempotency.lease_event('p', duration => '1 microsecond');
PREPARE TRANSACTION 'lease';
BEGIN;
SELECT result FROM idempotency.lease_event('q', duration => '1 microsecond');
PREPARE TRANSACTION 'gone';
END
$token =~ s/\n.*//s;
my $prepared = q{SELECT gid, owner = current_user, prepared <= now(), age > '0', claims FROM idempotency.prepared_claims ORDER BY gid};
my $shown = "gone|t|t|t|1\nlease|t|t|t|1";
is($node->safe_psql('postgres', $prepared), $shown, 'prepared_claims shows them');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', $prepared), $shown, 'after a crash as well');
$node->restart;
is($node->safe_psql('postgres', $prepared), $shown, 'and after a restart');
is($node->safe_psql('postgres', q{SELECT prepared_transactions FROM idempotency.stat_leases}), '2', 'stat_leases counts them');
is($node->safe_psql('postgres', q{SELECT result, retry_after FROM idempotency.lease_event('p')}), 'busy|', 'a prepared lease is busy');
is($node->safe_psql('postgres', q{SELECT idempotency.claim_event('p')}), 'busy', 'for a claim, too');
# Others wait for it: one as long as it takes, one for a moment, and one in vain for the
# other event
my %waiter = map { $_ => $node->background_psql('postgres') } 'lease p', 'claim p', 'lease q';
my %wait = (
	'lease p' => q{SELECT result, attempt, token > TOKEN FROM idempotency.lease_event('p', wait => '1 hour');},
	'claim p' => q{SELECT idempotency.claim_event('p', wait => '300 ms');},
	'lease q' => q{SELECT result, attempt FROM idempotency.lease_event('q', wait => '1 hour');});
foreach my $who (sort keys %waiter)
{
	$wait{$who} =~ s/TOKEN/$token/;
	$waiter{$who}->query_until(qr/go/, "\\echo go\n$wait{$who}\n");
}
like($waiter{'claim p'}->query('SELECT 1'), qr/busy/, 'a claim that waits for a moment is told busy');
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%1 hour%' AND pid <> pg_backend_pid()});
$node->safe_psql('postgres', q{COMMIT PREPARED 'lease'});
like($waiter{'lease p'}->query('SELECT 1'), qr/claimed\|2\|t/, 'who waits takes over what is overdue when it commits, with a higher token');
my ($rc, $out, $err) = $node->psql('postgres', "SELECT idempotency.complete_event('p', token => $token)", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/ID007/, 'its holder has lost it');
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'gone'});
like($waiter{'lease q'}->query('SELECT 1'), qr/claimed\|1/, 'one that was rolled back was no attempt');
$_->quit foreach values %waiter;
is($node->safe_psql('postgres', $prepared), '', 'prepared_claims is empty');
# A holder goes on as long as nobody has taken over
$token = $node->safe_psql('postgres', <<'END');
BEGIN;
SELECT token FROM idempotency.lease_event('p2', duration => '1 microsecond');
PREPARE TRANSACTION 'lease';
END
$node->stop('immediate');
$node->start;
$node->safe_psql('postgres', q{COMMIT PREPARED 'lease'});
is($node->safe_psql('postgres', "SELECT idempotency.extend_lease('p2', $token, duration => '1 microsecond') IS NOT NULL"), 't',
	'the holder of a lease that is prepared goes on');
is($node->safe_psql('postgres', "SELECT result, attempt, token > $token FROM idempotency.lease_event('p2')"), 'claimed|2|t',
	'and another one takes over');

# A completion by token that is prepared
$token = $node->safe_psql('postgres', q{SELECT token FROM idempotency.lease_event('c')});
$node->safe_psql('postgres', "BEGIN; SELECT idempotency.complete_event('c', token => $token, result => '7'); PREPARE TRANSACTION 'complete'");
$node->stop('immediate');
$node->start;
($rc, $out, $err) = $node->psql('postgres', "SET lock_timeout = '100ms'; SELECT idempotency.extend_lease('c', $token)");
like($err, qr/could not lock event "c" within 100 ms/, 'the lease is in use');
$node->safe_psql('postgres', q{COMMIT PREPARED 'complete'});
is($node->safe_psql('postgres', q{SELECT result, event_result FROM idempotency.lease_event('c')}), 'duplicate|7', 'and completed');
($rc, $out, $err) = $node->psql('postgres', "SELECT idempotency.extend_lease('c', $token)", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($err, qr/ID007/, 'for ever');

$node->stop;
done_testing();
