
# Copyright (c) 2026, the idempotency developers

# The owner of a consumer where more than one session is concerned: a restore into
# another cluster, a standby, a prepared transaction, a role that is dropped while it
# is connected.

use strict;
use warnings FATAL => 'all';

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = IdemTest::cluster('old', allows_streaming => 1, conf => "max_prepared_transactions = 2\n");
my $new = IdemTest::cluster('new');
my $dump = $old->basedir . '/dump.sql';
my $archive = $old->basedir . '/dump.custom';

# What a login is told of an event, or the error.
sub told
{
	my ($node, $database, $role, $consumer) = @_;
	my ($rc, $out, $err) = $node->psql($database,
		"SELECT status FROM idempotency.event_status('e', '$consumer')", extra_params => [ '-U', $role ]);

	return $rc == 0 ? $out : $err =~ /DETAIL:  (.*)/ ? $1 : $err;
}

my $no_member = 'The current user has not the privileges of the role that owns the consumer.';
my $missing = 'The role that owned the consumer does not exist.';
my $owners = 'SELECT consumer, owner, owner_missing FROM idempotency.claim_consumers ORDER BY consumer';

# Roles that own and nothing else, so that a dump needs them for no object
$old->safe_psql('postgres', <<'END');
CREATE ROLE keeper;
CREATE ROLE lost;
CREATE ROLE former;
CREATE ROLE member LOGIN IN ROLE keeper, lost, former;
CREATE ROLE other LOGIN;
SELECT idempotency.grant_role('consumer', role) FROM unnest('{member,other}'::name[]) role;
SELECT idempotency.consumer_create(role, owner => role::regrole) FROM unnest('{keeper,lost,former}'::text[]) role;
ALTER ROLE former RENAME TO present;
SELECT idempotency.consumer_alter('former');
SELECT idempotency.claim_event('e', c), idempotency.complete_event('e', c) FROM unnest('{keeper,lost,former}'::text[]) c;
END
is($old->safe_psql('postgres', $owners), "former|present|f\nkeeper|keeper|f\nlost|lost|f", 'each consumer has an owner');
is(told($old, 'postgres', 'member', $_), 'completed', "a member of the owner of \"$_\" is told") foreach 'keeper', 'lost', 'former';
is(told($old, 'postgres', 'other', 'keeper'), $no_member, 'another role is not');

# Into a cluster where other roles have these OIDs, and one owner is missing
$new->safe_psql('postgres', <<'END');
CREATE ROLE present;
CREATE ROLE keeper;
CREATE ROLE former;
CREATE ROLE member LOGIN IN ROLE keeper, present;
CREATE ROLE other LOGIN IN ROLE former;
CREATE DATABASE restored TEMPLATE template0;
CREATE DATABASE untriggered;
END
system_or_bail('pg_dump', '-f', $dump, '-d', $old->connstr('postgres'));
command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $new->connstr('restored') ],
	'a missing owner does not make the restore fail');
is($new->safe_psql('restored', $owners), "former|present|f\nkeeper|keeper|f\nlost|lost|t",
	'owners are those of their names there; one is missing');
is(told($new, 'restored', 'member', $_), 'completed', "a member of the owner of \"$_\" there is told") foreach 'keeper', 'former';
is(told($new, 'restored', 'other', $_), $no_member, "another role is not told of \"$_\"") foreach 'keeper', 'former';
is(told($new, 'restored', 'member', 'lost'), $missing, 'nobody is told of the consumer whose owner is missing');
$new->safe_psql('restored', 'CREATE ROLE lost; GRANT lost TO member');
is(told($new, 'restored', 'member', 'lost'), $missing, 'a role that is made later is not the owner');
$new->safe_psql('restored', q{SELECT idempotency.consumer_alter('lost', owner => 'lost')});
is(told($new, 'restored', 'member', 'lost'), 'completed', 'until an operator says so');

# Without triggers nothing looks the names up; the OIDs are those of nobody there
IdemTest::create_extension($new, 'untriggered');
system_or_bail('pg_dump', '-Fc', '-f', $archive, '-d', $old->connstr('postgres'));
command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '-n', 'idempotency_data', '-t', 'consumers',
		'-d', $new->connstr('untriggered'), $archive ], 'a restore without triggers');
$new->safe_psql('untriggered', q{SELECT idempotency.grant_role('consumer', role) FROM unnest('{member,other}'::name[]) role});
is($new->safe_psql('untriggered', $owners), "former|present|t\nkeeper|keeper|t\nlost|lost|t", 'all owners are missing');
is(told($new, 'untriggered', $_, 'keeper'), $missing, "$_ is refused") foreach 'member', 'other';

# A standby asks, too, and hears of a change
my $backup = 'b';
$old->backup($backup);
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($old, $backup, has_streaming => 1);
$standby->start;
is(told($standby, 'postgres', 'member', 'keeper'), 'completed', 'a standby tells a member');
my $reader = $standby->background_psql('postgres', extra_params => [ '-U', 'other' ], on_error_stop => 0);
$reader->query(q{SELECT status FROM idempotency.event_status('e', 'keeper')});
$old->safe_psql('postgres', q{SELECT idempotency.consumer_alter('keeper', owner => 'other')});
$old->wait_for_catchup($standby);
is($reader->query(q{SELECT status FROM idempotency.event_status('e', 'keeper')}), 'completed', 'a session of the standby hears of the new owner');
is(told($standby, 'postgres', 'member', 'keeper'), $no_member, 'and the members of the former one are refused');
$reader->quit;
$standby->stop;

# A prepared claim was let in by its call: a change does not wait for it, and COMMIT PREPARED does not ask
$old->safe_psql('postgres', q{BEGIN; SELECT idempotency.claim_event('prepared', 'former'), idempotency.complete_event('prepared', 'former'); PREPARE TRANSACTION 'p'},
	extra_params => [ '-U', 'member' ]);
$old->safe_psql('postgres', q{SET lock_timeout = '60s'; SELECT idempotency.consumer_alter('former', owner => 'other')});
$old->safe_psql('postgres', q{COMMIT PREPARED 'p'}, extra_params => [ '-U', 'member' ]);
is($old->safe_psql('postgres', q{SELECT status FROM idempotency.event_status('prepared', 'former')}, extra_params => [ '-U', 'other' ]), 'completed',
	'a prepared claim commits after the consumer was given away');

# A session goes on as a role that was dropped; it owns nothing any more
$old->safe_psql('postgres', q{SELECT idempotency.consumer_alter('former', owner => 'member')});
my $session = $old->background_psql('postgres', extra_params => [ '-U', 'member' ], on_error_stop => 0);
is($session->query(q{SELECT status FROM idempotency.event_status('e', 'former')}), 'completed', 'the owner is told');
$old->safe_psql('postgres', 'DROP OWNED BY member; DROP ROLE member; GRANT USAGE ON SCHEMA idempotency TO PUBLIC;
	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idempotency TO PUBLIC');
$session->query(q{SELECT status FROM idempotency.event_status('e', 'former')});
like($session->{stderr}, qr/permission denied for consumer "former"\nDETAIL:  \Q$missing\E/, 'after DROP ROLE its session is refused');
$session->quit;
$_->stop foreach $old, $new;
done_testing();
