#!/bin/bash
# Run the tests of the mqtt sink against real brokers: `make test-mqtt`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the client of PyPI cannot be fetched, name its tests as NOT RUN
#	KEEP=1				leave the brokers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The brokers are Debian's mosquitto.  They run on loopback, as an ordinary user, in a
# temporary directory.  Prints "ok" or "not ok" per test and ends with a line "N passed, N
# failed".
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

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh mqtt || stop packages
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-mqtt || stop build
echo "ok build"
# Without the client of PyPI most tests can run; each that needs it says so.
if python=$(test/setup/venv.sh test/sink/mqtt/requirements.txt); then
	python=$python/bin/python
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	python=/usr/bin/python3
else
	stop "fetch: the client of test/sink/mqtt/requirements.txt cannot be fetched from PyPI"
fi

log=$(mktemp "${TMPDIR:-/tmp}/idem-mqtt-tests.XXXXXX")
trap 'rm -f "$log"' EXIT
"$python" -B test/sink/mqtt/tests.py "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$((1 + $(grep -cE '^ok ' "$log")))
failed=$(grep -cE '^not ok ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1
if [ -n "${KILLS:-}" ]; then
	env SKIP_PACKAGES=1 test/sink/kills.sh mqtt 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
