#!/bin/bash
# Build the library broken on purpose, once per patch of this folder, and see
# that the tests notice.
#
#	run.sh [NAME...]	only these mutants
#	ALL=1				also those whose tests are slow (a line "Run: all")
#	CHECK=1				only whether each patch still applies
#	REFRESH=1			write those anew that apply with moved lines only
#	JOBS=n				mutants at a time, default: two per core
#	UNTIL=n				after so many seconds begin with no other mutant; those left over are
#						named as NOT RUN, and do not count
#	SKIP_PACKAGES=1		do not look for missing packages
#	ALLOW_OFFLINE=1		name, but do not count, a mutant whose tests need what cannot be fetched
#
# Each patch names in its line "Caught-by: AREA TESTS" who notices.  Those tests
# run once on the tree as it is, and have to pass; then on each mutant, and one
# of them has to fail, or to hang until its time is over.  A mutant that
# survives is a missing test.  The last line is "N passed, N failed".
set -uo pipefail
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
cd "$IDEM_TOP" || exit 1
# shellcheck source=test/setup/count.sh
. test/setup/count.sh

PATCHES=$IDEM_TOP/test/mutants
CHECK=${CHECK:-}${REFRESH:-}
LIMIT=${LIMIT:-300}

# header PATCH KEY: the value of a line of the patch's head.
header()
{
	sed -n "/^diff /q; s/^$2: *//p" "$PATCHES/$1.patch"
}

wanted_mutants()
{
	local file name

	if [ $# -gt 0 ]; then
		printf '%s\n' "$@"
		return
	fi
	for file in "$PATCHES"/*.patch; do
		name=$(basename "$file" .patch)
		[ -z "${ALL:-}$CHECK" ] && [ "$(header "$name" Run)" = all ] || echo "$name"
	done
}

# copy_tree FROM TO: sources and objects, so that only what a patch changes is
# compiled again.
copy_tree()
{
	mkdir -p "$2"
	tar -C "$1" --exclude=./.git --exclude=./build/test-output -cf - . | tar -C "$2" -xf -
}

# apply NAME TREE: without fuzz; what moved may not mean the same any more.
apply()
{
	patch -d "$2" -p1 -F0 -s --no-backup-if-mismatch "${@:3}" <"$PATCHES/$1.patch"
}

check_patch()
{
	local log=$IDEM_WORK/log/$1.apply key

	[ -f "$PATCHES/$1.patch" ] || {
		fail "$1" "there is no such patch"
		return 1
	}
	for key in Broken Invariant Caught-by; do
		[ -n "$(header "$1" "$key")" ] || {
			fail "$1" "its head has no line \"$key:\""
			return 1
		}
	done
	[ -z "${REFRESH:-}" ] || apply "$1" "$IDEM_TOP" --dry-run >/dev/null 2>&1 || ! refresh "$1" ||
		idem_say "$1 written anew"
	apply "$1" "$IDEM_TOP" --dry-run >"$log" 2>&1 || {
		fail "$1" "the sources moved and it does not apply any more; try REFRESH=1 test/mutants/run.sh, or make the same mistake in the sources, put git diff below the head of test/mutants/$1.patch, and undo it" "$log"
		return 1
	}
}

# Make the same change to the sources as they are now, if patch finds its place,
# and write it down again.  What moved to another file is left to a person.
refresh()
{
	local old=$IDEM_WORK/refresh/a new=$IDEM_WORK/refresh/b head

	rm -rf "$IDEM_WORK/refresh"
	mkdir -p "$old" "$new"
	cp -R --parents src sql/install "$old"
	cp -R --parents src sql/install "$new"
	patch -d "$new" -p1 -s --no-backup-if-mismatch <"$PATCHES/$1.patch" >/dev/null 2>&1 || return 1
	head=$(sed '/^diff /,$d' "$PATCHES/$1.patch")
	{
		printf '%s\n\n' "$head"
		(cd "$IDEM_WORK/refresh" && diff -rupN a b) |
			sed -E 's/^diff -rupN (.*)/diff --git \1/; s/^(---|\+\+\+) ([^\t]*)\t.*/\1 \2/'
	} >"$IDEM_WORK/refreshed"
	cp "$IDEM_WORK/refreshed" "$PATCHES/$1.patch"
}

# run_tests TREE LOG "AREA TESTS": prints what the tests do; 0 if all pass.
run_tests()
{
	local tree=$1 log=$2 area tests

	read -r area tests <<<"$3"
	case $area in
		sink) run_python "$tree" "$(sink_program "$tests")" "$tests" ;;
		kafka | nats | redis | rabbitmq | mqtt) run_python "$tree" tests.py "$area $tests" ;;
		*) (cd "$tree" && SKIP_PACKAGES=1 AREA=$area TESTS=$tests TAP_TIMEOUT=$LIMIT \
			timeout -k 60 $((LIMIT + 60)) test/setup/run.sh) ;;
	esac >"$log" 2>&1
}

# sink_program TESTS: which program of test/sink has the tests
sink_program()
{
	local program

	for program in kafka_token_test.py http_test.py; do
		grep -q "^def ${1%% *}(" "test/sink/$program" || continue
		echo "$program"
		return
	done
	echo postgres_test.py
}

# run_python TREE PROGRAM TESTS: tests of a sink program
run_python()
{
	# shellcheck disable=SC2086 # a list
	(cd "$1" && SINK_BINDIR=$1/src/sink/bin timeout -k 20 "$LIMIT" python3 "test/sink/$2" $3)
}

declare -A broker=()

# can_run NAME: can the mutant's tests run on this machine?  Those of areas kafka and nats
# need a broker, which is fetched once.
can_run()
{
	local area

	read -r area _ < <(header "$1" Caught-by)
	[ "$area" = kafka ] || [ "$area" = nats ] || return 0
	if [ -z "${broker[$area]:-}" ]; then
		[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh "$area" >&2 || true
		broker[$area]=$("test/setup/$area.sh" 2>/dev/null </dev/null) || broker[$area]=none
	fi
	[ "${broker[$area]}" = none ] || return 0
	if [ -n "${ALLOW_OFFLINE:-}" ]; then
		echo "NOT RUN  $1: the broker cannot be fetched"
		not_run=1
	else
		fail "$1" "the broker cannot be fetched"
	fi
	return 1
}

# What of a test's output says that a test noticed.
noticed()
{
	grep -m 1 -oE '^(NOT OK +(regress|isolation|tap)/[a-z0-9_-]+|not ok test_[a-z_0-9]+)' "$1" |
		sed -E 's/^(NOT OK|not ok) +//'
}

# A job writes one line: NAME, a tab, and "ok ..." or what is wrong.
base_job()
{
	local name=${1//[ \/]/_}
	local log=$IDEM_WORK/log/base-${name:0:200}.log

	if run_tests "$IDEM_WORK/base" "$log" "$1"; then
		printf '%s\tok\n' "unbroken: $1"
	else
		printf '%s\tthe tests fail on the tree as it is\t%s\n' "unbroken: $1" "$log"
	fi
}

# One failed check is enough (StopAtFailure), and none waits long for what cannot
# come.
mutant_job()
{
	local name=$1 tree=$IDEM_WORK/tree-$1 log=$IDEM_WORK/log/$1.log by

	copy_tree "$IDEM_WORK/base" "$tree"
	if ! apply "$name" "$tree" >"$log" 2>&1; then
		printf '%s\tthe patch does not apply\t%s\n' "$name" "$log"
	elif ! "${MAKE:-make}" -C "$tree" -s PG_CONFIG="$PG_CONFIG" all test-module >"$log" 2>&1; then
		printf '%s\tit does not build\t%s\n' "$name" "$log"
	elif PERL5OPT="-I$IDEM_WORK/lib -MStopAtFailure" PG_TEST_TIMEOUT_DEFAULT=30 SINK_PATIENCE=30 \
		run_tests "$tree" "$log" "$(header "$name" Caught-by)"; then
		printf '%s\tit survives %s\t%s\n' "$name" "$(header "$name" Caught-by)" "$log"
	elif by=$(noticed "$log"); then
		printf '%s\tok %s\n' "$name" "$by"
	else
		printf '%s\tno test failed, but something else\t%s\n' "$name" "$log"
	fi
	rm -rf "$tree"
}

# Start a job when there is room for it; take the results as they come.
run_jobs()
{
	local kind arg

	while IFS=$'\t' read -r kind arg; do
		while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
			wait -n
		done
		if [ "$kind" = mutant ] && [ -n "${UNTIL:-}" ] && [ "$SECONDS" -ge "$UNTIL" ]; then
			printf '%s\tno time\n' "$arg" >>"$IDEM_WORK/results"
			continue
		fi
		"${kind}_job" "$arg" >>"$IDEM_WORK/results" </dev/null &
	done
	wait
}

[ -n "${SKIP_PACKAGES:-}$CHECK" ] || test/setup/packages.sh build test sink mutants ||
	idem_die "what is needed could not be installed"
command -v patch >/dev/null || idem_die "patch not found; run test/setup/packages.sh mutants"
idem_find_user
IDEM_WORK=$(mktemp -d "${TMPDIR:-/tmp}/idem-mutants.XXXXXX")
trap 'stop_jobs; cd /; [ -n "${KEEP:-}" ] || rm -rf "$IDEM_WORK"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$IDEM_WORK"
mkdir "$IDEM_WORK/log" "$IDEM_WORK/lib"
cp "$PATCHES/StopAtFailure.pm" "$IDEM_WORK/lib/"
# Most of the time tests wait for something.
JOBS=${JOBS:-$((2 * $(nproc)))}

idem_say "patches"
mutants=()
not_run=0
while read -r name; do
	if check_patch "$name"; then
		[ -n "$CHECK" ] || can_run "$name" || continue
		mutants+=("$name")
		[ -z "$CHECK" ] || pass "$name applies"
	fi
done < <(wanted_mutants "$@")
if [ -n "$CHECK" ] || [ ${#mutants[@]} = 0 ]; then
	finish || [ "$passed$failed$not_run" = 001 ]
	exit
fi

idem_say "building ${#mutants[@]} mutants for $("$PG_CONFIG" --version), $JOBS at a time"
copy_tree "$IDEM_TOP" "$IDEM_WORK/base"
# The jobs share this tree, so all that they would build is built now.  Who works
# on in the tree meanwhile does not change what is run.
PATCHES=$IDEM_WORK/base/test/mutants
if ! "${MAKE:-make}" -C "$IDEM_WORK/base" -s -j"$JOBS" PG_CONFIG="$PG_CONFIG" all test-module >"$IDEM_WORK/log/base.log" 2>&1; then
	fail "unbroken tree" "it does not build" "$IDEM_WORK/log/base.log"
	finish
	exit 1
fi

: >"$IDEM_WORK/results"
# TAP files take long and have servers of their own; of another area all tests
# share one.
{
	for name in "${mutants[@]}"; do
		header "$name" Caught-by
	done | sort -u | awk '
		$1 == "tap" { print "base\t" $0; next }
		{ area = $1; sub(/^[^ ]+ */, ""); tests[area] = tests[area] " " $0 }
		END { for (area in tests) print "base\t" area tests[area] }'
	for name in "${mutants[@]}"; do
		printf 'mutant\t%s\n' "$name"
	done
} >"$IDEM_WORK/jobs"
run_jobs <"$IDEM_WORK/jobs"

left=()
while IFS=$'\t' read -r name verdict log; do
	case $verdict in
		ok) pass "$name" ;;
		ok\ *) pass "$name (${verdict#ok })" ;;
		"no time") left+=("$name") ;;
		*) fail "$name" "$verdict" "$log" ;;
	esac
done < <(sort "$IDEM_WORK/results")
[ "$(wc -l <"$IDEM_WORK/results")" = "$(wc -l <"$IDEM_WORK/jobs")" ] ||
	fail "mutants" "some jobs have said nothing"
[ ${#left[@]} = 0 ] || echo "NOT RUN: ${#left[@]} broken builds, for which $UNTIL s were too short: test/mutants/run.sh ${left[*]}"
finish
