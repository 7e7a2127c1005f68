#!/bin/bash
# doc/howto/backup.md on Debian, with the server and the extension from packages: a dump and a
# base backup of a cluster at work, and what the page restores from them.
#
# The blocks of the page are run in their order; its table "On Debian" says what stands for
# pg_ctl.  The parts that are the same everywhere are in 603_backup as well.  Two clients claim,
# make an effect, enqueue and complete all the time.  After each restore
#
#	- what the restored database has the effect of is a duplicate, and what was claimed
#	  later is not;
#	- a copy publishes nothing;
#	- each event has its effect once, at a SQL function and at another PostgreSQL, which
#	  stores positions.
#
# run.sh runs this in a copy of a folder with nothing but debootstrap's smallest variant, with
# the packages of this tree in /mnt/new.  VERSION is the server's major.  The last line is
# "N passed, N failed".
set -uo pipefail
# shellcheck source=test/packages/checks.sh
. /tmp/idempotency/test/packages/checks.sh
# shellcheck source=test/packages/page.sh
. /tmp/idempotency/test/packages/page.sh

# What the page calls a server, and clusters here
declare -A cluster_of=([shop-db]=main [new-db]=new [restored-db]=restored [warehouse-db]=warehouse)
files=/srv/dumps

# to_postgres COMMAND...: the calling shell becomes the command of the user, in the directory of its dumps.
to_postgres()
{
	cd "$files" && exec setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/var/lib/postgresql "$@"
}

as_postgres()
{
	(to_postgres "$@")
}

port_of()
{
	sed -n 's/^port = \([0-9]*\).*/\1/p' "/etc/postgresql/$VERSION/${cluster_of[$1]}/postgresql.conf"
}

# other_cluster NAME: a cluster beside main, which listens at a socket only.
other_cluster()
{
	pg_createcluster "$VERSION" "$1" >/dev/null && cp "${conf%/*}"/{socket,idempotency}.conf "/etc/postgresql/$VERSION/$1/conf.d/" &&
		pg_ctlcluster "$VERSION" "$1" start
}

# db_psql SERVER ARGUMENT...
db_psql()
{
	as_postgres psql -X -v ON_ERROR_STOP=1 -p "$(port_of "$1")" -d "${DB:-shop}" "${@:2}"
}

# db_value SERVER QUERY: the last line that it prints.
db_value()
{
	db_psql "$1" -Atq -c "$2" | tail -n 1
}

# A block of SQL, as a page shows its output.
page_sql()
{
	db_psql "$1" -f - <"$2" | sed 's/[ \t]*$//'
}

# What root runs here in place of the commands of the page, by the table of "On Debian".
debian()
{
	# shellcheck disable=SC2016 # Perl's
	perl -0pe '
		BEGIN { @rows = map { [ /^\| `(.+?)` \| `(.+?)` \|$/ ] } grep { /^\| `/ } split /\n/, $ENV{TABLE} }
		for my $row (@rows) {
			my ($from, $to) = @$row;
			my ($head, $tail) = map { quotemeta } split /…/, $from, 2;
			my ($before, $after) = split /…/, $to, 2;
			defined $tail ? s/$head([^"\n]*)$tail/$before$1$after/g : s/$head/$to/g;
		}'
}

# with_ports: the text of standard input, with the socket and port of each server.
with_ports()
{
	local text server

	text=$(cat)
	for server in "${!cluster_of[@]}"; do
		[[ $text != *"-h $server"* ]] || text=${text//-h $server/-p $(port_of "$server")}
	done
	echo "$text"
}

# shell_block FILE KIND: as the page has it: root for what is Debian's, else the user postgres.
shell_block()
{
	local text

	text=$(TABLE=$(part backup "Base backup" | of_version) debian <"$1" | with_ports)
	echo "$text"
	if [[ $2 == *debian* || $text == *pg_ctlcluster* ]]; then
		(cd / && bash -ec "$text")
	else
		as_postgres bash -ec "$text"
	fi
}

# run_blocks DIR [PATTERN]: all blocks, or those with a line that matches.
run_blocks()
{
	local file kind block name

	for file in "$1"/*.kind; do
		read -r kind <"$file"
		block=${file%.kind}.block
		[ -z "${2:-}" ] || grep -q "$2" "$block" || continue
		name="$1: $(head -n 1 "$block")"
		case $kind in
			sh*) check "${name#/tmp/}" shell_block "$block" "$kind" ;;
			sql*poll) check "${name#/tmp/}" until_is "$(sed 's/[ \t]*$//' "${file%.kind}.output")" page_sql "$(server_in "$kind")" "$block" ;;
			sql*) check "${name#/tmp/}" page_sql "$(server_in "$kind")" "$block" ;;
			*) check "$name: $kind" false ;;
		esac
	done
}

# server_in KIND: the server that a block of SQL names.
server_in()
{
	grep -o '[a-z]*-db' <<<"$1"
}

# run_part HEADING: with the block for Debian in the place of the one before it.
run_part()
{
	local dir=/tmp/$1 file before

	blocks backup "$1" "$dir"
	for file in "$dir"/*.kind; do
		! grep -q debian "$file" || rm "$before"
		before=$file
	done
	run_blocks "$dir"
}

# Two clients, each of whose transactions claims an order, pays it, tells and completes it
start_load()
{
	cat >"$files/load.sql" <<-'END'
		SELECT nextval('orders') AS id \gset
		BEGIN;
		SELECT idempotency.claim_event('order-' || :id);
		INSERT INTO paid VALUES (:id);
		SELECT idempotency.outbox_enqueue('order', (:id)::text, 'Paid', '{}');
		SELECT idempotency.complete_event('order-' || :id);
		COMMIT;
	END
	to_postgres "${lib%/lib}/bin/pgbench" -n -c 2 -R 50 -T 7200 -p "$(port_of shop-db)" -f load.sql shop >/tmp/load.log 2>&1 &
	load=$!
}

stop_load()
{
	kill "$load" && until_is 0 db_value shop-db "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'" && ! grep -i error /tmp/load.log
}

# more_paid: some orders are paid after the call.
more_paid()
{
	local last

	last=$(db_value shop-db 'SELECT COALESCE(max(id), 0) FROM paid')
	until_is t db_value shop-db "SELECT count(*) > 5 FROM paid WHERE id > $last"
}

set_up_shop()
{
	# Roles that are no users of the machine log in.
	sed -i '1i local shop shop_backup trust' "/etc/postgresql/$VERSION/main/pg_hba.conf"
	sed -i '1i local all feeder trust' "/etc/postgresql/$VERSION/warehouse/pg_hba.conf"
	cluster reload && pg_ctlcluster "$VERSION" warehouse reload || return 1
	DB=postgres db_psql warehouse-db -q <<-'END' || return 1
		CREATE EXTENSION idempotency CASCADE;
		CREATE ROLE feeder LOGIN;
		CREATE TABLE arrived (event_id uuid, id int);
		CREATE FUNCTION arrive(event_id uuid, aggregate_id text) RETURNS void LANGUAGE sql SECURITY DEFINER
			AS $$ INSERT INTO public.arrived VALUES (event_id, aggregate_id::int) $$;
		SELECT idempotency.grant_role('consumer', 'feeder');
	END
	sql -c 'CREATE DATABASE shop' || return 1
	db_psql shop-db -q -v port="$(port_of warehouse-db)" <<-'END' || return 1
		CREATE EXTENSION idempotency CASCADE;
		CREATE SEQUENCE orders;
		CREATE TABLE paid (id int);
		CREATE TABLE done (event_id uuid, id int);
		CREATE FUNCTION handle(event_id uuid, aggregate_id text) RETURNS void LANGUAGE sql
			AS $$ INSERT INTO public.done VALUES (event_id, aggregate_id::int) $$;
		CREATE SERVER handler FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
		CREATE SERVER warehouse FOREIGN DATA WRAPPER idempotency_postgres
			OPTIONS (host '/var/run/postgresql', port :'port', dbname 'postgres', function 'public.arrive');
		CREATE USER MAPPING FOR CURRENT_USER SERVER warehouse OPTIONS (user 'feeder');
		SELECT idempotency.relay_create('handled', 'handler'), idempotency.relay_create('copied', 'warehouse');
	END
	db_psql shop-db -Atqc "SELECT idempotency.sink_setup_sql('warehouse')" | DB=postgres db_psql warehouse-db -q
}

# remembers SERVER: each order that is paid there is a duplicate.
remembers()
{
	[ "$(db_value "$1" "SELECT count(*) FROM paid")" -gt 0 ] &&
		[ "$(db_value "$1" "SELECT count(*) FROM paid, idempotency.event_status('order-' || id) s WHERE s.status <> 'completed'")" = 0 ] &&
		[ "$(db_value "$1" "BEGIN; SELECT string_agg(DISTINCT idempotency.claim_event('order-' || id)::text, ' ') FROM (SELECT id FROM paid ORDER BY random() LIMIT 50) p")" = duplicate ]
}

# claims SERVER ORDER: the order is not paid there, and can be claimed; the claim is given up.
claims()
{
	[ "$(db_value "$1" "SELECT count(*) FROM paid WHERE id = $2")" = 0 ] &&
		[ "$(db_value "$1" "BEGIN; SELECT idempotency.claim_event('order-$2')")" = claimed ]
}

# once SERVER: each order that is paid there was handled once, and has arrived, none twice.
once()
{
	until_is t db_value "$1" "SELECT (SELECT array_agg(id ORDER BY id) FROM paid) = (SELECT array_agg(id ORDER BY id) FROM done)" &&
		until_is 0 not_arrived "$1" && [ "$(DB=postgres db_value warehouse-db "SELECT count(*) - count(DISTINCT event_id) FROM arrived")" = 0 ]
}

# not_arrived SERVER: how many of the orders that are paid there.
not_arrived()
{
	comm -23 <(db_psql "$1" -Atqc 'SELECT id FROM paid' | sort) <(DB=postgres db_psql warehouse-db -Atqc 'SELECT id FROM arrived' | sort) | wc -l
}

# pay SERVER ORDER
pay()
{
	db_psql "$1" -q -c "BEGIN; SELECT idempotency.claim_event('order-$2'); INSERT INTO paid VALUES ($2)" -c "SELECT idempotency.outbox_enqueue('order', '$2', 'Paid', '{}')" \
		-c "SELECT idempotency.complete_event('order-$2'); COMMIT"
}

# A copy that was started handles nothing, and nothing of it arrives: order 0 never does.
copy_is_quiet()
{
	local before

	before=$(db_value restored-db 'SELECT count(*) FROM done') && pay restored-db 0 && [ "$(db_value restored-db 'SELECT count(*) FROM done')" = "$before" ] &&
		[ "$(db_value restored-db 'SHOW archive_mode')" = off ]
}

nothing_of_the_copy()
{
	[ "$(DB=postgres db_value warehouse-db 'SELECT count(*) FROM arrived WHERE id = 0')" = 0 ]
}

drop_restored()
{
	pg_dropcluster --stop "$VERSION" restored && [ ! -e /srv/restored ]
}

make_mistake()
{
	db_value shop-db "SELECT pg_create_restore_point('before the mistake')" && more_paid
}

archive_all()
{
	local wal

	wal=$(db_value shop-db 'SELECT pg_walfile_name(pg_switch_wal())') &&
		until_is t db_value shop-db "SELECT last_archived_wal >= '$wal' FROM pg_stat_archiver"
}

# The servers: main, where the page expects it, and the other PostgreSQL
prepare()
{
	install -d -o postgres -g postgres "$files" /srv/archive && create_cluster && cat >"$conf" <<-'END' && cluster start
		shared_preload_libraries = 'idempotency'
		idempotency.publish_as = 'shop'
		idempotency.sink_idle_timeout = '10min'
	END
	other_cluster warehouse && cat >"${conf%/*}/archive.conf" <<-'END' && cluster restart
		archive_mode = on
		archive_command = 'test ! -f /srv/archive/%f && cp %p /srv/archive/%f'
	END
}

apt update >/dev/null || exit 1
check "the server and the extension, from packages" apt install "postgresql-$VERSION" \
	"/mnt/new/postgresql-$VERSION-idempotency"_*.deb /mnt/new/idempotency-sink-{null,postgres}_*.deb
check "clusters" prepare || exit 1
check "two relays" set_up_shop
start_load
check "orders are paid" more_paid
run_part "Dump"
check "and go on" more_paid
before=$(db_value shop-db 'SELECT max(id) FROM paid')
run_part "Base backup"
check "no boot starts the copy" grep -qx manual "/etc/postgresql/$VERSION/restored/start.conf"
check "the copy has what was paid before it" [ "$(db_value restored-db "SELECT max(id) >= $before FROM paid")" = t ]
check "the copy remembers it" remembers restored-db
check "orders are paid beside the copy" more_paid
check "of which the copy knows nothing" claims restored-db "$(db_value shop-db 'SELECT max(id) FROM paid')"
check "the copy is quiet" copy_is_quiet
check "it is dropped" drop_restored
blocks backup "Base backup" "/tmp/another base backup"
run_blocks "/tmp/another base backup" '^pg_createcluster'
check "orders are paid before the mistake" more_paid
check "and after it" make_mistake
check "the end of the load" stop_load
check "each order has its effects once so far" once shop-db
last=$(db_value shop-db 'SELECT max(id) FROM paid')
check "the archive has it all" archive_all
check "the end of the old server" cluster stop
run_part "To a point in time"
check "what was paid before the mistake is remembered" remembers restored-db
check "what was paid after it is not" claims restored-db "$last"
check "an order is paid" pay restored-db 1000000
check "each order has its effects once" once restored-db
check "nothing of the copy arrived" nothing_of_the_copy
check "it is dropped as well" drop_restored
check "an empty server" other_cluster new
run_part "Restore a dump"
check "what was paid before the dump is remembered" remembers new-db
check "what was paid after it is not" claims new-db "$last"
check "an order is paid there" pay new-db 1000001
check "each order has its effects once there" once new-db
for name in new warehouse; do
	pg_ctlcluster "$VERSION" "$name" stop
done
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
