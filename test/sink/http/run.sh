#!/bin/bash
# Run the tests of the http sink against real receivers: `make test-http`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if a peer cannot be fetched, name its tests as NOT RUN
#	KEEP=1				leave the directories of the tests behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# Peers of package registries are fetched by test/setup/http.sh.  All servers run on
# loopback, in temporary directories.  Prints "ok" or "not ok" per test and ends with a
# line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null
export WERROR=${WERROR-1}

if [ -z "${SKIP_PACKAGES:-}" ] && ! test/setup/packages.sh http; then
	echo "not ok packages"
	echo "0 passed, 1 failed"
	exit 1
fi
"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" src/sink/bin/idempotency-sink-http || {
	echo "not ok build"
	echo "0 passed, 1 failed"
	exit 1
}
echo "ok build"
# Without the libraries of PyPI most tests can run; each that needs them says so.
if python=$(test/setup/http.sh python); then
	python=$python/bin/python
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	python=/usr/bin/python3
else
	echo "not ok fetch: the libraries of test/sink/http/requirements.txt cannot be fetched from PyPI"
	echo "1 passed, 1 failed"
	exit 1
fi

log=$(mktemp "${TMPDIR:-/tmp}/idem-http-tests.XXXXXX")
trap 'rm -f "$log"' EXIT
"$python" -B test/sink/http/tests.py "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$((1 + $(grep -cE '^ok ' "$log")))
failed=$(grep -cE '^not ok ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1

if [ -n "${KILLS:-}" ]; then
	SKIP_PACKAGES=1 test/sink/kills.sh http 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
