#!/bin/bash
# The demo: money moves in one database, and its effects appear once in
# another, while everything on the way is killed with -9.
#
#	DEMO_SECONDS=30		how long money moves and things are killed
#	DEMO_RATE=150		transfers asked for per second
#	DEMO_SEED=n			repeat the order of kills of an earlier run
#	KEEP=1				leave the work directory behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# One throw-away server holds database bank (A) and database ledger (B).
#
#	bank	pgbench moves money and enqueues each transfer in the same
#			transaction; a relay of kind postgres takes the events to
#	ledger	where they land in an inbox, from which four consumers claim them
#			and book them, while a re-deliverer repeats every fifth
#
# A killed backend, relay worker included, makes the server restart itself;
# the clients (client.sh) try again.  At the end the producers stop, the rest
# is waited for, and verdict.sql compares the two databases' own tables.  The
# status is 0 only if every committed transfer has exactly one effect, nothing
# else has one, and no money is missing.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
if [ -z "${SKIP_PACKAGES:-}" ]; then
	test/setup/packages.sh build || exit 1
fi
WERROR=${WERROR-}
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh

export DEMO_SECONDS=${DEMO_SECONDS:-30} DEMO_RATE=${DEMO_RATE:-150}
DEMO_SEED=${DEMO_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$DEMO_SEED
DRAIN_SECONDS=60
CONSUMERS="consumer-1 consumer-2 consumer-3 consumer-4"

declare -A kills=(["backend"]=0 ["relay worker"]=0 ["sink program"]=0 ["consumer"]=0)
declare -A result
supervisors=()

# Run SQL as somebody who may be refused: quietly, and with a status.
sql()
{
	local db=$1
	shift
	idem_client psql -XqAt -F ' ' -v ON_ERROR_STOP=1 "$@" "$db"
}

try_sql()
{
	sql "$@" 2>/dev/null
}

# Clients: each in a session of its own, started again when it was killed.
supervise()
{
	local kind=$1 name=$2

	while [ ! -e "$DEMO/stop" ] && [ ! -e "$DEMO/stop-$name" ]; do
		idem_as env PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" PGUSER=postgres \
			DEMO_SECONDS="$DEMO_SECONDS" DEMO_RATE="$DEMO_RATE" \
			setsid "$DEMO/client.sh" "$kind" "$name" "$IDEM_BINDIR" >>"$IDEM_WORK/log/$name.log" 2>&1
	done 2>>"$IDEM_WORK/log/$name.log"
}

start_client()
{
	supervise "$@" &
	supervisors+=($!)
}

# Signal a client and its children, if the number is still its own.
signal_client()
{
	local pid

	pid=$(cat "$DEMO/pid/$2" 2>/dev/null) && [ -n "$pid" ] &&
		[ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(realpath "$DEMO")" ] &&
		kill "-$1" -- "-$pid" 2>/dev/null
}

# On every way out: no client survives, and lib.sh removes the rest.
leave()
{
	local status=$? file

	if [ -d "${DEMO:-}" ]; then
		touch "$DEMO/stop"
		for file in "$DEMO"/pid/*; do
			signal_client KILL "${file##*/}"
		done
		wait ${supervisors[@]+"${supervisors[@]}"} 2>/dev/null
		[ "$status" = 0 ] || [ "$status" -gt 128 ] || [ ${#result[@]} != 0 ] || tail -n 20 "$IDEM_LOG" >&2
	fi
	(exit "$status")
	idem_cleanup
}

# A process of our server: its working directory is the data directory.
kill_server_process()
{
	local pid

	pid=$(try_sql "$1" -c "$2")
	[ -n "$pid" ] &&
		[ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(realpath "$IDEM_WORK/data")" ] &&
		kill -KILL "$pid" 2>/dev/null
}

kill_one()
{
	local consumers

	case $1 in
		"backend")
			kill_server_process bank "SELECT pid FROM pg_stat_activity
				WHERE application_name IN ('demo producer', 'demo consumer') ORDER BY random() LIMIT 1"
			;;
		"relay worker") kill_server_process bank "SELECT pid FROM idempotency.stat_relay" ;;
		"sink program") kill_server_process bank "SELECT sink_pid FROM idempotency.stat_relay" ;;
		"consumer")
			read -ra consumers <<<"$CONSUMERS"
			signal_client KILL "${consumers[RANDOM % ${#consumers[@]}]}"
			;;
	esac && kills[$1]=$((kills[$1] + 1))
}

# A kill of any kind; those that restart the server are not the most frequent,
# so that there is work done to be interrupted.
kill_any()
{
	local kinds=("sink program" "consumer" "sink program" "relay worker" "consumer" "backend")

	kill_one "${kinds[RANDOM % ${#kinds[@]}]}"
}

count_kills()
{
	local n=0 kind

	for kind in "${!kills[@]}"; do
		n=$((n + kills[$kind]))
	done
	echo "$n"
}

# One line, overwritten on a terminal and now and then printed elsewhere.
progress()
{
	local a b line

	b=$(try_sql ledger -c "SELECT count(*), (SELECT count(*) FROM entry), (SELECT count(*) FROM refused)
		FROM inbox") || b=
	a=$(try_sql bank -c "SELECT count(*) FROM transfer") || a=
	[ -n "$a" ] && [ -n "$b" ] && shown="$a $b"
	# shellcheck disable=SC2086 # four numbers
	line=$(printf '%3d s  enqueued %6d  delivered %6d  effects %6d  refused %5d  kills %3d  %-10s' \
		$((SECONDS - started)) $shown "$(count_kills)" "${a:+$1}")
	[ -n "$a" ] || line+="server restarts"
	if [ -t 1 ]; then
		printf '\r%s\033[K' "$line"
	elif [ $((SECONDS - said)) -ge 5 ]; then
		echo "$line"
		said=$SECONDS
	fi
}

make_databases()
{
	local log=$IDEM_WORK/log/setup.log

	sql postgres -c 'CREATE DATABASE bank' -c 'CREATE DATABASE ledger' &&
		sql bank -v sock="$IDEM_SOCK" -v port="$IDEM_PORT" -f "$DEMO/bank.sql" 2>"$log" &&
		sql ledger -c 'CREATE EXTENSION idempotency CASCADE' 2>>"$log" &&
		sql bank -c "SELECT idempotency.sink_setup_sql('ledger')" | sql ledger &&
		sql ledger -f "$DEMO/ledger.sql" &&
		sql bank -c "SELECT idempotency.relay_create('transfers', 'ledger', ARRAY['transfer'])" >/dev/null
}

setup()
{
	idem_mkdir "$IDEM_WORK/data" "$DEMO" "$DEMO/pid"
	cp test/demo/*.sql test/demo/client.sh "$DEMO/"
	chmod -R a+rX "$DEMO"
	IDEM_LOG=$IDEM_WORK/log/server.log
	if ! idem_initdb "$IDEM_WORK/data" preload || ! idem_start "$IDEM_WORK/data" "$IDEM_LOG"; then
		idem_die "the server does not start"
	fi
	if ! make_databases; then
		cat "$IDEM_WORK/log/setup.log" >&2
		idem_die "the demo's databases could not be made"
	fi
}

start_clients()
{
	local name

	start_client producer producer
	start_client redeliverer redeliverer
	for name in $CONSUMERS; do
		start_client consumer "$name"
	done
}

run_and_kill()
{
	local until=$((SECONDS + DEMO_SECONDS))

	while [ $SECONDS -lt $until ]; do
		progress running
		sleep 0.5
		kill_any
	done
}

stop_producing()
{
	touch "$DEMO/stop-producing" "$DEMO/stop-producer"
	signal_client TERM producer
	wait "${supervisors[0]}" 2>/dev/null
}

# Has everything that was enqueued arrived and been acked, the repeats too?
# Sessions of killed producers may still be committing.
is_drained()
{
	local enqueued rest

	[ "$(try_sql bank -c "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'demo producer'")" = 0 ] &&
		enqueued=$(try_sql bank -c "SELECT count(*) FROM transfer") &&
		rest=$(try_sql ledger -c "SELECT count(*) >= $enqueued AND bool_and(acked AND (repeated OR seq % 5 <> 0)) FROM inbox") &&
		[ "$rest" = t ]
}

drain()
{
	local until=$((SECONDS + DRAIN_SECONDS))

	until is_drained; do
		progress draining
		if [ $SECONDS -ge $until ]; then
			echo
			echo "not drained after $DRAIN_SECONDS s:"
			idem_client psql -Xx -c 'SELECT * FROM idempotency.stat_relay' bank
			return 1
		fi
		sleep 0.2
	done
	said=0
	progress drained
	[ ! -t 1 ] || echo
}

# Copy what A says into B, and compare there.
copy_table()
{
	sql bank -c "COPY $1 TO STDOUT" | sql ledger -c "CREATE TABLE $2 ($3)" -c "COPY $2 FROM STDIN"
}

judge()
{
	local name value

	if ! copy_table transfer committed 'event_id uuid, src int, dst int, amount int' ||
		! copy_table rolled_back rolled_back 'event_id uuid' ||
		! copy_table account bank_account 'id int, balance bigint'; then
		idem_die "the databases could not be compared"
	fi
	while read -r name value; do
		result[$name]=$value
	done < <(sql ledger -f "$DEMO/verdict.sql")
	[ ${#result[@]} -eq 14 ] || idem_die "the databases could not be compared"
}

row()
{
	printf '  %-34s %9s   %s\n' "$@"
}

show()
{
	local kind total restarts

	total=$(count_kills)
	restarts=$(grep -c 'all server processes terminated; reinitializing' "$IDEM_LOG")
	echo
	row "enqueued (committed transfers)" "${result[enqueued]}" "and ${result[rolled_back]} rolled back on purpose"
	row "delivered to the inbox" "${result[delivered]}" "and ${result[repeated]} of them repeated"
	row "duplicates refused" "${result[refused]}" "repeats, and what two consumers had fetched"
	row "effects" "${result[effects]}"
	for kind in "sink program" "relay worker" "backend" "consumer"; do
		row "kill -9: $kind" "${kills[$kind]}"
	done
	row "restarts of the server by them" "$restarts"
	row "events lost" "${result[lost]}" "${result[undelivered]} of them not delivered"
	row "effects doubled" "${result[doubled]}"
	row "effects of what never committed" "${result[phantoms]}" "${result[undone]} of them rolled back on purpose"
	row "money lost" "${result[money]}" "account by account; bank ${result[bank_sum]}, ledger ${result[ledger_sum]}"
	echo
	[ "$total" = 0 ] || echo "A zero in $total kills says: fewer than about 3 in $total (at 95 %)."
}

# Nothing lost, doubled or invented, and something happened at all.
is_good()
{
	[ "${result[lost]}" = 0 ] && [ "${result[undelivered]}" = 0 ] && [ "${result[doubled]}" = 0 ] &&
		[ "${result[phantoms]}" = 0 ] && [ "${result[undone]}" = 0 ] && [ "${result[money]}" = 0 ] &&
		[ "${result[bank_sum]}" = "${result[ledger_sum]}" ] && [ "${result[bank_sum]}" = 200000 ] &&
		[ "${result[effects]}" = "${result[enqueued]}" ] && [ "${result[effects]}" -gt 0 ] &&
		[ "$(count_kills)" -gt 0 ]
}

SECONDS=0
idem_make_work
DEMO=$IDEM_WORK/demo
trap leave EXIT
idem_say "building for $("$PG_CONFIG" --version)"
idem_build_stage || exit 1
setup
idem_say "$DEMO_RATE transfers/s for $DEMO_SECONDS s, kill -9 all along (seed $DEMO_SEED)"
started=$SECONDS said=$SECONDS shown="0 0 0 0"
start_clients
run_and_kill
stop_producing
drain
drained=$?
judge
show
if [ $drained != 0 ] || ! is_good; then
	echo "FAILED after $SECONDS s"
	exit 1
fi
echo "every committed transfer has exactly one effect ($SECONDS s)"
