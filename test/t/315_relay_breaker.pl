
# Copyright (c) 2026, the idempotency developers

# What lets a relay try again that waits for an operator: acts on that relay, its server
# or mapping, nothing else that happens in the database.  An outage is tried by itself.  And what the log gets of an error that
# stays.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::Local qw(timegm);

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'");
my $file = "$dir/down.log";

sub starts
{
	return scalar grep { exists $_->{hello} } IdemRelay::received($file);
}

sub wait_starts
{
	my ($n, $why) = @_;

	IdemRelay::wait_until("start $n, for $why", sub { starts() == $n });
	IdemRelay::wait_state($node, 'down', 'fenced');
	return;
}

# Do something and let the worker take it over: the other relay tells when.
my $paused = 0;

sub beside
{
	my ($sql) = @_;

	$node->safe_psql('postgres', $sql);
	$paused = !$paused;
	$node->safe_psql('postgres', $paused ? "SELECT idempotency.relay_pause('other')" : "SELECT idempotency.relay_resume('other')");
	IdemRelay::wait_state($node, 'other', $paused ? 'paused' : 'streaming');
	return;
}

IdemRelay::pytest_server($node, 'down', $file, hello => 'fenced');
$node->safe_psql('postgres', <<'END');
CREATE SERVER other FOREIGN DATA WRAPPER idempotency_null;
CREATE TABLE public.t ();
CREATE ROLE somebody;
SELECT idempotency.relay_create('down', 'down', min_backoff => '1 hour', max_backoff => '1 hour');
SELECT idempotency.relay_create('other', 'other');
END
wait_starts(1, 'the beginning');

# Neither tables' rights nor other servers are this relay's.
my $before = IdemRelay::stat($node, 'down', 'last_error_at');
beside('GRANT SELECT ON public.t TO PUBLIC');
beside('CREATE USER MAPPING FOR PUBLIC SERVER other');
beside('CREATE SERVER more FOREIGN DATA WRAPPER idempotency_null');
beside(q{SELECT idempotency.relay_create('more', 'more')});
beside('CREATE USER MAPPING FOR somebody SERVER down');
is(IdemRelay::stat($node, 'down', q{state || ' ' || waiting_for}), 'fenced operator', 'the relay stays stopped');
is(IdemRelay::stat($node, 'down', 'last_error_at'), $before, 'and the sink was not tried');
is(starts(), 1, 'nor its program started');

# These are.
$node->safe_psql('postgres', q{SELECT idempotency.relay_resume('down')});
wait_starts(2, 'relay_resume');
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('down', max_attempts => 3)});
wait_starts(3, 'relay_alter');
$node->safe_psql('postgres', q{ALTER SERVER down OPTIONS (ADD retry_type 'x')});
wait_starts(4, 'ALTER SERVER');
$node->safe_psql('postgres', q{CREATE USER MAPPING FOR postgres SERVER down OPTIONS (reject_type 'x')});
wait_starts(5, 'CREATE USER MAPPING');
$node->safe_psql('postgres', q{ALTER SERVER down OPTIONS (DROP hello)});
IdemRelay::wait_state($node, 'down', 'streaming');

# An outage is probed soon, however long the backoffs are.
IdemRelay::pytest_server($node, 'away', "$dir/away.log", hello => 'outage');
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('away', 'away', aggregate_types => '{away}', min_backoff => '1 day', max_backoff => '1 day')});
IdemRelay::wait_until('the third start', sub { (grep { exists $_->{hello} } IdemRelay::received("$dir/away.log")) >= 3 });
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('away')});

# A refusal that names no SQLSTATE has one of ours.
IdemRelay::pytest_server($node, 'refuses', "$dir/refuses.log", reject_type => 'Bad', sqlstate => '00000');
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('refuses', 'refuses', max_attempts => 1)});
IdemRelay::enqueue($node, 'k', 'Bad');
IdemTest::wait_for($node, q{SELECT sqlstate = 'ID005' AND error = 'told to answer rejected'
	FROM idempotency.dead_letters WHERE relay = 'refuses'});

# An error that stays is tried, and said, less and less often.
sub complaints
{
	my @times;

	foreach my $line (split /\n/, slurp_file($node->logfile))
	{
		next if $line !~ /ERROR:\s+column "on_dead" does not exist/;
		my ($y, $mo, $d, $h, $mi, $s) = $line =~ /^(\d+)-(\d+)-(\d+) (\d+):(\d+):([\d.]+)/ or next;
		push @times, timegm(int $s, $mi, $h, $d, $mo - 1, $y) + $s - int $s;
	}
	return @times;
}

$node->safe_psql('postgres', <<'END');
ALTER TABLE idempotency_data.relays RENAME COLUMN on_dead TO hidden;
GRANT SELECT ON public.t TO somebody;
END
IdemRelay::wait_until('the log says it five times', sub { complaints() >= 5 });
my @times = complaints();
cmp_ok($times[4] - $times[0], '>', 3, 'which takes its time');
$node->safe_psql('postgres', 'ALTER TABLE idempotency_data.relays RENAME COLUMN hidden TO on_dead');
my $sent = scalar IdemRelay::acked($file);
$node->safe_psql('postgres', q{SELECT idempotency.relay_alter('down', aggregate_types => '{t}')});
IdemRelay::enqueue($node, 'k', 'Good');
IdemRelay::wait_received($file, $sent + 1);

done_testing();
