#!/bin/bash
# Run the tests of the monitoring files: `make test-monitoring`.
#
#	run.sh [TEST...]	default: all; tests.py has their names
#	DRAW=1				also draw doc/dashboard.png from the numbers of this run
#	ALLOW_OFFLINE=1		if Grafana's SDK cannot be fetched from PyPI, its test is named as NOT RUN
#	KEEP=1				leave the work directory behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# A server, prometheus-sql-exporter, Prometheus and postgres_exporter run on loopback, as an
# ordinary user, in a temporary directory.  Prints "ok" or "not ok" per test and ends with a
# line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh monitoring || give_up "monitoring: packages"
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh
idem_make_work
idem_build_stage || give_up "monitoring: build"
# The tree may be readable by root alone.
mkdir "$IDEM_WORK/tree"
cp -R --parents src/packaging/monitoring src/relay/report.c doc/howto/alerts.md doc/reference/metrics.md test/monitoring test/python "$IDEM_WORK/tree/"
chmod -R a+rX "$IDEM_WORK/tree"
idem_mkdir "$IDEM_WORK/monitoring"

passed=0
failed=0
log=$IDEM_WORK/tests.log
if python=$(test/setup/venv.sh test/monitoring/requirements.txt); then
	if "$python/bin/python" -B src/packaging/monitoring/dashboard.py --check; then
		echo "ok dashboard is what dashboard.py makes"
		passed=$((passed + 1))
	else
		echo "not ok dashboard is what dashboard.py makes"
		failed=$((failed + 1))
	fi
elif [ -n "${ALLOW_OFFLINE:-}" ]; then
	echo "NOT RUN dashboard.py --check: Grafana's SDK cannot be fetched from PyPI"
else
	give_up "fetch: test/monitoring/requirements.txt cannot be fetched from PyPI"
fi
idem_run idem_as env DRAW="${DRAW:-}" SLOW="${SLOW:-}" /usr/bin/python3 -B "$IDEM_WORK/tree/test/monitoring/tests.py" \
	"$IDEM_WORK/monitoring" "$IDEM_BINDIR" "$IDEM_WORK/extension.conf" "$@" 2>&1 | tee "$log"
ended=${PIPESTATUS[0]}
passed=$((passed + $(grep -c '^ok ' "$log")))
failed=$((failed + $(grep -c '^not ok ' "$log")))
[ "$ended" = 0 ] || [ "$failed" != 0 ] || failed=1
if [ -n "${DRAW:-}" ]; then
	python=$(test/setup/venv.sh test/monitoring/requirements-draw.txt) &&
		"$python/bin/python" -B test/monitoring/draw.py "$IDEM_WORK/monitoring/drawn.json" doc/dashboard.png || failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
