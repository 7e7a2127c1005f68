#!/bin/bash
# The example: two services and a relay, killed while they work; at the end every
# committed shift has one event and one notification.
#
#	SECONDS_LONG=20		how long shifts are assigned and things are killed
#	VENV=DIR			a Python environment with requirements.txt; default: a new one
#	SKIP_PACKAGES=1		do not look for missing packages
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh build clients
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-example.XXXXXX")
chmod 755 "$work"
trap '[ ! -f "$work/server/server.env" ] || test/setup/server.sh stop "$work/server"; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ -z "${VENV:-}" ]; then
	VENV=$work/venv
	/usr/bin/python3 -m venv "$VENV"
	"$VENV/bin/pip" install --quiet --no-cache-dir -r doc/example/requirements.txt
fi
test/setup/server.sh start "$work/server"
"$VENV/bin/python" -B doc/example/run.py "$work/server" "${SECONDS_LONG:-20}"
