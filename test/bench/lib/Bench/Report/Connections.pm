# Single claims by a thousand connections.
package Bench::Report::Connections;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

my %title = (ours => 'claim_event, complete_event in one statement', usual => 'INSERT … ON CONFLICT', bare => 'bare INSERT');
my @columns = ([ 'rate', '%.0f' ], [ 'cpu_us', '%.1f' ], [ 'wal', '%.0f' ], [ 'latency_ms', '%.1f' ], [ 'private_kb', '%.0f' ]);

# The rounds of one row of the table, in order.
sub rounds
{
	my ($section, $side, $connections, $sync) = @_;

	return sort { $a->{round} <=> $b->{round} }
	  grep { $_->{side} eq $side && $_->{connections} == $connections && $_->{sync} eq $sync } @{ $section->{connections} // [] };
}

# ours / theirs within each round.
sub ratios
{
	my ($section, $side, $connections, $sync, $field) = @_;
	my @ours = rounds($section, 'ours', $connections, $sync);
	my @theirs = rounds($section, $side, $connections, $sync);

	return map { $ours[$_]{$field} / $theirs[$_]{$field} } 0 .. $#ours;
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('connections') or return;
	my $many = $section->{size}{connections};

	$report->target(section => 'connections', what => 'claim + complete in one statement vs INSERT … ON CONFLICT, events/s, '
		  . thousands($many) . " connections, 1,000,000 random ids, sync $_", reads => 'ours / theirs', relation => '≥', goal => 1, format => '%.2f',
		part => 'many-connections', values => [ ratios($section, 'usual', $many, $_, 'rate') ])
	  for 'on', 'off';
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('connections') or return;
	my $size = $section->{size};
	my @rows;

	for my $connections (@$size{qw(clients connections)})
	{
		for my $sync ('on', 'off')
		{
			for my $side (qw(ours usual bare))
			{
				my @r = rounds($section, $side, $connections, $sync);

				push @rows, [ thousands($connections), $sync, $title{$side}, map { my ($field, $format) = @$_; spread($format, map { $_->{$field} } @r) } @columns ]
				  if @r;
			}
		}
	}
	$report->head('Many connections', $section);
	$report->say("Single claims beside ", thousands($size->{connections_remembered}), " remembered random ids, $size->{connections_rounds} rounds of ",
		"$size->{connections_seconds} s in turns; the packer works meanwhile. CPU of the whole server from when all connections are there; memory is the private ",
		"memory (RssAnon) of a connection's process halfway, on average. Medians (least – greatest round).\n");
	$report->table([ 'connections', 'sync', 'what', 'events/s', 'CPU, µs', 'WAL, B', 'latency, ms', 'memory, kB' ], @rows);
}

1;
