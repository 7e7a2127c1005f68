
# Copyright (c) 2026, the idempotency developers

# What a relay says of itself, in stat_relay and in the server log.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\nlog_statement = none\n");

sub enqueue
{
	my ($relay, $type, $n) = @_;

	$n //= 1;
	$node->safe_psql('postgres',
		"SELECT count(idempotency.outbox_enqueue('$relay', '$type ' || i, '$type', to_jsonb(i))) FROM generate_series(1, $n) i");
	return;
}

# What the log says of a relay, without the times and processes.
sub logged
{
	my ($relay) = @_;

	return map { /LOG:  (relay "$relay".*)/ ? $1 : () } split /\n/, slurp_file($node->logfile);
}

# Refusals of single events are the last error, whoever says them.
foreach my $type (qw(retry rejected))
{
	my $option = $type eq 'retry' ? 'retry_type' : 'reject_type';

	foreach my $position (qw(off on))
	{
		my $name = "${type}_$position";

		IdemRelay::own_relay($node, $dir, $name, $option => 'Bad', position => $position);
		enqueue($name, 'Good');
		IdemRelay::arrives("$dir/$name.log", 'Good');
		is(IdemRelay::stat($node, $name, 'num_nulls(last_error, last_error_at)'), '2', "$name: nothing was refused");
		enqueue($name, 'Bad');
		IdemTest::wait_for($node, qq{SELECT last_error = 'told to answer $type' AND last_error_at > pg_postmaster_start_time()
			FROM idempotency.stat_relay WHERE relay = '$name'});
	}
}

# A dead letter is a line of the log, of many the first ones are, and the number of the others.
IdemRelay::own_relay($node, $dir, 'dies', reject_type => 'Bad', sqlstate => '22P02');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('dies', max_attempts => 1)});
enqueue('dies', 'Bad', 100);
IdemTest::wait_for($node, q{SELECT dead = 100 FROM idempotency.stat_relay WHERE relay = 'dies'});
IdemRelay::wait_until('the number of the others', sub {
	enqueue('dies', 'Good');
	return grep { /more events are dead letters/ } logged('dies');
});
my @lines = logged('dies');
my %known = map { $_ => 1 } split /\n/, $node->safe_psql('postgres',
	q{SELECT event_id FROM idempotency.dead_letters WHERE relay = 'dies'});
my @ids = map { /^relay "dies": event (\S+) is a dead letter, SQLSTATE 22P02$/ ? $1 : () } @lines;
my ($more) = map { /^relay "dies": (\d+) more events are dead letters$/ ? $1 : () } @lines;
is(scalar(grep { !$known{$_} } @ids), 0, 'the lines name dead letters');
cmp_ok(scalar(@ids), '>=', 20, 'twenty at once');
is(@ids + ($more // 0), 100, 'and count the others');

# The text of a handler is not for the log, neither of an event that fails alone nor of
# one that makes its batch fail at COMMIT.
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION handle(event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF event_type = 'Raises' THEN
		RAISE EXCEPTION 'no such card: 4111';
	ELSIF event_type = 'Leaves' THEN
		PERFORM idempotency.claim_event('card 4222');
	END IF;
END $$;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('fn', 'fn', aggregate_types => '{fn}', max_attempts => 1, min_backoff => '10 ms', max_backoff => '10 ms');
END
enqueue('fn', 'Raises');
IdemTest::wait_for($node, q{SELECT dead = 1 AND last_error = 'no such card: 4111' FROM idempotency.stat_relay WHERE relay = 'fn'});
enqueue('fn', 'Leaves');
IdemTest::wait_for($node, q{SELECT dead = 2 AND last_error LIKE '%card 4222%' FROM idempotency.stat_relay WHERE relay = 'fn'});
IdemRelay::wait_until('the log has both', sub { 2 <= grep { /is a dead letter, SQLSTATE/ } logged('fn') });
ok((grep { $_ eq 'relay "fn" is outage' } logged('fn')), 'the log has the outage');
my $log = slurp_file($node->logfile);
unlike($log, qr/4111|4222|told to answer retry/, 'and no text of a handler or of a receiver');

$node->stop;
done_testing();
