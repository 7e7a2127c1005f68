# Read the result of a test script that ends with "N passed, N failed", for the
# scripts that run several test scripts and add up.
#
# Source this file.  The last line "N passed, N failed" of a script counts.  A
# further failure counts in three cases: the script was cut off (whatever it printed
# before), it ended with an error without counting a failure, or it counted nothing.

# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables

# tally LOG STATUS: set TALLY_GOOD, TALLY_BAD and TALLY_SAID, which is a few words.
tally()
{
	local status=$2

	TALLY_GOOD=0
	TALLY_BAD=0
	TALLY_SAID=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1)
	if [[ $TALLY_SAID =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
		TALLY_GOOD=${BASH_REMATCH[1]}
		TALLY_BAD=${BASH_REMATCH[2]}
	else
		TALLY_SAID="no result"
	fi
	if [ "$status" = 124 ] || [ "$status" = 137 ]; then
		# the last such line is a line of a script that this script ran
		TALLY_BAD=$((TALLY_BAD + 1))
		TALLY_SAID+=", cut off"
	elif [ "$TALLY_BAD" = 0 ] && { [ "$status" != 0 ] || [ "$TALLY_GOOD" = 0 ]; }; then
		TALLY_BAD=1
	fi
	[ "$status" = 0 ] || TALLY_SAID+=" (status $status)"
}

# tally_failures LOG: print the names of the failures in the log, each with the last
# lines that the log shows of it.  Call it at the end of the output: often only the end
# of a long log is kept.
tally_failures()
{
	awk -v keep=12 -v most=10 '
		function flush(i) {
			for (i = n > keep ? n - keep + 1 : 1; i <= n; i++)
				print shown[i]
			n = 0
		}
		/^(NOT OK|not ok) / {
			flush()
			inside = ++count <= most
			if (inside)
				print
			next
		}
		inside && /^ +\| / { shown[++n] = $0; next }
		{ flush(); inside = 0 }
		END {
			flush()
			if (count > most)
				print "... and " count - most " more"
		}' "$1"
}
