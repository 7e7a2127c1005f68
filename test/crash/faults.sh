#!/bin/bash
# All that breaks things on purpose: `make test-faults`.
#
#	PARTS="history environment points mutants analysis"	which, default: all
#	MUTANTS="names"	only these broken builds
#	SLOW=150		the machine takes 150 % of a quiet one with two cores: limits are longer
#	SEED=n			repeat the choices of an earlier run
#	KEEP=1			leave the work directories behind
#	SKIP_PACKAGES=1	do not look for missing packages
#	ALLOW_OFFLINE=1	name, but do not count, what lacks an input that cannot be fetched
#	faults.sh --takes		print each part and the seconds it takes on a quiet machine
#
# Each part is a script of its own that ends with "N passed, N failed", and is
# ended when it takes too long, which is a failure whatever it has printed.  One
# after another: they would disturb each other's measurements.  The last line
# adds them up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null

declare -A script=(
	[history]=test/crash/history.sh
	[environment]=test/crash/environment.sh
	[points]=test/crash/points.sh
	[mutants]=test/mutants/run.sh
	[analysis]=test/analysis/run.sh
)
# Seconds on a quiet machine with two cores.  A part has failed after twice as
# long and a minute; what the parts before have left of theirs comes on top.
declare -A takes=([history]=245 [environment]=250 [points]=120 [mutants]=420 [analysis]=600)
parts=${PARTS:-history environment points mutants analysis}
slow=${SLOW:-100}
# Seconds to clean up after that.
grace=30

if [ "${1:-}" = --takes ]; then
	for name in $parts; do
		echo "$name ${takes[$name]}"
	done
	exit
fi
# What waits inside waits longer, too.
if [ "$slow" -gt 100 ]; then
	export LIMIT=$((300 * slow / 100)) TAP_TIMEOUT=$((900 * slow / 100)) SCENARIO_TIMEOUT=$((420 * slow / 100))
fi

passed=0
failed=0
spare=0
notes=()
part=
log=$(mktemp "${TMPDIR:-/tmp}/idem-faults.XXXXXX")
trap 'rm -f "$log"' EXIT
# The time limit of a part puts it into a process group of its own: who ends this
# script does not reach it.
trap '[ -z "$part" ] || kill "$part" 2>/dev/null; wait; exit 143' INT TERM HUP

# add_up NAME STATUS LIMIT
add_up()
{
	tally "$log" "$2"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	notes+=("$1: $TALLY_SAID, $((SECONDS - began)) s of $3")
	mapfile -t -O ${#notes[@]} notes < <(grep '^NOT RUN' "$log")
}

run_part()
{
	local may=$(((2 * takes[$1] + 60) * slow / 100 + spare)) names=()

	[ "$1" != mutants ] || read -ra names <<<"${MUTANTS:-}"
	timeout -k "$grace" "$may" "${script[$1]}" ${names[@]+"${names[@]}"} 2>&1 | tee "$log" &
	part=$(jobs -p %+)
	wait %+
	add_up "$1" $? "$may"
	part=
	spare=$((may - (SECONDS - began)))
	[ "$spare" -ge 0 ] || spare=0
}

for name in $parts; do
	if [ -z "${script[$name]:-}" ]; then
		echo "no such part: $name"
		failed=$((failed + 1))
		continue
	fi
	echo "==== $name"
	began=$SECONDS
	run_part "$name"
done
echo "==== $SECONDS s"
printf '   %s\n' ${notes[@]+"${notes[@]}"}
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
