# Draining a backlog: rates, and events per second and core.
package Bench::Report::Drain;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*cell = \&Bench::Report::cell;
*thousands = \&Bench::Report::thousands;

sub per_core
{
	return map { $_->{events} / ($_->{server_cpu} + $_->{consumer_cpu}) } grep { $_->{server_cpu} + $_->{consumer_cpu} > 0 } @_;
}

sub by_arm
{
	my ($section) = @_;
	my %run;

	push @{ $run{ $_->{arm} } }, $_ for @{ $section->{drain} // [] };
	return \%run;
}

sub targets
{
	my ($report) = @_;
	my $run = by_arm($report->section('drain') // {});

	$report->target(section => 'drain', what => "relay to the null sink program, $_->[0], events/s per core (worker + program)", reads => 'ours',
		relation => '≥', goal => $_->[1], format => '%.0f', profile => "ours_$_->[0]",
		values => [ per_core(@{ $run->{"ours_$_->[0]"} // [] }) ])
	  for [ 'bytea', 800_000 ], [ 'jsonb', 350_000 ];
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('drain') or return;
	my $run = by_arm($section);
	my @arms = sort { ($b->{name} =~ /^ours/) <=> ($a->{name} =~ /^ours/) } grep { $run->{ $_->{name} } } @{ $section->{arm} };
	my $size = $section->{size};

	$report->head('Draining a backlog', $section);
	$report->say('A backlog of ', thousands($size->{relay_events}), ' events (', thousands($size->{drain_events}),
		' where each is written to or handled), committed by 100 before. ',
		'Ours: ordering by key, batches of 1000, CPU of worker and program, start of the program included; ',
		'the worker commits what it has done with synchronous_commit = local whatever the server says, so it waits for the disk. ',
		'Rivals: sync off. ',
		'CPU of theirs is that of the whole server and of pgbench, which receives the events and throws them away; ',
		'the pollers have a freshly vacuumed and analyzed table. ',
		'Beside it, the CPU of the whole server in either case, its background processes included; ',
		'empty where it was not recorded. ',
		"$size->{drain_rounds} rounds, in the order A B … B A; medians (least – greatest).");
	my $file = $report->image('drain', 'events drained per second and core');
	Bench::Svg::bars($file, 'events per second', 0, [ 'per core', 'as run' ],
		map { my @r = @{ $run->{ $_->{name} } };
			[ $_->{title}, $_->{name} =~ /^ours/, [ per_core(@r) ], [ map { $_->{events} / $_->{seconds} } @r ] ] } @arms);
	$report->table([ 'consumer', 'events/s', 'events/s per core', 'worker or server, µs', 'consumer, µs', 'whole server, µs', 'WAL, B', 'dead rows per event' ],
		map {
			my @r = @{ $run->{ $_->{name} } };
			my $us = sub { my $f = shift; cell('%.2f', map { 1e6 * $_->{$f} / $_->{events} } @r) };
			[ $_->{title} . ($_->{about} ? "<br>$_->{about}" : ''),
				map({ sprintf '%s (%s – %s)', map { thousands($_) } median(@$_), min(@$_), max(@$_) }
					[ map { $_->{events} / $_->{seconds} } @r ], [ per_core(@r) ]),
				$us->('server_cpu'), $us->('consumer_cpu'),
				$_->{name} !~ /^ours/ ? $us->('server_cpu') : defined $r[0]{whole_cpu} ? $us->('whole_cpu') : '',
				cell('%.1f', map { $_->{wal} } @r), cell('%.2f', map { $_->{dead} } @r) ]
		} @arms);
	$report->say("\n- Not run: $_->{title}. To have it: $_->{absent}.") for grep { $_->{absent} } @{ $section->{arm} };
}

1;
