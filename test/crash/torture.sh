#!/bin/bash
# Run rounds of faults with fresh seeds until the time is over: `make torture HOURS=n`.
#
#	HOURS=1				hours to run; fractions are allowed.  A round that has begun is finished
#	SEED=n				seed of the first round; each further round has the next number
#	ENVIRONMENT=10		after every 10 rounds also the machine's faults (root only; 0: never)
#	REPORT=directory	directory for torture.md, default test/crash/report
#	KEEP=1				leave the work directory behind, as after a finding
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The report is written anew after each round, so a report exists however the run ends.
# A finding ends the run; the directory of the finding's round stays.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
needs=crash
[ "$(id -u)" != 0 ] || needs=machine
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh "$needs" || give_up "torture: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh

HOURS=${HOURS:-1}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
REPORT=${REPORT:-$IDEM_TOP/test/crash/report}
ENVIRONMENT=${ENVIRONMENT:-10}
[ "$(id -u)" = 0 ] && [ -x test/crash/environment.sh ] || ENVIRONMENT=0
[[ $HOURS =~ ^[0-9]*\.?[0-9]+$ ]] || give_up "torture: HOURS=$HOURS is no number"
seconds=$(awk -v h="$HOURS" 'BEGIN { printf "%d", h * 3600 }')

crash_stage || give_up "torture: build"
idem_mkdir "$IDEM_WORK/results"
mkdir -p "$REPORT"
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
rounds=0
failed=0

write_report()
{
	/usr/bin/python3 -B test/crash/torture.py "$IDEM_WORK/results" "$HOURS" "$SECONDS" "$commit" \
		"$("$PG_CONFIG" --version)" >"$REPORT/torture.md.new" && mv "$REPORT/torture.md.new" "$REPORT/torture.md"
}

# Run the machine's faults with the round's seed; their output goes to the report.
environment()
{
	local log=$IDEM_WORK/results/environment.$1

	idem_run env SEED="$1" SKIP_PACKAGES=1 timeout -k 60 1800 test/crash/environment.sh >"$log" 2>&1
	grep -E '^(ok|NOT OK) ' "$log"
	tail -n 1 "$log" | grep -qE '^[1-9][0-9]* passed, 0 failed$'
}

idem_say "$HOURS h, first seed $SEED"
while [ "$SECONDS" -lt "$seconds" ]; do
	seed=$((SEED + rounds))
	rounds=$((rounds + 1))
	idem_say "round $rounds, seed $seed"
	if ! crash_history torture "$seed" "$IDEM_WORK/results/history.$seed.json"; then
		failed=$((failed + 1))
	elif [ "$ENVIRONMENT" != 0 ] && [ $((rounds % ENVIRONMENT)) = 0 ] && ! environment "$seed"; then
		failed=$((failed + 1))
	fi
	write_report
	[ "$failed" = 0 ] || break
	rm -rf "$IDEM_WORK/round"
done
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
idem_say "$REPORT/torture.md"
echo "$((rounds - failed)) passed, $failed failed"
[ "$failed" = 0 ] && [ "$rounds" -gt 0 ]
