#!/bin/bash
# Make a virtual environment of Python with what a list names, and print its directory.
#
#	venv.sh REQUIREMENTS
#
# It is kept in ${IDEMPOTENCY_VENV_CACHE:-$HOME/.cache/idempotency-venv}, in a directory that is
# named after list and Python, and is fetched once.
set -euo pipefail

list=${1:?usage: venv.sh REQUIREMENTS}
cache=${IDEMPOTENCY_VENV_CACHE:-$HOME/.cache/idempotency-venv}
there=$cache/$({ cat "$list"; /usr/bin/python3 --version; } | sha256sum | cut -c 1-16)
# An environment is made in its place, because its programs have its path in them; a file
# says that it is complete.
if [ ! -e "$there/complete" ]; then
	{
		mkdir -p "$cache"
		rm -rf "$there"
		/usr/bin/python3 -m venv "$there"
		"$there/bin/pip" install --no-cache-dir --quiet -r "$list"
		chmod -R a+rX "$there"
		touch "$there/complete"
	} >&2 </dev/null
fi
echo "$there"
