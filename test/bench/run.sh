#!/bin/bash
# Measure this tree against the floors and its rivals: test/bench/report/report.md.
#
#	QUICK=1			about two minutes instead of about ten
#	ONLY=regexp		only arms of that name, or relay, latency, memory, slope, pin
#	REMARK=text		stands in the report, such as what else the machine did
#	SKIP_PACKAGES=1	do not look for missing packages
#	KEEP=1			the work directory stays, results.tsv in it
#
# The server is a throw-away one in ${TMPDIR:-/tmp}; it syncs to disk, unlike
# that of the tests.
set -euo pipefail
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
cd "$IDEM_TOP"

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
	printf 'machine\tname=commit\tvalue=%s\n' "$(commit)"
	printf 'machine\tname=date\tvalue=%s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
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

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh bench
idem_make_work
idem_say "build"
idem_build_stage
idem_mkdir "$IDEM_WORK"/{data,bench}
cp -r test/bench/{arms,schema.sql,measure.pl} "$IDEM_WORK/bench/"
idem_initdb "$IDEM_WORK/data" preload
bench_conf | idem_as tee -a "$IDEM_WORK/data/postgresql.conf" >/dev/null
machine >"$IDEM_WORK/machine.tsv"
idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log"
started=$SECONDS
idem_as env PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" PGUSER=postgres \
	PATH="$IDEM_BINDIR:$PATH" IDEM_LOG="$IDEM_WORK/log/server.log" \
	perl "$IDEM_WORK/bench/measure.pl" "$IDEM_WORK/bench" || {
	tail -n 20 "$IDEM_WORK/log/server.log" >&2
	exit 1
}
printf 'machine\tname=duration\tvalue=%s s\n' "$((SECONDS - started))" >>"$IDEM_WORK/machine.tsv"
mkdir -p test/bench/report
cat "$IDEM_WORK/machine.tsv" "$IDEM_WORK/bench/results.tsv" >"$IDEM_WORK/all.tsv"
perl test/bench/report.pl "$IDEM_WORK/all.tsv" test/bench/report
idem_say "$((SECONDS - started)) s; see test/bench/report/report.md"
