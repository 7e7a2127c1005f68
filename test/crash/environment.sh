#!/bin/bash
# Run the faults of the machine: power cuts, full disks, broken networks, clocks
# that jump, failovers, copies.
#
#	environment.sh [NAME...]	default: all; --list prints the names
#	SEED=n		repeat the choices of an earlier run
#	JOBS=4		run so many scenarios at a time: they wait more than they work
#	KEEP=1		leave the work directory behind
#
# Needs root.  Each scenario runs in namespaces of its own (inside.sh).  However a
# scenario ends, its mounts, loop devices, networks and processes are then gone, and
# lib.sh removes the work directory.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
python=(/usr/bin/python3 -B test/crash/environment.py)

# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ "$(id -u)" = 0 ] || give_up "environment: mounts, namespaces and loop devices need root"
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh machine ||
	give_up "environment: what is needed could not be installed"
if [ "${1:-}" = --list ]; then
	exec "${python[@]}" --list
fi
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh

SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
JOBS=${JOBS:-4}

# Print the output of one scenario in one piece.
show()
{
	local log=$1

	if tail -n 1 "$log" | grep -q '^ok '; then
		passed=$((passed + 1))
		tail -n 1 "$log"
	else
		failed=$((failed + 1))
		sed '$!s/^/    | /' "$log"
		tail -n 1 "$log" | grep -q '^NOT OK ' || echo "NOT OK ${log##*/}: it ended without a verdict"
	fi
}

run_one()
{
	local name=$1 work=$2

	mkdir -p "$work"
	chmod 755 "$work"
	timeout -k 10 "${SCENARIO_TIMEOUT:-420}" test/crash/inside.sh "${python[@]}" "$name" "$SEED" "$work" \
		"$IDEM_BINDIR" "$IDEM_WORK/extension.conf" "$IDEM_USER" >"$work.log" 2>&1 </dev/null
	[ -n "${KEEP:-}" ] || rm -rf "$work"
}

idem_make_work
idem_build_stage || give_up "environment: build"
install -m 755 test/sink/idempotency-sink-pytest "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/"
mapfile -t names < <("${python[@]}" --list)
[ $# = 0 ] || names=("$@")
idem_say "seed $SEED"
declare -A logs=()
for name in "${names[@]}"; do
	work=$IDEM_WORK/${name// /-}
	while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
		wait -n -p ended
		[ -z "${logs[$ended]:-}" ] || show "${logs[$ended]}"
		unset "logs[$ended]"
	done
	run_one "$name" "$work" &
	logs[$!]=$work.log
done
while [ ${#logs[@]} -gt 0 ]; do
	wait -n -p ended "${!logs[@]}"
	show "${logs[$ended]}"
	unset "logs[$ended]"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
