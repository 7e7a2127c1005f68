
# Copyright (c) 2026, the idempotency developers

# The index entries of many events are one WAL record where they share a page.
# Sessions that enqueue at once, in every order of their transaction ids, and a
# server that crashes meanwhile leave indexes with every row.

use strict;
use warnings FATAL => 'all';

use IdemOutbox;
use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster(
	'main',
	extra => ['--data-checksums'],
	conf => IdemOutbox::eager_conf() . "autovacuum_naptime = 1s\nidempotency.outbox_segment_size = 1MB\n");
IdemOutbox::create_functions($node);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION amcheck;
CREATE TABLE enqueued (n bigint);
CREATE FUNCTION t.many(n int) RETURNS void LANGUAGE sql AS $$
	SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('k'::text, ARRAY[n]),
		array_fill('t'::text, ARRAY[n]), array_fill('1'::jsonb, ARRAY[n]));
	INSERT INTO enqueued VALUES (n)
$$;
CREATE FUNCTION t.one() RETURNS void LANGUAGE sql AS $$
	SELECT idempotency.outbox_enqueue('a', 'k', 't', '1');
	INSERT INTO enqueued VALUES (1)
$$;
SQL

# The WAL records that a statement writes for the index of the first segment: of
# several entries, and nbtree's own
sub index_records
{
	my ($sql) = @_;
	my ($file) = $node->safe_psql('postgres',
		q{SELECT pg_relation_filenode('idempotency_data.outbox_segment_0_xid_seq_idx')});
	my ($from, $to) = split /\|/, $node->safe_psql('postgres', <<"END");
SELECT pg_current_wal_insert_lsn() AS before \\gset
SELECT FROM ($sql) AS s \\g /dev/null
SELECT :'before', pg_switch_wal()
END
	my ($out, $err) = run_command([ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $from, '-e', $to ]);
	my %records = map { $_ => scalar(() = $out =~ /^rmgr: $_\b.* rel \d+\/\d+\/$file\b/mg) } 'Generic', 'Btree';

	note($err) if $err;
	return "$records{Generic}|$records{Btree}";
}

my $enqueue = q{SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('k'::text, ARRAY[%d]),
	array_fill('t'::text, ARRAY[%d]), array_fill('1'::jsonb, ARRAY[%d]))};
$node->safe_psql('postgres', 'SELECT t.one()');
is(index_records(sprintf $enqueue, (100) x 3), '1|0', 'a hundred entries are one record');
is(index_records(sprintf $enqueue, (3) x 3), '0|3', 'three entries are three');
is(index_records(q{SELECT idempotency.outbox_enqueue('a', 'k', 't', '1')}), '0|1', 'and one is one');
# 105 entries so far; a page holds 291, and divides with a few records
like(index_records(sprintf $enqueue, (250) x 3), qr/^2\|[1-6]$/, 'and where a page is full, two');
$node->safe_psql('postgres', 'INSERT INTO enqueued VALUES (354)');

# Scripts of pgbench, and their weights
my @scripts = (
	[ 6, 'SELECT t.many(:n)' ],
	[ 3, 'SELECT t.one()' ],
	[ 3, 'BEGIN', 'SELECT pg_current_xact_id()', 'SELECT count(*) FROM pg_class', 'SELECT t.many(:n)', 'SELECT t.one()',
		'SELECT t.many(:n)', 'COMMIT' ],
	[ 1, 'BEGIN', 'SELECT t.one()', 'SAVEPOINT s', 'SELECT t.many(:n)', 'ROLLBACK TO s', 'SELECT t.many(:n)', 'COMMIT' ],
	[ 1, 'BEGIN', 'SELECT t.many(:n)', 'ROLLBACK' ],
	[ 1, 'SELECT t.maintain(ARRAY[]::pg_snapshot[])' ]);
my @files;
foreach my $script (@scripts)
{
	my ($weight, @lines) = @$script;
	my $file = $node->basedir . '/storm' . scalar(@files) . '.sql';

	append_to_file($file, join '', "\\set n random_exponential(1, 600, 4)\n", map { "$_;\n" } @lines);
	push @files, '-f', "$file\@$weight";
}

sub start_storm
{
	my ($out, $err) = ('', '');

	return IPC::Run::start(
		[ 'pgbench', '-n', '-c', '8', '-j', '2', '-T', '600', '-M', 'prepared',
			@files, $node->connstr('postgres') . ' application_name=storm' ],
		'>', \$out, '2>', \$err);
}

my $state = <<'SQL';
SELECT string_agg(bt_index_parent_check(format('idempotency_data.outbox_segment_%s_xid_seq_idx', n)::regclass, true)::text, '')
  FROM generate_series(0, 7) AS n;
SELECT (SELECT sum(n) FROM enqueued) = count(*), count(*) = count(DISTINCT seq) FROM idempotency.outbox_events;
SELECT (SELECT sum(n) FROM enqueued) = events, ordered FROM t.scan(NULL, t.snapshot(), 1000);
SQL
for my $round (1 .. 4)
{
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM enqueued');
	my $storm = start_storm();

	IdemTest::wait_for($node, "SELECT count(*) >= $before + 400 FROM enqueued");
	if ($round % 2)
	{
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		IdemTest::kill9_backend($node,
			$node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE application_name = 'storm' LIMIT 1}));
	}
	eval { $storm->finish };
	is($node->safe_psql('postgres', $state), "\nt|t\nt|t", "round $round: each event is in its index, once");
}
my $segments = $node->safe_psql('postgres', 'SELECT segments_used FROM idempotency.stat_outbox');
cmp_ok($segments, '>', 1, 'segments were closed meanwhile');

$node->stop;
done_testing();
