#!/bin/bash
# Indent the C sources as PostgreSQL does, in place.  With --check change nothing, and
# print the files that differ.
#
#	indent.sh [--check] [FILE...]
#
# pg_bsd_indent must know which names are types.  The tree keeps no list of types.
# This script builds the tree, and reads the types from the debug information of the
# objects, as upstream makes its list, and from the typedefs of the sources and of the
# server's headers.  Names that the sources never use are dropped.
set -euo pipefail
cd "$(dirname "$0")/../.."

OPTIONS=(-bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 -nfc1 -i4 -l79
	-lp -lpl -nip -npro -sac -tpg -ts4)

check=
if [ "${1:-}" = --check ]; then
	check=1
	shift
fi
[ $# -gt 0 ] || mapfile -t files < <(find src test -name '*.[ch]' | sort)
[ $# = 0 ] || files=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/idem-indent.XXXXXX")
trap 'rm -rf "$work"' EXIT

"${MAKE:-make}" --no-print-directory -s -j"$(nproc)" all >"$work/build.log" 2>&1 || {
	cat "$work/build.log" >&2
	exit 1
}

# Print the names of types in the debug information of an object.
types_of_object()
{
	objdump -Wi "$1" | awk '/DW_TAG_typedef/ { want = 1; next }
		/DW_TAG_/ { want = 0 }
		want && /DW_AT_name/ { print $NF; want = 0 }'
}

# list_types OUTPUT OBJECT-DIRECTORY HEADER-DIRECTORY...: write the types of these
# objects, and of the typedefs in these headers, that the sources use.
list_types()
{
	local output=$1 objects=$2
	shift 2

	{
		find "$objects" -name '*.o' -print0 | while IFS= read -r -d '' object; do
			types_of_object "$object"
		done
		find "$@" -name '*.[ch]' -exec sed -nE \
			's/^typedef .*[ *]([A-Za-z_][A-Za-z0-9_]*);.*/\1/p
			s/^\} ?([A-Za-z_][A-Za-z0-9_]*);.*/\1/p
			s/^typedef .*\(\*([A-Za-z_][A-Za-z0-9_]*)\) ?\(.*/\1/p' {} +
		# The objects name a type of the C library only if they use it.
		printf '%s\n' bool time_t
	} | sort -u >"$work/all"
	find src test -name '*.[ch]' -exec grep -ohE '[A-Za-z_][A-Za-z0-9_]*' {} + | sort -u >"$work/used"
	comm -12 "$work/all" "$work/used" >"$output"
}

# The programs have a list of their own: a type of the server ("text") may be the name
# of a variable in a program.
list_types "$work/server" src src "$("${PG_CONFIG:-pg_config}" --includedir-server)"
list_types "$work/program" src/sink src/sink test

# Indent one file.  sed mends two mistakes of pg_bsd_indent: "type *" on a line of its
# own has one space (upstream mends this mistake, too), and one space stands between a
# comma and a designator.
indent_one()
{
	local types=$work/server

	[[ $1 != src/sink/* && $1 != test/sink/* && $1 != test/bench/* && $1 != test/analysis/* ]] || types=$work/program
	pg_bsd_indent "${OPTIONS[@]}" -U"$types" <"$1" 2>"$work/err" |
		sed -E 's/^([A-Za-z_][A-Za-z0-9_]*( [A-Za-z_][A-Za-z0-9_]*)*)[ \t]+\*$/\1 */
			s/,(\.[a-z_]+ = )/, \1/g' >"$work/out"
	# What it does not understand it notes in the file.
	grep -m 1 '^/\*\*INDENT\*\*' "$work/out" >>"$work/err" || true
	[ ! -s "$work/err" ]
}

status=0
for file in "${files[@]}"; do
	if ! indent_one "$file"; then
		echo "$file: $(head -n 1 "$work/err")"
		status=1
	elif ! cmp -s "$file" "$work/out"; then
		if [ -n "$check" ]; then
			echo "$file: not indented; run make indent"
			diff -u "$file" "$work/out" | sed -n '3,20p' || true
			status=1
		else
			cat "$work/out" >"$file"
			echo "indented $file"
		fi
	fi
done
exit $status
