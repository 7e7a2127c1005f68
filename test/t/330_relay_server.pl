
# Copyright (c) 2026, the idempotency developers

# A relay is bound to a server, not to the server's name: by whatever command a
# server goes, its relays stop it or go along, and the next server of the name
# gets none of their events.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");

sub sql
{
	my ($query, $as) = @_;

	return $node->safe_psql('postgres', $query, $as ? (extra_params => [ '-U', $as ]) : ());
}

sub refused
{
	my ($query) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $query);

	return $rc == 0 ? 'not refused' : $err;
}

sub relays
{
	return sql(q{SELECT coalesce(string_agg(relay || ' to ' || coalesce(server, 'none'), ', ' ORDER BY relay), 'none')
		FROM idempotency.stat_relay});
}

# A server of a role that leaves, and a relay of somebody else to it.
sub leaving
{
	my ($role) = @_;

	sql("CREATE ROLE $role; GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_program TO $role");
	IdemRelay::pytest_server($node, 'billing', "$dir/$role.log");
	sql("ALTER SERVER billing OWNER TO $role; SELECT idempotency.relay_create('billing', 'billing')");
	return;
}

sql('CREATE ROLE thief LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_null TO thief');

# DROP OWNED is RESTRICT unless it says otherwise.
leaving('first');
like(refused('DROP OWNED BY first'), qr/cannot drop server billing|other objects depend/, 'DROP OWNED is refused while a relay sends there');
is(relays(), 'billing to billing', 'and the relay is as it was');
IdemRelay::enqueue($node, 'key', 'E', 2);
IdemRelay::wait_received("$dir/first.log", 2);

# With CASCADE the relay goes, and a server of the name finds none.
sql('DROP OWNED BY first CASCADE');
is(relays(), 'none', 'DROP OWNED ... CASCADE drops the relay');
is(sql('SELECT count(*) FROM idempotency_data.relay_parked'), '0', 'with what it had parked');
sql('CREATE SERVER billing FOREIGN DATA WRAPPER idempotency_null', 'thief');
IdemRelay::enqueue($node, 'key', 'E', 25);
is(sql('SELECT coalesce(sum(sent), 0) FROM idempotency.stat_relay'), '0', 'another server of the name gets no event');
sql('DROP SERVER billing', 'thief');

# It goes with the command: neither after a rollback nor for a savepoint.
leaving('second');
sql('BEGIN; DROP OWNED BY second CASCADE; ROLLBACK');
sql('BEGIN; SAVEPOINT s; DROP SERVER billing CASCADE; ROLLBACK TO s; COMMIT');
is(relays(), 'billing to billing', 'a rollback brings the relay back');
like(refused('DROP SERVER billing'), qr/cannot drop server billing because relays send to it\nDETAIL:  Relays: billing\./,
	'DROP SERVER is refused, and names the relays');
sql("BEGIN; DROP SERVER billing CASCADE; PREPARE TRANSACTION 'drop'");
sql("COMMIT PREPARED 'drop'");
is(relays(), 'none', 'a prepared DROP drops the relay when it commits');

# A wrapper that goes takes its servers and their relays along.
sql(<<'END');
CREATE FOREIGN DATA WRAPPER idempotency_mine;
CREATE SERVER mine FOREIGN DATA WRAPPER idempotency_mine;
SELECT idempotency.relay_create('mine', 'mine');
END
like(refused('DROP FOREIGN DATA WRAPPER idempotency_mine'), qr/other objects depend on it/, 'DROP FOREIGN DATA WRAPPER is refused');
sql('DROP FOREIGN DATA WRAPPER idempotency_mine CASCADE');
is(relays(), 'none', 'with CASCADE it drops the relay');

# A renamed server keeps its relay, which goes on; its old name is another's.
IdemRelay::pytest_server($node, 'before', "$dir/renamed.log");
sql("SELECT idempotency.relay_create('renamed', 'before', start_at => 'latest')");
IdemRelay::enqueue($node, 'key', 'E', 1);
IdemRelay::wait_received("$dir/renamed.log", 1);
sql('ALTER SERVER before RENAME TO after; CREATE SERVER before FOREIGN DATA WRAPPER idempotency_null');
is(relays(), 'renamed to after', 'a renamed server keeps its relay');
IdemRelay::enqueue($node, 'key', 'E', 3);
IdemRelay::wait_received("$dir/renamed.log", 4);
sql('DROP SERVER before');

# Another server for a relay: the new one is held now, and the old one is not.
IdemRelay::pytest_server($node, 'other', "$dir/other.log");
sql("SELECT idempotency.relay_alter('renamed', server => 'other')");
sql('DROP SERVER after');
like(refused('DROP SERVER other'), qr/Relays: renamed/, 'relay_alter moves what holds the server');
IdemRelay::enqueue($node, 'key', 'E', 2);
IdemRelay::wait_received("$dir/other.log", 2);
sql("SELECT idempotency.relay_drop('renamed'); DROP SERVER other");
is(relays(), 'none', 'relay_drop lets the server go');

# The anchor of a relay that a restore left behind is in nobody's way.
sql('CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null');
my $next = sql('SELECT last_value + 1 FROM idempotency_data.relay_id_seq');
sql("CREATE FOREIGN TABLE idempotency_data.relay_$next () SERVER nul");
sql("SELECT idempotency.relay_create('next', 'nul')");
is(relays(), 'next to nul', 'a relay whose anchor is there already is created');

# Rewriting the catalogs asks after each of them.
sql($_) foreach 'VACUUM FULL pg_class', 'VACUUM FULL pg_foreign_table', 'VACUUM FULL pg_extension';
is(relays(), 'next to nul', 'catalogs can be rewritten');

# The extension goes with all of it.
sql('DROP EXTENSION idempotency CASCADE');
is(sql("SELECT count(*) FROM pg_foreign_server"), '0', 'DROP EXTENSION ... CASCADE leaves nothing');
unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|was terminated by signal)/, 'nothing crashed');
$node->stop;
done_testing();
