#!/bin/bash
# The regress files with the server under valgrind.
#
#	PG_CONFIG=...		of an assert-enabled server built with USE_VALGRIND (server.sh)
#	TESTS="names"		only these
#
# Memory errors of any process fail; leaks do not, since the server drops whole
# contexts, and at exit nothing.  valgrind.supp of the server's source names
# what it does on purpose.  Ends with "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=test/setup/lib.sh
. "$here/../setup/lib.sh"
cd "$IDEM_TOP" || exit 1
passed=0
failed=0

# Start the server as valgrind's child; pg_ctl would not wait long enough.
start_valgrind()
{
	local try

	IDEM_PORT=$(idem_free_port)
	IDEM_SOCK=$IDEM_WORK/sock
	# shellcheck disable=SC2016 # expanded in there
	idem_as sh -c 'log=$1; shift; exec "$@" >"$log" 2>&1' sh "$IDEM_WORK/log/server.log" \
		valgrind --quiet --leak-check=no --gen-suppressions=all --time-stamp=no \
		--suppressions="$suppressions" --error-markers=VALGRIND-BEGIN,VALGRIND-END \
		--trace-children=yes --trace-children-skip="*/idempotency-sink-*,/bin/*,/usr/bin/*" \
		--log-file="$IDEM_WORK/log/valgrind.%p" \
		"$IDEM_BINDIR/postgres" -D "$IDEM_WORK/data" -p "$IDEM_PORT" &
	for try in $(seq 1200); do
		if idem_client pg_isready -q; then
			return 0
		fi
		sleep 0.5
	done
	echo "no answer after $try tries"
	return 1
}

# Reports since the last call.
new_reports()
{
	local reports

	reports=$(cat "$IDEM_WORK"/log/valgrind.* 2>/dev/null | grep -c 'VALGRIND-BEGIN')
	[ "$reports" = "$seen" ] && return 1
	seen=$reports
}

idem_make_work
suppressions=$("$PG_CONFIG" --bindir)/../valgrind.supp
[ -f "$suppressions" ] || idem_die "$PG_CONFIG is not of a server that server.sh built"
idem_build_stage || idem_die "build"
mkdir -p "$IDEM_WORK/tests"
cp -R sql expected "$IDEM_WORK/tests/"
chmod -R a+rX "$IDEM_WORK/tests"
idem_mkdir "$IDEM_WORK/data" "$IDEM_WORK/out"
idem_initdb "$IDEM_WORK/data" preload || exit 1
start_valgrind || exit 1
seen=0
for file in sql/*.sql; do
	name=$(basename "$file" .sql)
	[[ " ${TESTS:-$name} " == *" $name "* ]] || continue
	case $name in idempotency--* | nopreload*) continue ;; esac
	load=(--load-extension=pgcrypto --load-extension=idempotency)
	! grep -qiE 'create[[:space:]]+extension.*idempotency' "$file" || load=()
	idem_mkdir "$IDEM_WORK/out/$name"
	# What waits for a moment in a test may be late under valgrind; the verdict
	# is that of valgrind, a difference in the output is shown.
	idem_run idem_as env PATH="$IDEM_BINDIR:$PATH" PGUSER=postgres timeout -k 10 3600 \
		"$IDEM_PGSRC/src/test/regress/pg_regress" --inputdir="$IDEM_WORK/tests" \
		--outputdir="$IDEM_WORK/out/$name" --bindir="$IDEM_BINDIR" \
		--dlpath="$IDEM_STAGE$IDEM_PKGLIBDIR" --host="$IDEM_SOCK" --port="$IDEM_PORT" \
		--user=postgres --dbname="regress_$name" "${load[@]}" "$name" \
		>"$IDEM_WORK/log/regress-$name.log" 2>&1 ||
		cat "$IDEM_WORK/out/$name/regression.diffs" 2>/dev/null
	# A session starts slowly there.
	if ! idem_client pg_isready -q -t 60; then
		failed=$((failed + 1))
		echo "NOT OK $name: the server is gone"
		break
	elif new_reports; then
		failed=$((failed + 1))
		cat "$IDEM_WORK"/log/valgrind.*
		echo "NOT OK $name"
	else
		passed=$((passed + 1))
		echo "ok $name"
	fi
done
idem_stop "$IDEM_WORK/data"
! grep -nE -A5 'TRAP:|PANIC:|terminated by signal' "$IDEM_WORK/log/server.log" || failed=$((failed + 1))
! new_reports || {
	failed=$((failed + 1))
	cat "$IDEM_WORK"/log/valgrind.*
}
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
