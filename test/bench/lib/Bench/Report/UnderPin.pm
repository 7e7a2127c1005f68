# One call over and over while something holds the horizon (Bench::UnderPin): in a few
# rounds the cost of the last fifth of the calls beside that of the first.
package Bench::Report::UnderPin;
use strict;
use warnings;
use Bench::Report;
use Bench::Stat;

*thousands = \&Bench::Report::thousands;

# The notes of one pin and round, in order; the rounds of a pin; and the pins.
sub parts
{
	my ($notes, $pin, $round) = @_;

	return sort { $a->{part} <=> $b->{part} } grep { $_->{pin} eq $pin && $_->{round} == $round } @$notes;
}

sub each_once
{
	my %seen;

	return grep { !$seen{$_}++ } @_;
}

sub rounds
{
	my ($notes, $pin) = @_;

	return map { [ parts($notes, $pin, $_) ] } each_once(map { $_->{round} } grep { $_->{pin} eq $pin } @$notes);
}

sub pins
{
	my ($notes) = @_;

	return each_once(map { $_->{pin} } @$notes);
}

# The dead rows that a round left, in the log and anywhere else.
sub dead
{
	my ($round) = @_;

	return $round->[-1]{dead} + $round->[-1]{elsewhere};
}

# The last fifth over the first, in each round.
sub growth
{
	return map { $_->[-1]{cpu_us} / $_->[0]{cpu_us} } grep { $_->[0]{cpu_us} > 0 } @_;
}

# One machine's noise is larger than the target of 1.10 in the few rounds of a pin, so the
# rounds of all pins count together.  The table has each pin.
sub targets
{
	my ($report, $section, $call, $notes) = @_;
	my @rounds = map { rounds($notes, $_) } pins($notes) or return;

	$report->target(section => $section, what => "$call under a pin, each of " . scalar(pins($notes)) . ', last fifth of ' . thousands(5 * $rounds[0][0]{events}) . ' vs the first, CPU',
		reads => 'last / first', relation => '≤', goal => 1.1, format => '%.2f', values => [ growth(@rounds) ]);
	$report->target(section => $section, what => 'the same, dead rows, own tables and all catalogs, in the worst round', reads => 'ours', relation => '≤', goal => 0,
		format => '%.0f', values => [ max(map { dead($_) } @rounds) ]);
}

sub table
{
	my ($report, $notes, $calls) = @_;

	$report->table([ 'pin', 'rounds', "$calls in each", 'CPU of the first fifth, µs', 'of the last', 'last / first', 'WAL, B', 'dead rows', 'elsewhere', 'bytes of the log' ],
		map {
			my @rounds = rounds($notes, $_);
			my $last = sub { my ($field) = @_; return map { $_->[-1]{$field} } @rounds };

			[ $_, scalar @rounds, thousands(5 * $rounds[0][0]{events}),
				Bench::Report::cell('%.1f', map { $_->[0]{cpu_us} } @rounds), Bench::Report::cell('%.1f', $last->('cpu_us')),
				Bench::Report::spread('%.2f', growth(@rounds)),
				sprintf('%.0f', median($last->('wal'))), max($last->('dead')), max($last->('elsewhere')), thousands(max($last->('bytes'))) ]
		} pins($notes));
}

1;
