#!/bin/bash
# Run the tests of the http sink against real receivers: `make test-http`.
#
#	run.sh [TEST...]	default: all
#	KILLS=n				then run ../kills.sh with so many kills
#	ALLOW_OFFLINE=1		if a peer cannot be fetched, name its tests as NOT RUN
#	KEEP=1				leave the directories of the tests behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# Peers of package registries are fetched by test/setup/http.sh.  All servers run on
# loopback, in temporary directories.  Prints "ok" or "not ok" per test and ends with a
# line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
# shellcheck source=test/sink/suite.sh
. test/sink/suite.sh

suite_begin http
# Without the libraries of PyPI most tests can run; each that needs them says so.
if python=$(test/setup/http.sh python); then
	python=$python/bin/python
else
	suite_skip "http: the libraries of test/sink/http/requirements.txt cannot be fetched from PyPI"
	python=/usr/bin/python3
fi
suite_tests "$python" -B test/sink/http/tests.py "$@"
suite_end http
