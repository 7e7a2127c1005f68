#!/bin/bash
# Every fault point of the sources x every action it allows: a short workload
# passes the point, the process is broken there, and the outcome is judged.
#
#	points.sh [NAME...]		only points whose names begin with one of these
#	points.sh --list		name, kind and place of every point
#
# LANES=n runs n pairs of servers beside each other (default 3), ACTIONS="kill
# stall" only those.  KEEP=1 keeps the work directory.  Builds with the points
# compiled in, in a copy of the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."

# NAME KIND FILE:LINE
list_points()
{
	grep -rnoE --include='*.c' 'IDEM_(SINK_)?FAULT_POINT(_NO_ERROR|_CHILD)?\(([a-z&>-]+, )?"[^"]*"\)' src |
		sed -E 's/^([^:]*:[0-9]*):IDEM_([A-Z_]*)\(.*"(.*)"\)$/\3 \2 \1/;
			s/ FAULT_POINT / error /; s/ FAULT_POINT_NO_ERROR / no_error /;
			s/ FAULT_POINT_CHILD / child /; s/ SINK_FAULT_POINT / sink /' | sort
}

if [ "${1:-}" = --list ]; then
	list_points
	exit
fi

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh
idem_make_work

idem_copy_tree()
{
	mkdir -p "$IDEM_WORK/src"
	if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
		git -c safe.directory='*' ls-files -z --cached --others --exclude-standard
	else
		find . -type f ! -path './.git/*' ! -path './build/*' ! -path './src/sink/b*/*' \
			! -name '*.[od]' ! -name '*.so' -printf '%P\0'
	fi | while IFS= read -r -d '' file; do
		[ ! -f "$file" ] || printf '%s\0' "$file"
	done | tar -c --null -T - -f - | tar -x -C "$IDEM_WORK/src"
}

idem_say "building with fault points"
idem_copy_tree
IDEM_TOP=$IDEM_WORK/src
MAKE_ARGS=FAULT_POINTS=1 idem_build_stage
list_points >"$IDEM_WORK/points.txt"

# The sink of the tests stands beside the staged ones.
cp "$IDEM_TOP/test/sink/idempotency-sink-pytest" "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/"
mkdir "$IDEM_WORK/python"
cp "$IDEM_TOP"/test/crash/points/*.py "$IDEM_WORK/python/"
chmod -R a+rX "$IDEM_WORK/python" "$IDEM_WORK/points.txt" "$IDEM_STAGE"
idem_mkdir "$IDEM_WORK/lanes"

idem_say "breaking it"
idem_run idem_as env PYTHONDONTWRITEBYTECODE=1 BINDIR="$IDEM_BINDIR" WORK="$IDEM_WORK" LANES="${LANES:-3}" \
	ACTIONS="${ACTIONS:-}" VERBOSE="${VERBOSE:-}" /usr/bin/python3 "$IDEM_WORK/python/main.py" "$@"
