# One run of the program: its sizes, its results file, its pgbench.
#
#	my $run = Bench::Run->new($dir, $section, @servers);
#
# One line per observation, tab separated: kind, then name=value pairs.
# Nothing is judged here; report.pl does that from the files alone.
package Bench::Run;
use strict;
use warnings;
use IO::Handle;
use Time::HiRes qw(time);

# 210 bytes, as an order looks.
my $payload =
	'{"order":42,"customer":"c-0017","total":99.90,"currency":"EUR","lines":['
  . '{"sku":"A-1001","qty":2,"price":24.95},{"sku":"B-2002","qty":1,"price":50.00}],'
  . '"note":"left at the door, neighbour knows"}';
$payload .= ' ' while length($payload) < 210;

my %mode = (
	on => '-c synchronous_commit=on -c idempotency.durable_complete=on',
	off => '-c synchronous_commit=off -c idempotency.durable_complete=off');

# Sizes of a normal run and of a quick one.  BENCH_NAME=value sets one that
# no documented variable sets: for those who change this program.
my %sizes = (
	clients => [ 8, 8 ],
	threads => [ 2, 2 ],
	seconds => [ 2, 1 ],
	rounds => [ 4, 2 ],
	relay_events => [ 500_000, 100_000 ],
	drain_events => [ 100_000, 10_000 ],
	drain_rounds => [ 2, 2 ],
	postgres_events => [ 200_000, 20_000 ],
	postgres_rounds => [ 6, 2 ],
	parked_events => [ 10_000, 10_000 ],
	parked_rounds => [ 6, 2 ],
	latency_seconds => [ 12, 4 ],
	latency_rounds => [ 3, 2 ],
	kafka_events => [ 1_000_000, 40_000 ],
	kafka_rounds => [ 6, 2 ],
	kafka_latency_seconds => [ 12, 4 ],
	kafka_latency_rounds => [ 3, 2 ],
	http_events => [ 200_000, 10_000 ],
	http_rounds => [ 6, 2 ],
	http_latency_seconds => [ 12, 4 ],
	http_latency_rounds => [ 3, 2 ],
	broker_events => [ 300_000, 40_000 ],
	broker_rounds => [ 6, 2 ],
	broker_latency_seconds => [ 12, 4 ],
	broker_latency_rounds => [ 3, 2 ],
	memory_events => [ 1_000_000, 200_000 ],
	memory_rounds => [ 3, 2 ],
	growth_transactions => [ 16_000, 8_000 ],
	growth_rounds => [ 2, 2 ],
	growth_relays => [ 4, 2 ],
	ids_rounds => [ 3, 2 ],
	ids_lookups => [ 200_000, 50_000 ],
	ids_max => [ 0, 0 ],
	ids_usual_max => [ 10_000_000, 10_000_000 ],
	expiry_rounds => [ 3, 1 ],
	connections => [ 1000, 40 ],
	connections_rounds => [ 4, 2 ],
	connections_seconds => [ 6, 1 ],
	connections_remembered => [ 1_000_000, 100_000 ],
	many_relays => [ 1000, 50 ],
	many_seconds => [ 2, 1 ],
	many_rounds => [ 6, 2 ],
	redrive_events => [ 100_000, 5_000 ],
	redrive_rounds => [ 3, 1 ],
	flight_rounds => [ 200, 10 ],
	flight_waiters => [ 200, 20 ],
	flight_seconds => [ 10, 3 ],
	pinned_extends => [ 100_000, 2_000 ],
	pinned_rounds => [ 6, 1 ],
	pinned_offsets => [ 100_000, 2_000 ],
	cursor_claims => [ 10_000_000, 100_000 ],
	pair_rounds => [ 12, 2 ],
	pair_limit => [ 780, 200 ],
	pair_seconds => [ 1, 1 ],
	pair_relayed => [ 200_000, 20_000 ],
	pair_handled => [ 30_000, 3_000 ],
	pair_latency_seconds => [ 3, 1 ],
	maxsize => [ 1_000_000, 100_000 ],
	duration => [ 600, 8 ],
	profile_seconds => [ 10, 3 ]);

sub new
{
	my ($class, $dir, $section, @servers) = @_;
	my $self = bless { dir => $dir, servers => \@servers, server => $servers[0] }, $class;

	for my $key (keys %sizes)
	{
		$self->{$key} = $ENV{"BENCH_\U$key"} || $sizes{$key}[ $ENV{QUICK} ? 1 : 0 ];
	}
	$self->{maxsize} = $ENV{MAXSIZE} + 0 if $ENV{MAXSIZE};
	$self->{ids_max} = ($ENV{IDS_MAX} || $self->{ids_max} || $self->{maxsize}) + 0;
	$self->{duration} = $ENV{DURATION} + 0 if $ENV{DURATION};
	open($self->{out}, '>', "$dir/$section.tsv") or die "$section.tsv: $!\n";
	$self->{out}->autoflush(1);
	$self->note('size', map { $_ => $self->{$_} } sort keys %sizes);
	$self->note('size', quick => $ENV{QUICK} ? 1 : 0, payload => length $payload);
	return $self;
}

sub note
{
	my ($self, $kind, @pairs) = @_;
	my @words;

	push @pairs, side => $self->{side} if $self->{side};
	push @words, shift(@pairs) . '=' . shift(@pairs) while @pairs;
	print { $self->{out} } join("\t", $kind, @words), "\n";
}

sub payload
{
	return $payload;
}

# For a run on another server than the first, of other sizes, or whose sessions have
# further options.
sub on_server
{
	my ($self, $server, %other) = @_;

	return bless { %$self, server => $server, %other }, ref $self;
}

# The file of an arm, without its number.
sub arm_file
{
	my ($self, $name) = @_;
	my ($file) = glob "$self->{dir}/arms/[0-9][0-9]_$name.sql";

	return $file // die "no arm $name\n";
}

# The usual load of an arm.
sub load
{
	my ($self) = @_;

	return ('-c', $self->{clients}, '-j', $self->{threads});
}

# Transactions in the order of the files; $name is what the file is called by.
sub write_script
{
	my ($self, $name, $text) = @_;
	my $file = "$self->{dir}/$name.sql";

	open(my $f, '>', $file) or die "$file: $!\n";
	print $f $text;
	close $f;
	return $file;
}

sub start_pgbench
{
	my ($self, $mode, @options) = @_;

	local %ENV = (%ENV, $self->{server}->environment, PGOPTIONS => join(' ', $mode{$mode}, $self->{options} // ()));
	my $pid = open(my $p, '-|', 'pgbench', '-n', '-M', 'prepared', '-D', "payload=$payload",
		@options, 'postgres') or die "pgbench: $!\n";
	return { pid => $pid, out => $p, options => "@options" };
}

# done, tps, latency_ms, cpu (of pgbench itself, seconds)
sub end_pgbench
{
	my ($self, $b) = @_;
	my @before = times;
	my $text = do { local $/; readline $b->{out} };

	close($b->{out}) or die "pgbench failed: $b->{options}\n$text\n";
	my @after = times;
	my ($done) = $text =~ /transactions actually processed: (\d+)/;
	my ($failed) = $text =~ /number of failed transactions: (\d+)/;
	my ($latency) = $text =~ /latency average = ([\d.]+)/;
	my ($tps) = $text =~ /tps = ([\d.]+)/;

	die "failed transactions:\n$text\n" if $failed;
	die "no rate in:\n$text\n" unless defined $tps;
	return { done => $done, tps => $tps, latency_ms => $latency // 0,
		cpu => $after[2] + $after[3] - $before[2] - $before[3] };
}

sub pgbench
{
	my ($self, @options) = @_;

	return $self->end_pgbench($self->start_pgbench(@options));
}

# What a load costs the server and the log: the result of pgbench, with
# server_cpu, wal, seconds, and lsn, where it began.  Sessions whose processes are in
# {staying} may be there all the time.
sub cost_of
{
	my ($self, @options) = @_;
	my $server = $self->{server};

	$server->sql('CHECKPOINT');
	my $cpu = $server->cpu;
	my $lsn = $server->lsn;
	my $start = time;
	my $r = $self->pgbench(@options);
	$r->{seconds} = time - $start;
	$r->{lsn} = $lsn;
	$r->{wal} = $server->wal_since($lsn);
	$server->wait_until_gone(@{ $self->{staying} // [] });
	$r->{server_cpu} = $server->cpu - $cpu;
	return $r;
}

# Commit a statement so many times, unmeasured.
sub fill
{
	my ($self, $statement, $transactions) = @_;
	my $file = $self->write_script('fill', "$statement\n");
	my $clients = $transactions % 4 ? 1 : 4;

	$self->pgbench('off', '-c', $clients, '-j', 1, '-t', $transactions / $clients, '-f', $file);
}

1;
