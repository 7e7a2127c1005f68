#!/bin/bash
# Run rounds of kills and other faults under a workload, judged by the history checker.
#
#	history.sh [MIX]	faults (default), brief, short, steady or torture; see history.py
#	history.sh store	kills under claims alone, which are packed, forgotten and imported, and expire; see store.py
#	KILLS=60			so many kills under claims alone; for a long run 500
#	SEED=n				repeat the schedule of an earlier run
#	KEEP=1				leave the work directory behind, as after a failure
#	SKIP_PACKAGES=1		do not look for missing packages
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash || give_up "history: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh

SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
crash_stage || give_up "history: build"

# part COMMAND...: run the command, show its output, add up its last line.
part()
{
	local log=$IDEM_WORK/log/part

	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	[ "$TALLY_SAID" != "no result" ] || echo "NOT OK history: ended without a result"
}

idem_say "the rules against histories made by hand"
part crash_python rules_test.py
idem_say "mix ${1:-faults}, seed $SEED"
if [ "${1:-}" = store ]; then
	idem_mkdir "$IDEM_WORK/round"
	part crash_python store.py "${KILLS:-60}" "$SEED" "$IDEM_WORK/round" "$IDEM_BINDIR" "$IDEM_WORK/extension.conf"
else
	part crash_history "${1:-faults}" "$SEED" "$IDEM_WORK/home/result.json"
fi
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
