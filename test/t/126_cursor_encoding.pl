
# Copyright (c) 2026, the idempotency developers

# Names of consumers, topics and producers in databases of several encodings, as drivers send them: as text and
# in binary, in the client's encoding.  What is no text of the database is refused, with nothing half-done, and
# each name that is text has a cursor of its own.

use strict;
use warnings FATAL => 'all';

use IO::Socket::UNIX;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my ($TEXT, $BINARY) = (0, 1);

foreach my $db ([ 'unicode', 'UTF8' ], [ 'latin', 'LATIN1' ], [ 'win', 'WIN1252' ], [ 'bytes', 'SQL_ASCII' ])
{
	$node->safe_psql('postgres', "CREATE DATABASE $db->[0] ENCODING $db->[1] LOCALE 'C' TEMPLATE template0");
	IdemTest::create_extension($node, $db->[0]);
}

# A session that speaks the protocol itself: psql and its library send no parameter in binary, nor one with a zero byte.
sub session
{
	my ($db, $encoding) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "socket: $!";
	my $startup = pack('N', 196608) . "user\0$user\0database\0$db\0client_encoding\0$encoding\0\0";

	binmode $socket;
	$socket->syswrite(pack('N', 4 + length $startup) . $startup);
	answer($socket);
	return $socket;
}

sub take
{
	my ($socket, $n) = @_;
	my $data = '';

	while (length $data < $n)
	{
		$socket->sysread($data, $n - length $data, length $data) or die 'the server closed the connection';
	}
	return $data;
}

# What comes until the server is ready: the rows, each its only value; or the SQLSTATE, the message and the context.
sub answer
{
	my ($socket) = @_;
	my @found;

	while (1)
	{
		my ($type, $length) = unpack 'a N', take($socket, 5);
		my $body = take($socket, $length - 4);

		return join ' ', @found if $type eq 'Z';
		if ($type eq 'E')
		{
			my %field = map { substr($_, 0, 1) => substr($_, 1) } grep { $_ ne '' } split /\0/, $body;
			push @found, join ': ', grep { defined } @field{qw(C M D W)};
		}
		push @found, substr($body, 6) if $type eq 'D';
	}
	return;
}

sub message
{
	my ($type, $body) = @_;

	return $type . pack('N', 4 + length $body) . $body;
}

# Send a statement with parameters in that format.
sub ask
{
	my ($socket, $format, $statement, @values) = @_;

	$socket->syswrite(message('P', "\0$statement\0" . pack('n', 0))
		  . message('B', "\0\0" . pack('n n n', 1, $format, scalar @values)
			  . join('', map { pack('N', length) . $_ } @values) . pack('n', 0))
		  . message('E', "\0" . pack('N', 0))
		  . message('S', ''));
	return answer($socket);
}

# What the database has: cursors, producers, and locks of sessions; workers have locks of their own
sub state_of
{
	my ($db) = @_;

	return $node->safe_psql($db, q{SELECT (SELECT count(*) FROM idempotency.cursors), (SELECT count(*) FROM idempotency.producers),
		(SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND backend_type = 'client backend')});
}

# Each function that is given a name, with a valid name in the others' places; the argument that is tried is $1
my $id = '(SELECT producer_id FROM idempotency.register_producer(\'till\'))';
my @calls = (
	[ 'consumer', q{SELECT idempotency.resume_offset($1, 't', 0, 1)} ],
	[ 'topic', q{SELECT idempotency.resume_offset('c', $1, 0, 1)} ],
	[ 'consumer', q{SELECT idempotency.claim_offset($1, 't', 0, 5, 9, 1)} ],
	[ 'topic', q{SELECT idempotency.claim_offset('c', $1, 0, 5, 9, 1)} ],
	[ 'consumer', q{SELECT idempotency.reset_offset($1, 't', 0, 5)} ],
	[ 'topic', q{SELECT idempotency.reset_offset('c', $1, 0, 5)} ],
	[ 'producer', q{SELECT idempotency.register_producer($1)} ],
	[ 'producer', q{SELECT idempotency.producer_drop($1)} ],
	[ 'topic', "SELECT idempotency.claim_sequence($id, 0, 0, \$1)" ],
	[ 'topic', "SELECT idempotency.last_sequence($id, \$1)" ]);

# Send a name to each function; those whose answer is not like that, as a text that shows them.
sub wrong_answers
{
	my ($socket, $format, $name, $like) = @_;
	my @wrong;

	foreach my $call (@calls)
	{
		my ($argument, $statement) = @$call;
		my $want = ref $like eq 'CODE' ? $like->($argument) : $like;
		my $got = ask($socket, $format, $statement, $name);
		push @wrong, "$statement: $got" if $got !~ $want;
	}
	return join "\n", @wrong;
}

# Bytes that are no UTF-8: alone, a character that is cut off, one that is over-long, a surrogate, beyond Unicode, a zero byte
my %invalid = (
	'a byte that never is' => "\xff",
	'a character that is cut off' => "ord\xc3",
	'one of three bytes that is cut off' => "\xe2\x82",
	'an over-long form' => "\xc0\x80",
	'a surrogate' => "\xed\xa0\x80",
	'a character beyond Unicode' => "\xf5\x80\x80\x80",
	'a zero byte' => "a\0b",
	'255 bytes, of which the last one begins a character' => 'x' x 254 . "\xc3");
my %session = ((map { $_ => session($_, 'UTF8') } qw(unicode latin win)), bytes => session('bytes', 'SQL_ASCII'));
my $before = state_of('unicode');

foreach my $what (sort keys %invalid)
{
	foreach my $format ($TEXT, $BINARY)
	{
		is(wrong_answers($session{unicode}, $format, $invalid{$what}, qr/^22021: .*parameter \$1$/s),
			'', "$what is refused, " . ($format == $TEXT ? 'as text' : 'in binary'));
	}
}
is(state_of('unicode'), $before, 'nothing is half-done');

# The same of a client that says that it has no encoding
my $raw = session('unicode', 'SQL_ASCII');
foreach my $call (
	q{SELECT idempotency.claim_event($1)}, q{SELECT idempotency.claim_events(ARRAY[$1])}, q{SELECT idempotency.lease_event('e', holder => $1)},
	q{SELECT idempotency.claim_request($1, '\x00', 's')}, q{SELECT idempotency.outbox_enqueue($1, 'i', 't', '{}'::jsonb)},
	q{SELECT idempotency.outbox_enqueue_many('a', ARRAY['i'], ARRAY[$1], ARRAY['{}'::jsonb])})
{
	like(ask($raw, $BINARY, $call, "ord\xc3"), qr/^22021: /, "nor here: $call");
}
is(wrong_answers($raw, $BINARY, "\xc3", qr/^22021: /), '', 'a client without an encoding is no way around');

# Names that are too long, whatever the length of their characters
foreach my $name ('x' x 256, "\xc3\xa9" x 128, 'x' . "\xe2\x82\xac" x 85, "\xf0\x9f\x98\x80" x 64)
{
	is( wrong_answers($session{unicode}, $BINARY, $name,
			sub { qr/^22023: argument "$_[0]" is too long: It has 256 bytes; at most 255 are allowed\./ }),
		'', 'a name of 256 bytes is refused by its argument: ' . substr($name, 0, 4));
}
is(state_of('unicode'), $before, 'nothing is half-done');

# What a character takes in the database counts, not what it takes in the client
is(ask($session{latin}, $BINARY, q{SELECT idempotency.claim_offset($1, $2, 0, 5, 9)}, "\xc3\xa9" x 255, "\xc3\xbc" x 255),
	'(claimed,5)', 'in LATIN1 255 such characters are a name');
like(ask($session{latin}, $BINARY, q{SELECT idempotency.claim_offset($1, 't', 0, 5, 9)}, "\xc3\xa9" x 256),
	qr/^22023: argument "consumer" is too long: It has 256 bytes/, 'and no more');
like(ask($session{latin}, $BINARY, q{SELECT idempotency.register_producer($1)}, "\xe2\x82\xac"),
	qr/^22P05: /, 'a character that LATIN1 has not');

# A name is the same in each encoding: of the client, and of the database
is(ask($session{unicode}, $BINARY, q{SELECT idempotency.claim_offset($1, $2, 0, 5, 9)}, "\xc3\xa9", "\xc3\xbc"), '(claimed,5)', 'a range');
is(ask(session('unicode', 'LATIN1'), $_, q{SELECT idempotency.claim_offset($1, $2, 0, 5, 9)}, "\xe9", "\xfc"),
	'(duplicate,)', 'is a duplicate to a client of LATIN1') foreach $TEXT, $BINARY;
my $digests = q{SELECT DISTINCT digest FROM idempotency_data.cursor_log_0
	WHERE owner = convert_from('\xc3a9', 'UTF8') AND topic = convert_from('\xc3bc', 'UTF8')};
my $digest = $node->safe_psql('unicode', $digests);
like($digest, qr/^[0-9a-f-]{36}$/, 'one key');
foreach my $db (qw(latin win bytes))
{
	is(ask($session{$db}, $BINARY, q{SELECT idempotency.claim_offset($1, $2, 0, 5, 9)}, "\xc3\xa9", "\xc3\xbc"), '(claimed,5)', "a range in $db");
	is($node->safe_psql($db, $digests), $digest, 'whose key is that of UTF-8');
}

# So it is found where a dump is restored into another encoding
my $dump = $node->basedir . '/dump.sql';
command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', $dump, 'latin' ], 'dump');
$node->safe_psql('postgres', q{CREATE DATABASE restored ENCODING UTF8 LOCALE 'C' TEMPLATE template0});
command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-d', 'restored', '-f', $dump ], 'restore');
is(ask(session('restored', 'UTF8'), $BINARY, q{SELECT idempotency.resume_offset($1, $2, 0)}, "\xc3\xa9", "\xc3\xbc"),
	'(claimed,9)', 'a reader resumes in UTF-8 where it was in LATIN1');

# A byte that is text of the database, and that UTF-8 has not: no key can be made of it.  The context names the argument.
my $win = session('win', 'WIN1252');
$before = state_of('win');
is(wrong_answers($win, $_, "\x81", sub { qr/^22P05: .*argument "$_[0]"/s }), '', 'what UTF-8 has not is refused') foreach $TEXT, $BINARY;
is(state_of('win'), $before, 'nothing is half-done');
is(ask($win, $TEXT, 'BEGIN'), '', 'a transaction');
is(ask($win, $TEXT, q{SELECT idempotency.claim_offset('kept', 't', 0, 5, 9)}), '(claimed,5)', 'claims a range');
is(ask($win, $TEXT, 'SAVEPOINT s'), '', 'and sets a savepoint');
like(ask($win, $BINARY, q{SELECT idempotency.claim_offset('kept', $1, 0, 5, 9)}, "\x81"), qr/^22P05: /, 'what UTF-8 has not');
is(ask($win, $TEXT, 'ROLLBACK TO s'), '', 'is rolled back to it');
is(ask($win, $TEXT, q{SELECT idempotency.claim_offset('kept', 't', 0, 9, 12)}), '(claimed,9)', 'and the claim goes on');
is(ask($win, $TEXT, 'COMMIT'), '', 'and commits');
is($node->safe_psql('win', q{SELECT topic, next_offset FROM idempotency.cursors WHERE consumer = 'kept'}), 't|12', 'alone');

# Without an encoding any bytes are a name, but for the zero byte; none is cut off, and none is like another
my $bytes = $session{bytes};
my @odd = ("\xff", "\xc3", "\xc3\xa9", "\xe9", "ord\xc3", 'x' x 254 . "\xc3", 'x' x 254, "\xc0\x80");
foreach my $name (@odd)
{
	is(ask($bytes, $BINARY, q{SELECT idempotency.claim_offset($1, $1, 0, 5, 9)}, $name), '(claimed,5)', 'a consumer of any bytes');
	is(ask($bytes, $TEXT, q{SELECT idempotency.claim_offset($1, $1, 0, 5, 9)}, $name), '(duplicate,)', 'is known again');
	is(ask($bytes, $BINARY, q{SELECT epoch FROM idempotency.register_producer($1)}, $name), '0', 'a producer of any bytes');
	is(ask($bytes, $BINARY, q{SELECT epoch FROM idempotency.register_producer($1)}, $name), '1', 'is known again');
	is( ask($bytes, $BINARY, q{SELECT count(*) FROM idempotency.producers AS p, idempotency.claim_sequence(p.producer_id, p.epoch::int, 0, p.producer)
			WHERE p.producer = $1 AND result = 'accepted'}, $name),
		'1', 'and writes a topic of that name');
}
is($node->safe_psql('bytes', 'SELECT count(*), count(DISTINCT producer_id) FROM idempotency.producers'), '8|8', 'each is one of its own');
like(ask($bytes, $_, q{SELECT idempotency.claim_offset($1, 't', 0, 5, 9)}, "a\0b"), qr/^22021: /, 'a zero byte is refused') foreach $TEXT, $BINARY;
like(ask($bytes, $BINARY, q{SELECT idempotency.claim_offset('c', $1, 0, 5, 9)}, "\xc3\xa9" x 128),
	qr/^22023: argument "topic" is too long: It has 256 bytes/, 'bytes are counted');

# Characters that cannot be seen make other names: nothing is folded, trimmed or normalised
my @unseen = ('orders', ' orders', 'orders ', "orders\t", "orders\n", "orders\r", "orders\x01", "orders\x7f", "orders\xc2\x80",
	"orders\xe2\x80\x8b", "or\xe2\x80\x8bders", "orders\xe2\x80\x8d", "\xef\xbb\xbforders", "orders\xc2\xad", "\xe2\x80\xaeorders",
	"orders\xef\xb8\x8f", "orders\xc2\xa0", "ord\xc3\xa9rs", "orde\xcc\x81rs", 'ORDERS', "orders\xf3\xa0\x80\xa0");
my $n = 0;
foreach my $name (@unseen)
{
	$n += 10;
	is(ask($session{unicode}, $n % 20 ? $TEXT : $BINARY, q{SELECT idempotency.claim_offset('unseen', $1, 0, $2::text::bigint)}, $name, $n),
		"(claimed,$n)", 'a topic of its own: ' . unpack('H*', $name));
	like(ask($session{unicode}, $BINARY, q{SELECT idempotency.claim_sequence(producer_id, 0, 0, $1) FROM idempotency.register_producer($1)}, $name),
		qr/^\(accepted,0,1\)$/, 'a producer of its own');
}
$n = 0;
foreach my $name (@unseen)
{
	$n += 10;
	is(ask($session{unicode}, $BINARY, q{SELECT idempotency.resume_offset('unseen', $1, 0)}, $name), '(claimed,' . ($n + 1) . ')', 'resumed where it was');
	is(ask($session{unicode}, $BINARY, q{SELECT encode(convert_to(topic, 'UTF8'), 'hex') FROM idempotency.cursors WHERE consumer = 'unseen' AND topic = $1}, $name),
		unpack('H*', $name), 'shown byte by byte');
}
is($node->safe_psql('unicode', q{SELECT count(*), count(DISTINCT topic) FROM idempotency.cursors WHERE consumer = 'unseen'}),
	@unseen . '|' . @unseen, 'and no two are one');

$node->stop;
done_testing();
