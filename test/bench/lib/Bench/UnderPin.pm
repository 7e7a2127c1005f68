# One call over and over while something holds the horizon (Bench::Section::Pin).
#
# The calls are made in fifths, each after a checkpoint; the first and the last are
# compared, and dead rows and the size of the log are counted.  The machine changes by
# more than any such cost does, so the pins take turns for a few rounds.
package Bench::UnderPin;
use strict;
use warnings;
use Bench::Section::Pin;
use Bench::Server;

# rounds($run, $calls): $calls->($run, $pin, $round) for each pin in each round.
sub rounds
{
	my ($run, $calls) = @_;
	my @pins = sort keys %Bench::Section::Pin::pin;

	for my $round (1 .. $run->{pinned_rounds})
	{
		$calls->($run, $_, $round) for $round % 2 ? @pins : reverse @pins;
	}
}

# calls($run, $pin, $round, %what): script: what pgbench runs; log: pattern of its tables; table:
# one of them, which the reader reads; kind: of the notes; calls: how many.
sub calls
{
	my ($run, $pin, $round, %what) = @_;
	my $server = $run->{server};
	my $holder = $server->session;
	my $file = $run->write_script($what{kind}, $what{script});
	my $before = $server->dead_elsewhere($server->tables($what{log}));
	my ($hold, $let_go) = @{ $Bench::Section::Pin::pin{$pin} };

	Bench::Server::ask($holder, ref $hold ? $hold->($server) . "; SELECT count(*) FROM $what{table}" : $hold);
	my $beside = $run->on_server($server, staying => [ Bench::Server::ask($holder, 'SELECT pg_backend_pid()') ]);
	for my $part (1 .. 5)
	{
		my $r = $beside->cost_of('off', '-c', 1, '-j', 1, '-t', $what{calls} / 5, '-f', $file);
		my ($rows, $dead, $bytes) = $server->table_state($server->tables($what{log}));

		$run->note($what{kind}, pin => $pin, round => $round, part => $part, events => $r->{done}, cpu_us => 1e6 * $r->{server_cpu} / $r->{done},
			wal => $r->{wal} / $r->{done}, dead => $dead, bytes => $bytes, elsewhere => $server->dead_elsewhere($server->tables($what{log})) - $before);
		printf "   %s under a %-8s round %d, part %d %7.2f us CPU\n", $what{kind}, $pin, $round, $part, 1e6 * $r->{server_cpu} / $r->{done};
	}
	Bench::Server::ask($holder, $let_go);
	Bench::Server::end_session($holder);
}

1;
