
# Copyright (c) 2026, the idempotency developers

# Other extensions beside this one, whatever they do in C or to the catalogs: what they
# add to its tables in C is refused, their scripts make no relay and no consumer, and
# their casts and access methods change nothing.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $bindir = IdemTest::installed();
my ($root) = $bindir =~ /^(.*)\Q$ENV{IDEM_BINDIR}\E$/;
my $extensions = "$root$ENV{IDEM_SHAREDIR}/extension";
my $node = IdemTest::cluster('main', install_path => dirname($bindir), extension => 0);

sub sql
{
	return $node->safe_psql('postgres', join(';', @_));
}

sub refuses
{
	my ($statement, $error, $what) = @_;
	my (undef, undef, $stderr) = $node->psql('postgres', $statement);

	like($stderr, $error, $what);
	return;
}

# Casts that make "text || int" and "numeric > int" ambiguous, and an access method of tables, before ours
foreach my $type ('int2', 'int4', 'int8', 'numeric')
{
	sql("CREATE CAST ($type AS text) WITH INOUT AS IMPLICIT");
}
sql(q{UPDATE pg_cast SET castcontext = 'i' WHERE castcontext = 'a' AND castsource IN ('numeric'::regtype, 'float8'::regtype, 'int8'::regtype)
	AND casttarget IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)});
sql('CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler');
sql('SET default_table_access_method = other', 'SET client_min_messages = warning', 'CREATE EXTENSION idempotency CASCADE');
is(sql(q{SELECT DISTINCT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam
	WHERE c.relkind = 'r' AND c.relnamespace = 'idempotency_data'::regnamespace}), 'heap', 'tables are heap tables');
sql(q{CREATE FUNCTION handle(event_id uuid) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'},
	q{CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle')},
	q{SELECT idempotency.relay_create('refused', 'handler', max_attempts => 1, aggregate_types => '{t}')},
	q{SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')},
	q{SELECT idempotency.consumer_create('leases', retention => '1 day', lease_duration => '10 s')},
	q{SELECT idempotency.lease_event('e', 'leases')},
	q{SELECT idempotency.claim_event('e'), idempotency.complete_event('e')});
IdemTest::wait_for($node, 'SELECT dead = 1 FROM idempotency.stat_relay');
foreach my $view (split /\n/, sql(q{SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'idempotency'::regnamespace}))
{
	like(sql("SELECT count(v::text) FROM idempotency.$view v"), qr/^\d+$/, "$view beside the casts");
}
is(sql(q{SELECT count(*) FROM idempotency.doctor() WHERE finding ~ 'could not look'}), '0', 'doctor beside the casts');
cmp_ok(sql('SELECT count(*) FROM idempotency.sizing()'), '>', 10, 'sizing beside the casts');
refuses(q{SELECT idempotency.consumer_create('bad', retention => '0')}, qr/^DETAIL:  It is 0 seconds long/m, 'an error beside the casts');
command_ok([ 'pg_dump', '-a', '-f', '/dev/null', '-d', $node->connstr('postgres') ], 'a dump beside the casts');

# A trigger that no command makes
sql(q{CREATE FUNCTION on_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'},
	q{CREATE FUNCTION test_trigger(regclass, regproc) RETURNS void LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_trigger_fn'});
refuses(q{SELECT test_trigger('idempotency_data.outbox_segment_3', 'on_change')},
	qr/cannot add a trigger to "idempotency_data.outbox_segment_3"/, 'a trigger in C on a table that C code writes');
sql('CREATE TABLE theirs (i int)', q{SELECT test_trigger('theirs', 'on_change')},
	q{SELECT test_trigger('idempotency_data.relay_parked', 'on_change')});
is(sql(q{SELECT count(*) FROM pg_trigger WHERE tgname ~ '^made_in_c'}), '2', 'others may have it');

# One that was made while nobody looked belongs to no constraint: doctor() says how to drop it
sql('SET allow_system_table_mods = on', q{SELECT test_trigger('idempotency_data.outbox_segment_3', 'on_change')});
my ($finding, $remedy) = split /\|/, sql(q{SELECT finding, remedy FROM idempotency.doctor() WHERE area = 'tables'});
like($finding, qr/^trigger "?made_in_c\S* on table idempotency_data.outbox_segment_3: /, 'doctor finds a trigger made in C');
sql($remedy =~ s/^As a superuser: //r);
is(sql(q{SELECT ok FROM idempotency.doctor() WHERE area = 'tables'}), 't', 'and its remedy drops it');

# Scripts; what an event trigger does for their commands is not theirs
sql(q{CREATE FUNCTION audit() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM idempotency.outbox_enqueue('ddl', 'k', tg_tag, '{}'); END $$},
	q{CREATE EVENT TRIGGER audit ON ddl_command_end EXECUTE FUNCTION audit()});
append_to_file("$extensions/audited.control", "default_version = '1'\n");
append_to_file("$extensions/audited--1.sql", "CREATE TABLE audited (i int);\n");
sql('CREATE EXTENSION audited');
is(sql(q{SELECT string_agg(event_type, ', ' ORDER BY seq) FROM idempotency.outbox_events WHERE aggregate_type = 'ddl' AND event_type <> 'CREATE EVENT TRIGGER'}),
	'CREATE TABLE, CREATE EXTENSION', 'an event trigger sees the commands of a script');
sql('DROP EVENT TRIGGER audit');
append_to_file("$extensions/shop.control", "default_version = '1'\nrequires = 'idempotency'\n");
foreach my $call (q{idempotency.relay_create('shop', 'handler')}, q{idempotency.consumer_create('shop')},
	q{idempotency.outbox_enqueue('shop', 'k', 'E', '{}')}, q{idempotency.outbox_enqueue_many('shop', '{k}', '{E}', '{"1"}'::jsonb[])},
	q{idempotency.reset_offset('shop', 't', 0, 5)}, q{idempotency.claim_offset('shop', 't', 0, 6)},
	q{idempotency.register_producer('shop')}, q{idempotency.lease_event('shop', 'shop')}, q{idempotency.claim_request('shop', 'k', lease => '1 hour')})
{
	unlink "$extensions/shop--1.sql";
	append_to_file("$extensions/shop--1.sql", "SELECT $call;\n");
	refuses('CREATE EXTENSION shop', qr/the script of an extension cannot create (a relay|a consumer|an event|an offset or a sequence|a lease)/, "a script with $call");
	sql("SELECT $call");
}

$node->stop;
done_testing();
