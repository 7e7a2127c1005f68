
# Copyright (c) 2026, the idempotency developers

# Base backups that are taken while the packer works: in the middle of a run, and with
# the files copied in part before and in part after segments and slots were emptied.
# The restored server answers for every event as its other tables say, and packs on.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use File::Find qw(find);
use File::Path qw(make_path);
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main', allows_streaming => 1, conf => <<'END');
idempotency.claim_segment_size = 8kB
idempotency.max_claim_locks = 0
wal_keep_size = 1GB
autovacuum = off
END

# The table done is the oracle: it has the events whose completion is committed and
# was not forgotten; asked, the events to ask for.
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
CREATE TABLE done (id text PRIMARY KEY, result jsonb);
CREATE TABLE asked (id text PRIMARY KEY);
CREATE FUNCTION feed(prefix text, n int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO asked SELECT prefix || i FROM generate_series(1, n) i WHERE i % greatest(1, n / 1000) = 0;
	SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c');
	INSERT INTO done SELECT prefix || i, CASE WHEN i % 10 = 0 THEN to_jsonb(i) END FROM generate_series(1, n) i;
	SELECT idempotency.complete_events(ARRAY(SELECT prefix || i FROM generate_series(1, n) i), 'c',
		results => ARRAY(SELECT CASE WHEN i % 10 = 0 THEN to_jsonb(i) END FROM generate_series(1, n) i));
$$;
CREATE FUNCTION forget(ids text[]) RETURNS void LANGUAGE sql AS $$
	SELECT idempotency.forget_event(id, 'c') FROM unnest(ids) id;
	DELETE FROM done WHERE id = ANY (ids);
$$;
-- The events whose verdict, or result, is not the one that "done" tells.  What is
-- claimed here is given up.
CREATE FUNCTION wrong() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told text;
BEGIN
	SELECT string_agg(a.id || ': ' || c.result, ', ') INTO told
	FROM idempotency.claim_events(ARRAY(SELECT id FROM asked ORDER BY id), 'c') c
		JOIN asked a ON a.id = c.event_id LEFT JOIN done d ON d.id = a.id
	WHERE c.result::text <> CASE WHEN d.id IS NULL THEN 'claimed' ELSE 'duplicate' END
		OR (d.id IS NOT NULL AND idempotency.event_result(d.id, 'c') IS DISTINCT FROM d.result);
	RAISE EXCEPTION USING MESSAGE = 'undo: ' || coalesce(told, 'nothing');
EXCEPTION WHEN raise_exception THEN
	RETURN substr(SQLERRM, 7);
END
$$;
SQL

sub feed
{
	my ($to, @prefixes) = @_;

	$to->safe_psql('postgres', "SET idempotency.store_maintenance = off; SELECT feed('$_', 150)") for @prefixes;
	return;
}

# Twenty segments, each packed on its own, so that runs are merged
sub grow
{
	my ($to, $prefix) = @_;

	for my $i (1 .. 20)
	{
		feed($to, "$prefix-$i-");
		$to->safe_psql('postgres', 'SELECT idempotency.claims_maintain()');
	}
	return;
}

# Pack, merge and empty all there is
sub settle
{
	my ($of) = @_;

	IdemTest::wait_for($of, q{SELECT idempotency.claims_maintain() AND NOT EXISTS (SELECT FROM idempotency.stat_claim_segments
		WHERE state NOT IN ('current', 'empty', 'searched'))});
	return;
}

# The restored server knows what its tables know, before it packs and after that.
sub judge
{
	my ($name) = @_;
	my $restored = PostgreSQL::Test::Cluster->new($name);

	$restored->init_from_backup($node, $name);
	$restored->start;
	IdemTest::wait_for($restored, 'SELECT NOT pg_is_in_recovery()');
	cmp_ok($restored->safe_psql('postgres', 'SELECT count(*) FROM done'), '>', 0, "$name: events were completed");
	is($restored->safe_psql('postgres', 'SELECT wrong()'), 'nothing', "$name: all answers are right");
	set_rate($restored, '0');
	grow($restored, 'restored');
	settle($restored);
	is($restored->safe_psql('postgres', 'SELECT wrong()'), 'nothing', "$name: and when all is packed");
	is($restored->safe_psql('postgres', q{SELECT count(*) FROM pg_class c, LATERAL verify_heapam(c.oid::regclass) v
		WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^store_'}),
		'0', "$name: amcheck finds nothing");
	$restored->safe_psql('postgres', q{SELECT bt_index_check(i.indexrelid, c.relname ~ 'segment') FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^store_'});
	$restored->stop;
	return;
}

#
# In the middle of a run: when some of its pages are written, the packer goes on with 64
# events a second.
#
my $writing = q{SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.mode = 'RowExclusiveLock' AND l.granted AND c.relname ~ '^store_slot_[0-9]+$'};

sub set_rate
{
	my ($of, $rate) = @_;

	$of->safe_psql('postgres', "ALTER SYSTEM SET idempotency.pack_max_rate = '$rate'");
	$of->reload;
	IdemTest::wait_for($of, 'SHOW idempotency.pack_max_rate', $rate);
	return;
}

grow($node, 'a');
settle($node);
$node->safe_psql('postgres', q{SELECT forget('{a-1-1,a-1-10,a-20-3}')});
$node->safe_psql('postgres', q{SET idempotency.store_maintenance = off; SELECT feed('slow-', 40000)});
set_rate($node, '64kB');
my $bytes = q{SELECT coalesce(sum(pg_relation_size(oid)), 0) FROM pg_class WHERE relname ~ '^store_slot_[0-9]+$'};
my $before = $node->safe_psql('postgres', $bytes);
my $packer = $node->background_psql('postgres');
$packer->query_until(qr/asked/, "\\echo asked\nSELECT idempotency.claims_maintain();\n");
IdemTest::wait_for($node, "SELECT ($bytes) > $before + 20 * 8192 AND (SELECT count(*) = 1 FROM ($writing) w)");
set_rate($node, '1kB');
my $slot = $node->safe_psql('postgres', $writing);
$node->backup('run');
is($node->safe_psql('postgres', $writing), $slot, 'the packer has been writing one run while the backup was taken');
set_rate($node, '0');
$packer->quit;
settle($node);
is($node->safe_psql('postgres', 'SELECT wrong()'), 'nothing', 'the server itself');
judge('run');

#
# The files of slots before segments and slots are emptied and those of segments after
# that, and the other way round.
#
sub copy_files
{
	my ($to, $wanted) = @_;
	my $from = $node->data_dir;

	find({ no_chdir => 1, wanted => sub {
		return if $File::Find::name eq $from;
		my $file = substr($File::Find::name, length($from) + 1);

		if ($file eq 'pg_wal' || $file eq 'pg_replslot')
		{
			$File::Find::prune = 1;
		}
		elsif (-d $File::Find::name)
		{
			make_path("$to/$file");
		}
		elsif ($file !~ /^postmaster\.|pg_internal\.init/ && !-e "$to/$file" && $wanted->($file))
		{
			# a file may be removed meanwhile
			copy($File::Find::name, "$to/$file") or !-e $File::Find::name or die "could not copy $file: $!";
		}
	} }, $from);
	return;
}

for my $first ('slots', 'segments')
{
	my $name = "$first-first";
	my $to = $node->backup_dir . "/$name";
	my $hold = $node->background_psql('postgres');
	my $session = $node->background_psql('postgres');

	# much to be merged and emptied while the backup is taken
	grow($node, "$first-before");
	$hold->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	grow($node, "$first-held");
	$node->safe_psql('postgres', "SELECT forget(ARRAY(SELECT '$first-before-' || i || '-7' FROM generate_series(1, 20) i))");
	$hold->query_safe('COMMIT');
	$hold->quit;

	# heap, TOAST table and the indexes of both
	my %early = map { ($_ => 1) } split /\n/, $node->safe_psql('postgres', <<"SQL");
WITH heaps AS (SELECT oid, reltoastrelid FROM pg_class WHERE relname ~ '^store_${\substr($first, 0, -1)}_[0-9]+\$'),
	tables AS (SELECT oid FROM heaps UNION SELECT reltoastrelid FROM heaps)
SELECT pg_relation_filepath(oid) FROM (TABLE tables UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (TABLE tables)) f
WHERE oid <> 0
SQL
	cmp_ok(scalar(keys %early), '>', 15, "$name: files");
	$session->query_safe("SELECT pg_backup_start('$name', true)");
	copy_files($to, sub { my ($file) = @_; return $early{ $file =~ s/(_(fsm|vm|init))?(\.\d+)?$//r }; });
	grow($node, "$first-meanwhile");
	settle($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	copy_files($to, sub { return 1 });
	my $label = $session->query_safe('SELECT labelfile FROM pg_backup_stop(false)');
	$session->quit;
	append_to_file("$to/backup_label", "$label\n");
	make_path("$to/pg_wal/archive_status", "$to/pg_replslot");
	system_or_bail('sh', '-c', "cp '" . $node->data_dir . "'/pg_wal/0* '$to/pg_wal/'");
	judge($name);
}

$node->stop;
done_testing();
