
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

IdemRelay - relays to the test sink, and what it received

=head1 SYNOPSIS

  use IdemRelay;

  my $dir = IdemRelay::sink_directory();        # with idempotency-sink-pytest in it
  IdemRelay::pytest_server($node, 'srv', $file, retry_type => 'Bad');
  my @events = IdemRelay::received($file);      # lines of the sink's log
  IdemRelay::wait_received($file, 10);          # until so many different events were acked
  IdemRelay::enqueue($node, 'key', 'type', $n);

=cut

package IdemRelay;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use IPC::Run ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

# A directory of sink programs: those of the stage and the one in Python.
sub sink_directory
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $pytest = dirname(abs_path(__FILE__)) . '/../sink/idempotency-sink-pytest';

	foreach my $program ($pytest, glob("$ENV{IDEM_STAGE_LIBDIR}/idempotency-sinks/idempotency-sink-*"))
	{
		my ($name) = $program =~ m{([^/]+)$};

		copy($program, "$dir/$name") or die "could not copy $program: $!";
		chmod 0755, "$dir/$name";
	}
	return $dir;
}

# A server of the test sink that writes to $file, with more options.
sub pytest_server
{
	my ($node, $name, $file, %opt) = @_;
	my $database = delete $opt{database} // 'postgres';
	my $options = join(', ', map { "$_ '$opt{$_}'" } sort keys %opt);

	$node->safe_psql($database, <<"END");
CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_program
	OPTIONS (program 'pytest', file '$file'@{[ $options ? ", $options" : '' ]});
END
	return;
}

# What the sink wrote, oldest first, as hashes of the fields that tests look at.
sub received
{
	my ($file) = @_;
	my @lines;

	return () unless -e $file;
	# The last one may be written only half.
	foreach my $line (slurp_file($file) =~ /(.*)\n/g)
	{
		my %f;

		while ($line =~ /"(\w+)": (?:"((?:[^"\\]++|\\.)*+)"|(-?\d+))/g)
		{
			$f{$1} //= $2 // $3;
		}
		push @lines, \%f;
	}
	return @lines;
}

# A relay to a sink of its own, for the events of its name; returns the sink's file.
sub own_relay
{
	my ($node, $dir, $name, %opt) = @_;
	my $file = "$dir/$name.log";

	pytest_server($node, "s_$name", $file, %opt);
	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}',
	min_backoff => '50 ms', max_backoff => '100 ms')
END
	wait_state($node, $name, 'streaming');
	return $file;
}

# How often events of a type are committed at the sink.
sub came
{
	my ($file, $type) = @_;

	return scalar grep { ($_->{event_type} // '') eq $type } acked($file);
}

sub arrives
{
	my ($file, $type, $n) = @_;

	return wait_until("$type arrives", sub { came($file, $type) >= ($n // 1) });
}

# A database in which each event becomes a row of app.got: how often, and for whom.
sub counting_target
{
	my (%opt) = @_;
	my $target = PostgreSQL::Test::Cluster->new('target');

	$target->init(%opt);
	$target->start;
	$target->safe_psql('postgres', q{
CREATE SCHEMA app;
CREATE TABLE app.got (event_id uuid, twin text);
CREATE FUNCTION app.on_event(event_id uuid, aggregate_id text) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO app.got VALUES (event_id, aggregate_id) $$;
});
	return $target;
}

# A server of the postgres sink: a database of the cluster $target, and a function there.
# The user mapping names the superuser of that cluster.
sub postgres_server
{
	my ($node, $name, $target, $database, $function) = @_;
	my ($host, $port) = ($target->host, $target->port);
	my $user = $target->safe_psql('postgres', 'SELECT current_user');

	$node->safe_psql('postgres', qq{
CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (host '$host', port '$port', dbname '$database', function '$function');
CREATE USER MAPPING FOR CURRENT_USER SERVER $name OPTIONS (user '$user');
});
	return;
}

# The same, with the sink's own tables made in that database.
sub prepared_postgres_server
{
	my ($node, $name, $target, $database, $function) = @_;

	postgres_server(@_);
	$target->safe_psql($database, $node->safe_psql('postgres', "SELECT idempotency.sink_setup_sql('$name')"));
	return;
}

# The server "target" of a node: the database that counting_target makes.
sub counting_server
{
	my ($node, $target) = @_;

	return prepared_postgres_server($node, 'target', $target, 'postgres', 'app.on_event');
}

# Those that were acknowledged.
sub acked
{
	my ($file) = @_;

	return grep { ($_->{outcome} // '') eq 'acked' } received($file);
}

sub distinct
{
	my %seen;

	$seen{ $_->{event} }++ foreach @_;
	return scalar keys %seen;
}

# Until a condition on this side holds.
sub wait_until
{
	my ($what, $condition) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $until)
	{
		if ($condition->())
		{
			pass("reached: $what");
			return 1;
		}
		usleep(50_000);
	}
	fail("reached: $what");
	return 0;
}

sub wait_received
{
	my ($file, $n) = @_;

	return wait_until("$n events received", sub { distinct(acked($file)) >= $n });
}

# Until the relay has so many dead letters.  The events are refused while others pass: they
# are enqueued by the function, again and again.
sub wait_dead
{
	my ($node, $relay, $n, $enqueue) = @_;

	return wait_until("$n dead letters of $relay", sub {
		$enqueue->();
		return IdemRelay::stat($node, $relay, q{dead}) == $n;
	});
}

# One transaction of $n events.
sub enqueue
{
	my ($node, $key, $type, $n) = @_;

	$n //= 1;
	$node->safe_psql('postgres', <<"END");
SELECT count(idempotency.outbox_enqueue('t', '$key', '$type', jsonb_build_object('n', i)))
	FROM generate_series(1, $n) i;
END
	return;
}

# Clients that enqueue for so many seconds, each after the lock on its key, as the
# order of commit demands, and note in table "sent" what they have; their pgbench.
sub enqueue_by_key
{
	my ($node, $clients, $seconds) = @_;
	my $script = $node->basedir . '/enqueue_by_key.sql';
	my ($out, $err) = ('', '');

	if (!-e $script)
	{
		$node->safe_psql('postgres', 'CREATE TABLE sent (key text, n int, event_id uuid)');
		append_to_file($script, <<'END');
\set key random(1, 8)
BEGIN;
SELECT pg_advisory_xact_lock(:key);
INSERT INTO sent SELECT :key, n, idempotency.outbox_enqueue('t', :key::text, 'E', jsonb_build_object('n', n))
	FROM (SELECT count(*) + 1 AS n FROM sent WHERE key = :key::text) s;
COMMIT;
END
	}
	return IPC::Run::start(
		[ 'pgbench', '-n', '-c', $clients, '-T', $seconds, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>', \$out, '2>', \$err);
}

# A column of stat_relay.
sub stat
{
	my ($node, $relay, $column) = @_;

	return $node->safe_psql('postgres',
		"SELECT $column FROM idempotency.stat_relay WHERE relay = '$relay'");
}

# The query of doc/howto/operate.md that names the relays that do not get on, without its
# semicolon, for an operator with so many seconds of patience.
sub operator_query
{
	my ($patience) = @_;
	my $page = slurp_file(dirname(abs_path(__FILE__)) . '/../../doc/howto/operate.md');
	my ($query) = $page =~ /^## Look\n.*?^```sql\n(.*?);\n```\n/ms or die 'no query in operate.md';

	$query =~ s/'5 s'/'$patience s'/ or die 'no threshold in the query of operate.md';
	return $query;
}

# A relay that is idle, since it had nothing to send when its worker started, streams
# as well as one whose program waits for events.
sub wait_state
{
	my ($node, $relay, $state) = @_;
	my $seen = $state eq 'streaming' ? q{CASE state WHEN 'idle' THEN 'streaming' ELSE state END} : 'state';

	return $node->poll_query_until('postgres',
		"SELECT $seen FROM idempotency.stat_relay WHERE relay = '$relay'", $state)
	  ? pass("relay $relay is $state")
	  : fail("relay $relay is $state");
}

# A relay that has nothing to do, or may do nothing, leaves the processors alone.
sub worker_sleeps
{
	my ($node, $relay) = @_;
	my $pid = IdemRelay::stat($node, $relay, 'pid');
	my $ticks = sub {
		slurp_file("/proc/$pid/stat") =~ /\) \S(?: \S+){10} (\d+) (\d+) / ? $1 + $2 : die "no times of $pid";
	};
	my $before = $ticks->();

	$node->safe_psql('postgres', 'SELECT pg_sleep(2)');
	return cmp_ok($ticks->() - $before, '<', POSIX::sysconf(POSIX::_SC_CLK_TCK()) / 2, "the worker of relay $relay sleeps");
}

# How often a process has been taken off a processor; nothing while it runs, or could
# run.  The same at two moments: it has slept from the one to the other.
sub switches
{
	my ($pid) = @_;
	my $status = $pid ? slurp_file("/proc/$pid/status") : '';

	return '' unless $status =~ /^State:\s+S/m;
	return join('+', $status =~ /_ctxt_switches:\s+(\d+)/g);
}

# The processes of which $pid is the parent.
sub children
{
	my ($pid) = @_;
	my @found;

	foreach my $stat (glob('/proc/[0-9]*/stat'))
	{
		open(my $fh, '<', $stat) or next;
		my $line = <$fh>;
		close $fh;
		push @found, $1 if defined $line && $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $pid;
	}
	return @found;
}

# Keep the kernel from giving a process to its parent when it dies: a tracer has to
# wait for it first.  To the parent that looks as a process in state D does: killed,
# and not to be reaped.
sub hold
{
	my ($pid) = @_;
	my ($in, $out, $err) = ('', '', '');
	my $tracer = IPC::Run::start([ '/usr/bin/python3', '-c', <<'END', $pid ], '<', \$in, '>', \$out, '2>', \$err);
import ctypes, sys
SEIZE = 0x4206
rc = ctypes.CDLL(None).ptrace(ctypes.c_long(SEIZE), ctypes.c_long(int(sys.argv[1])), ctypes.c_long(0), ctypes.c_long(0))
print("held" if rc == 0 else "failed", flush=True)
sys.stdin.read()
END

	IPC::Run::pump($tracer) until $out =~ /\n/ || $err ne '';
	is($out, "held\n", "process $pid is held") or diag($err);
	return $tracer;
}

# Let it go.
sub release
{
	my ($tracer) = @_;

	$tracer->finish;
	return;
}

sub process_is_gone
{
	my ($pid) = @_;

	return !-e "/proc/$pid";
}

1;
