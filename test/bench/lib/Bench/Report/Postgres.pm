# Relays into another PostgreSQL beside COPY of the same rows: rates, CPU, ratios.
package Bench::Report::Postgres;
use strict;
use warnings;
use Bench::Report;
use Bench::Stat;

*cell = \&Bench::Report::cell;
*thousands = \&Bench::Report::thousands;

# {arm}[round]; with the rate, and CPU per event of all that takes part.
sub by_arm
{
	my ($section) = @_;
	my %run;

	for my $r (@{ $section->{postgres} // [] })
	{
		$run{ $r->{arm} }[ $r->{round} - 1 ] = { %$r, rate => $r->{events} / $r->{seconds},
			cpu_us => 1e6 * ($r->{worker_cpu} + $r->{client_cpu} + $r->{target_cpu}) / $r->{events} };
	}
	return \%run;
}

# Within each round.
sub ratios
{
	my ($run, $one, $other, $field) = @_;
	my ($a, $b) = map { $run->{$_} // [] } $one, $other;

	return map { $a->[$_]{$field} / $b->[$_]{$field} } grep { $a->[$_] && $b->[$_] && $b->[$_]{$field} > 0 } 0 .. $#$a;
}

sub targets
{
	my ($report) = @_;
	my $run = by_arm($report->section('postgres') // {});

	$report->target(section => 'postgres', what => "relay into another PostgreSQL, exactly once, $_->[1]vs COPY of the same rows, events/s", reads => 'ours / theirs',
		relation => '≥', goal => $_->[2], format => '%.2f', part => 'into-another-postgresql', values => [ ratios($run, $_->[0], 'copy', 'rate') ])
	  for [ 'inbox', '', 0.5 ], [ 'claims', 'with claims, ', 0.33 ];
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('postgres') or return;
	my $run = by_arm($section);
	my $size = $section->{size};

	$report->head('Into another PostgreSQL', $section);
	$report->say('A backlog of ', thousands($size->{postgres_events}), " events with $size->{payload} bytes of JSON, committed by 100 before, into a table of another server ",
		'on the same machine with a row per event and a unique index of the ids; both servers sync to disk. Start of the program included. ',
		"$size->{postgres_rounds} rounds in turns; medians (least – greatest).");
	my $us = sub { my ($field, @r) = @_; return cell('%.2f', map { 1e6 * $_->{$field} / $_->{events} } @r) };
	$report->table([ 'arm', 'events/s', 'of COPY', 'CPU per event, µs', 'of COPY', 'worker, µs', 'program or psql, µs', 'target, µs' ],
		map {
			my $n = $_->{name};
			my @r = grep { defined } @{ $run->{$n} };
			[ $_->{title}, (sprintf '%s (%s – %s)', map { thousands($_) } median(map { $_->{rate} } @r), min(map { $_->{rate} } @r), max(map { $_->{rate} } @r)),
				cell('%.2f', ratios($run, $n, 'copy', 'rate')), cell('%.2f', map { $_->{cpu_us} } @r), cell('%.2f', ratios($run, $n, 'copy', 'cpu_us')),
				map { $us->($_, @r) } qw(worker_cpu client_cpu target_cpu) ]
		} grep { $run->{ $_->{name} } } @{ $section->{arm} });
}

1;
