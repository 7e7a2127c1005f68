# What a script that ends with "N passed, N failed" has to say, for those that
# run several of them and add up.
#
# Source it.  The rule, in one place: what its last such line counts; besides,
# a failure if it was cut off (whatever it printed before), if it ended badly
# without counting one, and if it counted nothing at all.

# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set is for those who source it

# tally LOG STATUS: sets TALLY_GOOD, TALLY_BAD and TALLY_SAID, a few words.
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
		# The last line is that of something inside.
		TALLY_BAD=$((TALLY_BAD + 1))
		TALLY_SAID+=", cut off"
	elif [ "$TALLY_BAD" = 0 ] && { [ "$status" != 0 ] || [ "$TALLY_GOOD" = 0 ]; }; then
		TALLY_BAD=1
	fi
	[ "$status" = 0 ] || TALLY_SAID+=" (status $status)"
}

# tally_failures LOG: the names of what failed in there, each with the last lines
# that were shown of it.  Of a long log often only the end is kept, and that is
# where this belongs.
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
