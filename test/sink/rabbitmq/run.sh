#!/bin/bash
# Run the tests of the rabbitmq sink against real servers: `make test-rabbitmq`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
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

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh rabbitmq || stop packages
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-rabbitmq || stop build
test/setup/venv.sh test/sink/rabbitmq/requirements.txt >/dev/null || stop "fetch the clients"
log=$(mktemp "${TMPDIR:-/tmp}/idem-rabbitmq-tests.XXXXXX")
trap 'rm -f "$log"' EXIT
python3 test/sink/rabbitmq/tests.py "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$(grep -cE '^ok ' "$log")
failed=$(grep -cE '^not ok ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1
if [ -n "${KILLS:-}" ]; then
	SKIP_PACKAGES=1 test/sink/kills.sh rabbitmq 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
