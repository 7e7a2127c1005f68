
# Copyright (c) 2026, the idempotency developers

# Sink programs are found beside the library, wherever the library is, then in
# idempotency.sink_directory; their libraries are found beside them.  A relay whose
# program is not installed says what to install, and goes on when it is there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;
use Test::More;

use lib "$FindBin::RealBin/../perl";
use IdemRelay;
use IdemTest;

my $stage = $ENV{IDEM_STAGE_LIBDIR} =~ s/\Q$ENV{IDEM_PKGLIBDIR}\E$//r;
my $volume = PostgreSQL::Test::Utils::tempdir() . '/volume';
my $lib = "$volume$ENV{IDEM_PKGLIBDIR}";
my $sinks = "$lib/idempotency-sinks";
my $other = IdemRelay::sink_directory();

sub install
{
	my ($from, $to) = @_;

	copy($from, $to) or die "could not copy $from to $to: $!";
	chmod 0755, $to;
	return;
}

# A volume with the extension, one program, and no other.
make_path($sinks, "$volume$ENV{IDEM_SHAREDIR}/extension");
install($_, "$volume$ENV{IDEM_SHAREDIR}/extension/" . basename($_))
  foreach glob("$stage$ENV{IDEM_SHAREDIR}/extension/idempotency*");
install("$ENV{IDEM_STAGE_LIBDIR}/idempotency.so", "$lib/idempotency.so");
install("$ENV{IDEM_STAGE_LIBDIR}/idempotency-sinks/idempotency-sink-null", "$sinks/idempotency-sink-null");

# What is beside the library hides a program of that name elsewhere; this one would fail.
install("$other/idempotency-sink-pytest", "$other/idempotency-sink-null");
unlink "$other/idempotency-sink-postgres" or die $!;

my $conf = IdemTest::extension_conf('IDEM_EXTENSION_CONF') =~ s/\Q$stage\E/$volume/gr;
$conf =~ s/^idempotency\.sink_directory.*\n//m;
append_to_file("$volume/extension.conf", "${conf}idempotency.sink_directory = '$other'\n");

local $ENV{IDEM_EXTENSION_CONF} = "$volume/extension.conf";
my $node = IdemTest::cluster('main');
my $file = "$volume/received";

# The program of a relay, as it was started: the kernel's word, or that of a script's interpreter.
sub started
{
	my ($relay) = @_;
	my $pid;

	IdemRelay::wait_state($node, $relay, 'streaming');
	$pid = IdemRelay::stat($node, $relay, 'sink_pid');
	return readlink("/proc/$pid/exe") =~ /python/ ? (split /\0/, slurp_file("/proc/$pid/cmdline"))[-1] :
	  readlink("/proc/$pid/exe");
}

$node->safe_psql('postgres', <<'END');
CREATE SERVER n FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('n', 'n');
END
is(started('n'), "$sinks/idempotency-sink-null", 'a program beside the library comes first');
like(slurp_file('/proc/' . IdemRelay::stat($node, 'n', 'pid') . '/maps'), qr{\Q$lib\E/idempotency\.so}, 'the library is the one of the volume');
IdemRelay::pytest_server($node, 'p', $file);
$node->safe_psql('postgres', q{SELECT idempotency.relay_create('p', 'p')});
is(started('p'), "$other/idempotency-sink-pytest", 'one that is not there comes from idempotency.sink_directory');

# Not installed: wrapper and options are there, and no event is touched.
my $log_at = -s $node->logfile;
$node->safe_psql('postgres', <<'END');
CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host '/nowhere', dbname 'd', table 'a.b');
SELECT idempotency.relay_create('pg', 'pg', min_backoff => '10 ms', max_backoff => '100 ms');
CREATE SERVER x FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'x');
SELECT idempotency.relay_create('x', 'x', min_backoff => '10 ms', max_backoff => '100 ms');
END
IdemRelay::wait_state($node, 'pg', 'misconfigured');
IdemRelay::wait_state($node, 'x', 'misconfigured');
IdemTest::wait_for($node, q{SELECT waiting_for = 'backoff' FROM idempotency.stat_relay WHERE relay = 'pg'});
my $message = 'sink program "idempotency-sink-postgres" is not installed (package idempotency-sink-postgres, '
  . "or \"make install-sink-postgres\"); looked in \"$sinks\" and in idempotency.sink_directory, \"$other\"";
is(IdemRelay::stat($node, 'pg', 'last_error'), substr($message, 0, 255), 'the error says what to install, and where it was looked for');
$message = "sink program \"idempotency-sink-x\" is not installed; looked in \"$sinks\" and in idempotency.sink_directory, \"$other\"";
is(IdemRelay::stat($node, 'x', 'last_error'), substr($message, 0, 255), 'of a program that is none of ours it names no package');
IdemRelay::enqueue($node, 'k', 'T');
IdemRelay::wait_received($file, 1);
is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked'), '0', 'no event is refused meanwhile');

# A file that is no program is passed over; then it goes on by itself.
append_to_file("$sinks/idempotency-sink-x", "no program\n");
install("$ENV{IDEM_STAGE_LIBDIR}/idempotency-sinks/idempotency-sink-postgres", "$sinks/idempotency-sink-postgres");
IdemRelay::wait_state($node, 'pg', 'outage');
like(IdemRelay::stat($node, 'pg', 'last_error'), qr/could not connect/, 'the program that was installed is started');
IdemRelay::wait_state($node, 'x', 'misconfigured');
install("$other/idempotency-sink-pytest", "$sinks/idempotency-sink-x");
$node->safe_psql('postgres', "ALTER SERVER x OPTIONS (ADD file '$volume/x')");
is(started('x'), "$sinks/idempotency-sink-x", 'nor is the setting needed');

my $log = slurp_file($node->logfile, $log_at);
is(scalar(() = $log =~ /relay "pg" is misconfigured/g), 1, 'what is missing is logged once');

# Libraries that are shipped beside library or program are found, also those that these need.
sub libraries
{
	my ($program) = @_;
	my %found = `LD_TRACE_LOADED_OBJECTS=1 $program` =~ /^\s*(\S+) => (\S+)/mg;

	delete @found{ grep { /^libc\.so/ } keys %found };
	return %found;
}
my $program = "$sinks/idempotency-sink-postgres";
my %system = libraries($program);
ok($system{'libpq.so.5'}, 'the program needs a library');
cmp_ok(scalar keys %system, '>', 1, 'which needs others');
foreach my $where ($lib, $sinks)
{
	my %shipped;

	install($system{$_}, "$where/$_") foreach keys %system;
	%shipped = libraries($program);
	is_deeply([ grep { dirname($shipped{$_}) !~ m{^(?:\Q$where\E|\Q$sinks\E/\.\.)$} } sort keys %system ], [], "all come from $where");
	unlink "$where/$_" foreach keys %system;
}

$node->stop;
done_testing();
