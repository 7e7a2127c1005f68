#!/bin/bash
# Run the tests of the redis sink against real servers: `make test-redis`.
#
#	run.sh [TEST...]	default: all, with Debian's redis-server and with a newer valkey-server
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the newer server cannot be fetched, name its tests as NOT RUN; so with
#						the kills and the client that reads
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The servers run on loopback, in temporary directories.  Prints "ok" or "not ok" per test
# and ends with a line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null
export WERROR=${WERROR-1}

# stop WHAT: nothing can be tested.
stop()
{
	echo "not ok $1"
	echo "0 passed, 1 failed"
	exit 1
}

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh redis || stop packages
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-redis || stop build
echo "ok build"
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-redis-tests.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/log
passed=1
failed=0

# tests SERVER [TEST...]: run the tests with this server program.
tests()
{
	local ended good bad

	REDIS_SERVER=$1 python3 test/sink/redis/tests.py "${@:2}" 2>&1 | tee "$log"
	ended=${PIPESTATUS[0]}
	good=$(grep -cE '^ok ' "$log")
	bad=$(grep -cE '^not ok ' "$log")
	[ "$ended" = 0 ] || [ "$bad" != 0 ] || bad=1
	passed=$((passed + good))
	failed=$((failed + bad))
}

# The program with a hiredis that has TLS, and with these libraries beside it.
build_tls()
{
	local root=${1%/*}/hiredis

	REDIS_TLS_SINK=$work/bin/idempotency-sink-redis
	PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$(echo "$root"/usr/lib/*/pkgconfig) \
		"${MAKE:-make}" -s --no-print-directory SINK_BINDIR="$work/bin" SINK_BUILDDIR="$work/build" "$REDIS_TLS_SINK" || return
	cp -P "$root"/usr/lib/*/libhiredis*.so.* "$work/bin/"
	export REDIS_TLS_SINK
}

valkey=$(test/setup/valkey.sh) || valkey=
[ -z "$valkey" ] || build_tls "$valkey" || stop "build with TLS"
tests redis-server "$@"
if [ -n "$valkey" ]; then
	echo "== $("$valkey" --version)"
	tests "$valkey" "$@"
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	echo "NOT RUN  redis, the newer server: valkey-server cannot be fetched from Debian"
else
	echo "not ok fetch: valkey-server cannot be fetched from Debian"
	failed=$((failed + 1))
fi
if [ -n "${KILLS:-}" ]; then
	SKIP_PACKAGES=1 test/sink/kills.sh redis 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
