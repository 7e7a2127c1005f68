#!/bin/bash
# All that breaks things on purpose: `make test-faults`.
#
#	PARTS="history environment points mutants analysis"	which, default: all
#	SEED=n			repeat the choices of an earlier run
#	KEEP=1			leave the work directories behind
#	SKIP_PACKAGES=1	do not look for missing packages
#	ALLOW_OFFLINE=1	name, but do not count, what lacks an input that cannot be fetched
#	faults.sh --limit		print the seconds after which all of it has failed
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
# Seconds after which it has failed, about twice what it takes, and those it then
# has to clean up; what the parts before have left of theirs comes on top.
# Continuous integration has room for the sum (--limit).
declare -A limit=([history]=600 [environment]=500 [points]=300 [mutants]=850 [analysis]=1200)
grace=30
parts=${PARTS:-history environment points mutants analysis}

if [ "${1:-}" = --limit ]; then
	total=0
	for name in $parts; do
		total=$((total + ${limit[$name]:-0} + grace))
	done
	echo "$total"
	exit
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
	local may=$((limit[$1] + spare))

	timeout -k "$grace" "$may" "${script[$1]}" 2>&1 | tee "$log" &
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
