#!/bin/bash
# Test every fault point of the sources with every action that the point allows: a
# short workload passes the point, the process is broken there, and the outcome is
# judged.  The points of a sink whose target is no server of PostgreSQL are left to the
# tests of that sink (ELSEWHERE).
#
#	points.sh [NAME...]		only points whose names begin with one of these
#	points.sh --list		name, kind and place of every point
#
# LANES=n runs n pairs of servers beside each other (default 3).  ACTIONS="kill stall"
# tries these actions only.  KEEP=1 keeps the work directory.  The script builds a copy
# of the tree with the fault points compiled in.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Print a line "NAME KIND FILE:LINE" for each point.
list_points()
{
	grep -rnoE --include='*.c' 'IDEM_(SINK_)?FAULT_POINT(_NO_ERROR|_CHILD)?\(([a-z&>-]+, )?"[^"]*"\)' src |
		sed -E 's/^([^:]*:[0-9]*):IDEM_([A-Z_]*)\(.*"(.*)"\)$/\3 \2 \1/;
			s/ FAULT_POINT / error /; s/ FAULT_POINT_NO_ERROR / no_error /;
			s/ FAULT_POINT_CHILD / child /; s/ SINK_FAULT_POINT / sink /' | sort
}

# Folders whose points other tests break, and these tests.
ELSEWHERE='
src/sink/http/ test/sink/http/points_test.py
src/sink/kafka/ test/sink/kafka/points_test.py
src/sink/nats/ test/sink/nats/points_test.py
'

# Print the lines of list_points whose points the scenes have to reach.
own_points()
{
	list_points | grep -vF "$(sed '/^$/d; s/ .*//; s/^/ /' <<<"$ELSEWHERE")"
}

if [ "${1:-}" = --list ]; then
	list_points
	exit
fi

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh
# shellcheck source=test/setup/tree.sh
. test/setup/tree.sh
idem_make_work

tree_copy "$IDEM_WORK/src"
IDEM_TOP=$IDEM_WORK/src
MAKE_ARGS=FAULT_POINTS=1 idem_build_stage
own_points >"$IDEM_WORK/points.txt"

# The test sink is copied beside the staged sink programs.
cp "$IDEM_TOP/test/sink/idempotency-sink-pytest" "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/"
mkdir "$IDEM_WORK/python"
cp "$IDEM_TOP"/test/crash/points/*.py "$IDEM_TOP"/test/python/*.py "$IDEM_WORK/python/"
chmod -R a+rX "$IDEM_WORK/python" "$IDEM_WORK/points.txt" "$IDEM_STAGE"
idem_mkdir "$IDEM_WORK/lanes"

idem_say "breaking it"
idem_run idem_as env PYTHONDONTWRITEBYTECODE=1 BINDIR="$IDEM_BINDIR" WORK="$IDEM_WORK" LANES="${LANES:-3}" \
	ACTIONS="${ACTIONS:-}" VERBOSE="${VERBOSE:-}" /usr/bin/python3 "$IDEM_WORK/python/main.py" "$@"
