#!/bin/bash
# Fail over under Patroni: `make test-patroni`.
#
#	run.sh					run the scenario of failover.py
#	KEEP=1					leave the work directory behind
#	SKIP_PACKAGES=1			do not look for missing packages
#
# etcd, three servers under Patroni and a target run on loopback, as an ordinary user, in a
# temporary directory.  Prints "ok" or "NOT OK" per step and ends with a line "N passed, N
# failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh patroni || give_up "patroni: packages"
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh
idem_make_work
idem_build_stage || give_up "patroni: build"
# The tree may be readable by root alone.
mkdir "$IDEM_WORK/tree"
cp -R --parents doc/patroni-pgbouncer.md test/patroni test/python test/crash "$IDEM_WORK/tree/"
chmod -R a+rX "$IDEM_WORK/tree"
idem_mkdir "$IDEM_WORK/patroni"

log=$IDEM_WORK/failover.log
idem_run idem_as /usr/bin/python3 -B "$IDEM_WORK/tree/test/patroni/failover.py" \
	"$IDEM_WORK/patroni" "$IDEM_BINDIR" "$IDEM_WORK/extension.conf" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$(grep -c '^ok ' "$log")
failed=$(grep -c '^NOT OK ' "$log")
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1
finish
