# What the programs that run a sink's tests against real servers (SINK/run.sh) have in common.
# Source this file from the top of the tree.
#
# Each prints "ok" or "not ok" per test and ends with a line "N passed, N failed".
# shellcheck shell=bash

# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null
export WERROR=${WERROR-1}
passed=0
failed=0
log=$(mktemp "${TMPDIR:-/tmp}/idem-sink-tests.XXXXXX")
trap 'rm -f "$log"' EXIT

# suite_stop WHAT: nothing more can be tested.
suite_stop()
{
	echo "not ok $1"
	echo "$passed passed, 1 failed"
	exit 1
}

# suite_skip WHAT: what follows cannot be fetched.  With ALLOW_OFFLINE it is left out.
suite_skip()
{
	[ -n "${ALLOW_OFFLINE:-}" ] || suite_stop "fetch: $1"
	echo "NOT RUN  $1"
}

# suite_begin SINK: look for packages, and build the program.
suite_begin()
{
	[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh "$1" || suite_stop packages
	"${MAKE:-make}" -s --no-print-directory -j"$(nproc)" "src/sink/bin/idempotency-sink-$1" || suite_stop build
	echo "ok build"
	passed=1
}

# suite_tests COMMAND...: run tests that print a line each.
suite_tests()
{
	local ended bad

	"$@" 2>&1 | tee "$log"
	ended=${PIPESTATUS[0]}
	bad=$(grep -cE '^not ok ' "$log")
	[ "$ended" = 0 ] || [ "$bad" != 0 ] || bad=1
	passed=$((passed + $(grep -cE '^ok ' "$log")))
	failed=$((failed + bad))
}

# suite_part COMMAND...: run a program that ends with a line of its own, and add it up.
suite_part()
{
	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
}

# suite_end SINK: the kills, if KILLS asks for them, and the last line.
suite_end()
{
	[ -z "${KILLS:-}" ] || suite_part env SKIP_PACKAGES=1 test/sink/kills.sh "$1"
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
