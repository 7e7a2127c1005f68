#!/bin/bash
# Make a virtual environment with the client of MQTT that the tests read with, and print
# its path (test/sink/mqtt/requirements.txt).
#
# It is kept in ${IDEMPOTENCY_MQTT_CACHE:-$HOME/.cache/idempotency-mqtt}, in a directory that
# is named after the list, and is fetched once.
set -euo pipefail
cd "$(dirname "$0")/../sink/mqtt"

cache=${IDEMPOTENCY_MQTT_CACHE:-$HOME/.cache/idempotency-mqtt}
there=$cache/$({ cat requirements.txt; /usr/bin/python3 --version; } | sha256sum | cut -c 1-16)
# An environment of Python is made in its place, because its programs have its path in
# them; a file says that it is complete.
if [ ! -e "$there/complete" ]; then
	exec 3>&1 >&2 </dev/null
	mkdir -p "$cache"
	rm -rf "$there"
	/usr/bin/python3 -m venv "$there"
	"$there/bin/pip" install --no-cache-dir --quiet -r requirements.txt
	touch "$there/complete"
	exec >&3
fi
echo "$there"
