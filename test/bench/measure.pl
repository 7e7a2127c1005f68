#!/usr/bin/perl
# Measure every arm on a server that is up, and write what was seen.
#
#	measure.pl DIR		DIR has arms/ and schema.sql; results.tsv goes there
#
# One line per observation, tab separated: kind, then name=value pairs.
# Nothing is judged here; report.pl does that from the file alone.
#
# An arm is a pgbench script in arms/, described by its leading comments:
# title, about, events (per transaction), tables (that it fills; LIKE patterns;
# emptied before each run), needs (an extension).  After each run the rows of
# the tables are counted: an arm that did not do its work stops the benchmark.
use strict;
use warnings;
use IPC::Open2;
use POSIX qw(sysconf _SC_CLK_TCK);
use Time::HiRes qw(time sleep);

my $dir = shift or die "usage: measure.pl DIR\n";
my $quick = $ENV{QUICK} ? 1 : 0;
my %size = (
	clients => 8,
	threads => 2,
	seconds => $quick ? 1 : 2,
	rounds => $quick ? 2 : 4,
	relay_events => $quick ? 100_000 : 500_000,
	relay_rounds => $quick ? 2 : 4,
	latency_seconds => $quick ? 5 : 12,
	memory_events => $quick ? 200_000 : 1_000_000,
	pin_seconds => 1,
	pin_rounds => $quick ? 2 : 10,
	slope_transactions => $quick ? 10_000 : 40_000,
	slope_rounds => 2,
	slope_most => $quick ? 100_000 : 1_000_000);

# A run of another size is for those who change this program.
for my $key (keys %size)
{
	$size{$key} = $ENV{"BENCH_\U$key"} if defined $ENV{"BENCH_\U$key"};
}
my $only = $ENV{ONLY} || '.';

# 210 bytes, as an order looks.
my $payload =
	'{"order":42,"customer":"c-0017","total":99.90,"currency":"EUR","lines":['
  . '{"sku":"A-1001","qty":2,"price":24.95},{"sku":"B-2002","qty":1,"price":50.00}],'
  . '"note":"left at the door, neighbour knows"}';
$payload .= ' ' while length($payload) < 210;

my %mode = (
	on => '-c synchronous_commit=on -c idempotency.durable_complete=on',
	off => '-c synchronous_commit=off -c idempotency.durable_complete=off');
my $ticks = sysconf(_SC_CLK_TCK);

open(my $out, '>', "$dir/results.tsv") or die "results.tsv: $!\n";
$out->autoflush(1);
$| = 1;

sub note
{
	my ($kind, @pairs) = @_;
	my @words;

	push @words, shift(@pairs) . '=' . shift(@pairs) while @pairs;
	print $out join("\t", $kind, @words), "\n";
}

# ---------------------------------------------------------------------------
# One session for all questions, so that it is easily left out of the CPU time
# ---------------------------------------------------------------------------

my ($psql_out, $psql_in);
my $psql_pid = open2($psql_out, $psql_in,
	qw(psql -qAtX -v ON_ERROR_STOP=1 -F), "\t", 'postgres');

sub sql
{
	my ($query) = @_;
	my @lines;

	print $psql_in "$query;\n\\echo ---done---\n";
	$psql_in->flush;
	while (defined(my $line = <$psql_out>))
	{
		chomp $line;
		return wantarray ? @lines : $lines[0] if $line eq '---done---';
		push @lines, $line;
	}
	die "psql ended at: $query\n";
}

my $control_pid = sql('SELECT pg_backend_pid()');
my $postmaster = do
{
	open(my $f, '<', "/proc/$control_pid/stat") or die "control session: $!\n";
	(split ' ', (<$f> =~ s/^.*\) //r))[1];
};

# Fields of /proc/PID/stat after the command, from "state" on.
sub proc_stat
{
	my ($pid) = @_;

	open(my $f, '<', "/proc/$pid/stat") or return;
	my $line = <$f> // return;
	return split ' ', $line =~ s/^.*\) //r;
}

sub cpu_seconds
{
	my @f = proc_stat($_[0]) or return 0;

	return ($f[11] + $f[12]) / $ticks;
}

# The same of a process of one thread, to the nanosecond.
sub precise_cpu_seconds
{
	open(my $f, '<', "/proc/$_[0]/schedstat") or return 0;
	return (split ' ', <$f> // '0')[0] / 1e9;
}

sub proc_kilobytes
{
	my ($pid) = @_;
	my %kb;

	open(my $f, '<', "/proc/$pid/status") or return;
	while (my $line = <$f>)
	{
		$kb{$1} = $2 if $line =~ /^(VmHWM|RssAnon|RssShmem):\s+(\d+) kB/;
	}
	return \%kb;
}

sub children
{
	open(my $f, '<', "/proc/$postmaster/task/$postmaster/children")
	  or die "children of the postmaster: $!\n";
	return grep { $_ != $control_pid } split ' ', <$f> // '';
}

# CPU of the whole server but for the control session: of the processes that
# have ended, and of those that live.
sub server_cpu
{
	my @f = proc_stat($postmaster);
	my $sum = ($f[13] + $f[14]) / $ticks;

	$sum += cpu_seconds($_) for children();
	return $sum;
}

# A backend counts among the ended only once the postmaster has noticed.
# Workers may come and go meanwhile.
sub wait_until_gone
{
	until_true(10, 'backends of pgbench are still there',
		sub { !grep { proc_title($_) =~ /\[local\]/ } children() });
}

sub proc_title
{
	open(my $f, '<', "/proc/$_[0]/cmdline") or return '';
	return <$f> // '';
}

sub until_true
{
	my ($seconds, $message, $condition) = @_;
	my $end = time + $seconds;

	until ($condition->())
	{
		die "after $seconds s: $message\n" if time > $end;
		sleep 0.01;
	}
}

# ---------------------------------------------------------------------------
# Arms
# ---------------------------------------------------------------------------

sub read_arm
{
	my ($file) = @_;
	my ($name) = $file =~ m{/\d+_([^/]+)\.sql$};
	my %arm = (name => $name, file => $file, events => 1, tables => '', needs => '');

	open(my $f, '<', $file) or die "$file: $!\n";
	while (my $line = <$f>)
	{
		last unless $line =~ /^-- (\w+): (.*)$/;
		$arm{$1} = $2;
	}
	return \%arm;
}

sub arm_tables
{
	my ($arm) = @_;
	my $patterns = join ',', map { "'$_'" } split ' ', $arm->{tables};

	return () unless $patterns;
	return sql("SELECT c.oid::regclass FROM pg_class c"
		  . " WHERE c.relkind = 'r' AND c.relnamespace::regnamespace || '.' || c.relname LIKE ANY (ARRAY[$patterns])");
}

# Rows, dead rows and bytes, indexes and TOAST included.
sub table_state
{
	my @tables = @_;
	my $sums = join ' UNION ALL ', map {
		"SELECT s.tuple_count, s.dead_tuple_count, pg_total_relation_size('$_') AS bytes FROM pgstattuple('$_') s"
	} @tables;

	return (0, 0, 0) unless @tables;
	return split /\t/, sql("SELECT sum(tuple_count), sum(dead_tuple_count), sum(bytes) FROM ($sums) x");
}

# Dead rows in the catalogs and in the tables the arm keeps its books in.
sub dead_elsewhere
{
	my $own = join ',', map { "'$_'::regclass" } @_;
	my $but = $own ? "AND c.oid NOT IN ($own)" : '';

	return sql("SELECT sum((pgstattuple(c.oid)).dead_tuple_count) FROM pg_class c"
		  . " WHERE c.relkind IN ('r', 't') AND c.relpages >= 0 $but"
		  . " AND c.relnamespace::regnamespace::text IN ('pg_catalog', 'idempotency', 'pgq')");
}

sub pgbench
{
	my ($mode, @options) = @_;
	local $ENV{PGOPTIONS} = $mode{$mode};

	open(my $p, '-|', 'pgbench', '-n', '-M', 'prepared', '-D', "payload=$payload",
		@options, 'postgres') or die "pgbench: $!\n";
	my $text = do { local $/; <$p> };
	close($p) or die "pgbench failed: @options\n$text\n";
	my ($done) = $text =~ /transactions actually processed: (\d+)/;
	my ($failed) = $text =~ /number of failed transactions: (\d+)/;
	my ($latency) = $text =~ /latency average = ([\d.]+)/;
	my ($tps) = $text =~ /tps = ([\d.]+)/;
	die "failed transactions:\n$text\n" if $failed;
	die "no rate in:\n$text\n" unless $tps;
	return ($done, $tps, $latency // 0);
}

sub run_arm
{
	my ($arm, $mode, $round) = @_;
	my @tables = arm_tables($arm);
	my @load = ('-c', $size{clients}, '-j', $size{threads}, '-T', $size{seconds},
		'-f', $arm->{file});

	sql('TRUNCATE ' . join(', ', @tables)) if @tables;
	sql('CHECKPOINT');
	my $dead_before = dead_elsewhere(@tables);
	my $cpu = server_cpu();
	my $lsn = sql('SELECT pg_current_wal_insert_lsn()');
	my ($done, $tps, $latency) = pgbench($mode, @load);
	my $wal = sql("SELECT pg_current_wal_insert_lsn() - '$lsn'");
	wait_until_gone();
	$cpu = server_cpu() - $cpu;
	my $events = $done * $arm->{events};
	my ($rows, $dead, $bytes) = table_state(@tables);
	die "$arm->{name}: $events events, but $rows rows\n" if @tables && $rows != $events;
	note('run', arm => $arm->{name}, sync => $mode, round => $round,
		rate => $tps * $arm->{events}, events => $events, latency_ms => $latency,
		cpu_us => 1e6 * $cpu / $events, wal => $wal / $events, dead => $dead / $events,
		dead_elsewhere => dead_elsewhere(@tables) - $dead_before,
		bytes => $bytes / $events);
	printf "   %-14s sync %-3s %10.0f events/s  %7.2f us CPU  %6.0f B WAL\n",
	  $arm->{name}, $mode, $tps * $arm->{events}, 1e6 * $cpu / $events, $wal / $events;
}

# A B C … C B A, twice in a full run.
sub run_arms
{
	my @arms = @_;

	for my $mode ('on', 'off')
	{
		for my $round (1 .. $size{rounds})
		{
			my @order = $round % 4 == 1 || $round % 4 == 0 ? @arms : reverse @arms;

			print "== synchronous_commit $mode, round $round of $size{rounds}\n";
			run_arm($_, $mode, $round) for @order;
		}
	}
}

# ---------------------------------------------------------------------------
# Relay
# ---------------------------------------------------------------------------

my $log = $ENV{IDEM_LOG};

sub relay_start
{
	my ($name) = @_;

	sql("SELECT idempotency.relay_create('$name', 'null_sink', start_at => 'latest')");
	sql("SELECT idempotency.relay_pause('$name')");
	until_true(30, "no worker for relay $name", sub { (relay_status($name))[1] });
	until_true(30, "relay $name does not pause",
		sub { (relay_status($name))[3] eq 'paused' });
}

# sent, pid of the worker, pid of the program, state
sub relay_status
{
	my ($name) = @_;
	my $line = sql('SELECT s.sent, s.pid, s.sink_pid, s.state FROM idempotency.relay_status() s'
		  . " JOIN idempotency.relays r USING (relay_id) WHERE r.relay = '$name'") // '';
	my @f = split /\t/, $line, -1;

	return @f ? @f : (0, '', '', '');
}

sub relay_drop
{
	my ($name) = @_;

	sql("SELECT idempotency.relay_drop('$name')");
	until_true(30, "relay $name is still there",
		sub { !(relay_status($name))[1] });
	sql("TRUNCATE " . join(', ', arm_tables({ tables => 'idempotency.outbox_segment_%' })));
}

# Commit a backlog: in transactions of 100, or all in one.
sub enqueue_backlog
{
	my ($kind, $events, $one) = @_;
	my $call = $kind eq 'jsonb'
	  ? "outbox_enqueue('order', (g % 1000)::text, 'OrderCreated', '$payload')"
	  : "outbox_enqueue_bytes('order', (g % 1000)::text, 'OrderCreated', convert_to('$payload', 'UTF8'))";

	if ($one)
	{
		sql("SELECT count(idempotency.$call) FROM generate_series(1, $events) g");
		return;
	}
	open(my $f, '>', "$dir/backlog.sql") or die "backlog.sql: $!\n";
	print $f "SELECT count(idempotency.$call) FROM generate_series(1, 100) g;\n";
	close $f;
	pgbench('off', '-c', 4, '-j', 1, '-t', $events / 400, '-f', "$dir/backlog.sql");
}

# Let a relay send a backlog; what it took, and its memory at the most.
sub drain
{
	my ($name, $events) = @_;
	my ($sent_before, $worker) = relay_status($name);
	my %peak = (RssAnon => 0);
	my ($sent, $sink, $pid, $state);

	if (open(my $f, '>', "/proc/$worker/clear_refs"))
	{
		print $f "5\n";
	}
	my $cpu = precise_cpu_seconds($worker);
	my $start = time;
	sql("SELECT idempotency.relay_resume('$name')");
	until_true(
		600,
		"relay $name has not sent $events events",
		sub {
			my $kb = proc_kilobytes($worker);

			$peak{RssAnon} = $kb->{RssAnon} if $kb && $kb->{RssAnon} > $peak{RssAnon};
			($sent, $pid, $sink, $state) = relay_status($name);
			die "the worker of relay $name was replaced\n" if $pid ne $worker;
			return $sent - $sent_before >= $events;
		});
	my $seconds = time - $start;
	my $kb = proc_kilobytes($worker);
	my @took = ($seconds, precise_cpu_seconds($worker) - $cpu,
		precise_cpu_seconds($sink));

	die "relay $name sent " . ($sent - $sent_before) . " of $events events\n"
	  if $sent - $sent_before != $events;
	return (@took, $peak{RssAnon}, $kb->{VmHWM}, $kb->{RssShmem}, proc_kilobytes($sink)->{VmHWM});
}

sub run_relay
{
	my ($kind, $round) = @_;
	my $events = $size{relay_events};

	relay_start("relay_$kind");
	enqueue_backlog($kind, $events, 0);
	sql('CHECKPOINT');
	my $lsn = sql('SELECT pg_current_wal_insert_lsn()');
	my ($seconds, $worker, $sink) = drain("relay_$kind", $events);
	my $wal = sql("SELECT pg_current_wal_insert_lsn() - '$lsn'");
	relay_drop("relay_$kind");
	note('relay', kind => $kind, round => $round, events => $events, seconds => $seconds,
		worker_cpu => $worker, sink_cpu => $sink, wal => $wal / $events);
	printf "   relay %-5s %10.0f events/s  %10.0f per core (worker %.2f us, program %.2f us)\n",
	  $kind, $events / $seconds, $events / ($worker + $sink),
	  1e6 * $worker / $events, 1e6 * $sink / $events;
}

# What single claims cost beside $n remembered ids, and what single enqueues
# and their relay cost beside a standing backlog of $n events.
sub run_slope
{
	my ($n, $round) = @_;
	my ($claim) = glob "$dir/arms/*_claim_one.sql";
	my ($enqueue) = glob "$dir/arms/*_enq_ours.sql";
	my $transactions = $size{slope_transactions};
	my @load = ('-c', $size{clients}, '-j', $size{threads},
		'-t', $transactions / $size{clients}, '-f');

	sql('TRUNCATE idempotency.processed');
	sql('INSERT INTO idempotency.processed (claimed_at, completed_at, event_id, consumer)'
		  . " SELECT now(), now(), hashint8extended(g, 42)::text, 'default' FROM generate_series(1, $n) g");
	my $claim_cpu = cpu_of('off', @load, $claim);
	sql('TRUNCATE idempotency.processed');

	enqueue_backlog('bytea', $n, 0);
	relay_start('slope');
	my $enqueue_cpu = cpu_of('off', @load, $enqueue);
	my ($seconds, $worker, $sink) = drain('slope', $transactions);
	relay_drop('slope');
	note('slope', n => $n, round => $round, claim => 1e6 * $claim_cpu / $transactions,
		enqueue => 1e6 * $enqueue_cpu / $transactions,
		relay => 1e6 * ($worker + $sink) / $transactions);
	printf "   beside %8d: claim %.2f us, enqueue %.2f us, relay %.2f us CPU\n", $n,
	  1e6 * $claim_cpu / $transactions, 1e6 * $enqueue_cpu / $transactions,
	  1e6 * ($worker + $sink) / $transactions;
}

# CPU of the server for one run of pgbench.
sub cpu_of
{
	my ($mode, @load) = @_;

	sql('CHECKPOINT');
	my $cpu = server_cpu();
	pgbench($mode, @load);
	wait_until_gone();
	return server_cpu() - $cpu;
}

sub run_memory
{
	for my $one (0, 1)
	{
		my $name = $one ? 'one_transaction' : 'backlog';

		relay_start($name);
		enqueue_backlog('bytea', $size{memory_events}, $one);
		my ($seconds, $cpu, $sink_cpu, $anon, $hwm, $shmem, $sink) =
		  drain($name, $size{memory_events});
		relay_drop($name);
		note('memory', what => $name, events => $size{memory_events}, seconds => $seconds,
			cpu => $cpu + $sink_cpu, anon_kb => $anon, hwm_kb => $hwm, shmem_kb => $shmem,
			sink_hwm_kb => $sink);
		printf "   memory %-16s worker %d kB of its own, %d kB with shared buffers; program %d kB\n",
		  $name, $anon, $hwm, $sink;
	}
}

# Commit to read by the program, as the program itself reports it.
sub run_latency
{
	my ($rate, $clients) = @_;
	my $offset = -s $log;
	my $reports = 0;
	my ($arm) = glob "$dir/arms/*_enq_ours.sql";

	relay_start('latency');
	sql("SELECT idempotency.relay_resume('latency')");
	until_true(30, 'the sink does not start',
		sub { (relay_status('latency'))[3] eq 'streaming' });
	my ($done) = pgbench('on', '-c', $clients, '-j', 1, '-R', $rate,
		'-T', $size{latency_seconds}, '-f', $arm);
	until_true(60, 'not all was sent', sub { (relay_status('latency'))[0] >= $done });
	open(my $f, '<', $log) or die "$log: $!\n";
	until_true(
		10,
		'no report of the null sink in the log',
		sub {
			seek($f, $offset, 0);
			$reports = () = grep { /null sink: / } <$f>;
			return $reports >= $size{latency_seconds} - 1;
		});
	seek($f, $offset, 0);
	while (my $line = <$f>)
	{
		next unless $line =~ /null sink: events=(\d+) .* samples=(\d+) p50=(\d+) p90=(\d+) p99=(\d+) p999=(\d+) max=(\d+)/;
		note('latency', rate => $rate, samples => $2, p50 => $3, p90 => $4, p99 => $5,
			p999 => $6, max => $7);
		print "   latency at $rate/s: p50 $3 us, p99 $5 us, max $7 us ($2 events)\n";
	}
	relay_drop('latency');
}

# ---------------------------------------------------------------------------
# Pins: what holds the horizon, or a segment, for as long as it likes
# ---------------------------------------------------------------------------

my %pin = (
	snapshot => [ "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1;", 'ROLLBACK' ],
	writer => [ "BEGIN; INSERT INTO bench.floor_claim VALUES (gen_random_uuid());", 'ROLLBACK' ],
	reader => [ "BEGIN; SELECT count(*) FROM idempotency.outbox_events; SELECT count(*) FROM idempotency.processed;", 'ROLLBACK' ],
	prepared => [ "BEGIN; INSERT INTO bench.floor_claim VALUES (gen_random_uuid()); PREPARE TRANSACTION 'pin';", "ROLLBACK PREPARED 'pin'" ]);

# The control session itself is the one that pins, so nothing is asked of it
# while the load runs.
sub run_pin
{
	my ($name, $pinned, $round) = @_;
	my ($claim) = glob "$dir/arms/*_claim_one.sql";
	my ($enqueue) = glob "$dir/arms/*_enq_ours.sql";
	my @tables = arm_tables({ tables => 'idempotency.processed% idempotency.outbox_segment_%' });

	sql('TRUNCATE ' . join(', ', @tables));
	relay_start('pin');
	sql("SELECT idempotency.relay_resume('pin')");
	until_true(30, 'the sink does not start',
		sub { (relay_status('pin'))[3] eq 'streaming' });
	sql('CHECKPOINT');
	my $dead = dead_elsewhere();
	sql($pin{$name}[0]) if $pinned;
	my ($done, $tps) = pgbench('off', '-c', $size{clients}, '-j', $size{threads},
		'-T', $size{pin_seconds}, '-f', $claim, '-f', $enqueue);
	sql($pin{$name}[1]) if $pinned;
	my $events = sql('SELECT count(*) FROM idempotency.outbox_events');
	until_true(60, 'not all was sent', sub { (relay_status('pin'))[0] >= $events });
	$dead = dead_elsewhere() - $dead;
	relay_drop('pin');
	note('pin', pin => $name, pinned => $pinned, round => $round, rate => $tps, dead => $dead);
	printf "   pin %-9s %-8s %9.0f transactions/s, %d dead rows\n", $name,
	  $pinned ? 'held' : 'not held', $tps, $dead;
}

# ---------------------------------------------------------------------------

open(my $schema, '<', "$dir/schema.sql") or die "schema.sql: $!\n";
sql('SET client_min_messages = warning');
sql(do { local $/; <$schema> } . "SELECT 1");
sql("CREATE SERVER null_sink FOREIGN DATA WRAPPER idempotency_null OPTIONS (stats_interval '1000')");
sql("CREATE USER MAPPING FOR CURRENT_USER SERVER null_sink");
my %have = map { $_ => 1 } sql('SELECT name FROM pg_available_extensions');
sql("CREATE EXTENSION pgq; SELECT pgq.create_queue('bench')") if $have{pgq};

my @arms = map { read_arm($_) } sort glob "$dir/arms/*.sql";
note('size', %size, quick => $quick, payload => length $payload);
note('server', name => $_, value => sql("SHOW $_"))
  for qw(server_version shared_buffers fsync wal_level full_page_writes max_wal_size
  checkpoint_timeout autovacuum wal_compression jit max_prepared_transactions
  idempotency.max_claim_locks idempotency.outbox_retention idempotency.outbox_segment_size);
for my $arm (@arms)
{
	my $absent = $arm->{needs} && !$have{ $arm->{needs} };
	note('arm', (map { $_ => $arm->{$_} // '' } qw(name title about events)), absent => $absent ? 1 : 0);
	$arm->{absent} = $absent;
}

my $load_before = (split ' ', do { open(my $f, '<', '/proc/loadavg') or die; <$f> })[0];
note('load', before => $load_before);
run_arms(grep { !$_->{absent} && $_->{name} =~ /$only/ } @arms);
if ('relay' =~ /$only/)
{
	print "== relay to the null sink\n";
	for my $round (1 .. $size{relay_rounds})
	{
		run_relay($_, $round) for $round % 4 < 2 ? ('bytea', 'jsonb') : ('jsonb', 'bytea');
	}
}
if ('latency' =~ /$only/)
{
	print "== commit to sink\n";
	run_latency(100, 1);
	run_latency(2000, 4);
}
if ('memory' =~ /$only/)
{
	print "== memory of the worker\n";
	run_memory();
}
if ('slope' =~ /$only/)
{
	print "== cost over backlog and remembered ids\n";
	for my $round (1 .. $size{slope_rounds})
	{
		my @n = grep { $_ <= $size{slope_most} } 10_000, 100_000, 1_000_000;

		run_slope($_, $round) for $round % 2 ? @n : reverse @n;
	}
}
if ('pin' =~ /$only/)
{
	print "== pins\n";
	for my $name (qw(snapshot writer reader prepared))
	{
		for my $round (1 .. $size{pin_rounds})
		{
			run_pin($name, $_, $round) for $round % 2 ? (0, 1) : (1, 0);
		}
	}
}
close $psql_in;
waitpid $psql_pid, 0;
