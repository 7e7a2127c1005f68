# Shell functions for the scripts that run history.py.  Source this file with the
# tree's top as the working directory.

# shellcheck shell=bash
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh

# Make a work directory with a build, the sink programs and the test sink, a version to
# update to, and a copy of the checker.  The copy is needed because the checkout may be
# readable by root alone.
crash_stage()
{
	idem_make_work
	idem_build_stage || return 1
	idem_stage_updates "$(idem_version)" || return 1
	CRASH_SINKS=$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks
	install -m 755 test/sink/idempotency-sink-pytest "$CRASH_SINKS/"
	mkdir "$IDEM_WORK/crash"
	cp -R test/crash/*.py test/crash/actions test/python/*.py "$IDEM_WORK/crash/"
	chmod -R a+rX "$IDEM_WORK/crash"
}

# crash_python PROGRAM ARGUMENT...: run a program of the checker as the server user.
crash_python()
{
	local program=$1
	shift

	idem_run idem_as /usr/bin/python3 -B "$IDEM_WORK/crash/$program" "$@" </dev/null
}

# crash_history MIX SEED RESULT: run one round, in a directory of its own.
crash_history()
{
	rm -rf "$IDEM_WORK/round"
	idem_mkdir "$IDEM_WORK/round"
	crash_python history.py "$1" "$2" "$IDEM_WORK/round" "$IDEM_BINDIR" "$IDEM_WORK/extension.conf" \
		"$CRASH_SINKS" "$3"
}
