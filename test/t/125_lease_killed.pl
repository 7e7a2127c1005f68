
# Copyright (c) 2026, the idempotency developers

# Holders of leases are killed at every step, as often as the consumer allows attempts: the
# next one gets the event with the attempts and the recovery point that were committed;
# after the last attempt it is parked, once, and whoever asks is told "dead".  An operator
# has it tried again, or discards it; not while it is leased.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', conf => "autovacuum = off\n");
my %attempts = (once => 1, thrice => 3);

$node->safe_psql('postgres', <<'END');
CREATE TABLE effects (consumer text, event_id text);
SELECT idempotency.consumer_create('once', max_attempts => 1, lease_duration => '1 microsecond'),
	idempotency.consumer_create('thrice', max_attempts => 3, lease_duration => '1 microsecond', min_backoff => '10 min', max_backoff => '15 min');
END

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The steps of a holder: what it does in turn, and whether the steps before it have
# committed an attempt, and a recovery point
my @steps = (
	# name, statements, attempts that are counted, its recovery point
	[ 'leased, not committed', [ 'BEGIN', 'LEASE' ], 0, '' ],
	[ 'leased', ['LEASE'], 1, '' ],
	[ 'extended, not committed', [ 'LEASE', 'BEGIN', q{EXTEND} ], 1, '' ],
	[ 'extended', [ 'LEASE', q{EXTEND} ], 1, 'half' ],
	[ 'asserted', [ 'LEASE', q{EXTEND}, 'BEGIN', q{SELECT idempotency.assert_lease(ID, :token, CONSUMER)}, 'EFFECT' ], 1, 'half' ],
	[ 'released, not committed', [ 'LEASE', 'BEGIN', q{SELECT idempotency.release_lease(ID, :token, CONSUMER)} ], 1, '' ],
	[ 'completed, not committed', [ 'LEASE', 'BEGIN', 'EFFECT', q{SELECT idempotency.complete_event(ID, CONSUMER, token => :token)} ], 1, '' ],
	[ 'completed', [ 'LEASE', 'BEGIN', 'EFFECT', q{SELECT idempotency.complete_event(ID, CONSUMER, token => :token)}, 'COMMIT' ], undef, '' ]);
my %macro = (
	LEASE => q{SELECT token FROM idempotency.lease_event(ID, CONSUMER) \gset},
	EXTEND => q{SELECT idempotency.extend_lease(ID, :token, CONSUMER, recovery_point => 'half')},
	EFFECT => q{INSERT INTO effects VALUES (CONSUMER, ID)});

# Take a holder to a step; returns its session.
sub holder
{
	my ($consumer, $step) = @_;
	my ($name, $statements) = @$step;
	my $session = $node->background_psql('postgres', on_error_stop => 1);

	foreach my $statement (@$statements)
	{
		my $sql = $macro{$statement} // $statement;

		$sql =~ s/\bID\b/'$name'/g;
		$sql =~ s/\bCONSUMER\b/'$consumer'/g;
		$session->query_safe($sql);
	}
	return $session;
}

# All holders of a round are killed by the death of one of them, with the server's
# recovery.  A consumer of one attempt has holders in the first round only.
foreach my $round (1 .. $attempts{thrice})
{
	my @consumers = grep { $attempts{$_} >= $round } sort keys %attempts;
	my @sessions;

	foreach my $consumer (@consumers)
	{
		push @sessions, holder($consumer, $_) foreach grep { $round == 1 || defined $_->[2] } @steps;
	}
	IdemTest::kill9_backend($node, $sessions[0]->query_safe('SELECT pg_backend_pid()'));
	foreach my $session (@sessions) { eval { $session->{run}->finish }; }
	foreach my $consumer (@consumers)
	{
		foreach my $step (@steps)
		{
			my ($name, undef, $counts, $point) = @$step;
			my $parked = $counts && $round >= $attempts{$consumer};
			my $expected = !defined $counts ? 'duplicate||' : $parked ? "dead|$round|" : 'claimed|' . ($counts * $round + 1) . "|$point";

			# who is told "dead" has parked it; the others leave no trace
			is(sql("BEGIN; SELECT result, attempt, recovery_point FROM idempotency.lease_event('$name', '$consumer'); " . ($parked ? 'COMMIT' : 'ROLLBACK')),
				$expected, "$consumer, killed $round times, $name: $expected");
			is(sql("SELECT state, recovery_point FROM idempotency.leases WHERE event_id = '$name' AND consumer = '$consumer'"), "dead|$point", 'and it is listed') if $parked;
		}
	}
}
is(sql('SELECT DISTINCT event_id, count(*) FROM effects GROUP BY consumer, event_id'), 'completed|1', 'the only effects are those that were completed');

# Parked once: however many ask at once, and ask again
my $dead = join ', ', map { "'$_->[0]'" } grep { $_->[2] } @steps;
my $ndead = grep { $_->[2] } @steps;
sql(q{SELECT token FROM idempotency.lease_event('crowd', 'once')});
my @asks = map { my $out = ''; [ IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c',
	q{SELECT result FROM idempotency.lease_event('crowd', 'once', wait => '1 min')}, '-c', q{SELECT idempotency.claim_event('crowd', 'once', wait => '1 min')} ], '>', \$out), \$out ] } 1 .. 10;
ok($_->[0]->finish, 'asked') foreach @asks;
is(join(' ', map { ${ $_->[1] } } @asks), join(' ', ("dead\ndead\n") x 10), 'ten at once are told the same');
is(sql(q{SELECT count(*) FROM idempotency_data.lease_log_0 WHERE event_id = 'crowd' AND state = 'd'}), '1', 'and it was parked once');
is(sql('SELECT consumer, dead FROM idempotency.stat_consumers WHERE dead > 0 ORDER BY 1'), 'once|' . ($ndead + 1) . "\nthrice|$ndead", 'stat_consumers counts them');
is(sql("SELECT DISTINCT idempotency.claim_event(id, c) FROM unnest(ARRAY[$dead]) id, unnest('{once,thrice}'::text[]) c"), 'dead', 'a claim is told so as well');

# An operator: again from the start, with the point that was reached; not while leased
is(sql("SELECT idempotency.consumer_redrive('thrice', ARRAY[$dead]), idempotency.consumer_redrive('thrice', ARRAY[$dead])"), "$ndead|0", 'redriven once');
is(sql("SELECT result, attempt, recovery_point FROM idempotency.lease_event('extended', 'thrice', '1 hour')"), 'claimed|1|half', 'a redriven event begins anew, at its recovery point');
is(sql(q{SELECT idempotency.consumer_redrive('thrice', '{extended}'), idempotency.consumer_discard('thrice', '{extended}')}), '0|0', 'what is leased is neither redriven nor discarded');
is(sql(q{SELECT idempotency.extend_lease(event_id, token, consumer, '1 hour') IS NOT NULL FROM idempotency.leases WHERE state = 'leased' AND due IS FALSE}), 't', 'and its holder goes on');
is(sql("SELECT idempotency.consumer_discard('once'), idempotency.consumer_discard('once')"), ($ndead + 1) . '|0', 'discarded once');
is(sql("SELECT DISTINCT result FROM unnest(ARRAY[$dead, 'crowd']) id, idempotency.lease_event(id, 'once')"), 'duplicate', 'what was discarded is never done');

# A clean release gives the attempt back, at the last attempt too; an error does not, and
# its pause is bounded
foreach my $round (1 .. 5)
{
	is(sql(q{BEGIN; SELECT attempt FROM idempotency.lease_event('deployed', 'once') \gset
SELECT idempotency.release_lease('deployed', token, 'once') FROM idempotency.leases WHERE event_id = 'deployed'; COMMIT; SELECT :attempt}),
		"waiting\n1", "deploy $round: the attempt is given back");
}
foreach my $attempt (1, 2)
{
	is(sql(q{SELECT result, attempt FROM idempotency.lease_event('failing', 'thrice')}), "claimed|$attempt", "attempt $attempt");
	is(sql(q{SELECT idempotency.release_lease('failing', token, 'thrice', 'no route') FROM idempotency.leases WHERE event_id = 'failing'}), 'waiting', 'fails');
	is(sql(q{SELECT retry_at - since BETWEEN '5 min' AND '15 min' FROM idempotency.leases WHERE event_id = 'failing'}), 't', 'its pause is bounded');
	is(sql(q{SELECT result FROM idempotency.lease_event('failing', 'thrice')}), 'busy', 'and has to be over');
	# the pause is over
	sql(q{UPDATE idempotency_data.lease_log_0 SET until = now() WHERE event_id = 'failing' AND state = 'w'});
}

$node->stop;
done_testing();
