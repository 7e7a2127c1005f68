
# Copyright (c) 2026, the idempotency developers

# A commit is seen before others are told of it.  A session that remembers the keys of a
# segment meanwhile must not miss rows by them: the trigger or the sequence of the keys was
# altered.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('keys', conf => "idempotency.store_maintenance = off\nautovacuum = off\n");
my $hold = PostgreSQL::Test::Utils::tempdir() . '/hold';

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sql(<<'END');
CREATE FUNCTION test_hold_commit(file text) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_hold_commit_fn';
CREATE FUNCTION did(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text := idempotency.claim_event(id);
BEGIN
	IF verdict = 'claimed' THEN PERFORM idempotency.complete_event(id); END IF;
	RETURN verdict;
END $$;
DO $$ BEGIN
	FOR i IN 1 .. 20 LOOP
		PERFORM did('used');
		COMMIT;
		PERFORM idempotency.forget_event('used');
		COMMIT;
	END LOOP;
END $$;
END

# While the commit of a transaction is held, which others see already.
sub while_held
{
	my ($commands, $seen, $then) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 1);

	append_to_file($hold, '');
	$session->query_safe("BEGIN; $commands; SELECT test_hold_commit('$hold')");
	$session->query_until(qr/committing/, "\\echo committing\nCOMMIT;\n");
	IdemTest::wait_for($node, $seen);
	$then->();
	ok(-e $hold, 'which was held');
	unlink $hold;
	$session->quit;
	return;
}

# Who altered the trigger deletes the newest rows by hand: the first one counts again
my $reader = $node->background_psql('postgres', on_error_stop => 1);
is($reader->query_safe("SELECT status FROM idempotency.event_status('used')"), 'unknown', 'forgotten');
while_held(
	'ALTER TABLE idempotency_data.store_segment_0 DISABLE TRIGGER store_keyed;
	ALTER TABLE idempotency_data.store_segment_0 ENABLE ALWAYS TRIGGER store_keyed;
	DELETE FROM idempotency_data.store_segment_0 WHERE turn > 1',
	'SELECT max(turn) = 1 FROM idempotency_data.store_segment_0',
	sub {
		is($reader->query_safe("SELECT status FROM idempotency.event_status('used')"), 'completed', 'an older row counts');
	});
is(sql("SELECT did('used')"), 'duplicate', 'and so it does later');

# A session that sees the sequence's new file writes a row
is($reader->query_safe("SELECT did('former')"), 'claimed', 'a session remembers keys');
while_held(
	'SET LOCAL allow_system_table_mods = on; ALTER SEQUENCE idempotency_data.store_keys_0 RESTART',
	"SELECT pg_relation_size('idempotency_data.store_keys_0') = 8192",
	sub {
		is(sql("SELECT did('new')"), 'claimed', 'a new event');
		is($reader->query_safe("SELECT did('new')"), 'duplicate', 'is not new for a session that was not told');
	});
$reader->quit;

# The file of the keys is not cut while somebody may read it by its name
$node->safe_psql('postgres', "ALTER DATABASE postgres SET idempotency.claim_segment_size = '64kB'");
my $by_name = $node->background_psql('postgres', on_error_stop => 1);
$by_name->query_safe('BEGIN');
$by_name->query_safe("SELECT last_value FROM idempotency_data.store_keys_$_") for 0 .. 7;
my $cut = q{SELECT count(*) FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND state = 'packed'};
$node->adjust_conf('postgresql.conf', 'idempotency.store_maintenance', 'on');
$node->reload;
sql('SELECT count(did(gen_random_uuid()::text)) FROM generate_series(1, 2000)');
sql('SELECT idempotency.claims_maintain()');
IdemTest::wait_for($node, "SELECT idempotency.claims_maintain() IS NOT NULL AND ($cut AND held_by = 'reader') > 0");
is(sql("SELECT did('used')"), 'duplicate', 'claims go on');
$by_name->query_safe('COMMIT');
$by_name->quit;
IdemTest::wait_for($node, "SELECT idempotency.claims_maintain() IS NOT NULL AND ($cut) = 0");
is(sql("SELECT did('used')"), 'duplicate', 'and do so when it is cut');
$node->stop;
done_testing();
