#!/bin/bash
# Check that calls between the files of a folder go down and make no circle.
#
#	calls.sh [--print] [--tree TREE] [FOLDER...]	default: every folder of src/, and
#													the calls between folders
#
# TREE (default: this tree) must have been built.  nm reads the calls from the object
# files: file A calls file B of the same folder if A has an undefined symbol that B
# defines as a function.  nm sees names only:
#	- a call through a pointer does not count, nor does a variable;
#	- a file that takes the address of a function counts as calling it;
#	- a function that the preprocessor left out of this build does not count.
#
# The README.md of a folder, or of its parent, has the order of the folder's files,
# below a heading that begins with "Files of FOLDER, top to bottom":
#
#	| File | ... | Calls |
#	|---|---|---|
#	| `main.c` | ... | `apply` `batch` |
#
# Each file has one row, above the rows of the files that it calls.  If the last
# column is "Calls", it has to list the files that the file calls.  A folder without
# such a table is checked for circles only.
#
# test/lint/calls.allow has the calls that may go up, or that may be part of a circle,
# with the reason.  An entry whose call no longer occurs is an error:
#
#	src/relay/stream/a.c b.c	why a.c may call b.c
#
# --print writes a table for each FOLDER instead, to be completed and put into a
# README.  The table has an order without upward calls, as far as such an order exists.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
tree=$top
print=
folders=()
while [ $# -gt 0 ]; do
	case $1 in
		--print) print=1 ;;
		--tree) shift && tree=$1 ;;
		*) folders+=("${1%/}") ;;
	esac
	shift
done
cd "$tree" || exit 1
CALLS_ALLOW=${CALLS_ALLOW:-test/lint/calls.allow}
between=
[ ${#folders[@]} -gt 0 ] || {
	between=1
	mapfile -t folders < <(find src -name '*.c' ! -path 'src/sink/b*/*' -printf '%h\n' | sort -u)
}
status=0
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-calls.XXXXXX")
trap 'rm -rf "$work"' EXIT

complain()
{
	echo "$@"
	status=1
}

# objects FILE...: set OBJECTS to the object files of the files.  A file of the protocol has
# two object files with the same calls: one for the library, one for the programs.
objects()
{
	OBJECTS=("${@/#src\/sink\//src/sink/build/}")
	OBJECTS=("${OBJECTS[@]/%.c/.o}")
}

# match_calls: read lines of nm with their owner in front; print lines "CALLER CALLEE
# FUNCTION".
match_calls()
{
	awk '
		$(NF - 1) ~ /^[TWi]$/ { owner[$NF] = $1 }
		$(NF - 1) == "U" { caller[++n] = $1; name[n] = $NF }
		END {
			for (i = 1; i <= n; i++)
				if (name[i] in owner && owner[name[i]] != caller[i])
					print caller[i], owner[name[i]], name[i]
		}' | sort -u
}

# list_calls FOLDER: print a line "CALLER CALLEE FUNCTION" for each function that a
# file of the folder calls in another file; files are named without ".c".
list_calls()
{
	objects "$1"/*.c
	nm -gA "${OBJECTS[@]}" | sed -E 's,^[^:]*/([^/:]*)\.o:,\1 ,' | match_calls
}

# list_folder_calls FOLDER...: the same between folders.  If a folder contains folders,
# the file of its name (relay/relay.c) stands above them, its other files below them.
list_folder_calls()
{
	local folder main above

	for folder; do
		main=$folder/${folder##*/}.c
		above=
		! compgen -G "$folder/*/*.c" >/dev/null || above=$main
		objects "$folder"/*.c
		nm -gA "${OBJECTS[@]}" | sed -E "${above:+s,^[^:]*/${folder##*/}\.o:,$above ,;t;}s,^[^:]*:,$folder ,"
	done | match_calls
}

# find_circle: read lines "CALLER CALLEE ..."; print the nodes of their circles.
find_circle()
{
	awk '{ print $1, $2 }' | sort -u | tsort 2>&1 >/dev/null |
		sed -E 's/^tsort: //; /input contains a loop/d' | sort -u | paste -sd ' '
}

# list_order FOLDER: print a line "FILE CALLEE..." for each row of the folder's table,
# or "FILE -" if the table has no column of calls.
list_order()
{
	local readme

	for readme in "$1/README.md" "${1%/*}/README.md"; do
		[ -f "$readme" ] || continue
		awk -v folder="$1" '
			/^#/ { inside = index($0, "Files of " folder ", top to bottom") > 0; next }
			!inside || !/^\|/ { next }
			/^\| *File *\|/ { calls = $0 ~ /\| *Calls *\|[ ]*$/; next }
			match($0, /^\| *`[a-z0-9_]+\.c` *\|/) {
				row = $0
				file = substr(row, RSTART, RLENGTH)
				gsub(/[|` ]|\.c/, "", file)
				sub(/ *\| *$/, "", row)
				sub(/.*\|/, "", row)
				gsub(/[^a-z0-9_ ]/, "", row)
				print file, calls ? row : "-"
			}' "$readme"
	done
}

# write_table FOLDER: print a table with callers before callees, as far as possible.
write_table()
{
	local file callees

	echo "Files of $1, top to bottom"
	echo
	echo '| File | Job | Calls |'
	echo '|---|---|---|'
	{
		awk '{ print $1, $2 }' "$work/calls"
		for file in "$1"/*.c; do
			file=${file##*/}
			file=${file%.c}
			echo "$file $file"
		done
	} | tsort 2>/dev/null | while read -r file; do
		callees=$(awk -v f="$file" '$1 == f { print "`" $2 "`" }' "$work/calls" | sort -u | paste -sd ' ')
		echo "| \`$file.c\` | | $callees |"
	done
}

# allowed FOLDER: print a line "CALLER CALLEE" for each call that may go up.
allowed()
{
	[ -f "$CALLS_ALLOW" ] || return 0
	grep -vE '^(#|$)' "$CALLS_ALLOW" | while read -r caller callee reason; do
		[ "${caller%/*}" = "$1" ] || continue
		[ -n "$reason" ] || echo "$CALLS_ALLOW: no reason for $caller $callee" >&2
		caller=${caller##*/}
		echo "${caller%.c} ${callee%.c}"
	done
}

# check_order FOLDER: check that each file has a row, that calls go to rows below, and
# that the last column is right.
check_order()
{
	local file row callees

	for file in "$1"/*.c; do
		file=${file##*/}
		file=${file%.c}
		[ "$(grep -c "^$file " "$work/order")" = 1 ] ||
			complain "$1: $file.c needs one row in the table of files"
	done
	while read -r file row; do
		[ -f "$1/$file.c" ] || complain "$1: the table of files has $file.c, which is not there"
		[ "$row" != - ] || continue
		callees=$(awk -v f="$file" '$1 == f { print $2 }' "$work/calls" | sort -u | paste -sd ' ')
		[ "$(tr ' ' '\n' <<<"$row" | grep . | sort | paste -sd ' ')" = "$callees" ] ||
			complain "$1: $file.c calls \"$callees\", and not \"$row\""
	done <"$work/order"
}

# check_folder FOLDER: check the circles and the order of one folder.
check_folder()
{
	local circle up=0

	list_order "$1" >"$work/order"
	allowed "$1" >"$work/allow" 2>"$work/unreasoned"
	[ ! -s "$work/unreasoned" ] || complain "$(cat "$work/unreasoned")"
	[ ! -s "$work/order" ] || check_order "$1"

	# the calls that may not go up
	awk -v order="$work/order" -v allow="$work/allow" '
		BEGIN {
			while ((getline line < order) > 0) { split(line, f, " "); place[f[1]] = ++n }
			while ((getline line < allow) > 0) allowed[line] = 1
		}
		($1 " " $2) in allowed { print > "/dev/stderr"; next }
		place[$1] && place[$2] && place[$2] < place[$1]' \
		"$work/calls" >"$work/up" 2>"$work/excused"
	while read -r caller callee name; do
		complain "$1: $caller.c calls up into $callee.c: $name"
	done <"$work/up"
	grep -vxFf <(awk '{ print $1, $2 }' "$work/excused") "$work/allow" | while read -r caller callee; do
		echo "$1: $CALLS_ALLOW allows $caller.c to call $callee.c, which it does not"
	done >"$work/unused"
	[ ! -s "$work/unused" ] || complain "$(cat "$work/unused")"

	circle=$(awk '{ print $1, $2 }' "$work/calls" | grep -vxFf "$work/allow" | find_circle)
	[ -z "$circle" ] || complain "$1: calls between files make a circle: $circle"

	up=$(awk '{ print $1, $2 }' "$work/up" "$work/excused" | sort -u | wc -l)
	echo "$1: $(awk '{ print $1, $2 }' "$work/calls" | sort -u | wc -l) calls between files," \
		"$up go up, $(awk '{ print $1, $2 }' "$work/excused" | sort -u | wc -l) of them allowed" \
		"$([ -s "$work/order" ] || echo "(no order declared)")"
}

for folder in "${folders[@]}"; do
	objects "$folder"/*.c
	for file in "${OBJECTS[@]}"; do
		[ -f "$file" ] || {
			echo "$tree has no $file; build it"
			exit 1
		}
	done
	list_calls "$folder" >"$work/calls"
	if [ -n "$print" ]; then
		write_table "$folder"
	else
		check_folder "$folder"
	fi
done
if [ -n "$between" ] && [ -z "$print" ]; then
	circle=$(list_folder_calls "${folders[@]}" | find_circle)
	[ -z "$circle" ] || complain "calls between folders make a circle: $circle"
fi
exit $status
