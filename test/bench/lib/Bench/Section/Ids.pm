# Section "ids": what a claim costs beside 1e4, 1e5 ... ids_max remembered ids, in our
# store and in the usual table; random ids and time-ordered ones.
#
# The tables grow as they would in use: eight connections claim and complete by 100, or
# INSERT by 100, and the packer packs beside them.  At each size single claims are
# measured in turns with INSERT ... ON CONFLICT and with a bare INSERT, each right after a
# checkpoint.  The sessions of a measurement ask for no packer, so the claims' own cost is
# seen; afterwards, after another checkpoint, the packer has the store for itself, and its
# cost is seen.  The table of the bare INSERT is always empty before: it is the floor.
#
# The usual table stops growing at ids_usual_max: beyond that it takes hours and
# tens of gigabytes.
#
# Last, ids expire: Bench::Section::Expiry.
package Bench::Section::Ids;
use strict;
use warnings;
use Time::HiRes qw(time);
use Bench::Packer;
use Bench::Remembered;
use Bench::Section::Expiry;
use Bench::Server;

# How often the packer is looked at while claims go on, in seconds.
my $interval = 0.02;

# Rounds and calls of the look-ups.
my $looks = 5;

sub sizes
{
	my ($most) = @_;
	my $n = 10_000;
	my @sizes;

	for (; $n <= $most; $n *= 10) { push @sizes, $n }
	return @sizes;
}

# Grow to n ids; what it cost includes the packer.
sub grow
{
	my ($run, $side, $ids, $n, $rows) = @_;
	my $server = $run->{server};

	if ($$rows < $n)
	{
		my ($lsn, $cpu, $start) = ($server->lsn, $server->cpu, time);
		my $watch = Bench::Packer::watch($server, $interval);
		my $done = Bench::Remembered::grow($run, $side, $ids, $n - $$rows);
		my $seconds = time - $start;

		Bench::Packer::settle($server) if $side eq 'ours';

		$server->wait_until_gone;
		$$rows += $done;
		$run->note('growth', side => $side, ids => $ids, n => $n, done => $done, rate => $done / $seconds,
			cpu_us => 1e6 * ($server->cpu - $cpu) / $done, packer_us => 1e6 * Bench::Packer::end_watch($watch) / $done,
			wal => $server->wal_since($lsn) / $done);
	}
	note_bytes($run, $side, $ids, $n, $$rows);
}

# Bytes, and dead rows.  Nothing was lost, and nothing came twice.
sub counted
{
	my ($server, $side, $rows) = @_;
	my ($counted, $dead, $bytes) = $server->table_state($server->tables($Bench::Remembered::table{$side}));

	die "$side: $rows ids, but $counted rows\n" if $counted != $rows;
	return ($bytes, $dead);
}

sub note_bytes
{
	my ($run, $side, $ids, $n, $rows) = @_;
	my ($bytes, $dead) = counted($run->{server}, $side, $rows);

	$run->note('bytes', side => $side, ids => $ids, n => $n, at => $rows, bytes => $bytes / $rows, dead => $dead);
	printf "   %-7s %-5s %d ids: %.1f bytes each\n", $ids, $side, $rows, $bytes / $rows;
}

# Single claims, by sessions that ask for no packer.
sub measure_one
{
	my ($run, $side, $ids, $n, $round, $rows, $sync) = @_;
	my $file = $run->write_script("ids_$side", Bench::Remembered::one($side, $ids) . "\n");
	my $alone = $run->on_server($run->{server}, options => '-c idempotency.store_maintenance=off');

	$sync //= 'off';
	$run->{server}->truncate($Bench::Remembered::table{bare}) if $side eq 'bare';
	my $r = $alone->cost_of($sync, $run->load, '-t', $run->{growth_transactions} / $run->{clients}, '-f', $file);
	my $before = $side eq 'bare' ? 0 : $$rows;
	$run->note('ids', side => $side, ids => $ids, sync => $sync, n => $n, round => $round, at => $before + $r->{done} / 2,
		cpu_us => 1e6 * $r->{server_cpu} / $r->{done}, wal => $r->{wal} / $r->{done},
		pages => $run->{server}->page_images_since($r->{lsn}) / $r->{done}, rate => $r->{tps});
	printf "   %-7s %-5s sync %-3s beside %9d: %.0f/s, %.2f us CPU, %.0f B WAL\n", $ids, $side, $sync, $n, $r->{tps},
	  1e6 * $r->{server_cpu} / $r->{done}, $r->{wal} / $r->{done};
	$$rows += $r->{done} if $side ne 'bare';
	pack_alone($run, $ids, $n, $round) if $side eq 'ours';
}

# The packer alone, right after a checkpoint.
sub pack_alone
{
	my ($run, $ids, $n, $round) = @_;

	$run->{server}->sql('CHECKPOINT');
	my $cost = Bench::Packer::settle($run->{server});
	$run->note('pack', ids => $ids, n => $n, round => $round, map { $_ => $cost->{$_} } sort keys %$cost);
}

# Look up events that nobody knows, by one session.  A round before warms the caches up.
sub look_up
{
	my ($run, $ids, $n, $rows) = @_;
	my $server = $run->{server};
	my $calls = $run->{ids_lookups};

	for my $round (0 .. $looks)
	{
		my ($cpu, $start) = (Bench::Server::precise_cpu_seconds($server->{control}), time);

		$server->sql("SELECT count(idempotency.event_status(bench.id_$ids())) FROM generate_series(1, $calls)");
		my $us = 1e6 * (Bench::Server::precise_cpu_seconds($server->{control}) - $cpu) / $calls;
		$run->note('lookup', ids => $ids, n => $n, at => $rows, round => $round, cpu_us => $us,
			us => 1e6 * (time - $start) / $calls) if $round;
		printf "   %-7s look-up beside %9d: %.2f us CPU\n", $ids, $rows, $us if $round == $looks;
	}
}

sub at_size
{
	my ($run, $ids, $n, $rows) = @_;
	my @sides = ('ours', $n <= $run->{ids_usual_max} ? 'usual' : (), 'bare');

	grow($run, $_, $ids, $n, \$rows->{$_}) for grep { $_ ne 'bare' } @sides;
	look_up($run, $ids, $n, $rows->{ours});
	for my $round (1 .. $run->{ids_rounds})
	{
		for my $sync ('off', 'on')
		{
			measure_one($run, $_, $ids, $n, $round, \$rows->{$_}, $sync) for $round % 2 ? @sides : reverse @sides;
		}
	}
	$run->note('writes', ids => $ids, n => $n, at => $rows->{ours}, Bench::Packer::written($run->{server}, $rows->{ours}));
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};

	for my $ids (qw(random ordered))
	{
		my %rows = map { $_ => 0 } keys %Bench::Remembered::table;

		print "== $ids ids\n";
		$server->truncate($Bench::Remembered::table{$_}) for sort keys %Bench::Remembered::table;
		Bench::Packer::settle($server);
		look_up($run, $ids, 0, 0);
		at_size($run, $ids, $_, \%rows) for sizes($run->{ids_max});
		counted($server, $_, $rows{$_}) for qw(ours usual);
	}
	Bench::Section::Expiry::run($run);
	$server->truncate($Bench::Remembered::table{$_}) for sort keys %Bench::Remembered::table;
}

1;
