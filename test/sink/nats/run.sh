#!/bin/bash
# Run the tests of the nats sink against real servers: `make test-nats`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if the server cannot be fetched, name the tests as NOT RUN; so with the kills
#						and the client that reads
#	KEEP=1				leave the servers' directories behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The servers are of Debian's releases (test/setup/nats.sh).  They run on loopback, as an
# ordinary user, in a temporary directory.  Prints "ok" or "not ok" per test and ends
# with a line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

suite_begin nats
if ! test/setup/nats.sh >/dev/null; then
	suite_skip "nats: the server cannot be fetched from Debian"
	echo "$passed passed, 0 failed"
	exit 0
fi
suite_tests python3 test/sink/tests.py nats "$@"
suite_end nats
