#!/bin/bash
# Check the sources with the compilers, the layout rules and the tools.
#
#	lint.sh [CHECK...]		default: all; "compile" and "rules" are groups of checks
#	BUILDS=DIR				use the builds that an earlier call made there, and leave those of
#							this call
#
# Prints "ok CHECK", or the reason and "not ok CHECK".  Exits nonzero if any check is
# not ok.  Builds happen in copies of the tree.
#
# shellcheck disable=SC2317 # the checks are called by name
set -u
cd "$(dirname "$0")/../.." || exit 1

PG_CONFIG=${PG_CONFIG:-pg_config}
# shellcheck source=test/setup/tree.sh
. test/setup/tree.sh
work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/idem-lint.XXXXXX")
trap 'rm -rf "$work"' EXIT
builds=${BUILDS:-$work}
status=0

# none WHAT: if standard input has lines, print WHAT and the lines, and fail.
none()
{
	local lines

	lines=$(cat)
	[ -n "$lines" ] || return 0
	printf '%s\n' "$1" "$lines"
	return 1
}

# build_copy NAME MAKE-ARG...: make a clean build in a copy of the tree, quiet unless
# it fails.  Warnings are errors, so success means that there are no warnings.  Who gave
# BUILDS may have left such a copy there with a clean build, of which make does the rest.
build_copy()
{
	local dir=$builds/$1
	shift

	[ -d "$dir" ] || tree_copy "$dir"
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$dir" --no-print-directory -s -k -j"$(nproc)" \
		PG_CONFIG="$PG_CONFIG" WERROR=1 all test-module "$@" >"$work/build.log" 2>&1 || {
		cat "$work/build.log"
		return 1
	}
}

check_gcc()
{
	build_copy gcc CC=gcc
}

# The server's flags are those of the compiler that built the server; clang does not
# know all flags of gcc.  Without OpenSSL's headers, too.  Other than gcc, clang warns before
# it optimizes.
check_clang()
{
	local quick='-O0 -g0 -Wno-#warnings'

	build_copy clang CC=clang WITH_OPENSSL=no SINK_COPT="$quick" \
		COPT="-Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes $quick"
}

# Only assert-enabled servers compile the assertions; this check compiles them always.  The
# same build has the fault points, for the rules.
check_assert()
{
	build_copy faults CC=gcc FAULT_POINTS=1 COPT='-DUSE_ASSERT_CHECKING -g0' SINK_COPT=-g0
}

# compile_flawed DIR MAKE-ARG...: compile two files of a copy that have a warning each,
# one of the library and one of the sink programs.  make's output goes to build.log.
compile_flawed()
{
	local dir=$1
	shift

	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u WERROR make -C "$dir" --no-print-directory -s -k -B \
		PG_CONFIG="$PG_CONFIG" "$@" src/idempotency.o src/sink/build/null/flawed.o >"$work/build.log" 2>&1
}

# A warning stops the builds of the tests, but no user's build.
check_werror()
{
	local dir=$work/flawed status=0

	tree_copy "$dir"
	echo 'static int idem_flaw_one;' >>"$dir/src/idempotency.c"
	echo 'static int idem_flaw_two;' >"$dir/src/sink/null/flawed.c"
	compile_flawed "$dir" || {
		echo "make fails on a warning without WERROR=1:"
		cat "$work/build.log"
		status=1
	}
	[ "$(grep -cE 'warning: .?idem_flaw_(one|two)' "$work/build.log")" = 2 ] || {
		echo "make hides warnings:"
		cat "$work/build.log"
		status=1
	}
	! compile_flawed "$dir" WERROR=1 || {
		echo "make WERROR=1 goes on after a warning"
		status=1
	}
	[ "$(grep -cE 'error: .?idem_flaw_(one|two)' "$work/build.log")" = 2 ] || {
		echo "make WERROR=1 lets one of two warnings pass:"
		cat "$work/build.log"
		status=1
	}
	return "$status"
}

check_indent()
{
	test/lint/indent.sh --check
}

check_shellcheck()
{
	local files

	mapfile -t files < <(tree_files | xargs -0 grep -lE '^#!/bin/(ba)?sh|^# shellcheck shell=')
	shellcheck -x "${files[@]}"
}

check_version_tests()
{
	grep -rnE 'PG_VERSION_NUM|CATALOG_VERSION_NO|pg_attribute_noreturn|\<(table|index)_beginscan\(' \
		src test/module --include='*.[ch]' | grep -v '^src/compat\.h:' |
		none "differs between versions; src/compat.h has what to use (pg_noreturn, idem_compat_...):"
}

# A sink program includes no header of the server.  The compiler's .d files list the
# headers that a program includes.
check_sink_headers()
{
	local server

	[ -d src/sink ] || return 0
	server=$("$PG_CONFIG" --includedir-server)
	[ -d "$builds/gcc" ] || check_gcc || return 1
	find "$builds/gcc/src/sink" -name '*.d' -print0 | xargs -0 grep -HF "$server" |
		none "a sink program includes headers of the server:"
}

# The library exports the functions that the install scripts of this version and of each
# released one declare, the main functions of three kinds of workers, and the symbols that
# the loader looks up.  The functions of tests are in a module of their own.
check_exports()
{
	local names name scripts=(sql/install/*.sql)

	! compgen -G 'sql/release/*.sql' >/dev/null || scripts+=(sql/release/*.sql)

	[ -f "$builds/gcc/idempotency.so" ] || check_gcc || return 1
	names=$(nm -D --defined-only "$builds/gcc/idempotency.so" | awk '{ print $NF }')
	while read -r name; do
		case $name in
			Pg_magic_func | _PG_init | idem_launcher_main | idem_worker_main | idem_store_worker_main | idem_keyed_worker_main) ;;
			pg_finfo_idem_sink_*_validator) ;;	# tables.py
			pg_finfo_*) grep -qF "'${name#pg_finfo_}'" "${scripts[@]}" || echo "${name#pg_finfo_}" ;;
			*) grep -qx "pg_finfo_$name" <<<"$names" || echo "$name" ;;
		esac
	done <<<"$names" | none "exported without need:" || return 1
	grep -ohE "'MODULE_PATHNAME', *'[a-z0-9_]+_(fn|validator)'" "${scripts[@]}" | sed -E "s/.*'([a-z0-9_]+)'$/\1/" | sort -u |
		grep -vxFf <(sed -n 's/^pg_finfo_//p' <<<"$names") |
		none "a script of this or of a released version needs it, and the library has it no longer:" || return 1
	sed -n 's/^pg_finfo_//p' <<<"$names" | grep -vE '_(fn|validator)$' |
		none "a SQL function's name in C ends neither with _fn nor with _validator:"
}

# Fault points are only in builds that ask for them; the name of a point occurs once.
check_fault_points()
{
	local program status=0

	[ -f "$builds/gcc/idempotency.so" ] || check_gcc || return 1
	[ -d "$builds/faults" ] || check_assert || return 1
	for program in $(cd "$builds/gcc" && echo idempotency.so src/sink/bin/*); do
		{
			nm -a "$builds/gcc/$program" | grep -i fault_ | grep -vi default_
			grep -aoiE '(IDEM|SINK)[A-Z_]*fault[A-Z_/]*|fault point' "$builds/gcc/$program"
		} | none "in an ordinary build of $program:" || status=1
		grep -aq idempotency_fault "$builds/faults/$program" || {
			echo "FAULT_POINTS=1 has no effect on $program"
			status=1
		}
	done
	[ "$(grep -l IDEMPOTENCY_FAULT_POINTS "$builds"/{gcc,faults}/build/id)" = "$builds/faults/build/id" ] || {
		echo "build/id does not tell the builds apart"
		status=1
	}
	test/crash/points.sh --list | cut -d ' ' -f 1 | uniq -d | none "names of more than one fault point:" || status=1
	return "$status"
}

# Print the folders of src/relay in the order of its README, highest first.
relay_folders()
{
	# shellcheck disable=SC2016 # backquotes of the table
	sed -nE 's,^\| `([a-z]+)/` \|.*,\1,p' src/relay/README.md
}

# Print the includes inside src/relay that lead to a higher folder.  The files of
# relay/ itself are below all folders; relay.c is above all folders.
relay_includes_up()
{
	find src/relay -name '*.[ch]' ! -path src/relay/relay.c \
		-exec grep -HnE '#include "relay/' {} + |
		awk -v folders="$(relay_folders | tr '\n' ' ')" '
		function rank(path, part)
		{
			if (path == "relay/relay.h")
				return 1000
			return split(path, part, "/") == 2 ? 0 : (part[2] in level ? level[part[2]] : -1)
		}
		BEGIN {
			n = split(folders, list, " ")
			for (i = 1; i <= n; i++)
				level[list[i]] = n - i + 1
		}
		{
			from = $0
			sub(/^src\//, "", from)
			sub(/:.*/, "", from)
			to = $0
			sub(/.*#include "/, "", to)
			sub(/".*/, "", to)
			if (rank(from) < 0 || rank(to) < 0)
				print $0 "  (a folder that src/relay/README.md does not list)"
			else if (rank(from) < rank(to))
				print
		}'
}

# claim and outbox do not include each other; only their SQL-callable wrappers may.
# The sinks and shared include none of the subsystems, nor do canonical, guard and lease.
# request and cursor are above claim, lease and store; only idempotency.c includes them.
# Nothing includes doctor.  Folders of the relay include lower folders only.
check_layers()
{
	{
		grep -rnE --exclude='*_fn.c' '#include "(outbox|relay)/' src/claim
		grep -rnE --exclude='*_fn.c' '#include "(claim|relay)/' src/outbox
		grep -rnE '#include "(claim|cursor|outbox|relay|request)/' src/shared src/sink
		grep -rnE '#include "(claim|cursor|outbox|relay|request|sink|store)/' src/canonical src/guard src/lease
		grep -rnE '#include "(canonical|cursor|guard|outbox|relay|sink)/' src/request
		grep -rnE '#include "(canonical|guard|outbox|relay|request|sink)/' src/cursor
		grep -rnE '#include "doctor/' src --include='*.[ch]' --exclude-dir=doctor
		grep -rnE '#include "(cursor|request)/' src --include='*.[ch]' --exclude-dir=cursor --exclude-dir=request | grep -v '^src/idempotency\.c:'
		relay_includes_up
	} 2>/dev/null | none "includes must point down:"
}

# The files that the folders' READMEs name exist, and the relay's README names each
# source of the relay.  The README of the sinks is not checked, because it names files
# of an example.
check_readmes()
{
	local readme dir name

	for readme in src/README.md src/{canonical,claim,cursor,doctor,guard,lease,outbox,relay,request,shared}/README.md src/relay/*/README.md; do
		[ -f "$readme" ] || continue
		dir=$(cut -d / -f 1,2 <<<"$readme")
		dir=${dir%/README.md}
		# shellcheck disable=SC2016 # backquotes of the text
		grep -oE '`[a-z0-9_./-]+\.(c|h|sql|pl|pml|sh)`' "$readme" | tr -d '`' | sort -u |
			while read -r name; do
				[ -e "$name" ] || [ -e "src/$name" ] || [ -n "$(find "$dir" -path "*/$name" -print -quit)" ] ||
					echo "$readme names $name, which is not there"
			done
	done | none "files that are not there:" || return 1
	find src/relay -name '*.c' -printf '%f\n' | while read -r name; do
		grep -qF "\`$name\`" src/relay/README.md || echo "$name"
	done | none "src/relay/README.md does not say what these files are for:"
}

# Links of the documents have targets, README.md leads to each page, no code block is
# empty, a picture is what its script draws, and META.json describes a distribution of this release.
check_documents()
{
	test/lint/documents.py || return 1
	doc/architecture.py | diff - doc/architecture.svg | none "doc/architecture.svg is not what doc/architecture.py draws:"
}

# Includes make no circles.  X.c and X.h are one node of the graph; an edge leads from
# a node to each header that it includes.
check_circles()
{
	find src -name '*.[ch]' ! -path 'src/sink/b*/*' -exec grep -oE '#include "[a-z0-9_/]+' {} + |
		sed -E 's,^src/(.*)\.[ch]:#include ",\1 ,' | awk '$1 != $2' |
		tsort 2>&1 >/dev/null | sed 's/^tsort: //' | none "includes make circles:"
}

# X.c defines the functions that X.h declares, or a file of its folder without a header
# of its own defines them.  So no circle hides behind a header that declares functions
# of other files.
check_owners()
{
	local header own name

	# the build with fault points defines all functions
	[ -d "$builds/faults" ] || check_assert || return 1
	while read -r header; do
		own=()
		for file in "${header%/*}"/*.c; do
			[ "${file%.c}" != "${header%.h}" ] && [ -f "${file%.c}.h" ] ||
				own+=("$builds/faults/${file%.c}.o")
		done
		grep -E '^extern [^"]' "$header" |
			sed -E 's/\(\*([a-z0-9_]+)\).*/\1/; s/[[:space:]]*(\(|;|\[).*//; s/.*[[:space:]*]//' |
			grep -vxFf <(nm --defined-only "${own[@]}" 2>/dev/null | awk '{ print $3 }') |
			sed "s,^,$header: ,"
	done < <(find src -name '*.h' ! -path 'src/sink/*' ! -path src/compat.h | sort) |
		none "declared in the header of another file:"
}

# Calls between files and between folders go down.  The test of this check runs first.
check_calls()
{
	[ -f "$builds/gcc/idempotency.so" ] || check_gcc || return 1
	test/lint/calls_test.sh && test/lint/calls.sh --tree "$builds/gcc"
}

# A new sink's program needs only a folder, and is never left out silently.
check_sink_programs()
{
	test/lint/sinks.sh
}

# Debian ships the makefiles of a server without the server's headers.  make then says
# which package to install.
check_build_hint()
{
	mkdir -p "$work/no-headers"
	# shellcheck disable=SC2016 # the script's own
	printf '#!/bin/sh\n[ "$1" = --includedir-server ] && exec echo %s\nexec %s "$@"\n' \
		"$work/no-headers" "$PG_CONFIG" >"$work/pg_config"
	chmod +x "$work/pg_config"
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -n PG_CONFIG="$work/pg_config" 2>&1 |
		grep -v 'names no server headers: install .*packages.sh build' |
		none "make without the server's headers says:"
}

check_file_length()
{
	find src -name '*.[ch]' -exec wc -l {} + | awk '$2 != "total" && $1 > 800' |
		none "files of more than 800 lines:"
}

# The code of src does not grow unnoticed.
check_lines()
{
	test/lint/lines.sh --check
}

# Lists that stand once in C agree with the install script.
check_tables()
{
	test/lint/tables.py
}

# A table that somebody altered has more columns than its form has room for.
check_rows_taken_apart()
{
	grep -rn 'heap_deform_tuple(' src test/module --include='*.[ch]' | grep -v '^src/shared/table\.c:' |
		none "may overrun the caller's arrays; shared/table.h has idem_table_take_apart:"
}

check_unfinished()
{
	grep -rnE '\b(TODO|FIXME|XXX)\b' src sql/install | none "unfinished:"
}

check_install_sql()
{
	local released updates

	mapfile -t released < <(compgen -G 'sql/release/*.sql')
	mapfile -t updates < <(compgen -G 'sql/release/*--*--*.sql')
	{
		grep -niwE 'create +or +replace|if +not +exists|if +exists' sql/install/*.sql
		grep -nw STRICT sql/install/*.sql | grep -v 'INTO STRICT'
		grep -niwE 'if +not +exists|if +exists' /dev/null "${updates[@]}"
	} | none "not in an install or update script:" || return 1
	grep -L '^\\echo .*\\quit$' sql/install/00_head.sql "${released[@]}" | none "psql would run it:" || return 1
	grep -L '^SET LOCAL search_path = pg_catalog, pg_temp;$' sql/install/00_head.sql "${released[@]}" |
		none "finds operators in any schema:"
}

# What was released stays as it was.  The test of this check runs first.
check_frozen()
{
	test/lint/frozen_test.sh && test/lint/frozen.sh
}

# Somebody follows a hint to the letter, so none offers a setting that switches a guarantee off.
check_hints()
{
	grep -rnE '(errhint|errdetail|HINT =|DETAIL =).*(uncompleted_claims|durable_complete)' src sql/install |
		none "hints that switch a guarantee off:"
}

# The files of exporters and the alert rules are what their source makes, and the rules say
# what they are to say of series; the latter where promtool is installed.
check_monitoring()
{
	src/packaging/monitoring/generate.py --check || return 1
	! command -v promtool >/dev/null || promtool test rules test/monitoring/alerts_test.yml
}

# Continuous integration chooses, cuts off and adds up as documented.
check_ci()
{
	test/lint/ci.sh
}

# The patches of test/mutants fit the sources.
check_mutants()
{
	CHECK=1 test/mutants/run.sh
}

compilers=(gcc clang assert werror)
rules=(version_tests sink_headers exports fault_points layers readmes documents circles owners calls sink_programs build_hint file_length lines
	tables rows_taken_apart unfinished install_sql frozen hints monitoring mutants ci shellcheck indent)
case ${*:-all} in
	all) set -- "${compilers[@]}" "${rules[@]}" ;;
	compile) set -- "${compilers[@]}" ;;
	rules) set -- "${rules[@]}" ;;
esac
for check; do
	if ! declare -F "check_$check" >/dev/null; then
		echo "no such check: $check (there are: ${compilers[*]} ${rules[*]})"
		echo "not ok $check"
		status=1
	elif "check_$check" >"$work/output" 2>&1; then
		echo "ok $check"
	else
		tail -n 60 "$work/output"
		echo "not ok $check"
		status=1
	fi
done
exit $status
