
# Copyright (c) 2026, the idempotency developers

# What was completed survives dump and restore, grants included, and lock keys
# are the same in a database of another encoding.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('main');
my $dump = $node->basedir . '/dump.sql';

$node->safe_psql('postgres', <<'END');
CREATE ROLE claimer LOGIN;
SELECT idempotency.grant_role('consumer', 'claimer');
SELECT idempotency.consumer_create('migrating', foreign_lockers => true),
	idempotency.consumer_create('private', private_locks => true, retention => '1 day', keep_ids => true, expire_by_id_age => true,
		lease_duration => '5 s', max_attempts => 3, min_backoff => '2 s', max_backoff => '1 h');
SELECT idempotency.claim_event('a'), idempotency.complete_event('a', result => '{"of": "a"}');
SELECT idempotency.claim_event('b', 'billing'), idempotency.complete_event('b', 'billing');
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept');
END
command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', $dump, 'postgres' ], 'dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0');
command_ok(
	[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port,
		'-d', 'restored', '-f', $dump ],
	'restore');

my $rows = q{SELECT consumer, event_id, status, claimed_at, completed_at, result
	FROM idempotency.processed_events ORDER BY 1, 2};
is($node->safe_psql('restored', $rows), $node->safe_psql('postgres', $rows), 'the same rows');
is( $node->safe_psql('restored', 'TABLE idempotency.claim_consumers'),
	"migrating|t|f||for ever|f|f|00:00:30|0|00:00:01|00:05:00||f\n"
	  . "private|f|t|1 day|day|t|t|00:00:05|3|00:00:02|01:00:00||f",
	'the same consumers');
is( $node->safe_psql('restored', <<'END'),
SET ROLE claimer;
BEGIN;
SELECT idempotency.claim_event('a'), idempotency.claim_event('b', 'billing'), idempotency.claim_event('kept');
ROLLBACK;
END
	'duplicate|duplicate|claimed',
	'the same verdicts, by the role that was granted them');

# Lock keys do not depend on the encoding
$node->safe_psql('postgres',
	q{CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0});
IdemTest::create_extension($node, 'latin');
is( $node->safe_psql('latin',
		q{SET client_encoding = UTF8;
		  SELECT octet_length('é'), idempotency.lock_key('é'), idempotency.verify_lock_key('é', 'ö')}),
	'1|5375421630974772051|', 'lock keys are made of UTF-8');
is( $node->safe_psql('latin',
		q{SET client_encoding = UTF8;
		  SELECT idempotency.lock_key('é', 'ö')}),
	$node->safe_psql('postgres', q{SELECT idempotency.lock_key('é', 'ö')}),
	'those of other consumers too');
is( $node->safe_psql('latin',
		q{SET client_encoding = UTF8;
		  SELECT idempotency.claim_event('é'), idempotency.complete_event('é');
		  SELECT idempotency.claim_event('é')}),
	"claimed|\nduplicate", 'and claims work there');

# Without an encoding any bytes are an id, as they are an aggregate's
$node->safe_psql('postgres',
	q{CREATE DATABASE bytes ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0});
IdemTest::create_extension($node, 'bytes');
my $bad = q{convert_from('\xff01', 'SQL_ASCII')};
is( $node->safe_psql('bytes', "SELECT idempotency.claim_event($bad, $bad), idempotency.complete_event($bad, $bad);"
		  . " SELECT idempotency.claim_event($bad, $bad), idempotency.outbox_enqueue($bad, $bad, $bad, '1') IS NOT NULL"),
	"claimed|\nduplicate|t", 'bytes that are no text are claimed, and enqueued');
is( $node->safe_psql('bytes', "SELECT idempotency.verify_lock_key($bad, $bad), idempotency.verify_lock_key($bad);"
		  . q{ SELECT idempotency.lock_key(}
		  . $bad
		  . q{) = ('x' || substr(encode(sha256('\xff01'), 'hex'), 1, 16))::bit(64)::bigint}),
	"|\nt", 'their lock key is made of the bytes');
is( $node->safe_psql('bytes', "SELECT idempotency.lock_key(convert_from('\\xc3a9', 'SQL_ASCII'))"),
	'5375421630974772051', 'which is the published one where the bytes are UTF-8');

# A character of the encoding that UTF-8 has not
$node->safe_psql('postgres',
	q{CREATE DATABASE win ENCODING WIN1252 LOCALE 'C' TEMPLATE template0});
IdemTest::create_extension($node, 'win');
my ($rc, $out, $err) = $node->psql('win', q{
\\set VERBOSITY verbose
SELECT idempotency.claim_event(convert_from('\x81', 'WIN1252'))});
like($err, qr/22P05/, 'no key can be made of what UTF-8 has not');

$node->stop;
done_testing();
