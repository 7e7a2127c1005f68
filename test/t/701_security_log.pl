
# Copyright (c) 2026, the idempotency developers

# What the server log tells of an option that was refused: its name, and neither
# its value nor the statement with it.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemTest::cluster('log', conf => "log_statement = none\nlog_min_error_statement = error\n");
my $n = 0;

# Refused with that error; the log has the error, and the secret is nowhere in it.
sub refused
{
	my ($statement, $error, $what, $shown) = @_;
	my $secret = sprintf('s3cret%04d', ++$n);
	my $from = -s $node->logfile;
	my ($rc) = $node->psql('postgres', sprintf($statement, $secret));

	isnt($rc, 0, "$what: refused");
	my $log = slurp_file($node->logfile, $from);
	like($log, $error, "$what: the log has the error");
	if ($shown)
	{
		like($log, qr/STATEMENT: .*$secret/s, "$what: and the statement");
	}
	else
	{
		unlike($log, qr/$secret/, "$what: and no value");
	}
	return;
}

$node->safe_psql('postgres', <<'END');
CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'd', function 'a.b');
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'a.b');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER prog FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'x');
CREATE ROLE op;
GRANT USAGE ON FOREIGN SERVER pg TO op;
END

my $map = 'CREATE USER MAPPING FOR CURRENT_USER SERVER';
refused("$map pg OPTIONS (passwort '%s')", qr/invalid option "passwort"/, 'a mistyped option');
refused("$map pg OPTIONS (password '%s', user '')", qr/option "user" must not be empty/, 'the option beside it');
refused("$map pg OPTIONS (pasword '%s', password 'x')", qr/invalid option "pasword"/, 'one of two');
refused("SET ROLE op; $map pg OPTIONS (password '%s', secret_file '/x')",
	qr/only superusers may set option "secret_file"/, 'an option of superusers');
refused("$map fn OPTIONS (hook '%s')", qr/invalid option "hook"/, 'a mapping of a function');
refused("$map nul OPTIONS (\"user\" '%s')", qr/invalid option "user"/, 'a mapping of the null sink');
refused("DO \$\$ BEGIN EXECUTE '$map pg OPTIONS (passwort ''%s'')'; END \$\$",
	qr/invalid option "passwort"/, 'a statement in a function');
refused("CREATE SERVER s FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname 'd', password '%s')",
	qr/invalid option "password"/, 'a secret among the options of a server');
refused("CREATE SERVER s FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (port '', apiToken '%s')",
	qr/option "port" must not be empty/, 'an unknown secret beside an error');
refused("ALTER SERVER pg OPTIONS (PassPhrase '%s')", qr/invalid option "passphrase"/, 'a secret added to a server');
refused("CREATE SERVER s FOREIGN DATA WRAPPER idempotency_program OPTIONS (sasl_password '%s', program 'X')",
	qr/option "program" must consist of/, 'a secret of a program');

# Everything else is logged as before.
refused("CREATE SERVER s FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (dbname '%s', port '')",
	qr/option "port" must not be empty/, 'no secret', 1);

# A command of relays, where log_statement asks for DDL: who, which relay, and its arguments.
my $from = -s $node->logfile;
$node->safe_psql('postgres', <<'END');
SELECT idempotency.relay_create('quiet', 'nul');
SET log_statement = 'ddl';
SELECT idempotency.relay_create('orders', 'nul');
DO $$ BEGIN PERFORM idempotency.relay_alter('orders', batch_events => 17); END $$;
END
my $log = slurp_file($node->logfile, $from);
like($log, qr/LOG:  relay_create of relay "orders" by role "postgres".*?STATEMENT:  SELECT .*relay_create/s, 'a command of relays is logged');
like($log, qr/LOG:  relay_alter of relay "orders".*?STATEMENT:  DO .*batch_events => 17/s, 'from within another statement as well');
unlike($log, qr/LOG:  relay_create of relay "quiet"/, 'and only where somebody asked for that');

$node->stop;
done_testing();
