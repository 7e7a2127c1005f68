
# Copyright (c) 2026, the idempotency developers

# The library starts with and without preload, the extension can be created,
# dropped and created again, and a crash of a backend leaves it usable.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('preloaded');
is( $node->safe_psql(
		'postgres',
		"SELECT extname FROM pg_extension WHERE extname = 'idempotency'"),
	'idempotency',
	'created in a server that preloads the library');
$node->safe_psql('postgres', 'DROP EXTENSION idempotency');
IdemTest::create_extension($node);
pass('dropped and created again');

my $session = $node->background_psql('postgres', on_error_stop => 0);
IdemTest::kill9_backend($node, $session->query('SELECT pg_backend_pid()'));
$session->quit;
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_extension WHERE extname = 'idempotency'"),
	'1',
	'there after a crash');
$node->stop;

my $bare = IdemTest::cluster('bare', preload => 0);
is($bare->safe_psql('postgres', 'SHOW shared_preload_libraries'),
	'', 'created in a server that does not preload it');
$bare->stop;

done_testing();
