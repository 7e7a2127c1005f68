#!/bin/bash
# Kill -9 relay workers, sink programs, producers and the RabbitMQ server under load, and
# judge what queues and streams hold: `make test-faults PARTS=rabbitmq`; see kills.py and
# stream_kills.py.
#
#	RUNS="kills stream_kills"	these, default: both
#	KILLS=100			so many kills in each
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
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash rabbitmq || give_up "rabbitmq: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh

KILLS=${KILLS:-100}
EVENTS=${EVENTS:-$((KILLS * 500))}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}

crash_stage || give_up "rabbitmq: build"
clients=$(test/setup/rabbitmq.sh clients) || give_up "rabbitmq: pika cannot be fetched"
mkdir "$IDEM_WORK/crash/rabbitmq"
for file in __init__ server kills stream_kills streamlib streamread; do
	cp "test/sink/rabbitmq/$file.py" "$IDEM_WORK/crash/rabbitmq/"
done
cp -R "$clients" "$IDEM_WORK/crash/clients"
cp test/sink/notrun.py test/setup/rabbitmq.sh "$IDEM_WORK/crash/"
chmod -R a+rX "$IDEM_WORK/crash"
export RABBITMQ_SH=$IDEM_WORK/crash/rabbitmq.sh RABBITMQ_CLIENTS=$IDEM_WORK/crash/clients
for run in ${RUNS:-kills stream_kills}; do
	idem_mkdir "$IDEM_WORK/$run"
	idem_say "$run: $KILLS kills, at least $EVENTS events, seed $SEED"
	log=$IDEM_WORK/log/$run
	crash_python "rabbitmq/$run.py" "$SEED" "$KILLS" "$EVENTS" "$IDEM_WORK/$run" "$IDEM_BINDIR" \
		"$IDEM_WORK/extension.conf" "$CRASH_SINKS" "${HASTY:-0.25}" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
done
# shellcheck disable=SC2034 # idem_cleanup looks at it
[ "$failed" = 0 ] || KEEP=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
