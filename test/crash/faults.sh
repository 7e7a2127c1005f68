#!/bin/bash
# Run all parts that break things on purpose: `make test-faults`.
#
#	PARTS="history store environment points mutants analysis kafka http nats redis rabbitmq mqtt"	the parts, default: all
#	KILLS=n			so many kills in the parts store (default: 60), kafka (300; a long run
#					has 2000), http, nats, redis, rabbitmq and mqtt (100)
#	MUTANTS="names"	only these broken builds
#	UNTIL=n			begin with no other broken build after so many seconds
#	SLOW=150		this machine takes 150 % of the time of a quiet machine with two
#					cores: limits are longer
#	SEED=n			repeat the choices of an earlier run
#	KEEP=1			leave the work directories behind
#	SKIP_PACKAGES=1	do not look for missing packages
#	ALLOW_OFFLINE=1	name, but do not count, a test whose input cannot be fetched
#	faults.sh --takes		print each part and the seconds it takes on a quiet machine;
#					those of mutants are for MUTANTS
#
# Each part is a script of its own that ends with "N passed, N failed".  A part that
# takes too long is ended; this counts as a failure, whatever the part has printed.
# The parts run one after another, because they would disturb each other's
# measurements.  The last line adds them up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
exec </dev/null

declare -A script=(
	[history]=test/crash/history.sh
	[store]="test/crash/history.sh store"
	[environment]=test/crash/environment.sh
	[points]=test/crash/points.sh
	[mutants]=test/mutants/run.sh
	[analysis]=test/analysis/run.sh
	[kafka]="test/sink/kills.sh kafka"
	[http]="test/sink/kills.sh http"
	[nats]="test/sink/kills.sh nats"
	[redis]="test/sink/kills.sh redis"
	[rabbitmq]="test/sink/kills.sh rabbitmq"
	[mqtt]="test/sink/kills.sh mqtt"
)
# The seconds of each part on a quiet machine with two cores.  A part may take twice
# as long and a minute, and also the time that the parts before did not use.
declare -A takes=([history]=500 [store]=120 [environment]=250 [points]=250 [mutants]=1100 [analysis]=1220 [kafka]=$((120 + ${KILLS:-300} * 3)) [http]=$((60 + ${KILLS:-100} * 2)) [nats]=$((60 + ${KILLS:-100} * 2)) [redis]=$((60 + ${KILLS:-100} * 2)) [rabbitmq]=$((90 + ${KILLS:-100} * 4)) [mqtt]=$((60 + ${KILLS:-100} * 2)))
read -ra mutants <<<"${MUTANTS:-}"
[ ${#mutants[@]} = 0 ] || takes[mutants]=$((60 + 12 * ${#mutants[@]}))
parts=${PARTS:-history store environment points mutants analysis kafka http nats redis rabbitmq mqtt}
slow=${SLOW:-100}
# Seconds that a part has to clean up after it was ended.
grace=30

if [ "${1:-}" = --takes ]; then
	for name in $parts; do
		echo "$name ${takes[$name]}"
	done
	exit
fi
# Waits inside the parts are longer on a slow machine, too.
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
# timeout(1) puts a part into a process group of its own.  So a signal to this script's
# group does not reach the part.
trap '[ -z "$part" ] || kill "$part" 2>/dev/null; wait; exit 143' INT TERM HUP

# add_up NAME STATUS LIMIT: add up the result of a part.
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
	local may=$(((2 * takes[$1] + 60) * slow / 100 + spare)) command

	read -ra command <<<"${script[$1]}"
	[ "$1" != mutants ] || command+=(${mutants[@]+"${mutants[@]}"})
	timeout -k "$grace" "$may" "${command[@]}" 2>&1 | tee "$log" &
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
