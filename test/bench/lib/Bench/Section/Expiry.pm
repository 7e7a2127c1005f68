# Part of section "ids": what it costs to forget ids whose retention is over.
#
# Ours: a consumer with a retention of an hour claims and completes so many events, which
# are packed; then the test module lets the time of the store go on, and the packer drops
# the runs.  Beside it the same number of rows of the usual table: DELETE and VACUUM, and
# DROP of a partition that has nothing else.  No table has rows that stay, which is the
# best case for DELETE and VACUUM.  Each begins right after a checkpoint.
#
# What is left of ours in the segment that claims write to has not been packed and does
# not expire with the runs; it is not counted.
package Bench::Section::Expiry;
use strict;
use warnings;
use List::Util qw(min);
use Time::HiRes qw(time);
use Bench::Packer;
use Bench::Remembered;
use Bench::Server;

my $consumer = 'an-hour';
my $hour = 3600;
my $slice = 600;

sub prepare
{
	my ($server) = @_;

	$server->sql('CREATE FUNCTION bench.store_add_time(seconds int) RETURNS void'
		  . " LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn'");
	$server->sql("SELECT idempotency.consumer_create('$consumer', retention => '1 hour')");
}

sub in_runs
{
	my ($server) = @_;

	return $server->sql("SELECT coalesce(sum(entries), 0) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND class = 'hour'");
}

sub note
{
	my ($run, $way, $round, $ids, %cost) = @_;

	$run->note('expire', way => $way, round => $round, ids => $ids, map { $_ => $cost{$_} } sort keys %cost);
	printf "   %-6s %8d ids: %.1f ms, %.2f ms CPU, %d B WAL\n", $way, $ids, 1e3 * $cost{seconds}, 1e3 * $cost{cpu}, $cost{wal};
}

sub ours
{
	my ($run, $n, $round) = @_;
	my $server = $run->{server};

	$server->truncate($Bench::Remembered::table{ours});
	Bench::Remembered::grow($run, 'ours', 'random', $n, $consumer);
	Bench::Packer::settle($server);

	# The slice is over: what belongs together is merged, which is part of packing.
	$server->sql('CHECKPOINT');
	$server->sql("SELECT bench.store_add_time($slice)");
	my $merge = Bench::Packer::settle($server);
	$run->note('pack', ids => 'random', n => 0, round => $round, map { $_ => $merge->{$_} } sort keys %$merge);
	my $ids = in_runs($server) or die "no id of $n was packed\n";
	$server->sql('CHECKPOINT');
	$server->sql("SELECT bench.store_add_time($hour + $slice)");
	my $cost = Bench::Packer::settle($server);
	my $left = in_runs($server);

	die "$left ids have not expired\n" if $left;
	note($run, 'ours', $round, $ids, map { $_ => $cost->{$_} } qw(cpu seconds wal));
}

# Commands of the control session.
sub cost_of
{
	my ($server, @commands) = @_;

	$server->sql('CHECKPOINT');
	my $lsn = $server->lsn;
	my ($cpu, $start) = (Bench::Server::precise_cpu_seconds($server->{control}), time);
	$server->sql($_) for @commands;
	my %cost = (seconds => time - $start);
	$cost{cpu} = Bench::Server::precise_cpu_seconds($server->{control}) - $cpu;
	$cost{wal} = $server->wal_since($lsn);
	return %cost;
}

sub usual
{
	my ($run, $n, $round) = @_;
	my $server = $run->{server};

	$server->truncate('bench.conflict');
	my $ids = Bench::Remembered::grow($run, 'usual', 'random', $n);
	$server->sql('CREATE TABLE bench.conflict_old PARTITION OF bench.conflict_parted FOR VALUES FROM (MINVALUE) TO (MAXVALUE)');
	$server->sql('INSERT INTO bench.conflict_parted SELECT * FROM bench.conflict');
	note($run, 'drop', $round, $ids, cost_of($server, 'DROP TABLE bench.conflict_old'));
	note($run, 'delete', $round, $ids, cost_of($server, 'DELETE FROM bench.conflict WHERE processed_at <= now()', 'VACUUM bench.conflict'));
	my $left = $server->sql('SELECT count(*) FROM bench.conflict');
	die "$left rows were not deleted\n" if $left;
}

sub run
{
	my ($run) = @_;
	my $n = min($run->{ids_max}, 10_000_000);

	print "== expiry\n";
	prepare($run->{server});
	for my $round (1 .. $run->{expiry_rounds})
	{
		$_->($run, $n, $round) for $round % 2 ? (\&ours, \&usual) : (\&usual, \&ours);
	}
}

1;
