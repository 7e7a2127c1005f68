# What every part of the report needs: the data of the sections, the targets,
# the Markdown that is written.  A section whose data is not here keeps what the
# last report says of it: its part below the mark with its name, and its rows of
# the tables before, which begin with its name.
package Bench::Report;
use strict;
use warnings;
use Bench::Stat;

sub new
{
	my ($class, $dir, $data) = @_;
	my $self = bless { dir => $dir, section => {}, targets => {}, md => {}, last => {}, part => 'overview' }, $class;

	$self->read_section($_) for sort glob "$data/*.tsv";
	$self->read_last("$dir/report.md") if -f "$dir/report.md";
	$self->{machine} = $self->machine_of_all;
	return $self;
}

sub machine
{
	my ($section) = @_;

	return sprintf '%s, %s cores, %s, %s, %s', @{ $section->{machine} }{qw(cpu cores memory kernel), 'file system'};
}

# The machine of all sections but those that name theirs: the last report's, as long as
# sections of it stay.
sub machine_of_all
{
	my ($self) = @_;
	my ($last) = ($self->{last}{overview} // '') =~ /^Machine: (.*)\.$/m;
	my ($any) = map { $self->{section}{$_} } sort keys %{ $self->{section} };
	my @stay = grep { !/^(overview|targets|pins)$/ && !$self->{section}{$_} } keys %{ $self->{last} };

	return $last && @stay ? $last : machine($any // return '');
}

# {last}{part name} = its text.
sub read_last
{
	my ($self, $file) = @_;

	open(my $f, '<', $file) or die "$file: $!\n";
	$self->{last} = { 'overview', split /^<!-- part (\S+) -->\n/m, do { local $/; <$f> } };
}

# Rows of a section that the last report had in a part.
sub last_rows
{
	my ($self, $part, $section) = @_;

	return map { [ split / \| ?/, $_, -1 ] } ($self->{last}{$part} // '') =~ /^\| (\Q$section\E(?: \(quick\))? \|.*) \|$/mg;
}

# {section}{name}: machine, size, server, and a list per other kind.
sub read_section
{
	my ($self, $file) = @_;
	my ($name) = $file =~ m{([^/]+)\.tsv$};
	my %s = (name => $name, server => []);

	open(my $f, '<', $file) or die "$file: $!\n";
	while (my $line = <$f>)
	{
		chomp $line;
		my ($kind, @words) = split /\t/, $line;
		my %v = map { /^([^=]*)=(.*)$/ ? ($1, $2) : () } @words;

		if ($kind eq 'machine') { $s{machine}{ $v{name} } = $v{value} }
		elsif ($kind eq 'size') { $s{size} = { %{ $s{size} // {} }, %v } }
		else { push @{ $s{$kind} }, \%v }
	}
	$self->{section}{$name} = \%s;
}

sub section
{
	return $_[0]{section}{ $_[1] };
}

# What is said from now on belongs to this part.
sub part
{
	my ($self, $name) = @_;

	$self->{part} = $name;
}

sub say
{
	my ($self, @words) = @_;

	$self->{md}{ $self->{part} } .= join('', @words) . "\n";
}

# All parts in this order, with those of the last report that were not written anew.
sub write_parts
{
	my ($self, @order) = @_;
	my $md = join '', map { my $text = $self->{md}{$_} // $self->{last}{$_}; defined $text ? ("\n<!-- part $_ -->\n", $text) : () } @order;

	open(my $f, '>', "$self->{dir}/report.md") or die "$self->{dir}/report.md: $!\n";
	print $f $self->{md}{overview}, $md =~ s/\n{3,}/\n\n/gr;
	close $f;
}

# All that was said in one part, as a file of its own.
sub write_part
{
	my ($self, $name, $file) = @_;

	open(my $f, '>', "$self->{dir}/$file") or die "$self->{dir}/$file: $!\n";
	print $f $self->{md}{$name};
	close $f;
}

# Title, and of which run this is.
sub head
{
	my ($self, $title, $section) = @_;

	$self->part($section->{name});
	$self->say("\n## $title\n");
	$self->provenance($section);
}

# When, of which tree, on which servers, against whom.
sub provenance
{
	my ($self, $section, @more) = @_;
	my $m = $section->{machine};
	my $settings = join ', ', map { "$_->{name} = $_->{value}" } @{ $section->{server} };
	my $rivals = join ', ', map { "$_->{name} $_->{version}" } @{ $section->{rival} // [] };

	$self->say("Of $m->{date}, commit $m->{commit}",
		$section->{size}{quick} ? ', a quick run' : '', $m->{remark} ? ", $m->{remark}" : '', @more, ".\n");
	my $machine = machine($section);
	$self->say("Machine: $machine.\n") if $machine ne $self->{machine};
	$self->say("Server: $settings.\n") if $settings;
	$self->say("Server and load generator on cores of their own: $m->{pinned}.\n") if $m->{pinned};
	$self->say("Rivals: $rivals.\n") if $rivals;
}

# Of all cores, while the section ran.
sub shares_of_others
{
	my ($self, $section) = @_;
	my $o = ($section->{others} // [])->[0] or return ('', '');

	return map { sprintf '%.1f %%', 100 * $o->{$_} / $o->{seconds} / $o->{cores} } qw(cpu stolen);
}

sub table
{
	my ($self, @rows) = @_;
	my $head = shift @rows;

	$self->say('| ', join(' | ', @$head), ' |');
	$self->say('|', '---|' x @$head);
	$self->say('| ', join(' | ', map { $_ // '' } @$_), ' |') for @rows;
}

sub image
{
	my ($self, $name, $alt) = @_;

	$self->say("\n![$alt]($name.svg)\n");
	return "$self->{dir}/$name.svg";
}

sub thousands
{
	my $n = sprintf '%.0f', $_[0];

	1 while $n =~ s/^(-?\d+)(\d{3})/$1,$2/;
	return $n;
}

# The median of what has a {rate}, with the least and the greatest.
sub rates
{
	my @r = map { $_->{rate} } @_;

	return sprintf '%s (%s – %s)', map { thousands($_) } median(@r), min(@r), max(@r);
}

# Rate over rate, in each round; both lists are in the order of the rounds.
sub ratios
{
	my ($over, $under) = @_;

	return map { $over->[$_]{rate} / $under->[$_]{rate} } 0 .. min($#$over, $#$under);
}

# A number, without the sign of a zero.  What has no end has no stamp either.
sub number
{
	my ($format, $v) = @_;

	return 'no stamp' if $v == 9**9**9;
	return sprintf($format, $v) =~ s/^-(?=[0.]+$)//r;
}

sub cell
{
	my ($format, @v) = @_;

	return @v ? number($format, median(@v)) : '';
}

sub spread
{
	my ($format, @v) = @_;

	return '' unless @v;
	return number($format, $v[0]) if @v == 1;
	return sprintf '%s (%s – %s)', map { number($format, $_) } median(@v), min(@v), max(@v);
}

# ---------------------------------------------------------------------------
# Targets
# ---------------------------------------------------------------------------

# Where an interval lies: met if all of it keeps to the goal, missed if none
# of it does, and open if the goal lies within.
sub judge
{
	my ($relation, $goal, $low, $high) = @_;

	($goal, $low, $high) = (-$goal, -$high, -$low) if $relation eq '≤';
	return $low >= $goal ? 'met' : $high < $goal ? 'missed' : 'open';
}

my %better = ('≥' => 'larger is better', '≤' => 'smaller is better');

# A goal for values of rounds, judged by the interval of their median:
# section, what, reads (whose, or whose over whose), relation, goal, format, profile, part, values;
# until: the size that the goal is for, if the values are of a smaller one.
sub target
{
	my ($self, %t) = @_;
	my @values = @{ $t{values} };
	my %row = (section => $t{section}, what => $t{what}, reads => "$t{reads}, $better{$t{relation}}", profile => $t{profile}, part => $t{part},
		goal => "$t{relation} " . sprintf($t{format}, $t{goal}), verdict => 'not measured');

	if (@values)
	{
		my @interval = median_interval(@values);

		$row{seen} = @values > 1 ? sprintf('%s (%s – %s)', map { number($t{format}, $_) } median(@values), @interval) :
			number($t{format}, @values);
		$row{bracket} = @values > 1 ? (@values < 6 ? '' : '95 % of ') . @values . ' rounds' : 'one run';
		$row{verdict} = $t{until} ? "not measured at $t{until}" : judge($t{relation}, $t{goal}, @interval);
	}
	$self->verdict(%row);
}

# A row of the targets.  One that is not met is linked to what says why: the profiles
# of ours and theirs, where the time goes, or the part of the report that tells.
sub verdict
{
	my ($self, %row) = @_;
	my @named = ref $row{profile} ? @{ $row{profile} } : $row{profile} // ();
	my @title = ('profile', 'theirs');
	my @links;

	for my $i (0 .. $#named)
	{
		push @links, "[$title[$i]](profile/$named[$i].md)" if -f "$self->{dir}/profile/$named[$i].md";
	}
	push @links, "[where it goes](#$row{part})" if $row{part};
	if ($row{verdict} =~ s/^(missed|open)\b/$1 eq 'missed' ? '**missed**' : $1/e && @links)
	{
		$row{verdict} .= ': ' . join(', ', @links);
	}
	push @{ $self->{targets}{ $row{section} } }, [ @row{qw(section what reads goal seen bracket verdict)} ];
}

1;
