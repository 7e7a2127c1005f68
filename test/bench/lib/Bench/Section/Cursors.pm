# Section "cursors": what offsets and sequences cost beside claims; claims of one partition
# under each pin; the log after many claims.
package Bench::Section::Cursors;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Section::Arms;
use Bench::Section::Pin;
use Bench::Server;
use Bench::UnderPin;

my $log = 'idempotency_data.cursor\_log\_%';

# Claims in one partition, one record at a time, many in a transaction; what the log takes
# after each tenth of them.
sub growth
{
	my ($run) = @_;
	my $server = $run->{server};
	my $session = $server->session;
	my $at_once = 1_000;

	Bench::Server::ask($session, 'SET synchronous_commit = off');
	for my $part (1 .. 10)
	{
		my $begun = time;
		for my $n (1 .. $run->{cursor_claims} / 10 / $at_once)
		{
			my $first = (($part - 1) * $run->{cursor_claims} / 10) + ($n - 1) * $at_once;
			my $claimed = Bench::Server::ask($session, "SELECT count(*) FROM generate_series($first, $first + $at_once - 1) AS g "
				. "CROSS JOIN LATERAL idempotency.claim_offset('bench', 'growth', 0, g) AS c WHERE c.result = 'claimed'");
			die "$claimed of $at_once offsets were claimed\n" if $claimed != $at_once;
		}
		my ($rows, $dead, $bytes) = $server->table_state($server->tables($log));

		$run->note('growth', part => $part, claims => $part * $run->{cursor_claims} / 10, bytes => $bytes, dead => $dead,
			us => 1e6 * (time - $begun) / ($run->{cursor_claims} / 10));
		printf "   after %d claims %d bytes\n", $part * $run->{cursor_claims} / 10, $bytes;
	}
	Bench::Server::end_session($session);
}

# Claims of one record after the other under one pin.
sub under_pin
{
	my ($run, $pin, $round) = @_;

	Bench::UnderPin::calls($run, $pin, $round, kind => 'offset', calls => $run->{pinned_offsets}, log => $log, table => 'idempotency_data.cursor_log_0',
		script => "SELECT result FROM idempotency.claim_offset('bench', 'pin $pin', 0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);\n");
}

sub run
{
	my ($run, $section) = @_;

	Bench::Section::Arms::run($run, $section);
	print "== cursors, many claims\n";
	growth($run);
	print "== cursors, claims under a pin\n";
	Bench::UnderPin::rounds($run, \&under_pin);
}

1;
