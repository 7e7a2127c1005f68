
# Copyright (c) 2026, the idempotency developers

# The statements of doc/reference/roles.md that take rights back.  After the REVOKEs a role has
# no more than before it was granted its kinds, but USAGE on the types, and nothing that it
# called or read works any longer, in its open sessions neither.  The statements that drop a role
# hand its relays over.  Other roles keep their rights.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($part) = slurp_file("$FindBin::RealBin/../../doc/reference/roles.md") =~ /^\*\*Take rights back\*\*(.*?)^## /ms;
my ($dropped, $revoked) = map { s/^    //mgr } $part =~ /((?:^    [^\n]+\n)+)/mg;
my @kinds = qw(producer consumer operator monitor backup);
my $node = IdemTest::cluster('main');

sub sql
{
	my ($query, %opt) = @_;

	return $node->safe_psql($opt{in} // 'postgres', $query, $opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());
}

# The error of a statement.
sub refusal
{
	my ($query, %opt) = @_;
	my ($rc, undef, $err) = $node->psql($opt{in} // 'postgres', $query, $opt{as} ? (extra_params => [ '-U', $opt{as} ]) : ());

	return $rc == 0 ? 'not refused' : $err;
}

# What roles but the owner may do with the objects of both schemas and the schemas themselves, a line each.
sub rights
{
	my ($in) = @_;

	return sql(<<'END', in => $in);
SELECT string_agg(concat_ws(' ', grantee::regrole, kind, name, privilege_type, is_grantable), E'\n' ORDER BY grantee::regrole::text, kind, name, privilege_type)
  FROM (SELECT 'relation', oid::regclass::text, relacl, CASE relkind WHEN 'S' THEN 's' ELSE 'r' END, relowner FROM pg_class WHERE relnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	UNION ALL SELECT 'column', attrelid::regclass || '.' || attname, attacl, 'c', relowner FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
		 WHERE relnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	UNION ALL SELECT 'function', oid::regprocedure::text, proacl, 'f', proowner FROM pg_proc WHERE pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	UNION ALL SELECT 'type', oid::regtype::text, typacl, 'T', typowner FROM pg_type WHERE typnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	UNION ALL SELECT 'schema', nspname, nspacl, 'n', nspowner FROM pg_namespace WHERE nspname IN ('idempotency', 'idempotency_data')
	UNION ALL SELECT 'wrapper', fdwname, fdwacl, 'F', fdwowner FROM pg_foreign_data_wrapper) AS o (kind, name, acl, class, owner),
	aclexplode(COALESCE(acl, acldefault(class::"char", owner)))
 WHERE grantee <> owner
END
}

# Of these, all but what a role may do with types.
sub but_types
{
	my ($role, $rights) = @_;

	return join "\n", grep { !/^\Q$role\E type \S+ USAGE f$/ } split /\n/, $rights;
}

# Each function of the interface and each relation, called or read by the role: the errors' first lines.
sub attempts
{
	my ($role) = @_;
	my @statements = split /\n/, sql(<<'END');
SELECT format('%s %s(%s)', CASE prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.oid::regproc, (SELECT string_agg('NULL::' || format_type(t, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n)))
  FROM pg_proc p WHERE p.pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace) AND p.prorettype <> 'trigger'::regtype
UNION ALL
SELECT format('SELECT FROM %s', c.oid::regclass) FROM pg_class c
 WHERE c.relnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace) AND c.relkind IN ('r', 'v', 'S', 'f')
END

	return map { [ $_, refusal($_, as => $role) =~ s/^psql:[^ ]* //r =~ s/\n.*//sr ] } @statements;
}

sql(q{CREATE ROLE shop_app LOGIN; CREATE ROLE shop_admin; CREATE ROLE other LOGIN; CREATE DATABASE second; CREATE TABLE mine (id int)});
IdemTest::create_extension($node, 'second');
foreach my $database ('postgres', 'second')
{
	sql("SELECT idempotency.grant_role(kind, 'other') FROM unnest('{@{[ join ',', @kinds ]}}'::text[]) kind", in => $database);
}
my $before = rights();
cmp_ok(scalar(() = $revoked =~ /^REVOKE /mg), '>', 3, 'the page has REVOKEs');

# Each kind, and all of them
foreach my $kinds ((map { [$_] } @kinds), \@kinds)
{
	sql("SELECT idempotency.grant_role('$_', 'shop_app')") foreach @$kinds;
	isnt(but_types('shop_app', rights()), $before, "@$kinds: has rights");
	sql($revoked);
	is(but_types('shop_app', rights()), $before, "@$kinds: has none but those on types");
}
like(rights(), qr/^shop_app type /m, 'on types it has');

# What it could do it cannot do, whatever it names: in an open session as in a new one.
sql("SELECT idempotency.grant_role('$_', 'shop_app')") foreach @kinds;
my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'shop_app' ]);
is($session->query(q{PREPARE c AS SELECT idempotency.claim_event('e'); BEGIN; EXECUTE c; SELECT idempotency.complete_event('e'); COMMIT; SELECT count(*) FROM idempotency.stat_relay}),
	"claimed\n\n0", 'a session of the role');
sql($revoked);
$session->query('EXECUTE c');
like($session->{stderr}, qr/permission denied for/, 'it cannot claim any longer');
$session->{stderr} = '';
$session->query('SELECT count(*) FROM idempotency.stat_relay');
like($session->{stderr}, qr/permission denied for/, 'it cannot read any longer');
$session->quit;
my @allowed = grep { $_->[1] !~ /ERROR: +permission denied for schema idempotency/ } attempts('shop_app');
is(scalar(@allowed), 0, 'no function and no relation can be named') or diag(explain(\@allowed));

# Whoever gives it the schemas again gives it no more than these.
sql('GRANT USAGE ON SCHEMA idempotency, idempotency_data TO shop_app');
@allowed = grep { $_->[1] !~ /ERROR: +permission denied for (function|procedure|view|table|sequence|foreign table) / } attempts('shop_app');
is(scalar(@allowed), 0, 'nor called or read by who can name it') or diag(explain(\@allowed));
sql('REVOKE USAGE ON SCHEMA idempotency, idempotency_data FROM shop_app');
is(sql('SELECT count(*) FROM idempotency.stat_relay', as => 'other'), '0', 'another role goes on');

# A role that keeps a kind
sql('CREATE ROLE fresh');
sql("SELECT idempotency.grant_role('producer', 'fresh')");
sql("BEGIN; $revoked SELECT idempotency.grant_role('producer', 'shop_app'); COMMIT");
my ($kept, $fresh) = map { my $role = $_; join "\n", map { s/^$role //r } grep { /^$role / } split /\n/, rights() } 'shop_app', 'fresh';
is($kept, $fresh, 'has what a role has that never had another');

# The role is dropped, when its relay and its table have another owner, and it has rights nowhere.
sql(<<'END');
CREATE FUNCTION handle() RETURNS void LANGUAGE sql AS '';
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_function TO shop_app;
ALTER TABLE mine OWNER TO shop_app;
GRANT CREATE ON SCHEMA public TO shop_app, shop_admin;
END
foreach my $database ('postgres', 'second')
{
	sql("SELECT idempotency.grant_role('$_', 'shop_app')", in => $database) foreach @kinds;
}
sql(q{CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle'); SELECT idempotency.relay_create('r', 'fn')}, as => 'shop_app');
my ($drop_role) = $dropped =~ /^(DROP ROLE shop_app;)\n\z/m or die 'DROP ROLE is not the last line';
my $in_database = $dropped =~ s/\Q$drop_role\E//r;
like(refusal($drop_role), qr/cannot be dropped because some objects depend on it/, 'a role with a relay');
sql($in_database);
like(refusal($drop_role), qr/cannot be dropped because some objects depend on it/, 'a role with rights in another database');
sql($in_database, in => 'second');
sql($drop_role);
is(sql(q{SELECT relowner::regrole FROM pg_class WHERE relkind = 'f'}), 'shop_admin', 'the relay has another owner');
is(sql(q{SELECT relowner::regrole FROM pg_class WHERE oid = 'mine'::regclass}), 'shop_admin', 'the table has, too');
IdemTest::wait_for($node, q{SELECT state IN ('streaming', 'idle') FROM idempotency.stat_relay});
sql('DROP OWNED BY fresh; DROP ROLE fresh');
sql(q{SELECT idempotency.relay_drop('r')});
is(rights(), $before, 'the rights are those of before');

$node->stop;
done_testing();
