#!/bin/bash
# Run all tests of the sinks; called by make check-sink, which builds what
# SINK_BINDIR holds.  Prints "ok" or "not ok" per test and ends with a line
# "N passed, M failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${SINK_BINDIR:?run make check-sink}"
SINK_BINDIR=$(realpath "$SINK_BINDIR")
export SINK_BINDIR PYTHONDONTWRITEBYTECODE=1
log=$(mktemp "${TMPDIR:-/tmp}/idem-check-sink.XXXXXX")
trap 'rm -f "$log"' EXIT

# one NAME COMMAND...: a test that is a program
one()
{
	local name=$1
	shift

	if "$@"; then
		echo "ok $name"
	else
		echo "not ok $name"
	fi
}

{
	one golden_c "$SINK_BINDIR/golden_test" test/sink/golden
	one golden_python python3 test/sink/golden_test.py test/sink/golden
	one fuzz "$SINK_BINDIR/fuzz" test/sink/golden "${FUZZ_SECONDS:-20}"
	for tests in test/sink/*_test.py; do
		[ "$tests" = test/sink/golden_test.py ] || python3 "$tests" || echo "not ok $tests"
	done
} 2>&1 | tee "$log"

passed=$(grep -cE '^ok ' "$log")
failed=$(grep -cE '^not ok ' "$log")
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 50 ]
