# Shell functions of the benchmark's programs: throw-away servers that sync to disk, and what
# measures on them.  Sourced after test/setup/lib.sh.

# shellcheck shell=bash

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
		max_connections = 300
		log_checkpoints = off
		idempotency.max_parked = 200000
	END
}

# machine COMMIT: where and of what a section is measured.
machine()
{
	printf 'machine\tname=cpu\tvalue=%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
	printf 'machine\tname=cores\tvalue=%s\n' "$(nproc)"
	printf 'machine\tname=memory\tvalue=%s\n' "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
	printf 'machine\tname=kernel\tvalue=%s\n' "$(uname -sr)"
	printf 'machine\tname=file system\tvalue=%s\n' "$(stat -f -c %T "$IDEM_WORK")"
	printf 'machine\tname=load\tvalue=%s\n' "$(cut -d ' ' -f 1-3 /proc/loadavg)"
	printf 'machine\tname=commit\tvalue=%s\n' "$1"
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

# Build the tree of IDEM_TOP and stage it, the sink of the latencies beside its programs.
# PGXS takes a PROFILE for options of the compiler.
build_tree()
{
	MAKE_ARGS="${MAKE_ARGS:-} PROFILE=" idem_build_stage
	cc -std=gnu11 -O2 -g -Wall -Wextra ${WERROR:+-Werror} -fPIE -pie "-I$IDEM_TOP/src" \
		-o "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/idempotency-sink-bench" \
		"$IDEM_TOP"/test/bench/sink.c "$IDEM_TOP"/src/sink/{protocol,common}/*.c
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

# start_server NAME CONF: one more in BENCH_SERVERS, of the stage built last.
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

# What measures, where the server user can read it.
copy_program()
{
	idem_mkdir "$IDEM_WORK/bench"
	cp -r test/bench/{arms,drain,rivals,lib,schema.sql,measure.pl} "$IDEM_WORK/bench/"
	chmod -R a+rX "$IDEM_WORK/bench"
}

pgq_package=
measure()
{
	local server

	on_cores "$LOAD_CORES" idem_as env PATH="$IDEM_BINDIR:$PATH" BENCH_SERVERS="$BENCH_SERVERS" \
		BENCH_PGQ_PACKAGE="$pgq_package" \
		perl "$IDEM_WORK/bench/measure.pl" "$IDEM_WORK/bench" "$@" || {
		for server in $BENCH_SERVERS; do
			tail -n 20 "${server##*:}" >&2
		done
		return 1
	}
}
