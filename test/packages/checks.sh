# Functions for the scripts that run in a folder with a server: checks, the cluster, three
# relays and their events.
#
# Source this file.  VERSION is the server's major; lib is the directory of the library.

# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables

lib=/usr/lib/postgresql/$VERSION/lib
conf=/etc/postgresql/$VERSION/main/conf.d/idempotency.conf
log=/var/log/postgresql/postgresql-$VERSION-main.log
good=0
bad=0

# check NAME COMMAND...
check()
{
	local out

	if out=$("${@:2}" 2>&1); then
		echo "ok       $1"
		good=$((good + 1))
	else
		echo "NOT OK   $1"
		tail -n 40 <<<"$out" | sed 's/^/    | /'
		bad=$((bad + 1))
	fi
}

# The kinds of sinks that have a program.
kinds()
{
	find /tmp/idempotency/src/sink -mindepth 2 -name '*.c' ! -path '*/protocol/*' ! -path '*/common/*' -printf '%h\n' | sed 's|.*/||' | sort -u
}

apt()
{
	DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
}

# The network is that of the machine, where others may have servers: this one has a socket only.
create_cluster()
{
	pg_createcluster -p 5432 "$VERSION" main >/dev/null && echo "listen_addresses = ''" >"${conf%/*}/socket.conf"
}

cluster()
{
	pg_ctlcluster "$VERSION" main "$@"
}

sql()
{
	runuser -u postgres -- psql -XAtq -v ON_ERROR_STOP=1 -d "${DB:-postgres}" "$@"
}

# until_is EXPECTED COMMAND...: poll for the output; the limit only ends a failure.
until_is()
{
	local expected=$1 got tries

	shift
	for tries in {1..1800}; do
		got=$("$@")
		[ "$got" != "$expected" ] || return 0
		sleep 0.1
	done
	echo "after $tries tries still \"$got\" in place of \"$expected\""
	DB=postgres sql -c 'SELECT relay, state, waiting_for, last_error FROM idempotency.stat_relay'
	return 1
}

set_up()
{
	sql -c 'CREATE EXTENSION idempotency CASCADE' -c 'CREATE DATABASE target' -c '
		CREATE TABLE invoices (order_id int PRIMARY KEY);
		CREATE FUNCTION on_order(aggregate_id text) RETURNS void LANGUAGE sql
			AS $$ INSERT INTO public.invoices VALUES (aggregate_id::int) $$;' -c "
		CREATE SERVER f FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.on_order');
		CREATE SERVER n FOREIGN DATA WRAPPER idempotency_null;
		CREATE SERVER p FOREIGN DATA WRAPPER idempotency_postgres
			OPTIONS (host '/var/run/postgresql', dbname 'target', function 'public.on_order');
		CREATE USER MAPPING FOR postgres SERVER p OPTIONS (user 'postgres');" || return 1
	sql -c "SELECT idempotency.sink_setup_sql('p')" | DB=target sql || return 1
	DB=target sql -c '
		CREATE TABLE invoices (order_id int PRIMARY KEY);
		CREATE FUNCTION on_order(aggregate_id text) RETURNS void LANGUAGE sql
			AS $$ INSERT INTO public.invoices VALUES (aggregate_id::int) $$;' || return 1
	sql -c "SELECT idempotency.relay_create(s, s) FROM unnest('{f,n,p}'::text[]) AS s"
	sql -c "BEGIN; SELECT idempotency.claim_event('evt-1'); SELECT idempotency.complete_event('evt-1'); COMMIT"
}


# event N: enqueue event N; events 1 to N then are with the three relays.
event()
{
	sql -c "SELECT idempotency.outbox_enqueue('order', '$1', 'OrderCreated', '{}')" >/dev/null || return 1
	until_is "$(seq -s ' ' "$1")" sql -c "SELECT string_agg(order_id::text, ' ' ORDER BY order_id) FROM invoices" &&
		DB=target until_is "$(seq -s ' ' "$1")" sql -c "SELECT string_agg(order_id::text, ' ' ORDER BY order_id) FROM invoices" &&
		until_is 0 sql -c "SELECT lag_events + retrying + dead FROM idempotency.stat_relay WHERE relay = 'n'"
}

remembered()
{
	[ "$(sql -c "SELECT idempotency.claim_event('evt-1')")" = duplicate ]
}

postmaster()
{
	head -n 1 "/var/lib/postgresql/$VERSION/main/postmaster.pid"
}

# The library that the server has mapped: the file that is installed, or one that is gone.
mapped()
{
	sed -n "s|.*\($lib/idempotency.so\)|\1|p" "/proc/$(postmaster)/maps" | sort -u
}
