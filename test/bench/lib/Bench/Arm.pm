# Arms and rivals: pgbench scripts described by their leading comments.
package Bench::Arm;
use strict;
use warnings;
use Digest::SHA;

# Name of the rival => how to have it.
our %rivals = (
	pgq => 'package postgresql-NN-pgq3',
	pgque => 'PGQUE_SQL=/path/to/pgque.sql',
	pgmq => 'PGMQ_SQL=/path/to/pgmq.sql');

sub read_arm
{
	my ($file) = @_;
	my ($name) = $file =~ m{/\d+_([^/]+)\.sql$};
	my %arm = (name => $name, file => $file, events => 1, rows => 1, tables => '', needs => '', about => '');

	open(my $f, '<', $file) or die "$file: $!\n";
	while (my $line = <$f>)
	{
		last unless $line =~ /^-- (\w+): (.*)$/;
		$arm{$1} = $2;
	}
	return \%arm;
}

# The arms of a directory whose rival is there; all of them are noted.
sub take
{
	my ($run, $dir, $take) = @_;
	my @arms = grep { $take->($_->{name}) } map { read_arm($_) } sort glob "$run->{dir}/$dir/*.sql";
	my @there;

	for my $arm (@arms)
	{
		my $there = !$arm->{needs} || present($run->{server}, $arm->{needs});

		$run->note('arm', (map { $_ => $arm->{$_} } qw(name title about events)),
			absent => $there ? '' : $rivals{ $arm->{needs} });
		push @there, $arm if $there;
	}
	return @there;
}

# A rival is there if its schema is.
sub present
{
	my ($server, $rival) = @_;

	return $server->sql("SELECT count(*) FROM pg_namespace WHERE nspname = '$rival'");
}

# Of an extension its version, of SQL that has none the beginning of its
# digest: who has the same file measures the same rival.
sub version
{
	my ($run, $rival) = @_;
	my $file = "$run->{dir}/$rival.sql";
	my $version = $run->{server}->sql("SELECT extversion FROM pg_extension WHERE extname = '$rival'");

	return join ' of package ', $version, $ENV{BENCH_PGQ_PACKAGE} || () if $version;
	return 'SQL with SHA-256 ' . substr(Digest::SHA->new(256)->addfile($file)->hexdigest, 0, 12) . ' …' if -f $file;
	return 'unknown';
}

sub note_versions
{
	my ($run) = @_;

	$run->note('rival', name => $_, version => version($run, $_))
	  for grep { present($run->{server}, $_) } sort keys %rivals;
}

# Extensions and SQL of the rivals that can be had, and their queues.
sub install_rivals
{
	my ($dir, $server) = @_;
	my $sql = "$dir/rivals";

	$server->sql('CREATE EXTENSION pgq')
	  if $server->sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq'");
	-f "$dir/$_.sql" and $server->run_file("$dir/$_.sql") for qw(pgque pgmq);
	present($server, $_) and $server->run_file("$dir/rivals/$_.sql") for sort keys %rivals;
}

1;
