# One server: a session for all questions, and what /proc knows of its processes.
#
#	my $server = Bench::Server->new($host, $port, $log);
#
# The session is one so that it is easily left out of the CPU time.
package Bench::Server;
use strict;
use warnings;
use IPC::Open2;
use POSIX qw(sysconf _SC_CLK_TCK);
use Time::HiRes qw(time sleep);

my $ticks = sysconf(_SC_CLK_TCK);

sub new
{
	my ($class, $host, $port, $log) = @_;
	my $self = bless { host => $host, port => $port, log => $log }, $class;

	$self->{session} = $self->session;
	$self->{control} = $self->sql('SELECT pg_backend_pid()');
	$self->{postmaster} = (proc_stat($self->{control}))[1];
	$self->sql('SET client_min_messages = warning');
	return $self;
}

# Where programs find this server.
sub environment
{
	my ($self) = @_;

	return (PGHOST => $self->{host}, PGPORT => $self->{port}, PGUSER => 'postgres');
}

# A session of psql.  The caller ends it with end_session.
sub session
{
	my ($self) = @_;
	my ($out, $in);

	local %ENV = (%ENV, $self->environment);
	my $pid = open2($out, $in, qw(psql -qAtX -v ON_ERROR_STOP=1 -F), "\t", 'postgres');
	return { out => $out, in => $in, pid => $pid };
}

sub end_session
{
	my ($session) = @_;

	close $session->{in};
	waitpid $session->{pid}, 0;
}

sub ask
{
	my ($session, $query) = @_;
	my ($in, $out) = @$session{qw(in out)};
	my @lines;

	print $in "$query;\n\\echo ---done---\n";
	$in->flush;
	while (defined(my $line = <$out>))
	{
		chomp $line;
		return wantarray ? @lines : $lines[0] if $line eq '---done---';
		push @lines, $line;
	}
	die "psql ended at: $query\n";
}

sub sql
{
	my ($self, $query) = @_;

	return ask($self->{session}, $query);
}

sub run_file
{
	my ($self, $file) = @_;

	local %ENV = (%ENV, $self->environment, PGOPTIONS => '-c client_min_messages=warning');
	system('psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $file, 'postgres') == 0
	  or die "psql -f $file failed\n";
}

# ---------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------

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

sub proc_title
{
	open(my $f, '<', "/proc/$_[0]/cmdline") or return '';
	return <$f> // '';
}

sub children
{
	my ($self) = @_;

	open(my $f, '<', "/proc/$self->{postmaster}/task/$self->{postmaster}/children")
	  or die "children of the postmaster: $!\n";
	return grep { $_ != $self->{control} } split ' ', <$f> // '';
}

# CPU of the whole server but for the control session: of the processes that
# have ended, and of those that live.
sub cpu
{
	my ($self) = @_;
	my @f = proc_stat($self->{postmaster});
	my $sum = ($f[13] + $f[14]) / $ticks;

	$sum += cpu_seconds($_) for $self->children;
	return $sum;
}

# The same with the control session, ended or not.
sub cpu_of_all
{
	my ($self) = @_;

	return $self->cpu + cpu_seconds($self->{control});
}

# A backend counts among the ended only once the postmaster has noticed.
# Workers may come and go meanwhile; sessions named here stay.
sub wait_until_gone
{
	my ($self, @staying) = @_;
	my %stays = map { $_ => 1 } @staying;

	until_true(10, 'backends of pgbench are still there',
		sub { !grep { !$stays{$_} && proc_title($_) =~ /\[local\]/ } $self->children });
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
# Tables
# ---------------------------------------------------------------------------

sub lsn
{
	return $_[0]->sql('SELECT pg_current_wal_insert_lsn()');
}

sub wal_since
{
	my ($self, $lsn) = @_;

	return $self->sql("SELECT pg_current_wal_insert_lsn() - '$lsn'");
}

# Bytes of whole pages in the WAL since then.  Read from its files, so all is
# written out first.
sub page_images_since
{
	my ($self, $lsn) = @_;

	$self->sql('SELECT pg_switch_wal()');
	return $self->sql("SELECT coalesce(sum(fpi_size), 0) FROM pg_get_wal_stats('$lsn', pg_current_wal_flush_lsn())");
}

# The tables that remember events: one table in commits before the dedup store.
our $store = 'idempotency_data.processed% idempotency_data.store\_%';

# Tables that fit LIKE patterns, given in one string.
sub tables
{
	my ($self, $patterns) = @_;
	my $list = join ',', map { "'$_'" } split ' ', $patterns;

	return () unless $list;
	return $self->sql("SELECT c.oid::regclass FROM pg_class c"
		  . " WHERE c.relkind = 'r' AND c.relnamespace::regnamespace || '.' || c.relname LIKE ANY (ARRAY[$list])");
}

sub truncate
{
	my ($self, $patterns) = @_;
	my @tables = $self->tables($patterns);

	$self->sql('TRUNCATE ' . join(', ', @tables)) if @tables;

	# like a restore: whoever knows the runs that were there must look anew
	my ($segment) = grep { /store_segment_/ } @tables;
	$self->sql("INSERT INTO $segment SELECT * FROM $segment WHERE false") if $segment;
}

# How many events the dedup store remembers: rows of the segments that are not packed,
# and entries of the runs.  While a segment is closed, the packer may be between the
# commit of its run and the mark on the segment, and the entries of both would count.
sub remembered
{
	my ($self) = @_;
	my ($seen, $rows) = ('', 0);

	for my $try (1 .. 60)
	{
		sleep 1 if $try > 2;
		$self->sql('SELECT idempotency.claims_maintain()');
		my @entries = $self->sql("SELECT CASE kind WHEN 'segment' THEN number::text ELSE 'runs' END, state, sum(entries)"
			  . " FROM idempotency.stat_claim_segments WHERE state IN ('current', 'closed', 'searched') GROUP BY 1, 2 ORDER BY 1, 2");
		last if "@entries" eq $seen;
		$seen = "@entries";
		my %entries = map { /^(\w+)\t\w+\t(\d+)/ } @entries;
		my $runs = delete $entries{runs} // 0;
		$rows = $self->sql(join ' + ', "SELECT $runs", map { "(SELECT count(*) FROM idempotency_data.store_segment_$_)" } keys %entries);
		$seen = '' if $seen =~ /\tclosed\t/;
	}
	return $rows;
}

# Rows, dead rows and bytes, indexes and TOAST included.  Of the dedup store the rows
# are the events that it remembers.
sub table_state
{
	my ($self, @tables) = @_;
	my $remembered = (grep { /store_slot_/ } @tables) ? $self->remembered : 0;
	my $sums = join ' UNION ALL ', map {
		"SELECT s.tuple_count, s.dead_tuple_count, pg_total_relation_size('$_') AS bytes FROM pgstattuple('$_') s"
	} @tables;

	return (0, 0, 0) unless @tables;
	my ($rows, $dead, $bytes) = split /\t/, $self->sql("SELECT sum(tuple_count), sum(dead_tuple_count), sum(bytes) FROM ($sums) x");
	my @others = grep { !/\.store_/ } @tables;
	$rows = $remembered + ($self->table_state(@others))[0] if @others < @tables;
	return ($rows, $dead, $bytes);
}

# Dead rows in the catalogs and in the tables the arm keeps its books in.
sub dead_elsewhere
{
	my ($self, @own) = @_;
	my $own = join ',', map { "'$_'::regclass" } @own;
	my $but = $own ? "AND c.oid NOT IN ($own)" : '';

	return $self->sql("SELECT sum((pgstattuple(c.oid)).dead_tuple_count) FROM pg_class c"
		  . " WHERE c.relkind IN ('r', 't') AND c.relpages >= 0 $but"
		  . " AND c.relnamespace::regnamespace::text IN ('pg_catalog', 'idempotency_data', 'pgq', 'pgque', 'pgmq')");
}

# Dead rows and bytes of every table there is, TOAST and catalogs included, by name.
sub all_tables
{
	my ($self) = @_;

	return map { my ($name, $dead, $bytes) = split /\t/; ($name => { dead => $dead, bytes => $bytes }) }
	  $self->sql("SELECT CASE c.relkind WHEN 't' THEN 'TOAST of ' ELSE '' END || bench.table_of(c.oid)::regclass,"
		  . " (pgstattuple(c.oid)).dead_tuple_count, pg_total_relation_size(c.oid)"
		  . " FROM pg_class c WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence <> 't'");
}

# Catalogs that autovacuum and TRUNCATE write, and whose first column is the
# relation that a row is about.
my @catalogs = qw(pg_class pg_attribute pg_index pg_statistic);

# [catalog, whose, rows]: whose tables the dead rows of those are about.  A dead
# row cannot be selected, so the pages are read; what no snapshot of now sees is dead.
sub dead_about
{
	my ($self) = @_;
	my $oid = join ' | ', map { "(get_byte(t_data, $_)::bigint << " . 8 * $_ . ')' } 0 .. 3;

	return map {
		my $catalog = $_;
		map { [ $catalog, split /\t/ ] }
		  $self->sql("WITH dead AS MATERIALIZED (SELECT ($oid)::oid AS about"
			  . " FROM generate_series(0, pg_relation_size('$catalog') / current_setting('block_size')::int - 1) b,"
			  . " heap_page_items(get_raw_page('$catalog', b::int)) i"
			  . " WHERE i.lp_flags = 1 AND format('(%s,%s)', b, i.lp)::tid NOT IN (SELECT ctid FROM $catalog))"
			  . " SELECT CASE WHEN n.nspname = 'idempotency_data' THEN 'ours'"
			  . " WHEN n.nspname IN ('bench', 'pgq', 'pgque', 'pgmq') THEN 'rivals' ELSE 'unknown' END AS whose, count(*)"
			  . " FROM dead LEFT JOIN pg_class c ON c.oid = bench.table_of(about)"
			  . " LEFT JOIN pg_namespace n ON n.oid = c.relnamespace GROUP BY 1")
	} @catalogs;
}

1;
