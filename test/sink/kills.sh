#!/bin/bash
# Kill -9 relay workers, sink programs, producers and the target under load, and judge what
# arrived: `make test-faults PARTS="nats redis"`; see kills.py in the folder of the sink.
#
#	kills.sh http|kafka|mqtt|nats|rabbitmq|redis
#	KILLS=100			so many kills; default for kafka: 300, a long run has 2000
#	EVENTS=50000		at least so many committed events; default: 500 for each kill; for kafka
#						667, at most 200000
#	HASTY=0.25			the share of the kills after which the next one does not wait until the
#						system has recovered
#	SEED=n				repeat the schedule of an earlier run
#	RUNS="kills stream_kills"	for rabbitmq: queues, streams; default: both, KILLS in each
#	KEEP=1				leave the work directory behind, as after a failure
#	SKIP_PACKAGES=1		do not look for missing packages
#	ALLOW_OFFLINE=1		if server or client cannot be fetched, name the kills as NOT RUN
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
sink=${1:-}
[ -e "test/sink/$sink/kills.py" ] || give_up "kills.sh: no kills of the sink '$sink'"
packages=(crash)
[ "$sink" = http ] || packages+=("$sink")
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh "${packages[@]}" || give_up "$sink: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
# shellcheck source=test/sink/copy.sh
. test/sink/copy.sh

if [ "$sink" = kafka ]; then
	KILLS=${KILLS:-300}
	EVENTS=${EVENTS:-$((KILLS < 300 ? KILLS * 667 : 200000))}
fi
KILLS=${KILLS:-100}
EVENTS=${EVENTS:-$((KILLS * 500))}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
runs=kills
[ "$sink" != rabbitmq ] || runs=${RUNS:-kills stream_kills}
# where copy_target puts the modules of the sink
folder=${sink/http/receiver}

# part COMMAND...: run the command, show its output, add up its last line.
part()
{
	local log=$IDEM_WORK/log/part

	"$@" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	[ "$TALLY_SAID" != "no result" ] || echo "NOT OK $sink: ended without a result"
}

crash_stage || give_up "$sink: build"
idem_say "the rules against histories made by hand"
part crash_python rules_test.py
if copy_target "$sink" "$IDEM_WORK/crash"; then
	for run in $runs; do
		idem_mkdir "$IDEM_WORK/$run"
		idem_say "$sink, $run: $KILLS kills, at least $EVENTS events, seed $SEED"
		part crash_python "$folder/$run.py" "$SEED" "$KILLS" "$EVENTS" "$IDEM_WORK/$run" "$IDEM_BINDIR" \
			"$IDEM_WORK/extension.conf" "$CRASH_SINKS" "${HASTY:-0.25}"
	done
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	echo "NOT RUN  $sink, kills: the server, or the client that reads, cannot be fetched"
else
	failed=$((failed + 1))
	echo "NOT OK $sink: the server, or the client that reads, cannot be fetched"
fi
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
