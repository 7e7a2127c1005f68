#!/bin/bash
# Run the tests of the kafka sink against real brokers: `make test-kafka`.
#
#	run.sh [TEST...]	default: all, and consume.sh
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the broker cannot be fetched, name the tests as NOT RUN
#	KEEP=1				leave the brokers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The broker is of Maven Central (test/setup/kafka.sh).  It runs on loopback, as an
# ordinary user, in a temporary directory.  Prints "ok" or "not ok" per test and ends
# with a line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null
export WERROR=${WERROR-1}

if [ -z "${SKIP_PACKAGES:-}" ] && ! test/setup/packages.sh kafka; then
	echo "not ok packages"
	echo "0 passed, 1 failed"
	exit 1
fi
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-kafka || {
	echo "not ok build"
	echo "0 passed, 1 failed"
	exit 1
}
echo "ok build"
if ! test/setup/kafka.sh >/dev/null; then
	if [ -n "${ALLOW_OFFLINE:-}" ]; then
		echo "NOT RUN  kafka: the broker cannot be fetched from Maven Central"
		echo "1 passed, 0 failed"
		exit 0
	fi
	echo "not ok fetch: the broker cannot be fetched from Maven Central"
	echo "1 passed, 1 failed"
	exit 1
fi

log=$(mktemp "${TMPDIR:-/tmp}/idem-kafka-tests.XXXXXX")
trap 'rm -f "$log"' EXIT
python3 test/sink/kafka/tests.py "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$((1 + $(grep -cE '^ok ' "$log")))
failed=$(grep -cE '^not ok ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1

# part COMMAND...: run the command, show its output, add up its last line.
part()
{
	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
}

[ $# -gt 0 ] || part env -u KILLS test/sink/kafka/consume.sh
[ -z "${KILLS:-}" ] || part env SKIP_PACKAGES=1 test/sink/kills.sh kafka
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
