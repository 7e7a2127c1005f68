#!/bin/bash
# Measure this tree against another commit of the repository, in turns on two servers
# that are up at once: test/bench/report/pair.md.
#
#	pair.sh COMMIT
#
#	QUICK=1			everything small; the report goes into build/bench-quick
#	ONLY=regexp		measurements whose name begins so: claim_one-on ... many_ours-off,
#					ours_bytea, ours_jsonb, ours_function, ours_postgres, latency-100,
#					latency-1000; the report goes into build/bench-quick as well
#	REMARK=text, PINNED=1, SKIP_PACKAGES=1, KEEP=1		as of run.sh
#
# The commit is built by its own Makefile, below the work directory.  Its sink of the
# latencies is its own as well; arms and schema are this tree's, for both.
set -euo pipefail
WERROR=${WERROR-}
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
cd "$IDEM_TOP"
# shellcheck source=test/bench/common.sh
. test/bench/common.sh

report=test/bench/report
[ -z "${QUICK:-}${ONLY:-}" ] || report=build/bench-quick
data=build/bench-pair

git=(git -c safe.directory='*')
base=$("${git[@]}" rev-parse --short "${1:?the commit to compare with}^{commit}") || idem_die "no commit $1"
commit=$(commit)

# The relays' target knows nothing of the extension.
target_conf()
{
	bench_conf
	echo "shared_preload_libraries = ''"
}

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh bench
idem_make_work
choose_cores
copy_program

idem_say "build this tree"
build_tree
start_server new bench_conf

idem_say "build $base"
top=$IDEM_TOP
IDEM_TOP=$IDEM_WORK/tree
IDEM_STAGE=$IDEM_WORK/stage-base
mkdir "$IDEM_TOP" "$IDEM_STAGE"
"${git[@]}" archive "$base" | tar -x -C "$IDEM_TOP"
build_tree
IDEM_TOP=$top
start_server base bench_conf
start_server target target_conf

export BENCH_TARGET=1
begun=$SECONDS
measure setup
mkdir -p "$report" "$data"
{
	machine "$commit"
	printf 'machine\tname=base\tvalue=%s\n' "$base of $("${git[@]}" log -1 --format=%cs "$base")"
} >"$IDEM_WORK/pair.tsv"
measure pair
printf 'machine\tname=duration\tvalue=%s s\n' "$((SECONDS - begun))" >>"$IDEM_WORK/pair.tsv"
cat "$IDEM_WORK/pair.tsv" "$IDEM_WORK/bench/pair.tsv" >"$data/pair.tsv"
perl -Itest/bench/lib -MBench::Report::Pair -e 'Bench::Report::Pair::write_report(@ARGV)' "$report" "$data"
idem_say "$((SECONDS - begun)) s; see $report/pair.md"
