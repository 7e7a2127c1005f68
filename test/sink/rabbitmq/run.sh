#!/bin/bash
# Run the tests of the rabbitmq sink against real servers: `make test-rabbitmq`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The servers run on loopback, in temporary directories.  Prints "ok" or "not ok" per test
# and ends with a line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

suite_begin rabbitmq
test/setup/venv.sh test/sink/rabbitmq/requirements.txt >/dev/null || suite_stop "fetch the clients"
suite_tests python3 test/sink/tests.py rabbitmq "$@"
suite_end rabbitmq
