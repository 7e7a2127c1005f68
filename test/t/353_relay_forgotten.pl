
# Copyright (c) 2026, the idempotency developers

# However a relay ends, nothing of it stays in any table of the extension: what
# was parked, the record of attempts, its row, and its rows of the log of positions
# once that has taken turns.  Also what a worker wrote too late goes, whether or not
# a process saw the relay go.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');
my @ways = (
	[ 'called', q{SELECT idempotency.relay_drop('called')} ],
	[ 'server', 'DROP SERVER server CASCADE' ],
	[ 'owned', 'DROP OWNED BY owned' ],
	[ 'anchor', 'DROP FOREIGN TABLE idempotency_data.relay_ID' ]);
my @names = ((map { $_->[0] } @ways), 'late', 'stays');

$node->safe_psql('postgres', <<'END');
CREATE FUNCTION refuse(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'refused'; END $$;
CREATE ROLE owned SUPERUSER;
-- Every table of the extension that has rows of a relay
CREATE FUNCTION tables_with(id int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	rel regclass;
	found_in text := '';
	n bigint;
BEGIN
	FOR rel IN SELECT c.oid FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid
		WHERE relnamespace = 'idempotency_data'::regnamespace AND relkind = 'r' AND attname = 'relay_id' ORDER BY relname
	LOOP
		EXECUTE format('SELECT count(*) FROM %s WHERE relay_id = $1', rel) INTO n USING id;
		IF n > 0 THEN
			found_in := found_in || ' ' || (SELECT relname FROM pg_class WHERE oid = rel);
		END IF;
	END LOOP;
	RETURN ltrim(found_in);
END $$;
END

my %id;
foreach my $name (@names)
{
	my $role = $name eq 'owned' ? 'owned' : 'postgres';

	$node->safe_psql('postgres', <<"END");
CREATE SERVER $name FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.refuse');
SET ROLE $role;
SELECT idempotency.relay_create('$name', '$name', aggregate_types => '{$name}', max_attempts => 1);
SELECT idempotency.outbox_enqueue('$name', 'k', 'E', '1');
END
	$id{$name} = $node->safe_psql('postgres', "SELECT relay_id FROM idempotency_data.relays WHERE relay = '$name'");
}
IdemTest::wait_for($node, "SELECT count(*) = @{[ scalar @names ]} FROM idempotency.dead_letters");
$node->safe_psql('postgres', 'INSERT INTO idempotency_data.relay_attempts SELECT relay_id, 1 FROM idempotency_data.relays');

sub tables_with
{
	return $node->safe_psql('postgres', "SELECT tables_with($id{$_[0]})");
}

my $all = 'relay_attempts relay_log_0 relay_parked relays';
is(tables_with($_), $all, "$_: has rows") foreach @names;
foreach my $way (@ways)
{
	my ($name, $sql) = @$way;

	$node->safe_psql('postgres', $sql =~ s/ID/$id{$name}/r);
	is(tables_with($name), 'relay_log_0', "$name: its rows go with it");
}

# What a worker that had not heard of the drop writes, and nobody is there to see.
sub preload
{
	my ($libraries) = @_;

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$libraries'");
	$node->restart;
	return;
}
preload('');
$node->safe_psql('postgres', <<"END");
CREATE TABLE parked AS SELECT * FROM idempotency_data.relay_parked WHERE relay_id = $id{late};
SELECT idempotency.relay_drop('late');
ALTER TABLE idempotency_data.relay_parked DISABLE TRIGGER relay_parked_restore;
INSERT INTO idempotency_data.relay_parked OVERRIDING SYSTEM VALUE TABLE parked;
ALTER TABLE idempotency_data.relay_parked ENABLE ALWAYS TRIGGER relay_parked_restore;
INSERT INTO idempotency_data.relay_attempts VALUES ($id{late}, 1);
END
is(tables_with('late'), 'relay_attempts relay_log_0 relay_parked', 'rows without a relay');
preload('idempotency');
IdemTest::wait_for($node, "SELECT tables_with($id{late}) = 'relay_log_0'");

# The log of positions takes its turn; the relay that stays keeps what it has.
$node->safe_psql('postgres', <<'END');
INSERT INTO idempotency_data.relay_log_0 (id, epoch, life, acked_row, acked_k, seq, at, relay_id, kind, fresh, base)
	SELECT nextval('idempotency_data.relay_log_id'), 1, 0, 0, 0, 0, now(), 999, 'r', 'n', pg_current_snapshot()
	FROM generate_series(1, 60000)
END
IdemTest::wait_for($node, q{SELECT pg_relation_size('idempotency_data.relay_log_0') = 0});
is(tables_with($_), '', "$_: nothing is left") foreach grep { $_ ne 'stays' } @names;
is(tables_with('stays'), $all =~ s/_0/_1/r, 'of another relay everything is');

$node->stop;
done_testing();
