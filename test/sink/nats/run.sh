#!/bin/bash
# Run the tests of the nats sink against real servers: `make test-nats`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the server cannot be fetched, name the tests as NOT RUN; so with the kills
#						and the client that reads
#	KEEP=1				leave the servers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The servers are of Debian's releases (test/setup/nats.sh).  They run on loopback, as an
# ordinary user, in a temporary directory.  Prints "ok" or "not ok" per test and ends
# with a line "N passed, N failed".
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

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh nats || stop packages
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-nats || stop build
echo "ok build"
if ! test/setup/nats.sh >/dev/null; then
	[ -n "${ALLOW_OFFLINE:-}" ] || stop "fetch: nats-server cannot be fetched from Debian"
	echo "NOT RUN  nats: the server cannot be fetched from Debian"
	echo "1 passed, 0 failed"
	exit 0
fi

log=$(mktemp "${TMPDIR:-/tmp}/idem-nats-tests.XXXXXX")
trap 'rm -f "$log"' EXIT
python3 test/sink/nats/tests.py "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$((1 + $(grep -cE '^ok ' "$log")))
failed=$(grep -cE '^not ok ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1
if [ -n "${KILLS:-}" ]; then
	env SKIP_PACKAGES=1 test/sink/kills.sh nats 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
