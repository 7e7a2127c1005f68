#!/bin/bash
# Count the lines of code of src without the sink programs: no blank lines, no comments.
#
#	lines.sh [--check]		--check: fail if there are more than BOUND
#
# A change that needs more lines than BOUND leaves raises BOUND in the same commit, whose
# message says what the lines are for.  A change that removes lines lowers BOUND to what
# is left plus 50.
set -euo pipefail
cd "$(dirname "$0")/../.."

# When function relays and program relays were to get one engine: commit 8c9d503.
BEGAN=40526
BOUND=45650

now=$(find src -name '*.[ch]' ! -path 'src/sink/*' -exec cat {} + | "${CC:-gcc}" -fpreprocessed -dD -E -P -w - | grep -c '[^[:space:]]')
echo "lines of code in src without sinks: $now; when the relays' engine began: $BEGAN; bound: $BOUND"
[ "${1:-}" != --check ] || [ "$now" -le "$BOUND" ]
