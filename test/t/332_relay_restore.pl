
# Copyright (c) 2026, the idempotency developers

# A logical restore where a relay's role or foreign table is missing: the other
# relays are there, that one says what is missing and acts as nobody, and can be
# put right.  In the database of the original, too, where nothing else says that
# the relay comes from elsewhere.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = IdemTest::cluster('old', conf => "idempotency.publish_as = 'shop'\n");
my $new = IdemTest::cluster('new', extension => 0, conf => "idempotency.publish_as = 'shop'\n");
my $dump = $old->basedir . '/shop.sql';

$old->safe_psql('postgres', <<'END');
CREATE ROLE keeper;
CREATE ROLE lost;
SELECT idempotency.grant_role('operator', role) FROM unnest('{keeper,lost}'::name[]) role;
CREATE TABLE got (n serial, relay text, by name);
GRANT ALL ON got, got_n_seq TO keeper, lost;
CREATE FUNCTION got(event_id uuid, aggregate_type text) RETURNS void LANGUAGE sql
	AS 'INSERT INTO public.got (relay, by) VALUES (aggregate_type, current_user)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.got');
CREATE SERVER bare FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.got');
GRANT USAGE ON FOREIGN SERVER fn, bare TO PUBLIC;
SET ROLE keeper;
SELECT idempotency.relay_create('keeper', 'fn', aggregate_types => '{keeper}');
SELECT idempotency.relay_create('bare', 'bare', aggregate_types => '{bare}');
SET ROLE lost;
SELECT idempotency.relay_create('lost', 'fn', aggregate_types => '{lost}');
END
my $me = $old->safe_psql('postgres', 'SELECT current_user');

sub restore
{
	my ($node, $how, @options) = @_;

	# Errors are what a restore without a role is about: it goes on.
	system_or_bail('pg_dump', '-f', $dump, @options, '-d', $old->connstr('postgres'));
	$node->safe_psql('postgres', "CREATE DATABASE $how TEMPLATE template0");
	return;
}

sub run_script
{
	my ($node, $database) = @_;

	run_log([ 'psql', '-qX', '-f', $dump, '-d', $node->connstr($database) ]);
	return;
}

sub state_of
{
	my ($relay) = @_;

	return "SELECT state || coalesce(' ' || last_error, '') FROM idempotency.stat_relay WHERE relay = '$relay'";
}

# Is an event of a relay handled, and by whom?
sub handled_by
{
	my ($node, $database, $relay) = @_;

	$node->safe_psql($database, "SELECT idempotency.outbox_enqueue('$relay', 'k', 'E', '{}')");
	IdemTest::wait_for($node, "SELECT count(*) > 0 FROM got WHERE relay = '$relay'", 't', $database);
	return $node->safe_psql($database, "SELECT DISTINCT by FROM got WHERE relay = '$relay'");
}

sub adopt_refused
{
	my ($node, $database, $relay) = @_;
	my ($rc, $out, $err) = $node->psql($database, "SELECT idempotency.relay_adopt('$relay')");

	return $rc == 0 ? 'not refused' : $err;
}

# A cluster without the role, and a script that has lost a foreign table.
restore($new, 'other');
my $script = slurp_file($dump);
my $bare = $old->safe_psql('postgres', q{SELECT 'relay_' || relay_id FROM idempotency_data.relays WHERE relay = 'bare'});
ok($script =~ s/CREATE FOREIGN TABLE idempotency_data\.$bare .*?;\n//s, 'the dump has a foreign table for each relay');
append_to_file("$dump.new", $script);
rename "$dump.new", $dump or die "could not rename: $!";
$new->safe_psql('postgres', 'CREATE ROLE keeper');
run_script($new, 'other');
is($new->safe_psql('other', 'SELECT string_agg(relay, $$ $$ ORDER BY relay) FROM idempotency.stat_relay'), 'bare keeper lost',
	'a missing role does not keep the other relays out');
like(adopt_refused($new, 'other', 'lost'), qr/relay "lost" has not the owner that it had\nDETAIL:  The relay was owned by role "lost", which does not exist\./i,
	'relay_adopt names the missing role');
$new->safe_psql('other', q{SELECT idempotency.relay_adopt('keeper')});
is(handled_by($new, 'other', 'keeper'), 'keeper', 'the others can be adopted, and act as their owners');
IdemTest::wait_for($new, state_of('lost'), 'misconfigured the relay was owned by role "lost", which does not exist', 'other');
IdemTest::wait_for($new, state_of('bare'), qq{unadopted bound to "shop/@{[
	$old->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'postgres'}) ]}", this database is "shop/@{[
	$new->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'other'}) ]}"}, 'other');

# The role as it was, and the server again.
$new->safe_psql('other', q{CREATE ROLE lost; GRANT ALL ON got, got_n_seq TO lost});
my $lost = $new->safe_psql('other', q{SELECT 'idempotency_data.relay_' || relay_id FROM idempotency_data.relays WHERE relay = 'lost'});
like(adopt_refused($new, 'other', 'lost'), qr/owned by role "lost", and foreign table $lost belongs to "$me"/, 'the role alone does not do');
$new->safe_psql('other', qq{ALTER FOREIGN TABLE $lost OWNER TO lost; SELECT idempotency.relay_adopt('lost')});
is(handled_by($new, 'other', 'lost'), 'lost', 'with its owner back the relay can be adopted');
$new->safe_psql('other', q{SELECT idempotency.relay_adopt('bare')});
IdemTest::wait_for($new, state_of('bare'), "misconfigured the relay's foreign table idempotency_data.$bare does not exist", 'other');
$new->safe_psql('other', q{SELECT idempotency.relay_alter('bare', server => 'bare')});
is(handled_by($new, 'other', 'bare'), $me, 'relay_alter gives it a server again');

# Everything for the role that restores: relays say so, too.
restore($new, 'mine', '--no-owner');
run_script($new, 'mine');
like(adopt_refused($new, 'mine', 'keeper'), qr/owned by role "keeper", and foreign table \S+ belongs to "$me"/,
	'a restore without owners makes no relay act as another role');

# Into the very database it comes from, whose identity the relays have.
$old->safe_psql('postgres', 'SELECT idempotency.relay_pause(relay) FROM idempotency.stat_relay');
system_or_bail('pg_dump', '--clean', '-f', $dump, '-d', $old->connstr('postgres'));
$old->safe_psql('postgres', 'DROP OWNED BY lost; DROP ROLE lost; ALTER ROLE keeper RENAME TO holder');
run_script($old, 'postgres');
$old->safe_psql('postgres', 'SELECT idempotency.relay_resume(relay) FROM idempotency.stat_relay');
$old->safe_psql('postgres', q{SELECT idempotency.outbox_enqueue('lost', 'k', 'E', '{}')});
like(adopt_refused($old, 'postgres', 'lost'), qr/owned by role "lost", which does not exist/, 'the original database knows, too');
is($old->safe_psql('postgres', q{SELECT count(*) FROM got WHERE relay = 'lost'}), '0', 'and nothing was done for it');
$_->stop foreach $old, $new;
done_testing();
