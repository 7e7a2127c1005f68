#!/bin/bash
# Check that calls.sh finds circles, upward calls and wrong tables, in a tree of three
# files.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-calls-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
status=0

# source_file NAME CALLEE...: make a file whose function NAME calls the callees.
source_file()
{
	local name=$1
	shift

	{
		printf 'extern void %s(void);\n' "$name" "$@"
		printf 'void %s(void)\n{\n' "$name"
		[ $# = 0 ] || printf '\t%s();\n' "$@"
		echo '}'
	} >"$work/src/part/$name.c"
	cc -c -o "$work/src/part/$name.o" "$work/src/part/$name.c"
}

# good_tree: make a tree in which top calls middle and bottom, middle calls bottom, and
# the README has these calls.
good_tree()
{
	rm -rf "$work/src" "$work/test"
	mkdir -p "$work/src/part" "$work/test/lint"
	source_file top middle bottom
	source_file middle bottom
	source_file bottom
	# shellcheck disable=SC2016 # Markdown
	printf '%s\n' '# Part' '' '## Files of src/part, top to bottom' '' '| File | Job | Calls |' '|---|---|---|' \
		'| `top.c` | the first | `middle` `bottom` |' '| `middle.c` | | `bottom` |' '| `bottom.c` | | |' \
		>"$work/src/part/README.md"
}

# expect WHAT: check that calls.sh prints WHAT and fails; without WHAT, that it succeeds.
expect()
{
	local output rc

	output=$(test/lint/calls.sh --tree "$work" 2>&1)
	rc=$?
	if { [ -z "$1" ] && [ $rc != 0 ]; } ||
		{ [ -n "$1" ] && { [ $rc = 0 ] || ! grep -qF "$1" <<<"$output"; }; }; then
		printf 'calls.sh should %s, and ended with %d:\n%s\n' "${1:+say \"$1\" and fail}${1:-succeed}" $rc "$output"
		status=1
	fi
}

good_tree
expect ''

source_file bottom top
expect 'make a circle: bottom middle top'

good_tree
sed -i '/^| .bottom/d' "$work/src/part/README.md"
expect 'bottom.c needs one row'

good_tree
sed -i '/^| .middle/{h;d};/^| .bottom/G' "$work/src/part/README.md"
expect 'middle.c calls up into bottom.c: bottom'

printf 'src/part/middle.c bottom.c\tfor the test\n' >"$work/test/lint/calls.allow"
expect ''

good_tree
printf 'src/part/bottom.c top.c\tfor the test\n' >"$work/test/lint/calls.allow"
expect 'allows bottom.c to call top.c, which it does not'

good_tree
source_file bottom top
printf 'src/part/bottom.c top.c\n' >"$work/test/lint/calls.allow"
expect 'no reason for src/part/bottom.c top.c'

good_tree
source_file top middle
expect 'top.c calls "middle", and not "middle bottom"'

good_tree
mkdir "$work/src/other"
printf 'extern void top(void);\nextern void far(void);\nvoid far(void)\n{\n\ttop();\n}\n' >"$work/src/other/far.c"
cc -c -o "$work/src/other/far.o" "$work/src/other/far.c"
expect ''
source_file bottom far
expect 'calls between folders make a circle: src/other src/part'
exit $status
