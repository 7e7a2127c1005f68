
# Copyright (c) 2026, the idempotency developers

# Offsets and sequences across crashes: a position and its effect are lost together or not
# at all; what was answered "duplicate" is not taken back; registrations and prepared claims
# survive.  Who waits for a former reader goes on behind what it has committed.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

# What a commit does not flush stays unflushed.
my $node = IdemTest::cluster('main', conf => <<'END');
synchronous_commit = off
wal_writer_delay = 10s
END

sub sql
{
	my ($query) = @_;

	return $node->safe_psql('postgres', $query);
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# Two sessions, anew after a crash
my ($twin, $other);

sub connect_anew
{
	foreach ($twin, $other)
	{
		eval { $_->quit } if $_;
		$_ = $node->background_psql('postgres', on_error_stop => 0);
	}
	return;
}

# Ask, and come back while the answer is waited for.
sub ask
{
	my ($session, $query) = @_;
	my $pid = $session->query('SELECT pg_backend_pid()');

	$session->query_until(qr/go/, "\\echo go\n$query;\n");
	IdemTest::wait_for($node, "SELECT state = 'active' AND (wait_event_type = 'Extension' OR wait_event = 'advisory') FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# The answer, when it has come
sub answer
{
	my ($session) = @_;

	return $session->query('SELECT') =~ s/\s+\z//r;
}

sql(<<'END');
CREATE TABLE effects (source text, n bigint);
CREATE TABLE ids (producer text, id bigint, epoch int);
-- Read and write on from where the last run was stopped; an effect with each step
CREATE PROCEDURE work(generation bigint) LANGUAGE plpgsql AS $$
DECLARE
	next bigint := coalesce((idempotency.resume_offset('c', 't', 0, generation)).next_offset, 0);
	p record := idempotency.register_producer('rising', false);
	last bigint := coalesce(idempotency.last_sequence(p.producer_id), -1);
	s record;
BEGIN
	COMMIT;
	LOOP
		IF (idempotency.claim_offset('c', 't', 0, next, next + 3, generation)).result <> 'claimed' THEN RAISE 'offset %', next; END IF;
		INSERT INTO effects SELECT 'offset', next + i FROM generate_series(0, 2) AS i;
		next := next + 3;
		COMMIT;
		s := idempotency.claim_sequence(p.producer_id, p.epoch, last + 1, count => 2);
		IF s.result <> 'accepted' THEN RAISE 'sequence % %', last, s; END IF;
		INSERT INTO effects SELECT 'sequence', s.record_number + i FROM generate_series(0, 1) AS i;
		last := last + 2;
		COMMIT;
	END LOOP;
END $$;
END

# A stop in the middle: effects and positions are lost together
my $checked = <<'END';
SELECT count(*) > 0 AND bool_and(c.n = e.count AND e.count = e.max + 1 AND e.count = e.distinct) FROM
	(SELECT source, count(*), count(DISTINCT n) AS distinct, max(n) FROM effects GROUP BY 1) AS e
	LEFT JOIN (SELECT CASE WHEN consumer IS NULL THEN 'sequence' ELSE 'offset' END AS source, coalesce(next_offset, records) AS n FROM idempotency.cursors) AS c USING (source)
END
foreach my $round (1 .. 4)
{
	my ($in, $out, $err) = ('', '', '');
	my $before = sql('SELECT count(*) FROM effects');
	my $worker = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "CALL work($round)" ], '<', \$in, '>', \$out, '2>', \$err);

	IdemTest::wait_for($node, "SELECT count(*) > $before + 300 FROM effects");
	if ($round % 2)
	{
		crash();
	}
	else
	{
		IdemTest::kill9_backend($node, sql(q{SELECT pid FROM pg_stat_activity WHERE query ~ '^CALL work'}));
	}
	$worker->finish;
	# of all that was not flushed nothing may be left; the positions are not
	if (sql('SELECT count(*) FROM effects') > 0)
	{
		is(sql($checked), 't', "round $round: as many effects as the positions say, each once");
	}
	else
	{
		is(sql('SELECT count(next_offset) + count(last_sequence) FROM idempotency.cursors'), '0', "round $round: neither effects nor positions");
	}
	is(sql(q{SELECT generation FROM idempotency.cursors WHERE consumer = 'c'}), $round, 'the generation that was resumed with is there');
	is(sql(q{SELECT epoch + 1 FROM idempotency.producers}), $round, 'and so is the epoch that was given out');
}

# What a reply rests on is durable, although it was committed asynchronously; so is what fences
sql(q{INSERT INTO ids SELECT 'p', r.* FROM idempotency.register_producer('p') r; CHECKPOINT});
my $claim_sequence = q{SELECT result, record_number FROM ids, idempotency.claim_sequence(id, ids.epoch, 0, 'd', count => 3) WHERE producer = 'p'};
my $claim_next = $claim_sequence =~ s/, 0, 'd'/, 3, 'd'/r;
my $last = q{SELECT idempotency.last_sequence(id, 'd') FROM ids WHERE producer = 'p'};
my $resume_e = q{SELECT next_offset FROM idempotency.resume_offset('e', 't', 0)};
foreach my $case (
	[ q{SELECT result FROM idempotency.claim_offset('d', 't', 0, 7)}, 'claimed' ],
	[ q{SELECT result FROM idempotency.claim_offset('e', 't', 0, 7)}, 'claimed', $resume_e, '8' ],
	[ q{SELECT result FROM idempotency.resume_offset('f', 't', 0, 5)}, 'claimed', q{SELECT generation FROM idempotency.cursors WHERE consumer = 'f'}, '5' ],
	[ q{SELECT epoch FROM idempotency.register_producer('f')}, '0', q{SELECT epoch FROM idempotency.producers WHERE producer = 'f'}, '0' ],
	[ $claim_sequence, 'accepted|0' ],
	[ $claim_next, 'accepted|3', $last, '5' ])
{
	my ($claim, $first, $question, $then) = @$case;

	$question //= $claim;
	$then //= $first =~ s/\w+/duplicate/r;
	connect_anew();
	is($twin->query($claim), $first, "$first, asynchronously");
	is($other->query($question), $then, "$then is answered");
	crash();
	is(sql($question), $then, "$then is the answer after a crash");
}
connect_anew();

# To resume waits for the former reader's transaction, and so does a claim that waits
sql(q{SELECT idempotency.claim_offset('w', 't', 0, 0, 10, 1)});
my $resume = q{SELECT result, next_offset FROM idempotency.resume_offset('w', 't', 0, GENERATION, '1 hour')};
$twin->query('BEGIN');
is($twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 10, 20, 1)}), 'claimed', 'a former reader claims');
ask($other, $resume =~ s/GENERATION/2/r);
$twin->query('COMMIT');
is(answer($other), 'claimed|20', 'its successor goes on behind what it has committed');
is($twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 20, 30, 1)}), 'fenced', 'and it is fenced');
$twin->query('BEGIN');
$twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 20, 30, 2)});
ask($other, $resume =~ s/GENERATION/3/r);
$twin->query('ROLLBACK');
is(answer($other), 'claimed|20', 'or where it began, if that was rolled back');
$twin->query('BEGIN');
$twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 20, 30, 3)});
ask($other, q{SELECT result, new_from FROM idempotency.claim_offset('w', 't', 0, 25, 40, wait => '1 hour')});
$twin->query('COMMIT');
is(answer($other), 'claimed|30', 'a claim that waits gets what is left');
$twin->query('BEGIN');
$twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 40, 50)});
is($other->query(q{SELECT result FROM idempotency.resume_offset('w', 't', 0, wait => '20 ms')}), 'busy', 'busy if it has not ended by then');
ask($other, $resume =~ s/GENERATION/4/r);
sql(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query ~ '1 hour' AND pid <> pg_backend_pid()});
$other->query('SELECT 1');
$twin->query('COMMIT');
is($other->query($resume =~ s/GENERATION/4/r), 'claimed|50', 'a call that was cancelled has left nothing');
# at REPEATABLE READ the answer cannot be seen
$twin->query('BEGIN');
$twin->query(q{SELECT result FROM idempotency.claim_offset('w', 't', 0, 50, 60)});
$other->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($other, ($resume =~ s/GENERATION/5/r) . ";\n\\echo state :SQLSTATE\nROLLBACK");
$twin->query('COMMIT');
like(answer($other), qr/state 40001/, 'an old snapshot is told 40001 after the wait');
# a claim of a sequence
$twin->query('BEGIN');
is($twin->query($claim_sequence =~ s/'d'/'w'/r), 'accepted|0', 'a sequence is claimed');
ask($other, $claim_sequence =~ s/'d', count => 3/'w', count => 3, wait => '1 hour'/r);
$twin->query('COMMIT');
is(answer($other), 'duplicate|0', 'a claim of a sequence waits');
# which is fenced if a registration ends the wait
$twin->query('BEGIN');
is($twin->query(q{SELECT epoch FROM idempotency.register_producer('p')}), '1', 'the producer registers again');
ask($other, $claim_sequence =~ s/0, 'd', count => 3/3, 'w', wait => '1 hour'/r);
$twin->query('COMMIT');
is(answer($other), 'fenced|', 'a claim that has waited for it is fenced');
sql(q{UPDATE ids SET epoch = 1 WHERE producer = 'p'});

# Prepared claims: locks and rows survive a crash and a restart
sql(<<'END');
BEGIN;
SELECT idempotency.claim_offset('p', 't', 0, 0, 10, 1), idempotency.claim_offset('p', 't', 1, 0, 10, 1);
PREPARE TRANSACTION 'offsets';
BEGIN;
SELECT idempotency.claim_sequence(id, epoch, 0, 'prepared', count => 10) FROM ids;
PREPARE TRANSACTION 'sequence';
BEGIN;
SELECT idempotency.claim_offset('p', 't', 2, 0, 10, 1);
PREPARE TRANSACTION 'gone';
BEGIN;
SELECT idempotency.register_producer('prepared');
PREPARE TRANSACTION 'producer';
END
my $prepared = q{SELECT string_agg(gid || ' ' || claims, ', ' ORDER BY gid) FROM idempotency.prepared_claims};
my $shown = 'gone 1, offsets 2, producer 1, sequence 2';
is(sql($prepared), $shown, 'prepared_claims shows them, by their locks');
crash();
is(sql($prepared), $shown, 'after a crash as well');
$node->restart;
is(sql($prepared), $shown, 'and after a restart');
my $claim_prepared = q{SELECT result FROM ids, idempotency.claim_sequence(id, ids.epoch, 0, 'prepared', count => 10)};
is(sql(q{SELECT string_agg(result::text, ' ') FROM generate_series(0, 2) AS i, LATERAL idempotency.claim_offset('p', 't', i, 0, 10, 1)}), 'busy busy busy', 'prepared claims are busy');
is(sql($claim_prepared), 'busy', 'of a sequence, too');
connect_anew();
ask($twin, q{SELECT result, next_offset FROM idempotency.resume_offset('p', 't', 0, 2, '1 hour')});
ask($other, q{SELECT epoch FROM idempotency.register_producer('p')});
sql(q{COMMIT PREPARED 'offsets'});
is(answer($twin), 'claimed|10', 'who waits goes on behind what was prepared');
sql(q{COMMIT PREPARED 'sequence'});
is(answer($other), '2', 'a registration waits for what was prepared of the former epoch');
is(sql($claim_prepared), 'fenced', 'which is fenced then');
sql(q{ROLLBACK PREPARED 'gone'});
sql(q{COMMIT PREPARED 'producer'});
is(sql($prepared), '', 'prepared_claims is empty');
is(sql(q{SELECT string_agg(concat_ws(' ', partition, next_offset, generation), ', ' ORDER BY partition) FROM idempotency.cursors WHERE consumer = 'p'}),
	'0 10 2, 1 10 1', 'what was committed is there, what was rolled back is not');
is(sql(q{SELECT string_agg(last_sequence || ' ' || records, ', ') FROM idempotency.cursors WHERE topic = 'prepared'}), '9 10', 'the sequence is there');
is(sql(q{SELECT epoch FROM idempotency.register_producer('prepared')}), '1', 'and so is the producer');
sql(q{BEGIN; SELECT idempotency.claim_offset('p', 't', 2, 5, 10, 3); PREPARE TRANSACTION 'last'});
crash();
sql(q{ROLLBACK PREPARED 'last'});
is(sql(q{SELECT result, new_from FROM idempotency.claim_offset('p', 't', 2, 3, 10, 1)}), 'claimed|3', 'rolled back after a crash');

eval { $_->quit } foreach $twin, $other;
$node->stop;
done_testing();
