#!/bin/bash
# Random operations against models of what the documents promise; README.md.
#
#	TRANSACTIONS=5000		of each model; in the long run 100000
#	SEED=n					of the first episode; each further one has the next number
#	ONLY="claims outbox"	some of the models
#	KEEP=1					the work directory stays
#	SKIP_PACKAGES=1			do not look for missing packages
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash || give_up "random: packages"
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh
crash_stage || give_up "random: build"
idem_stage_test_module || give_up "random: module of the tests"
cp test/random/*.py "$IDEM_WORK/crash/"
chmod -R a+rX "$IDEM_WORK/crash"

idem_mkdir "$IDEM_WORK/random"
idem_run idem_as env TRANSACTIONS="${TRANSACTIONS:-}" SEED="${SEED:-}" ONLY="${ONLY:-}" \
	DRAIN_SECONDS="${DRAIN_SECONDS:-}" \
	/usr/bin/python3 -B "$IDEM_WORK/crash/main.py" "$IDEM_WORK/random" "$IDEM_BINDIR" \
	"$IDEM_WORK/extension.conf" "$CRASH_SINKS" 
