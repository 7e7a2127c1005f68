
# Copyright (c) 2026, the idempotency developers

# A database that has a worker for moments only, and one process for function relays: each of
# its relays has a turn, not only the one that the worker finds first.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @databases = qw(postgres b);
my @relays = qw(f g);
my $node = IdemTest::cluster('main', conf => <<'END');
idempotency.max_workers = 2
idempotency.max_function_workers = 1
idempotency.sink_idle_timeout = 0
autovacuum = off
END

sub sql
{
	my ($sql, $database) = @_;

	return $node->safe_psql($database // 'postgres', $sql);
}

foreach my $database (@databases)
{
	if ($database ne 'postgres')
	{
		sql("CREATE DATABASE $database");
		IdemTest::create_extension($node, $database);
	}
	sql('CREATE TABLE effect (relay text)', $database);
	foreach my $relay (@relays)
	{
		sql(<<"END", $database);
CREATE FUNCTION $relay(event_id uuid) RETURNS void LANGUAGE sql AS \$\$INSERT INTO public.effect VALUES ('$relay')\$\$;
CREATE SERVER $relay FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.$relay');
SELECT idempotency.relay_create('$relay', '$relay');
END
	}
	sql(q{SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', '{}')) FROM generate_series(1, 10)}, $database);
}
foreach my $database (@databases)
{
	foreach my $relay (@relays)
	{
		IdemRelay::wait_until("relay $relay of $database has its turn",
			sub { sql("SELECT count(*) FROM effect WHERE relay = '$relay'", $database) == 10 });
	}
}

$node->stop;
done_testing();
