#!/bin/bash
# Run the tests of the kafka sink against real brokers: `make test-kafka`.
#
#	run.sh [TEST...]	default: all, and consume.sh
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the broker cannot be fetched, name the tests as NOT RUN
#	KEEP=1				leave the brokers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The broker is of Maven Central (test/setup/kafka.sh).  It runs on loopback, as an
# ordinary user, in a temporary directory.  Prints "ok" or "not ok" per test and ends
# with a line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

suite_begin kafka
if ! test/setup/kafka.sh >/dev/null; then
	suite_skip "kafka: the broker cannot be fetched from Maven Central"
	echo "$passed passed, 0 failed"
	exit 0
fi
suite_tests python3 test/sink/tests.py kafka "$@"
[ $# -gt 0 ] || suite_part env -u KILLS test/sink/kafka/consume.sh
suite_end kafka
