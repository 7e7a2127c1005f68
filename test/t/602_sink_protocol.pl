
# Copyright (c) 2026, the idempotency developers

# What doc/sink-protocol.md says of bytes is what src/sink/protocol/protocol.h
# says: frames and their fields, flags, enumerations, limits.  Its examples are
# golden frames, and its table of checks is what the conformance test does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $doc = slurp_file("$top/doc/sink-protocol.md");
my $header = slurp_file("$top/src/sink/protocol/protocol.h");

# Name to value of an enumeration in the header, names as the document has them.
sub enumeration
{
	my ($type, $prefix) = @_;
	my ($body) = $header =~ /typedef enum $type\n\{(.*?)\n\}/s;

	$body =~ s{/\*.*?\*/}{}gs;
	return { map { lc } $body =~ /IDEM_PROTO_(?:$prefix)?(\w+) = ([^,\s]+)/g };
}

# Name to value of the defines between two places of the header.
sub defines
{
	my ($from, $to) = @_;
	my ($text) = $header =~ /\Q$from\E(.*?)\Q$to\E/s;

	return { map { /^#define IDEM_PROTO_(\w+)\s+(\S+)/ ? ($1 => $2) : () } split /\n/, $text };
}

# Name to value of the first table of the document whose head has these two columns.
sub table
{
	my ($after, $name, $value) = @_;
	my ($rows) = $doc =~ /\Q$after\E.*?^\| $name \| $value \|[^\n]*\n\|-[^\n]*\n((?:\|[^\n]*\n)+)/sm;

	return { $rows =~ /^\| `(\w+)` \| (\S+) \|/mg };
}

is_deeply(table('### Enumerations', 'Outcome', 'Value'), enumeration('IdemProtoOutcome', ''), 'outcomes');
is_deeply(table('### Enumerations', 'Kind', 'Value'), enumeration('IdemProtoVerdictKind', 'VERDICT_'), 'kinds of a verdict');
is_deeply(table('### Enumerations', 'Level', 'Value'), enumeration('IdemProtoLogLevel', 'LOG_'), 'levels');

# Each set of flags ends with the mask of all, which is no flag.
foreach my $set ([ 'HELLO', '/* HELLO flags */', 'HELLO_FLAGS' ], [ 'EVENT', '/* EVENT flags */', 'EVENT_FLAGS' ],
	[ 'READY, capabilities', '/* READY capabilities */', 'CAPABILITIES' ])
{
	my ($title, $from, $mask) = @$set;
	my $flags = defines($from, "#define IDEM_PROTO_$mask");
	my $all = 0;

	is_deeply(table("\n$title:\n", 'Flag', 'Bit'), $flags, "flags of $title");
	$all |= hex $_ foreach values %$flags;
	like($header, qr/#define IDEM_PROTO_$mask\s+@{[ sprintf('0x%02x', $all) ]}\n/, "and the mask is made of them");
}

my $limits = defines('#include <stdint.h>', 'typedef enum');
delete @$limits{qw(MAX_FRAME ID_BYTES CHUNK_HEAD)};
is_deeply(table('## Bytes', 'Limit', 'Value'), $limits, 'limits');

# Frames: the header has the letter in the enumeration and the fields in the comment of
# the struct, "PING, PONG" in one.
my %letters = $header =~ /^\tIDEM_PROTO_(\w+) = '(\w)'/mg;
my %fields = (BYE => '');
while ($header =~ m{/\*\s+(?:\*\s+)?((?:[A-Z]+, )*[A-Z]+): (u(?:8|16|32|64) .*?)[.;]\s}gs)
{
	my ($names, $layout) = ($1, $2);

	$layout =~ s/\s*\n \*\s*/ /g;
	$fields{$_} = $layout foreach split /, /, $names;
}
my %documented = $doc =~ /^    \w ([A-Z]+)[ ]*(.*)$/mg;
is_deeply(\%documented, \%fields, 'fields of frames');
is_deeply({ reverse $doc =~ /^    (\w) ([A-Z]+)(?: |$)/mg }, \%letters, 'letters of frames');

# Each field is explained.
foreach my $field (map { /(?:[ui]\d+|str\d+|rest:) (\w+)/g, /(\w+)\[\d+\]/g } values %fields)
{
	next if $field =~ /^(?:magic|version|flags|capabilities|n|outcome|kind|level)$/;
	ok($doc =~ /^\|[^|\n]*`$field`[^|\n]*\|/m, "field $field is explained");
}

foreach my $example ($doc =~ /^    ([\w-]+): 00 /mg)
{
	my ($bytes) = $doc =~ /^    \Q$example\E: (.*)/m;

	is($bytes, join(' ', split ' ', slurp_file("$top/test/sink/golden/$example.hex")), "example $example");
}

my ($checks) = $doc =~ /^\| Check \| Rule \|\n\|-[^\n]*\n((?:\|[^\n]*\n)+)/m;
my $conformance = slurp_file("$top/test/sink/conformance.py");
is_deeply([ sort $checks =~ /^\| `(\w+)`/mg ], [ sort $conformance =~ /^def check_(\w+)/mg ], 'checks of the conformance test');

done_testing();
