# Section "ids": what a claim costs beside 1e4, 1e5 ... maxsize remembered ids,
# ours and the usual table's, random and time-ordered.
#
# Tables grow through the sizes; ids are remembered in the way they would be,
# by claims of 1000 and INSERTs of 1000.  At each size single claims are
# measured in turns, after a checkpoint.
package Bench::Section::Ids;
use strict;
use warnings;

my %claim = (
	ours => 'SELECT idempotency.claim_event(i.id), idempotency.complete_event(i.id) FROM (SELECT %s AS id OFFSET 0) i;',
	usual => "INSERT INTO bench.conflict (consumer, event_id) SELECT 'default', %s ON CONFLICT DO NOTHING;");
my %fill = (
	ours => 'SELECT idempotency.complete_events(c.ids) FROM (SELECT array_agg(event_id) AS ids'
	  . ' FROM idempotency.claim_events(ARRAY(SELECT %s FROM generate_series(1, 1000)))) c;',
	usual => "INSERT INTO bench.conflict (consumer, event_id) SELECT 'default', %s FROM generate_series(1, 1000)"
	  . ' ON CONFLICT DO NOTHING;');
my %table = (ours => 'idempotency_data.processed%', usual => 'bench.conflict');

sub sizes
{
	my ($most) = @_;
	my $n = 10_000;
	my @sizes;

	for (; $n <= $most; $n *= 10) { push @sizes, $n }
	return @sizes;
}

sub measure_one
{
	my ($run, $side, $ids, $n, $round, $rows) = @_;
	my $file = $run->write_script("ids_$side", sprintf($claim{$side}, "bench.id_$ids()") . "\n");
	my $r = $run->cost_of('off', $run->load, '-t', $run->{growth_transactions} / $run->{clients}, '-f', $file);

	$run->note('ids', side => $side, ids => $ids, n => $n, round => $round, at => $$rows + $r->{done} / 2,
		cpu_us => 1e6 * $r->{server_cpu} / $r->{done}, wal => $r->{wal} / $r->{done},
		pages => $run->{server}->page_images_since($r->{lsn}) / $r->{done}, rate => $r->{tps});
	printf "   %-7s %-5s beside %9d: %.2f us CPU, %.0f B WAL\n", $ids, $side, $n,
	  1e6 * $r->{server_cpu} / $r->{done}, $r->{wal} / $r->{done};
	$$rows += $r->{done};
}

sub grow
{
	my ($run, $side, $ids, $n, $rows) = @_;
	my $server = $run->{server};

	if ($$rows < $n)
	{
		my $transactions = int(($n - $$rows) / 4000 + 0.5) * 4 || 1;

		$run->fill(sprintf($fill{$side}, "bench.id_$ids()"), $transactions);
		$$rows += $transactions * 1000;
	}
	my ($counted, $dead, $bytes) = $server->table_state($server->tables($table{$side}));
	die "$side: $$rows ids, but $counted rows\n" if $counted != $$rows;
	my $heap = $server->heap_bytes($server->tables($table{$side}));
	$run->note('bytes', side => $side, ids => $ids, n => $n, at => $$rows, bytes => $bytes / $$rows, heap => $heap / $$rows);
}

sub run
{
	my ($run) = @_;
	my @sides = qw(ours usual);

	for my $ids (qw(random ordered))
	{
		my %rows = map { $_ => 0 } @sides;

		print "== $ids ids\n";
		$run->{server}->truncate($table{$_}) for @sides;
		for my $n (sizes($run->{maxsize}))
		{
			grow($run, $_, $ids, $n, \$rows{$_}) for @sides;
			for my $round (1 .. $run->{growth_rounds})
			{
				measure_one($run, $_, $ids, $n, $round, \$rows{$_}) for $round % 2 ? @sides : reverse @sides;
			}
		}
	}
	$run->{server}->truncate($table{$_}) for @sides;
}

1;
