
# Copyright (c) 2026, the idempotency developers

# COMMIT asks for undecided claims before postgres_fdw commits at the remote server: a claim that
# is refused must not leave its effect there.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

plan skip_all => 'postgres_fdw is not installed'
  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';

$node->safe_psql('postgres', <<"END");
CREATE EXTENSION postgres_fdw;
CREATE TABLE effects (who text);
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '@{[$node->host]}', port '@{[$node->port]}', dbname 'postgres');
CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
CREATE FOREIGN TABLE remote (who text) SERVER remote OPTIONS (table_name 'effects');
CREATE PROCEDURE forgets() LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM idempotency.claim_event('procedure');
	INSERT INTO remote VALUES ('procedure');
	COMMIT;
END \$\$;
CREATE FUNCTION forgets_too() RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	INSERT INTO remote VALUES ('statement');
	PERFORM idempotency.claim_event('statement');
END \$\$;
END

my %script = (
	'used before' => q{SELECT count(*) FROM remote; BEGIN; SELECT idempotency.claim_event('used'); INSERT INTO remote VALUES ('used'); COMMIT},
	'used in this transaction first' => q{BEGIN; SELECT idempotency.claim_event('first'); INSERT INTO remote VALUES ('first'); COMMIT},
	'a COMMIT in a procedure' => q{SELECT count(*) FROM remote; CALL forgets()},
	'a statement of its own' => q{SELECT forgets_too()});

foreach my $name (sort keys %script)
{
	my ($ret, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$script{$name};\n");

	like($err, qr/ID001/, "refused: $name");
	is($node->safe_psql('postgres', 'SELECT who FROM effects'), '', "and nothing is at the remote server: $name");
}
$node->safe_psql('postgres', q{BEGIN; SELECT idempotency.claim_event('done'); INSERT INTO remote VALUES ('done'); SELECT idempotency.complete_event('done'); COMMIT});
is($node->safe_psql('postgres', 'SELECT who FROM effects'), 'done', 'what was completed is there');
$node->stop;
done_testing();
