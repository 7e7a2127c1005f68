# Leases and requests.
package Bench::Report::Leases;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Report::Arms;
use Bench::Report::UnderPin;

*spread = \&Bench::Report::spread;
*thousands = \&Bench::Report::thousands;

my @pairs = ([ 'lease_complete', 'lease_plain', 1.15, 'a lease and its completion vs INSERT and UPDATE of a row of a table of its own' ],
	[ 'lease_complete', 'claim_commit', 1.3, 'a lease and its completion vs a claim, its completion and one more commit' ],
	[ 'request', 'claim_result', 1.2, 'claim_request and complete_request vs a claim with a result of the same size' ]);

sub flights
{
	my ($section, $sync) = @_;

	return map { $_->{us} } grep { $_->{sync} eq $sync } @{ $section->{flight} // [] };
}

sub targets
{
	my ($report) = @_;
	my $section = $report->section('leases') // {};
	my $run = Bench::Report::Arms::by_arm($section);

	for my $p (@pairs)
	{
		my ($one, $other, $goal, $what) = @$p;

		$report->target(section => 'leases', what => "$what, CPU, sync $_", reads => 'ours / theirs', relation => '≤', goal => $goal, format => '%.2f',
			profile => [ $one, $other ], values => [ Bench::Report::Arms::ratios($run, $one, $other, $_, 'cpu_us') ])
		  for 'on', 'off';
	}
	$report->target(section => 'leases', what => "a waiting call's answer after the other's COMMIT, p99, ms, sync $_", reads => 'ours', relation => '≤', goal => 5,
		format => '%.2f', values => [ map { quantile(0.99, map { [ $_, 1 ] } sort { $a <=> $b } @$_) / 1000 } grep { @$_ } [ flights($section, $_) ] ])
	  for 'on', 'off';
	$report->target(section => 'leases', what => "CPU of $_->{waiters} waiting calls, µs per call and second", reads => 'ours', relation => '≤', goal => 200,
		format => '%.0f', values => [ $_->{cpu_us} ])
	  for @{ $section->{crowd} // [] };
	Bench::Report::UnderPin::targets($report, 'leases', 'extend_lease', $section->{heartbeat} // []);
}

sub render
{
	my ($report) = @_;
	my $section = $report->section('leases') or return;
	my $run = Bench::Report::Arms::by_arm($section);
	my @arms = grep { $run->{ $_->{name} } } @{ $section->{arm} };
	my $size = $section->{size};

	$report->head('Leases and requests', $section);
	$report->say("pgbench -M prepared, $size->{clients} clients, $size->{rounds} rounds of $size->{seconds} s per arm in turns, as the claims.");
	Bench::Report::Arms::arm_tables($report, $run, @arms);
	for my $other (grep { $run->{$_} } qw(lease_floor lease_plain lease_usual))
	{
		my ($title) = map { $_->{title} } grep { $_->{name} eq $other } @arms;

		$report->say("CPU of a lease and its completion / $title: " . join('; ',
				map { "sync $_ " . spread('%.2f', Bench::Report::Arms::ratios($run, 'lease_complete', $other, $_, 'cpu_us')) } 'on', 'off') . ".\n");
	}
	$report->say("A call of claim_request waits for the answer of another session, by the server's clock from before that session's COMMIT; ms.\n");
	$report->table([ 'sync', 'rounds', 'p50', 'p90', 'p99', 'max' ],
		map { my @us = map { [ $_, 1 ] } sort { $a <=> $b } flights($section, $_); my $sync = $_;
			@us ? [ $sync, scalar @us, map { sprintf '%.2f', quantile($_, @us) / 1000 } 0.5, 0.9, 0.99, 1 ] : () } 'on', 'off');
	$report->say("\n$_->{waiters} calls wait for one request: each takes " . sprintf('%.0f', $_->{cpu_us}) . ' µs of CPU per second; the last one has its answer '
		  . sprintf('%.1f', $_->{last_us} / 1000) . ' ms after the COMMIT.') for @{ $section->{crowd} // [] };
	$report->say("\nOne session extends one lease over and over while something holds the horizon; sync off, each fifth after a checkpoint.\n");
	Bench::Report::UnderPin::table($report, $section->{heartbeat} // [], 'calls');
}

1;
