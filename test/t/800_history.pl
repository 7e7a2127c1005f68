
# Copyright (c) 2026, the idempotency developers

# A short mix of faults under a workload, judged by the history checker, which
# is tested itself first; make test-faults has the long one (test/crash).
# SEED=n repeats a schedule.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $crash = dirname(abs_path(__FILE__)) . '/../crash';
my $seed = $ENV{SEED} // int(rand(2**31));
my $log = $PostgreSQL::Test::Utils::log_path;

# Sockets have short names only.
my $work = PostgreSQL::Test::Utils::tempdir_short() . '/round';

# Said first, so that it is known of a run that was cut off, too.
note("SEED=$seed");

# Run a program of the checker; each line it judges by is a test.
sub judged
{
	my ($program, @arguments) = @_;
	my $out = '';

	IPC::Run::run([ '/usr/bin/python3', '-B', "$crash/$program", @arguments ], '<', \undef, '>&', \$out);
	foreach my $line (split /\n/, $out)
	{
		if ($line =~ /^(ok|NOT OK) (.*)/)
		{
			my ($verdict, $text) = ($1, $2);

			# Bounds and figures differ from run to run.
			ok($verdict eq 'ok', $text =~ s/#//gr);
		}
		else
		{
			note($line);
		}
	}
	like($out, qr/^\d+ passed, 0 failed$/m, "$program: nothing failed");
	return;
}

judged('rules_test.py');
judged('history.py', 'short', $seed, $work, $ENV{IDEM_BINDIR}, $ENV{IDEM_EXTENSION_CONF},
	IdemRelay::sink_directory(), "$work.json");

# What is needed to read a failure.
system("cp -R $work/ledger $work/schedule $work/*.log $work/prog.arrivals $log/") unless Test::More->builder->is_passing;
done_testing();
