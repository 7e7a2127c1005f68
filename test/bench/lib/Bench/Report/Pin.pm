# Pins: paired windows, held and not held.
package Bench::Report::Pin;
use strict;
use warnings;
use Bench::Stat;
use Bench::Report;
use Bench::Svg;

*thousands = \&Bench::Report::thousands;

my @names = qw(snapshot writer reader prepared);
my %title = (
	snapshot => 'a read-only snapshot left open',
	writer => 'an idle writer that holds an xid',
	reader => 'a reader that has touched the segments',
	prepared => 'a prepared transaction left open');
my %side = (
	ours => 'claim_event + outbox_enqueue, our relay to the null sink',
	skip => 'INSERT … ON CONFLICT + usual outbox table, two SKIP LOCKED pollers',
	pgq => 'INSERT … ON CONFLICT + pgq.insert_event, a PgQ consumer');

sub sections
{
	my ($report) = @_;

	return grep { $_->[1] } map { [ $_, $report->section("pin-$_") ] } @names;
}

# Per round: held over not held.
sub ratios
{
	my ($section, $side, $field) = @_;
	my @pairs = pairs($section, $side);

	return map { $_->[1]{$field} / $_->[0]{$field} } grep { $_->[0]{$field} > 0 && $_->[1]{$field} > 0 } @pairs;
}

sub pairs
{
	my ($section, $side) = @_;
	my @p;

	$p[ $_->{round} - 1 ][ $_->{pinned} ] = $_ for grep { $_->{side} eq $side } @{ $section->{window} // [] };
	return grep { $_->[0] && $_->[1] } @p;
}

sub shown
{
	my @r = @_;

	return 'none' if @r < 2;
	return sprintf '%.3f (%.3f – %.3f)', ratio_interval(@r);
}

my $goal = '1 in the interval, its lower end ≥ 0.95';

# An interval beside 1 is a miss on either side: where the held server is
# the faster one, the two differ by more than what holds it, and show nothing.
sub judge
{
	my ($low, $high) = @_;

	return 'missed: slower' if $high < 1;
	return 'missed: the servers differ' if $low > 1;
	return $low >= 0.95 ? 'met' : 'open';
}

# {name}{when}[pinned] = dead rows; and the bytes.
sub table_growth
{
	my ($section, $field) = @_;
	my %t;

	$t{ $_->{name} }{ $_->{when} }[ $_->{pinned} ] = $_->{$field} for @{ $section->{table} // [] };
	my %gain;
	for my $name (keys %t)
	{
		$gain{$name} = [ map { ($t{$name}{after}[$_] // 0) - ($t{$name}{before}[$_] // 0) } 0, 1 ];
	}
	return \%gain;
}

# By its schema: ours, the rivals', or neither.
sub whose
{
	my ($name) = @_;

	return 'ours' if $name =~ /^(?:TOAST of )?idempotency(?:_data)?\./;
	return 'rivals' if $name =~ /^(?:TOAST of )?(?:bench|pgq|pgque|pgmq)\./;
	return 'unknown';
}

# Dead rows of a catalog that the held server gained, by whose relations they
# are about.  A run that did not look says nothing of it.
sub about_gained
{
	my ($section, $catalog) = @_;
	my %sum;

	for my $a (grep { $_->{catalog} eq $catalog && $_->{pinned} } @{ $section->{about} // [] })
	{
		$sum{ $a->{whose} } += $a->{when} eq 'after' ? $a->{dead} : -$a->{dead};
	}
	return \%sum;
}

# Dead rows that the held server gained: ours, rivals, unknown.  Of a catalog
# only those are attributed that are known to be about somebody's relation.
sub dead_gained
{
	my ($section) = @_;
	my $gain = table_growth($section, 'dead');
	my %sum = (ours => 0, rivals => 0, unknown => 0);

	for my $name (grep { $gain->{$_}[1] > 0 } keys %$gain)
	{
		my $rest = $gain->{$name}[1];

		if (whose($name) eq 'unknown')
		{
			my $about = is_toast_of_statistic($name) ? about_toast($section, $rest) : about_gained($section, $name);

			# Rows that were pruned between the two looks are not looked for.
			$rest = 0 if %$about;
			$sum{$_} += max(0, $about->{$_} // 0) for qw(ours rivals unknown);
		}
		$sum{ whose($name) } += $rest;
	}
	return \%sum;
}

# 2619 is the OID of pg_statistic, fixed for ever.
sub is_toast_of_statistic
{
	return $_[0] =~ /^(?:TOAST of pg_statistic|pg_toast\.pg_toast_2619)$/;
}

# A value that is stored apart names no relation, but dies with the row of
# pg_statistic it belongs to: it is the rivals' if all of those rows are.
sub about_toast
{
	my ($section, $dead) = @_;
	my $about = about_gained($section, 'pg_statistic');

	return {} if $about->{ours} || $about->{unknown} || !$about->{rivals};
	return { rivals => $dead };
}

sub dead_target
{
	my ($report, $what, $name, $section) = @_;
	my $dead = dead_gained($section);

	$report->verdict(section => "pin-$name", what => $what, reads => 'ours, smaller is better', goal => '0', bracket => 'one run',
		seen => sprintf('%s; the rivals\' %s, not attributed %s', map { thousands($dead->{$_}) } qw(ours rivals unknown)),
		verdict => $dead->{ours} ? 'missed' : $dead->{unknown} ? 'open: not all are attributed' : 'met',
		profile => "pin-$name");
}

sub targets
{
	my ($report) = @_;

	for my $name (@names)
	{
		my $section = $report->section("pin-$name");
		my $what = "under $title{$name}";

		if (!$section)
		{
			$report->verdict(section => "pin-$name", what => "throughput $what", reads => 'held / not held', goal => $goal, verdict => 'not measured');
			next;
		}
		my $for = $section->{pin}[0]{duration} . ' s';
		for my $f ([ 'rate', 'claims and enqueues' ], [ 'drained', 'delivery' ])
		{
			my @r = ratios($section, 'ours', $f->[0]);
			my (undef, $low, $high) = ratio_interval(@r);

			$report->verdict(section => "pin-$name", what => "$f->[1] $what, $for", reads => 'held / not held, larger is better', goal => $goal,
				seen => shown(@r), bracket => '95 % of ' . @r . ' pairs', verdict => judge($low, $high), profile => "pin-$name");
		}
		dead_target($report, "dead rows gained $what, $for, own tables and all catalogs", $name, $section);
	}
}

sub render
{
	my ($report) = @_;
	my @sections = sections($report) or return;

	$report->part('pins');
	$report->say("\n## Under a pinned horizon\n");
	$report->say('Two servers, alike but that one is pinned for the whole time; windows of load alternate between them. ',
		'In a window eight clients claim and enqueue one to one, sync off, and a consumer delivers meanwhile: ',
		'our relay to the null sink program, two SKIP LOCKED pollers by 100, or a PgQ consumer that ticks ten times a second ',
		'and rotates each minute. autovacuum is on (naptime 5 s), outbox_retention is 0. ',
		'Ratios: held over not held within a pair of windows, geometric mean and its 95 % interval. ',
		'The target is met if that interval holds 1 and does not go below 0.95, and missed if 1 is outside of it, on either side: ',
		'below, the pin costs something, however little; above, the two servers differ by something else than the pin, ',
		'and the pairs show nothing. An interval that holds 1 but goes below 0.95 is too wide to tell: open.');
	render_pin($report, @$_) for @sections;
}

sub render_pin
{
	my ($report, $name, $section) = @_;
	my $pin = $section->{pin}[0];
	my @sides = grep { my $s = $_; grep { $_->{side} eq $s } @{ $section->{window} } } qw(ours skip pgq);
	my $last = max(map { $_->{round} } @{ $section->{window} });

	$report->part("pin-$name");
	$report->say("\n### \u$title{$name}\n");
	$report->provenance($section, "; held for $pin->{duration} s");
	my $loaded = "$last × $pin->{window} s of $pin->{duration} s";
	$report->table([ 'load', 'ran on each server for', 'transactions/s, held', 'not held', 'ratio', 'delivered/s, held', 'not held', 'ratio', 'last quarter, delivery' ],
		map {
			my $side = $_;
			my @p = pairs($section, $side);
			my @late = grep { $_->[0]{round} > 0.75 * $last } @p;
			my $late = { window => [ map { @$_ } @late ] };
			[ $side{$side}, $loaded, map({ my $f = $_;
					(map { my $pinned = $_; thousands(median(map { $_->[$pinned]{$f} } @p)) } 1, 0), shown(ratios($section, $side, $f)) } qw(rate drained)),
				shown(ratios($late, $side, 'drained')) ]
		} @sides);
	my $file = $report->image("pin-$name", "ratios under $title{$name}");
	my %short = (ours => 'ours', skip => 'SKIP LOCKED', pgq => 'PgQ');
	Bench::Svg::lines($file, x => 'seconds since it is held', one => 1,
		y => 'delivered/s held over not held; 1: no harm; bands: the mean and its 95 % interval',
		bands => [ map { [ ratio_interval(ratios($section, $_, 'drained')) ] } @sides ],
		series => [
			map { my $side = $_;
				[ "$short{$side}: " . shown(ratios($section, $side, 'drained')),
					map { [ $_->[1]{at}, $_->[0]{drained} > 0 ? $_->[1]{drained} / $_->[0]{drained} : 0 ] } pairs($section, $side) ] } @sides ]);
	size_table($report, $section);
	dead_table($report, $section);
}

my @sizes = (
	[ 'ours: outbox', qr/^idempotency(?:_data)?\.outbox/ ],
	[ 'ours: remembered ids', qr/^idempotency(?:_data)?\.(?:processed|store_)/ ],
	[ 'ours: the rest', qr/^idempotency(?:_data)?\.(?!outbox|processed|store_)/ ],
	[ 'SKIP LOCKED: the usual outbox table', qr/^bench\.usual_outbox/ ],
	[ 'PgQ: its tables', qr/^pgq\./ ],
	[ 'SKIP LOCKED and PgQ: INSERT … ON CONFLICT', qr/^bench\.conflict/ ]);

# The size of a table contains that of its TOAST table.
sub size_table
{
	my ($report, $section) = @_;
	my $size = sub {
		my ($which, $when, $pinned) = @_;
		return sprintf '%.1f', sum(0, map { $_->{bytes} / 1048576 }
			  grep { $_->{when} eq $when && $_->{pinned} == $pinned && $_->{name} =~ $which } @{ $section->{table} });
	};

	$report->say("Tables with their indexes, MB; the sides did not take equally many events.\n");
	$report->table([ 'tables of', 'held: before', 'after', 'not held: before', 'after' ],
		map { my $row = $_; [ $row->[0], map { $size->($row->[1], @$_) } [ 'before', 1 ], [ 'after', 1 ], [ 'before', 0 ], [ 'after', 0 ] ] } @sizes);
	$report->say('');
}

# Whose the dead rows of catalogs are, in words, where the run looked.
sub about_words
{
	my ($section, $name) = @_;
	my $about = about_gained($section, $name);
	my @words = map { "$_ $about->{$_}" } grep { $about->{$_} } sort keys %$about;

	return @words ? '<br>held, gained about: ' . join(', ', @words) : '';
}

sub dead_table
{
	my ($report, $section) = @_;
	my %t;

	$t{ $_->{name} }{ $_->{when} }[ $_->{pinned} ] = $_ for @{ $section->{table} };
	my $dead = table_growth($section, 'dead');
	my @changed = grep { my $n = $_; grep { $dead->{$n}[$_] } 0, 1 } keys %t;
	my $same = keys(%t) - @changed;

	$report->say('Dead rows of each table where they changed; in the other ', $same, " tables they did not.\n");
	$report->table([ 'table', 'held: before', 'after', 'not held: before', 'after', 'MB held, after', 'not held' ],
		map { my $x = $t{$_};
			my $of = sub { my ($when, $pinned, $f) = @_; ($x->{$when}[$pinned] // {})->{$f} // 0 };
			[ $_ . about_words($section, $_), (map { thousands($of->(@$_, 'dead')) } [ 'before', 1 ], [ 'after', 1 ], [ 'before', 0 ], [ 'after', 0 ]),
				map { sprintf '%.1f', $of->('after', $_, 'bytes') / 1048576 } 1, 0 ] }
		sort { (whose($a) eq 'rivals') <=> (whose($b) eq 'rivals') || $a cmp $b } @changed);
}

1;
