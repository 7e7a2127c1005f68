#!/bin/bash
# Check that src/sink/sink.mk builds a program from a folder, and never leaves a program
# out silently.
#
#	sinks.sh
#
# shellcheck disable=SC2016 # the makefile's own variables
set -u
cd "$(dirname "$0")/../.." || exit 1
PG_CONFIG=${PG_CONFIG:-pg_config}
# shellcheck source=test/setup/tree.sh
. test/setup/tree.sh
work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/idem-sinks.XXXXXX")
trap 'rm -rf "$work"' EXIT
status=0
program=idempotency-sink-try
built=src/sink/bin/$program

complain()
{
	printf '%s\n' "$@"
	cat "$work/log"
	status=1
}

# run MAKE-ARG...: run make; its output goes to the log.
run()
{
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u WERROR PKG_CONFIG_PATH="$work/modules" \
		make -C "$work/tree" --no-print-directory -s -j2 PG_CONFIG="$PG_CONFIG" "$@" >"$work/log" 2>&1
}

# refuses MESSAGE MAKE-ARG...: check that make fails and prints the message.
refuses()
{
	local message=$1
	shift

	if run "$@"; then
		return 1
	fi
	grep -q "$message" "$work/log"
}

# add_folder: add the null sink under another name; it compiles only with the flags of
# its module.
add_folder()
{
	cp -r "$work/tree/src/sink/null" "$work/tree/src/sink/try"
	printf '#ifndef TRY_FLAG\n#error "flags of the module are missing"\n#endif\n' >>"$work/tree/src/sink/try/null.c"
	echo 'SINK_MODULES_try = idem_try' >"$work/tree/src/sink/try/program.mk"
}

# The other sinks are needed for nothing here, and take long to compile.
tree_copy "$work/tree"
find "$work/tree/src/sink" -mindepth 1 -maxdepth 1 -type d ! -name protocol ! -name common ! -name null -exec rm -r {} +
mkdir "$work/modules"
add_folder
run sinks install-sinks DESTDIR="$work/stage" ||
	complain "a library that is not installed ends make:"
grep -q "warning: $program is not built: pkg-config finds no idem_try;" "$work/log" ||
	complain "a program is left out without a warning:"
[ ! -e "$work/tree/$built" ] || complain "$program was built without its library:"
for goal in sinks check-sink; do
	refuses "error: $program is not built" "$goal" WERROR=1 ||
		complain "make $goal WERROR=1 leaves a program out:"
done
refuses "error: $program is not built" install-sink-try DESTDIR="$work/stage" ||
	complain "make install-sink-try succeeds without the program:"

printf 'Name: try\nDescription: a library\nVersion: 1\nCflags: -DTRY_FLAG\nLibs: -Wl,--defsym=try_flag=0\n' \
	>"$work/modules/idem_try.pc"
run sinks WERROR=1 || complain "a program is not built although its library is installed:"
nm "$work/tree/$built" 2>/dev/null | grep -q try_flag || complain "$program is not linked with its library:"
run install-sink-try DESTDIR="$work/stage" || complain "make install-sink-try fails:"
installed=$work/stage$("$PG_CONFIG" --pkglibdir)/idempotency-sinks
[ -x "$installed/$program" ] || complain "$program is not installed beside the library:"
run uninstall-sinks DESTDIR="$work/stage" || complain "make uninstall-sinks fails:"
[ -z "$(ls "$installed")" ] || complain "make uninstall-sinks leaves $(ls "$installed"):"
run clean || complain "make clean fails:"
[ ! -e "$work/tree/src/sink/bin" ] || complain "make clean leaves programs:"
exit $status
