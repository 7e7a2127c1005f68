#!/bin/bash
# Random and hostile arguments to every SQL function of the extension.
#
#	SECONDS_EACH=60		how long
#	SEED=n				repeat the calls of an earlier run
#
# Starts a server with the library as COPT builds it, lets sql.py call, and
# reads the server log afterwards.  Ends with "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=test/setup/lib.sh
. "$here/../setup/lib.sh"
cd "$IDEM_TOP" || exit 1

passed=0
failed=0

verdict()
{
	if [ "$1" = 0 ]; then
		passed=$((passed + 1))
		echo "ok $2"
	else
		failed=$((failed + 1))
		echo "NOT OK $2"
	fi
}

# Crashes, assertions, sanitizers, and internal errors of any process.
log_is_clean()
{
	! grep -nE -A8 'TRAP:|PANIC:|terminated by signal|runtime error: |Sanitizer:| XX[0-9A-Z]{3} ' \
		"$IDEM_WORK/log/server.log"
}

idem_make_work
idem_build_stage || idem_die "build"
cp "$here/sql.py" "$here"/sql_*.py doc/reference/errors.md "$IDEM_WORK/" 2>/dev/null
chmod a+r "$IDEM_WORK"/*.py "$IDEM_WORK/errors.md"
idem_mkdir "$IDEM_WORK/data"
IDEM_EXTRA_CONF="log_line_prefix = '%m [%p] %e '" idem_initdb "$IDEM_WORK/data" preload &&
	idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log" || exit 1
idem_run idem_as /usr/bin/python3 "$IDEM_WORK/sql.py" --host "$IDEM_SOCK" --port "$IDEM_PORT" \
	--errors "$IDEM_WORK/errors.md" --seconds "${SECONDS_EACH:-60}" ${SEED:+--seed "$SEED"}
verdict $? "calls end in a result or a documented error"
idem_stop "$IDEM_WORK/data"
verdict $? "the server stops"
log_is_clean
verdict $? "the server log is clean"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
