# Functions for scripts of tests whose last line is "N passed, N failed".  Source
# this file.

# shellcheck shell=bash

passed=0
failed=0

pass()
{
	passed=$((passed + 1))
	printf 'ok       %s\n' "$1"
}

# fail NAME WHAT [FILE]: count a failure; show the end of the file.
fail()
{
	failed=$((failed + 1))
	printf 'NOT OK   %s: %s\n' "$1" "$2"
	[ -z "${3:-}" ] || [ ! -s "$3" ] || tail -n "${FAIL_LINES:-40}" "$3" | sed 's/^/    | /'
}

finish()
{
	idem_say "$SECONDS s"
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

# give_up WHAT: end the script, because nothing can be tested.
give_up()
{
	echo "NOT OK $1"
	echo "0 passed, 1 failed"
	exit 1
}

# End the children of this script; their children end with them.
stop_jobs()
{
	local pid

	for pid in $(jobs -rp); do
		pkill -TERM -P "$pid" 2>/dev/null
		kill -TERM "$pid" 2>/dev/null
	done
}
