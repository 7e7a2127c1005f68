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
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

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

suite_begin redis
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-redis-tests.XXXXXX")
trap 'rm -rf "$work" "$log"' EXIT
valkey=$(test/setup/valkey.sh) || valkey=
[ -z "$valkey" ] || build_tls "$valkey" || suite_stop "build with TLS"
suite_tests env REDIS_SERVER=redis-server python3 test/sink/tests.py redis "$@"
if [ -n "$valkey" ]; then
	echo "== $("$valkey" --version)"
	suite_tests env REDIS_SERVER="$valkey" python3 test/sink/tests.py redis "$@"
else
	suite_skip "redis, the newer server: valkey-server cannot be fetched from Debian"
fi
suite_end redis
