#!/bin/bash
# Run the tests of the mqtt sink against real brokers: `make test-mqtt`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the client of PyPI cannot be fetched, name its tests as NOT RUN
#	KEEP=1				leave the brokers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The brokers are Debian's mosquitto.  They run on loopback, as an ordinary user, in a
# temporary directory.  Prints "ok" or "not ok" per test and ends with a line "N passed, N
# failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

suite_begin mqtt
# Without the client of PyPI most tests can run; each that needs it says so.
if python=$(test/setup/venv.sh test/sink/mqtt/requirements.txt); then
	python=$python/bin/python
else
	suite_skip "mqtt: the client of test/sink/mqtt/requirements.txt cannot be fetched from PyPI"
	python=/usr/bin/python3
fi
suite_tests "$python" -B test/sink/tests.py mqtt "$@"
suite_end mqtt
