#!/bin/bash
# Kill relay workers, sink programs and producers, and end the broker, under load, and judge
# what arrived: `make test-faults PARTS=mqtt`; see kills.py.
#
#	KILLS=100			so many kills
#	EVENTS=50000		at least so many committed events; default: 500 for each kill
#	HASTY=0.25			the share of the kills after which the next one does not wait until the
#						system has recovered
#	SEED=n				repeat the schedule of an earlier run
#	KEEP=1				leave the work directory behind, as after a failure
#	SKIP_PACKAGES=1		do not look for missing packages
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash mqtt || give_up "mqtt: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh

KILLS=${KILLS:-100}
EVENTS=${EVENTS:-$((KILLS * 500))}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}

# part COMMAND...: run the command, show its output, add up its last line.
part()
{
	local log=$IDEM_WORK/log/part

	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	[ "$TALLY_SAID" != "no result" ] || echo "NOT OK mqtt: ended without a result"
}

crash_stage || give_up "mqtt: build"
idem_say "the rules against histories made by hand"
part crash_python rules_test.py
if client=$(test/setup/mqtt.sh); then
	mkdir "$IDEM_WORK/crash/mqtt"
	cp test/sink/mqtt/*.py "$IDEM_WORK/crash/mqtt/"
	cp test/sink/sinklib.py test/sink/notrun.py test/sink/idempotency-sink-pytest "$IDEM_WORK/crash/"
	cp -R "$client"/lib/python3*/site-packages/paho "$IDEM_WORK/crash/"
	chmod -R a+rX "$IDEM_WORK/crash"
	idem_mkdir "$IDEM_WORK/round"
	idem_say "$KILLS kills, at least $EVENTS events, seed $SEED"
	part crash_python mqtt/kills.py "$SEED" "$KILLS" "$EVENTS" "$IDEM_WORK/round" "$IDEM_BINDIR" \
		"$IDEM_WORK/extension.conf" "$CRASH_SINKS" "${HASTY:-0.25}"
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	echo "NOT RUN  mqtt, kills: the client that reads cannot be fetched from PyPI"
else
	failed=$((failed + 1))
	echo "NOT OK mqtt: the client that reads cannot be fetched from PyPI"
fi
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
