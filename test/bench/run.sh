#!/bin/bash
# Measure this tree against the floors and its rivals: test/bench/report/report.md.
#
#	QUICK=1			everything small, pins too; reports into build/bench-quick
#	ONLY=regexp		sections whose name begins so: claims enqueues drain parked latency
#					memory backlog ids pin-snapshot pin-writer pin-reader pin-prepared;
#					the results of the others stay as they are
#	DURATION=s		of each pin; 600
#	MAXSIZE=n		of the backlog and of remembered ids; 1000000
#	PROFILE=arm		instead: where the time goes, into report/profile/ARM.md; an arm of
#					arms/ or drain/, ours_bytea, ours_jsonb, ours_function, latency,
#					growth, or pin-NAME
#	PINNED=1		the servers on the first half of the cores, the load on the others
#	REMARK=text		stands in the report, such as what else the machine did
#	PGQUE_SQL=path	SQL of the rival PgQue, PGMQ_SQL=path of pgmq, where you have it
#	SKIP_PACKAGES=1	do not look for missing packages
#	KEEP=1			the work directory stays
#
# The servers are throw-away ones in ${TMPDIR:-/tmp}; they sync to disk, unlike
# those of the tests.  Each section leaves its results in build/bench-data as soon
# as it is done, and its part of the report is made of them; the other parts stay.
# A quick run is no evidence, so it leaves the report of the tree alone.
set -euo pipefail
WERROR=${WERROR-}
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
cd "$IDEM_TOP"

report=test/bench/report
[ -z "${QUICK:-}" ] || report=build/bench-quick
data=build/bench-data

bench_conf()
{
	cat <<-END
		fsync = on
		wal_level = replica
		shared_buffers = '1GB'
		max_wal_size = '32GB'
		checkpoint_timeout = '1h'
		autovacuum = off
		jit = off
		max_connections = 100
		log_checkpoints = off
		idempotency.max_parked = 100000
	END
}

# Two of these run at once, and for long.
pin_conf()
{
	bench_conf
	cat <<-END
		max_wal_size = '8GB'
		autovacuum = on
		autovacuum_naptime = '5s'
		idempotency.outbox_retention = 0
	END
}

machine()
{
	printf 'machine\tname=cpu\tvalue=%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
	printf 'machine\tname=cores\tvalue=%s\n' "$(nproc)"
	printf 'machine\tname=memory\tvalue=%s\n' "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
	printf 'machine\tname=kernel\tvalue=%s\n' "$(uname -sr)"
	printf 'machine\tname=file system\tvalue=%s\n' "$(stat -f -c %T "$IDEM_WORK")"
	printf 'machine\tname=load\tvalue=%s\n' "$(cut -d ' ' -f 1-3 /proc/loadavg)"
	printf 'machine\tname=commit\tvalue=%s\n' "$commit"
	printf 'machine\tname=date\tvalue=%s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
	printf 'machine\tname=pinned\tvalue=%s\n' "${SERVER_CORES:+server $SERVER_CORES, load $LOAD_CORES}"
	printf 'machine\tname=remark\tvalue=%s\n' "${REMARK:-}"
}

# What is measured; a report that is being rewritten is no change of it.
commit()
{
	local git=(git -c safe.directory='*')

	if ! "${git[@]}" rev-parse --short HEAD 2>/dev/null; then
		echo unknown
	elif [ -n "$("${git[@]}" status --porcelain -- . ':!test/bench/report')" ]; then
		echo "with uncommitted changes"
	fi | paste -sd ' '
}

# SQL that is not ours, made readable for the server user.
take_rivals()
{
	[ -z "${PGQUE_SQL:-}" ] || cp "$PGQUE_SQL" "$IDEM_WORK/bench/pgque.sql"
	[ -z "${PGMQ_SQL:-}" ] || cp "$PGMQ_SQL" "$IDEM_WORK/bench/pgmq.sql"
	chmod -R a+rX "$IDEM_WORK/bench"
}

# The sink of the latencies, beside those of the tree.
build_sink()
{
	cc -std=gnu11 -O2 -g -Wall -Wextra ${WERROR:+-Werror} -fPIE -pie -Isrc \
		-o "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/idempotency-sink-bench" \
		test/bench/sink.c src/sink/protocol/*.c src/sink/common/*.c
	chmod a+rx "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/idempotency-sink-bench"
}

# Halves of the cores for the servers and for the load, if asked for.  Workers
# and sink programs are children of a server.
SERVER_CORES=
LOAD_CORES=
choose_cores()
{
	local cores
	cores=$(nproc)

	[ -n "${PINNED:-}" ] || return 0
	[ "$cores" -ge 2 ] || idem_die "PINNED needs two cores"
	SERVER_CORES=0-$((cores / 2 - 1))
	LOAD_CORES=$((cores / 2))-$((cores - 1))
}

# on_cores LIST COMMAND...: it, and all that it starts; anywhere without a list.
on_cores()
{
	local list=$1 self=$BASHPID before status=0
	shift

	[ -n "$list" ] || {
		"$@"
		return
	}
	before=$(taskset -cp "$self" | sed 's/.*: //')
	taskset -cp "$list" "$self" >/dev/null
	"$@" || status=$?
	taskset -cp "$before" "$self" >/dev/null
	return $status
}

# start_server NAME CONF: one more in BENCH_SERVERS.
BENCH_SERVERS=
start_server()
{
	idem_mkdir "$IDEM_WORK/$1"
	idem_initdb "$IDEM_WORK/$1" preload
	"$2" | idem_as tee -a "$IDEM_WORK/$1/postgresql.conf" >/dev/null
	on_cores "$SERVER_CORES" idem_start "$IDEM_WORK/$1" "$IDEM_WORK/log/$1.log"
	BENCH_SERVERS="$BENCH_SERVERS $IDEM_SOCK:$IDEM_PORT:$IDEM_WORK/log/$1.log"
}

stop_servers()
{
	local server

	for server in $BENCH_SERVERS; do
		server=${server##*/}
		idem_stop "$IDEM_WORK/${server%.log}"
	done
	BENCH_SERVERS=
}

measure()
{
	on_cores "$LOAD_CORES" idem_as env PATH="$IDEM_BINDIR:$PATH" BENCH_SERVERS="$BENCH_SERVERS" \
		BENCH_PGQ_PACKAGE="$pgq_package" \
		perl "$IDEM_WORK/bench/measure.pl" "$IDEM_WORK/bench" "$@" || {
		tail -qn 20 "$IDEM_WORK"/log/{data,free,pinned}.log 2>/dev/null >&2
		return 1
	}
}

# The servers that a section needs; those that are up stay.
servers_up=
servers_for()
{
	local kind=one

	[[ $1 != pin-* ]] || kind=two
	[ "$servers_up" != $kind ] || return 0
	stop_servers
	if [ $kind = two ]; then
		start_server free pin_conf
		start_server pinned pin_conf
	else
		start_server data bench_conf
	fi
	measure setup
	servers_up=$kind
}

run_section()
{
	local begun=$SECONDS

	servers_for "$1"
	machine >"$IDEM_WORK/$1.tsv"
	measure "$1"
	printf 'machine\tname=duration\tvalue=%s s\n' "$((SECONDS - begun))" >>"$IDEM_WORK/$1.tsv"
	mkdir -p "$report"
	cat "$IDEM_WORK/$1.tsv" "$IDEM_WORK/bench/$1.tsv" >"$data/$1.tsv"
	perl test/bench/report.pl "$report" "$data"
}

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh bench
idem_make_work
sections=$(perl test/bench/measure.pl . --list) || exit
commit=$(commit)
choose_cores
pgq_package=$(dpkg-query -W -f '${Package} ${Version}' "postgresql-$IDEM_MAJOR-pgq3" 2>/dev/null || true)
idem_say "build"
# PGXS takes a PROFILE for options of the compiler.
MAKE_ARGS="${MAKE_ARGS:-} PROFILE="
idem_build_stage
build_sink
idem_mkdir "$IDEM_WORK/bench"
cp -r test/bench/{arms,drain,rivals,lib,schema.sql,measure.pl} "$IDEM_WORK/bench/"
take_rivals
if [ -n "${PROFILE:-}" ]; then
	# shellcheck source=test/bench/profile.sh
	. test/bench/profile.sh
	for arm in $PROFILE; do
		profile "$arm"
	done
	exit
fi
# Results of former runs may be older than the report.
rm -rf "$data"
mkdir -p "$data"
begun=$SECONDS
for section in $sections; do
	run_section "$section"
done
idem_say "$((SECONDS - begun)) s; see $report/report.md"
