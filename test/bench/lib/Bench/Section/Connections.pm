# Section "connections": single claims by a few and by a thousand connections, in turns
# with INSERT ... ON CONFLICT and with a bare INSERT; ids are random, and a million is
# remembered already.
#
# The connections are made before the measurement: the CPU is read when all of them are
# there, and again when all have gone.  So what each process reads of the catalogs for its
# first claim counts, and the start of the process does not.  The private memory of the
# processes is read halfway.
package Bench::Section::Connections;
use strict;
use warnings;
use Time::HiRes qw(time sleep);
use Bench::Remembered;
use Bench::Server;

# The processes of pgbench's connections.
sub sessions
{
	my ($server) = @_;

	return grep { Bench::Server::proc_title($_) =~ /\[local\]/ } $server->children;
}

sub mean_private_kb
{
	my @kb = map { ($_ // {})->{RssAnon} // () } map { Bench::Server::proc_kilobytes($_) } @_;
	my $sum = 0;

	$sum += $_ for @kb;
	return @kb ? $sum / @kb : 0;
}

sub measure
{
	my ($run, $side, $connections, $sync, $round) = @_;
	my $server = $run->{server};
	my $file = $run->write_script("one_$side", Bench::Remembered::one($side, 'random') . "\n");

	$server->truncate($Bench::Remembered::table{bare}) if $side eq 'bare';
	$server->sql('CHECKPOINT');
	my $lsn = $server->lsn;
	my $load = $run->start_pgbench($sync, '-c', $connections, '-j', $run->{threads}, '-T', $run->{connections_seconds}, '-f', $file);
	Bench::Server::until_true(60, "$connections connections are not there", sub { sessions($server) >= $connections });
	my $cpu = $server->cpu;
	sleep $run->{connections_seconds} / 2;
	my $kb = mean_private_kb(sessions($server));
	my $r = $run->end_pgbench($load);
	$server->wait_until_gone;
	my %seen = (rate => $r->{tps}, cpu_us => 1e6 * ($server->cpu - $cpu) / $r->{done}, wal => $server->wal_since($lsn) / $r->{done},
		latency_ms => $r->{latency_ms}, private_kb => $kb);
	$run->note('connections', side => $side, connections => $connections, sync => $sync, round => $round, %seen);
	printf "   %5d connections, sync %-3s %-5s %8.0f/s, %7.2f us CPU, %5.0f B WAL, %6.0f kB each\n", $connections, $sync, $side,
	  @seen{qw(rate cpu_us wal private_kb)};
	return $r->{done};
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};
	my @sides = qw(ours usual bare);
	my %rows = map { $_ => 0 } @sides;

	$server->truncate($Bench::Remembered::table{$_}) for @sides;
	for my $side (grep { $_ ne 'bare' } @sides)
	{
		$rows{$side} += Bench::Remembered::grow($run, $side, 'random', $run->{connections_remembered});
	}
	for my $round (1 .. $run->{connections_rounds})
	{
		for my $connections ($run->{clients}, $run->{connections})
		{
			for my $sync ('off', 'on')
			{
				$rows{$_} += measure($run, $_, $connections, $sync, $round) for $round % 2 ? @sides : reverse @sides;
			}
		}
	}
	for my $side (grep { $_ ne 'bare' } @sides)
	{
		my ($counted) = $server->table_state($server->tables($Bench::Remembered::table{$side}));

		die "$side: $rows{$side} ids, but $counted rows\n" if $counted != $rows{$side};
	}
	$server->truncate($Bench::Remembered::table{$_}) for @sides;
}

1;
