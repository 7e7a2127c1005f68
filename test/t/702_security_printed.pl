
# Copyright (c) 2026, the idempotency developers

# What a sink program prints, or says in LOG frames, reaches the server log as lines
# of its relay: clean, cut, and so many at a time.  No line looks like one of the server's own, no flood
# fills the disk, and the relay works meanwhile.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $file = "$dir/p.log";

append_to_file("$dir/idempotency-sink-loud", "#!/bin/sh\n" . <<'END');
echo '2026-11-22 12:00:00.000 UTC [1] FATAL:  forged on 1'
echo '2026-11-22 12:00:00.000 UTC [1] FATAL:  forged on 2' >&2
printf 'red \033[31m \303\266 \001 end\r\n\n\n'
head -c 100000 /dev/zero | tr '\0' 'l'
printf '\nlast clean line\n'
head -c 5000000 /dev/zero | tr '\0' 'f' | fold -w 99
echo
exec "${0%loud}pytest"
END
append_to_file("$dir/idempotency-sink-dying", "#!/bin/sh\necho 'out of luck' >&2\nexit 3\n");
chmod 0755, "$dir/idempotency-sink-loud", "$dir/idempotency-sink-dying";

my $node = IdemTest::cluster('printed', conf => "idempotency.sink_directory = '$dir'\n");
$node->safe_psql('postgres', <<"END");
CREATE SERVER loud FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'loud', file '$file');
CREATE SERVER dying FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'dying');
SELECT idempotency.relay_create('a "relay"', 'loud'), idempotency.relay_create('dies', 'dying');
END
IdemRelay::enqueue($node, 'a', 'T', 3);
IdemRelay::wait_received($file, 3);

# All of its lines, as logged or as counted.
my $printed = 4 + 1 + int((5_000_000 + 98) / 99);
my $mark = qr/LOG:  relay "a "relay"": sink program prints: /;
sub accounted
{
	my $log = slurp_file($node->logfile);
	my $sum = scalar(() = $log =~ /$mark/g);

	$sum += $1 while $log =~ /LOG:  relay "a "relay"": (\d+) lines of its sink program were not logged/g;
	return $sum;
}
IdemRelay::wait_until('every line is logged or counted', sub { accounted() >= $printed });
is(accounted(), $printed, 'each once');

my $log = slurp_file($node->logfile);
like($log, qr/$mark\S+ \S+ UTC \[1\] FATAL:  forged on $_$/m, "the line on descriptor $_ is the relay's") foreach 1, 2;
unlike($log, qr/^2026-11-22 12:00:00\.000 UTC/m, 'no line looks like the server\'s own');
like($log, qr/${mark}red \?\[31m \?\? \? end$/m, 'without control characters');
like($log, qr/${mark}l{511}$/m, 'a long line is cut');
like($log, qr/${mark}last clean line$/m, 'what follows a long line is a line');
cmp_ok(scalar(() = $log =~ /$mark/g), '<', 1000, 'a flood is not logged');

# Frames for the log, all at once.
IdemRelay::pytest_server($node, 'chats', "$dir/chats.log", chat_type => 'Chat', chat => 20_000);
$node->safe_psql('postgres',
	q{SELECT idempotency.relay_create('chats', 'chats', start_at => 'latest')});
IdemRelay::wait_state($node, 'chats', 'streaming');
IdemRelay::enqueue($node, 'a', 'Chat', 1);
IdemRelay::wait_received("$dir/chats.log", 1);
sub chatted
{
	my $said = shift;
	my $log = slurp_file($node->logfile);

	$said += $1 while $log =~ /LOG:  relay "chats": (\d+) lines of its sink program were not logged/g;
	return $said + (() = $log =~ /LOG:  relay "chats": sink says: chat \d+$/mg);
}
IdemRelay::wait_until('every frame is logged or counted', sub { chatted(0) >= 20_000 });
is(chatted(0), 20_000, 'each frame once');
cmp_ok(scalar(() = slurp_file($node->logfile) =~ /relay "chats": sink says: /g), '<', 1000, 'a flood of frames is not logged');

IdemRelay::wait_until('last words are logged',
	sub { slurp_file($node->logfile) =~ /LOG:  relay "dies": sink program prints: out of luck$/m });
IdemRelay::wait_state($node, 'dies', 'outage');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('dies')});
IdemRelay::worker_sleeps($node, 'a "relay"');

$node->stop;
done_testing();
