#!/bin/bash
# Kill -9 relay workers, sink programs, producers and the broker under load, and judge
# what a read_committed reader finds: `make test-faults PARTS=kafka`; see kills.py.
#
#	KILLS=300			so many kills; a long run has 2000
#	EVENTS=200000		at least so many committed events; default: 667 for each kill, at most
#						200000
#	HASTY=0.25			the share of the kills after which the next one does not wait until the
#						system has recovered
#	SEED=n				repeat the schedule of an earlier run
#	KEEP=1				leave the work directory behind, as after a failure
#	SKIP_PACKAGES=1		do not look for missing packages
#	ALLOW_OFFLINE=1		if the broker cannot be fetched, name the kills as NOT RUN
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash kafka || give_up "kafka: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
# shellcheck source=test/sink/kafka/copy.sh
. test/sink/kafka/copy.sh

KILLS=${KILLS:-300}
EVENTS=${EVENTS:-$((KILLS < 300 ? KILLS * 667 : 200000))}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}

# part COMMAND...: run the command, show its output, add up its last line.
part()
{
	local log=$IDEM_WORK/log/part

	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	[ "$TALLY_SAID" != "no result" ] || echo "NOT OK kafka: ended without a result"
}

crash_stage || give_up "kafka: build"
idem_say "the rules against histories made by hand"
part crash_python rules_test.py
if jars=$(test/setup/kafka.sh); then
	copy_broker "$jars" "$IDEM_WORK/crash"
	idem_mkdir "$IDEM_WORK/round"
	idem_say "$KILLS kills, at least $EVENTS events, seed $SEED"
	part crash_python kafka/kills.py "$SEED" "$KILLS" "$EVENTS" "$IDEM_WORK/round" "$IDEM_BINDIR" \
		"$IDEM_WORK/extension.conf" "$CRASH_SINKS" "${HASTY:-0.25}"
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	echo "NOT RUN  kafka, kills: the broker cannot be fetched from Maven Central"
else
	failed=$((failed + 1))
	echo "NOT OK kafka: the broker cannot be fetched from Maven Central"
fi
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
