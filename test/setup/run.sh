#!/bin/bash
# Run the tests: from a bare machine to the line "N passed, N failed".
#
#	AREA="compile lint regress isolation tap sink model random real clients"	what to run, default: these;
#												"update" is one more (run_update)
#	TESTS="claim 010_crash"						only tests of these names
#	WERROR=										let the build pass with warnings
#	KEEP=1										leave the work directory behind
#	SKIP_PACKAGES=1								do not look for missing packages
#	OLD_PG_CONFIG=...							pg_config of the older server from which
#												pg_upgrade upgrades (002_upgrade);
#												default: the same server
#	TAP_JOBS=n									TAP tests at once, default: two for each
#												core, at most 8; they mostly wait
#	SQL_JOBS=n									regress tests and isolation specs at once,
#												each on one of so many servers; default:
#												three for each core, at most 8
#	ALLOW_OFFLINE=1								name, but do not count, a test whose
#												input cannot be fetched
#
# Areas run one after another, in rows beside each other: two rows of those that only
# compute, with the processor that is left over (COMPUTING), two of those that mostly wait
# (IDLING), and the others.  Each test counts once as passed or failed; a TAP file counts by its
# top-level checks.  A test that could not be run is a failure,
# never a skip.  A test that failed leaves its diffs or its output in
# build/test-output, and at the end of this script's output.
set -uo pipefail
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/setup/tally.sh
. "$IDEM_TOP/test/setup/tally.sh"
# shellcheck source=test/setup/tree.sh
. "$IDEM_TOP/test/setup/tree.sh"
cd "$IDEM_TOP" || exit 1

ALL_AREAS="compile lint regress isolation tap sink model random real clients"
# Areas that run only if they are asked for.
MORE_AREAS="update"
# These areas need no build of the extension for the server under test.
BUILD_FREE=" compile lint model "
# Rows of areas that compute all the time, and neither wait nor write into the tree.  One
# row would be the last to end, on one core.
COMPUTING=("compile lint" "model")
# Rows of areas that wait for servers of their own nearly all the time.  They run beside
# those that use the processor better.
IDLING=("sink real clients" "random")
# The longest TAP tests begin first, so that the last ones end together.
TAP_FIRST="103_claim_storm 326_relay_wakeup 003_doctor 378_relay_waiting 367_relay_databases_turns
369_relay_set_back 345_relay_hot_key 703_security_locks 372_relay_truth 370_sink_postgres_blame 111_store_dump
128_cursor_histories 116_store_backup 711_attack_producer 600_howto 130_request_wait 118_store_long_dump
306_relay_large 700_security_relay 376_relay_pace 379_relay_late 314_relay_replay 122_lease_histories"
passed=0
failed=0
failures=()
took=()
# The processes that run areas beside the others.
beside=
started=$SECONDS
OUTPUT=$IDEM_TOP/build/test-output
# A sanitizer that is built in writes such lines to the server log.
SANITIZER_REPORT='runtime error: |(Address|Leak)Sanitizer:'

pass()
{
	passed=$((passed + 1))
	printf 'ok       %s\n' "$1"
}

# fail NAME [FILE]: count a failure and show the file's end at once, so that a log
# that is cut off still says why.  The checks of the file that failed come last, because
# the end of an output repeats the last lines of each failure only.
fail()
{
	failed=$((failed + 1))
	failures+=("$1")
	printf 'NOT OK   %s\n' "$1"
	if [ -n "${2:-}" ] && [ -s "$2" ]; then
		{
			tail -n "${FAIL_LINES:-60}" "$2"
			grep -a '^not ok ' "$2" | tail -n 10
		} | sed 's/^/    | /'
		mkdir -p "$OUTPUT"
		cp -f "$2" "$OUTPUT/$(tr '/ ' '__' <<<"$1").${2##*/}"
	fi
}

finish()
{
	local name each=

	[ ${#failures[@]} = 0 ] || idem_say "failed:"
	for name in ${failures[@]+"${failures[@]}"}; do
		echo "   $name"
	done
	[ ${#took[@]} -lt 2 ] || printf -v each ', %s' "${took[@]}"
	idem_say "$((SECONDS - started)) s${each:+: ${each#, }}"
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

give_up()
{
	fail "$1"
	finish
	exit 1
}

# Is this test among those asked for?
wanted()
{
	local name

	[ -n "${TESTS:-}" ] || return 0
	for name in $TESTS; do
		[ "$name" != "$1" ] || return 0
	done
	return 1
}

has_area()
{
	[[ " $areas " == *" $1 "* ]]
}

copy_tests()
{
	mkdir -p "$IDEM_WORK"/tests/{expected,test/isolation/expected}
	cp -R sql expected test doc README.md "$IDEM_WORK/tests/" 2>/dev/null
	# Documents are compared with what the sources raise and define.
	find src -name '*.[ch]' -exec cp --parents -t "$IDEM_WORK/tests" {} +
	[ "$(id -u)" != 0 ] || chown -R "$IDEM_USER" "$IDEM_WORK/tests"
}

# start_server NAME [preload]: initialise and start a server.
start_server()
{
	local data=$IDEM_WORK/data-$1

	idem_mkdir "$data"
	IDEM_LOG=$IDEM_WORK/log/server-$1.log
	idem_initdb "$data" "${2:-}" && idem_start "$data" "$IDEM_LOG"
}

stop_server()
{
	idem_stop "$IDEM_WORK/data-$1" || fail "server $1 stops" "$IDEM_LOG"
	if grep -qE "TRAP:|PANIC:|terminated by signal|$SANITIZER_REPORT" "$IDEM_LOG"; then
		grep -nE -A5 "TRAP:|PANIC:|terminated by signal|$SANITIZER_REPORT" "$IDEM_LOG" >"$IDEM_WORK/log/crash.txt"
		fail "server $1 did not crash" "$IDEM_WORK/log/crash.txt"
	fi
	rm -rf "$IDEM_WORK/data-$1"
}

# pg_regress_one KIND INPUTDIR NAME FILE [LEVEL [SETTING]]: run one test in a database
# of its own.  The database has the extension, unless the test creates the extension
# itself.  Transactions run at LEVEL unless they choose another isolation level.
pg_regress_one()
{
	local kind=$1 inputdir=$2 name=$3 file=$4 level=${5:-} setting=${6:-}
	local title="$kind/$name${level:+ at $level}${setting:+ with $setting}${LIBRARY:+, $LIBRARY}"
	local run=$name${level:+.${level/ /-}}${setting:+.${setting%%=*}}
	local out=$IDEM_WORK/out-$kind/$run log=$IDEM_WORK/log/$kind-$run.log
	local program=regress/pg_regress load=() options=() db="regress_$name"

	[ "$kind" != isolation ] || program=isolation/pg_isolation_regress
	[ -z "$level$setting" ] ||
		options=("PGOPTIONS=${level:+-c default_transaction_isolation=${level/ /\\ }} ${setting:+-c $setting}")
	grep -qiE 'create[[:space:]]+extension.*idempotency' "$file" ||
		load=(--load-extension=pgcrypto --load-extension=idempotency)
	idem_mkdir "$IDEM_WORK/out-$kind" "$out"
	# Without an expected output the whole output is the difference.
	[ -e "$inputdir/expected/$name.out" ] || touch "$inputdir/expected/$name.out"
	if idem_run idem_as env PATH="$IDEM_BINDIR:$PATH" PGUSER=postgres PGISOLATIONTIMEOUT=1200 "${options[@]}" timeout -k 10 "${SQL_TIMEOUT:-3600}" \
		"$IDEM_PGSRC/src/test/$program" --inputdir="$inputdir" \
		--outputdir="$out" --bindir="$IDEM_BINDIR" --dlpath="$IDEM_STAGE$IDEM_PKGLIBDIR" \
		--host="$IDEM_SOCK" --port="$IDEM_PORT" --user=postgres \
		--dbname="$db" "${load[@]}" "$name" >"$log" 2>&1; then
		pass "$title"
	elif [ -s "$out/regression.diffs" ]; then
		fail "$title" "$out/regression.diffs"
		[ ! -f "$out/results/$name.out" ] || cp "$out/results/$name.out" "$OUTPUT/$run.out"
	else
		fail "$title" "$log"
	fi
	idem_client dropdb --if-exists --force "$db" >/dev/null 2>&1 ||
		fail "$title: database can be dropped" "$IDEM_LOG"
}

# counted_job NAME COMMAND...: run a command that counts tests in a process of its own;
# its results go into files.
counted_job()
{
	local name=$1
	shift

	passed=0
	failed=0
	failures=()
	took=()
	"$@" >"$IDEM_WORK/log/$name.out" 2>&1
	{
		echo "$passed $failed"
		IFS=, && echo "${took[*]}" && unset IFS
		[ ${#failures[@]} = 0 ] || printf '%s\n' "${failures[@]}"
	} >"$IDEM_WORK/log/$name.sum"
}

# Wait for the jobs of this area, but not for the areas beside it.
wait_jobs()
{
	local pid

	for pid in $(jobs -rp); do
		[[ " $beside " == *" $pid "* ]] || wait "$pid"
	done
}

# Show and count the results of a job; false if they are not there yet.
job_result()
{
	local sum=$IDEM_WORK/log/$1.sum good bad lines areas_took

	[ -e "$sum" ] || return 1
	cat "$IDEM_WORK/log/$1.out"
	mapfile -t lines <"$sum"
	read -r good bad <<<"${lines[0]:-0 1}"
	passed=$((passed + good))
	failed=$((failed + bad))
	IFS=, read -ra areas_took <<<"${lines[1]:-}"
	took+=(${areas_took[@]+"${areas_took[@]}"})
	failures+=("${lines[@]:2}")
}

# isolation_expected DIR LEVEL NAME: make the expected output of a spec at a level.
# expected/NAME.out has the output; expected/LEVEL/NAME.diff, if it exists, has the
# level's difference.  SERIALIZABLE without a difference of its own uses the
# difference of REPEATABLE READ.
isolation_expected()
{
	local from=test/isolation/expected own=("$2") level

	[ -e "$from/$3.out" ] || return 0
	cp "$from/$3.out" "$1/expected"
	[ "$2" != serializable ] || own+=(repeatable-read)
	for level in "${own[@]}"; do
		[ -e "$from/$level/$3.diff" ] || continue
		# a difference that no longer fits makes the output differ
		patch -s --no-backup-if-mismatch -r - "$1/expected/$3.out" "$from/$level/$3.diff" >&2 || true
		return 0
	done
}

# sql_tests NAME PRELOAD JOB...: take jobs, each "COMMAND ARGUMENT...", until another process
# has taken the last; run them on a server of its own.
sql_tests()
{
	local server=$1 preload=$2 job
	shift 2

	start_server "$server" "$preload" || {
		fail "$server: server starts" "$IDEM_LOG"
		return
	}
	for job; do
		# Who makes the directory has the job.
		mkdir "$IDEM_WORK/taken/${job//[^a-z0-9_=-]/.}" 2>/dev/null || continue
		eval "$job" >"$IDEM_WORK/log/$server.out1" 2>&1
		# at once, and in one piece
		cat "$IDEM_WORK/log/$server.out1" >&"$show"
	done
	stop_server "$server"
}

# sql_pool AREA PRELOAD JOB...: run the jobs on several servers at once.  A server has one
# test at a time: many a test waits for the oldest transaction of the whole server.
sql_pool()
{
	local area=$1 preload=$2 n show jobs=${SQL_JOBS:-$(($(nproc) * 3))}
	shift 2

	[ $# -gt 0 ] || return 0
	[ "$jobs" -le 8 ] || [ -n "${SQL_JOBS:-}" ] || jobs=8
	[ "$jobs" -le $# ] || jobs=$#
	rm -rf "$IDEM_WORK/taken"
	mkdir "$IDEM_WORK/taken"
	exec {show}>&1
	for n in $(seq "$jobs"); do
		counted_job "$area-$n" sql_tests "$area-$n" "$preload" "$@" &
	done
	wait_jobs
	for n in $(seq "$jobs"); do
		job_result "$area-$n" || fail "$area: ended without a result"
	done
	exec {show}>&-
}

# Files "nopreload*" run on a server that does not preload the library.
run_regress()
{
	local file name jobs=() nopreload=()

	for file in sql/*.sql; do
		name=$(basename "$file" .sql)
		if [ ! -e "$file" ] || [[ $name = idempotency--* ]] || ! wanted "$name"; then
			continue
		fi
		case $name in
			nopreload*) nopreload+=("regress_one $name") ;;
			*) jobs+=("regress_one $name") ;;
		esac
	done
	[ $((${#jobs[@]} + ${#nopreload[@]})) -gt 0 ] || return 0
	idem_say "regress"
	sql_pool regress preload ${jobs[@]+"${jobs[@]}"}
	sql_pool nopreload nopreload ${nopreload[@]+"${nopreload[@]}"}
}

regress_one()
{
	pg_regress_one regress "$IDEM_WORK/tests" "$1" "sql/$1.sql"
}

# isolation_one SPEC LEVEL [SETTING]
isolation_one()
{
	pg_regress_one isolation "$IDEM_WORK/tests/isolation-${2// /-}" "$1" "test/isolation/specs/$1.spec" "$2" "${3:-}"
}

# Each spec runs at each isolation level, and once more with each setting that it names
# after "Also with:".
run_isolation()
{
	local file name level setting names=() jobs=() dir

	for file in test/isolation/specs/*.spec; do
		name=$(basename "$file" .spec)
		[ ! -e "$file" ] || ! wanted "$name" || names+=("$name")
	done
	[ ${#names[@]} -gt 0 ] || return 0
	idem_say "isolation"
	for level in "" "repeatable read" serializable; do
		dir=$IDEM_WORK/tests/isolation-${level// /-}
		mkdir -p "$dir/expected"
		cp -R test/isolation/specs "$dir"
		for name in "${names[@]}"; do
			isolation_expected "$dir" "${level/ /-}" "$name"
			jobs+=("isolation_one $name '$level'")
			while read -r setting; do
				jobs+=("isolation_one $name '$level' $setting")
			done < <(sed -n 's/^# Also with: //p' "test/isolation/specs/$name.spec")
		done
		[ "$(id -u)" != 0 ] || chown -R "$IDEM_USER" "$dir"
	done
	sql_pool isolation preload "${jobs[@]}"
}

# own_crashes NAME FILE...: print the deaths of servers and sink programs of a TAP
# test that the test's own signals do not explain.  The signal that terminates a
# worker, for example at a shutdown, also reaches the worker's programs.  An
# immediate shutdown ends slow processes by SIGKILL.
own_crashes()
{
	local test=test/t/$1.pl meant=none
	shift

	! grep -qE "kill9|'KILL'|kill -9|immediate" "$test" || meant="$meant|9"
	! grep -qE "kill -SEGV" "$test" || meant="$meant|11"
	grep -hP -A5 "(PANIC|TRAP):|\\(PID \\d+\\) was terminated by signal (?!($meant)\\b)|program was terminated by signal (?!(9|15)\\b)" \
		"$@" 2>/dev/null
}

# Run one TAP file; its top-level ok and not ok lines count.
tap_one()
{
	local name=$1 log=$IDEM_WORK/log/tap-$1.log dir=$IDEM_WORK/tap/$1 status good bad
	local old=$IDEM_WORK old_bindir=$IDEM_BINDIR began=$SECONDS

	if [ -n "${OLD_PG_CONFIG:-}" ]; then
		old=$IDEM_WORK/old
		old_bindir=$("$OLD_PG_CONFIG" --bindir)
	fi
	idem_mkdir "$IDEM_WORK/tap" "$dir"
	(
		IDEM_CWD=$IDEM_WORK/tests
		idem_as env PATH="$IDEM_BINDIR:$PATH" \
			PERL5LIB="$IDEM_PGSRC/src/test/perl:$IDEM_WORK/tests/test/perl${PERL5LIB:+:$PERL5LIB}" \
			PG_REGRESS="$IDEM_PGSRC/src/test/regress/pg_regress" \
			TESTDIR="$dir" TESTDATADIR="$dir/tmp_check" TESTLOGDIR="$dir/tmp_check/log" \
			top_builddir="$IDEM_PGSRC" PG_TEST_PORT_DIR="$IDEM_WORK/tmp/portlock" \
			IDEM_EXTENSION_CONF="${IDEM_CONF:-$IDEM_WORK/extension.conf}" \
			IDEM_OLD_EXTENSION_CONF="$old/extension.conf" \
			IDEM_OLD_BINDIR="$old_bindir" \
			IDEM_STAGE_LIBDIR="$IDEM_STAGE$IDEM_PKGLIBDIR" \
			IDEM_REAL_INPUT="$IDEM_WORK/tests/real-input/github.json" \
			IDEM_STAGE_SHAREDIR="$IDEM_STAGE$IDEM_SHAREDIR" IDEM_BINDIR="$IDEM_BINDIR" \
			IDEM_PKGLIBDIR="$IDEM_PKGLIBDIR" IDEM_SHAREDIR="$IDEM_SHAREDIR" \
			PG_TEST_TIMEOUT_DEFAULT="${PG_TEST_TIMEOUT_DEFAULT:-600}" \
			timeout -k 20 "${TAP_TIMEOUT:-3600}" prove --verbose "test/t/$name.pl"
	) >"$log" 2>&1 </dev/null &
	wait $!
	status=$?
	good=$(grep -cE '^ok [0-9]+' "$log")
	bad=$(grep -cE '^not ok [0-9]+' "$log")
	# A skip would hide that something was not tested.
	if grep -qE '^ok [0-9]+ # skip|^1\.\.0 # SKIP' "$log"; then
		echo "tests were skipped" >>"$log"
		status=1
	fi
	# A test that kills programs may not notice a program that died by itself.
	if grep -hE -A20 "$SANITIZER_REPORT" "$dir"/tmp_check/log/*.log >>"$log" 2>/dev/null; then
		status=1
	fi
	# A server that crashed by itself recovers, and the test goes on.
	if own_crashes "$name" "$dir"/tmp_check/log/*.log >>"$log"; then
		echo "a process crashed by itself" >>"$log"
		status=1
	fi
	if [ $status = 0 ] && [ "$bad" = 0 ] && [ "$good" -gt 0 ]; then
		passed=$((passed + good - 1))
		pass "tap/$name${LIBRARY:+, $LIBRARY} ($good, $((SECONDS - began)) s)"
	else
		[ $status != 124 ] || echo "timed out after ${TAP_TIMEOUT:-3600} s" >>"$log"
		passed=$((passed + good))
		failed=$((failed + (bad > 1 ? bad - 1 : 0)))
		tail -n 20 "$dir"/tmp_check/log/regress_log_* >>"$log" 2>/dev/null
		# last, since only the end of the log is shown
		grep -hE -A12 '(^|\) )not ok ' "$dir"/tmp_check/log/regress_log_* 2>/dev/null | head -n 38 >>"$log"
		fail "tap/$name${LIBRARY:+, $LIBRARY}" "$log"
		[ ! -d "$dir/tmp_check/log" ] || cp -R "$dir/tmp_check/log" "$OUTPUT/tap-$name-log"
	fi
	stop_leftovers "$dir"
	[ -n "${KEEP:-}" ] || rm -rf "$dir"
}

# Stop the servers of a test that died: it may have left them running.
stop_leftovers()
{
	local pidfile

	while read -r pidfile; do
		idem_stop_by_pidfile "$pidfile"
	done < <(find "$1" -name postmaster.pid 2>/dev/null)
}

# run_tap [NAME...]: run these tests, or all.  They wait most of the time, so there are
# several at once.
run_tap()
{
	local file name names=() running=() left ended given="$*" most=${TAP_JOBS:-$(($(nproc) * 2))}

	[ "$most" -le 8 ] || [ -n "${TAP_JOBS:-}" ] || most=8
	for name in ${given:-$TAP_FIRST $(cd test/t && ls)}; do
		name=${name%.pl}
		file=test/t/$name.pl
		[[ " ${names[*]} " != *" $name "* ]] || continue
		# the tests 5xx need input from outside, and are area "real"; 9xx are area "update"
		if [ -e "$file" ] && { [ -n "$given" ] || [[ $name != [59]* ]]; } && wanted "$name"; then
			names+=("$name")
		fi
	done
	[ ${#names[@]} -gt 0 ] || return 0
	idem_say "TAP"
	while [ ${#names[@]} -gt 0 ] || [ ${#running[@]} -gt 0 ]; do
		while [ ${#names[@]} -gt 0 ] && [ ${#running[@]} -lt "$most" ]; do
			counted_job "tap-${LIBRARY:+next-}${names[0]}" tap_one "${names[0]}" &
			running+=("${names[0]}")
			names=("${names[@]:1}")
		done
		wait -n
		ended=$?
		left=()
		for name in "${running[@]}"; do
			job_result "tap-${LIBRARY:+next-}$name" || left+=("$name")
		done
		running=(${left[@]+"${left[@]}"})
		if [ "$ended" = 127 ] && [ ${#running[@]} -gt 0 ]; then
			fail "tap: ended without a result: ${running[*]}"
			running=()
		fi
	done
}

run_real()
{
	local file name input=$IDEM_WORK/tests/real-input

	for file in test/t/5*.pl; do
		name=$(basename "$file" .pl)
		if [ ! -e "$file" ] || ! wanted "$name"; then
			continue
		fi
		idem_say "real input: $name"
		if [ ! -f "$input/github.json" ] && ! test/real/fetch.sh "$input" >"$IDEM_WORK/log/fetch.log" 2>&1; then
			if [ -n "${ALLOW_OFFLINE:-}" ]; then
				sed 's/^/    | /' "$IDEM_WORK/log/fetch.log"
				echo "NOT RUN  real/$name: offline, its input cannot be fetched"
			else
				fail "real/$name: offline, its input cannot be fetched" "$IDEM_WORK/log/fetch.log"
			fi
			continue
		fi
		tap_one "$name"
	done
}

# Run another script of the tree that prints "ok NAME" and "not ok NAME" lines
# or ends with "N passed, N failed", or at least exits with a status.
run_counted()
{
	local name=$1 log=$IDEM_WORK/log/$1.log good bad status
	shift

	idem_run "$@" >"$log" 2>&1 </dev/null
	status=$?
	if grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$log"; then
		tally "$log" "$status"
		good=$TALLY_GOOD
		bad=$TALLY_BAD
	else
		good=$(grep -cE '^ok( |$)' "$log")
		bad=$(grep -cE '^not ok( |$)' "$log")
		[ $((good + bad)) -gt 0 ] || [ $status != 0 ] || good=1
		[ $status = 0 ] || [ "$bad" -gt 0 ] || bad=1
	fi
	passed=$((passed + good))
	if [ "$bad" = 0 ]; then
		printf 'ok       %s (%s)\n' "$name" "$good"
	else
		failed=$((failed + bad - 1))
		FAIL_LINES=120 fail "$name" "$log"
	fi
}

run_sink()
{
	grep -qE '^check-sink:' src/sink/*.mk || return 0
	idem_say "sink programs"
	run_counted sink timeout -k 20 3600 "${MAKE:-make}" --no-print-directory check-sink
}

# Run a folder that has its own runner, if the folder exists.
run_folder()
{
	local name=$1 title=$2 limit=${FOLDER_TIMEOUT:-5400}

	# the long run
	[ -z "${LONG:-}${TRANSACTIONS:-}" ] || limit=${FOLDER_TIMEOUT:-86400}
	[ -x "test/$name/run.sh" ] || return 0
	idem_say "$title"
	run_counted "$name" timeout -k 20 "$limit" env SKIP_PACKAGES=1 "test/$name/run.sh"
}

# The protocols, walked by a model checker.
run_model()
{
	run_folder model "models of the protocols"
}

# Random transactions against models of claims, outbox and relays.
run_random()
{
	run_folder random "random models"
}

# Programs of the how-tos with the drivers that users have: of these psycopg 3, all by
# test/clients/run.sh; and canonical JSON against a library.  What cannot be fetched is named here, too.
run_clients()
{
	local name names=()

	for name in page psycopg jcs payments ${TESTS:+asyncpg leases sqlalchemy django alembic node jdbc pgx payments-go}; do
		! wanted "$name" || names+=("$name")
	done
	[ ${#names[@]} -gt 0 ] || return 0
	idem_say "clients"
	run_counted clients timeout -k 20 3600 env SKIP_PACKAGES=1 NEED_TOOLS=1 test/clients/run.sh "${names[@]}"
	grep '^NOT RUN' "$IDEM_WORK/log/clients.log"
}

# Both compilers, and with assertions.
run_compile()
{
	idem_say "compile"
	run_counted compile timeout -k 20 3600 env WORK="$IDEM_WORK" BUILDS="$IDEM_WORK/builds" test/lint/lint.sh compile
}

run_lint()
{
	idem_say "lint"
	# shellcheck disable=SC2086 # a list
	run_counted lint timeout -k 20 3600 env WORK="$IDEM_WORK" BUILDS="$IDEM_WORK/builds" test/lint/lint.sh ${TESTS:-rules}
}

needs_build()
{
	local area

	for area in $areas; do
		[[ $BUILD_FREE == *" $area "* ]] || return 0
	done
	return 1
}

# The lint's build by gcc is this one again, if all of this one was compiled just now with
# warnings as errors.
leave_build()
{
	local dir=$IDEM_WORK/builds/gcc

	[ -n "$WERROR" ] || return 0
	mkdir -p "$dir"
	tar -c --exclude=./.git --exclude=./build/test-output . | tar -x -C "$dir"
}

# Build the extension for the older server of pg_upgrade, and stage it separately.
# This build comes first, so that the tree keeps the build for the server under test.
build_old_stage()
{
	local PG_CONFIG=$OLD_PG_CONFIG IDEM_STAGE=$IDEM_WORK/old/stage IDEM_WORK=$IDEM_WORK/old
	# shellcheck disable=SC2034 # what idem_find_server sets stays here
	local IDEM_BINDIR IDEM_PKGLIBDIR IDEM_SHAREDIR IDEM_PGXS IDEM_PGSRC IDEM_MAJOR

	idem_find_server
	mkdir -p "$IDEM_STAGE"
	idem_build_stage
}

run_areas()
{
	local area began

	for area; do
		began=$SECONDS
		"run_$area"
		took+=("$area $((SECONDS - began)) s")
	done
}

# With the library of the next version: the SQL of the tree's version does what it did, a
# cluster comes to that library by a dump or pg_upgrade, and updates to its SQL.
# shellcheck disable=SC2034 # the functions of lib.sh use the variables
run_update()
{
	local IDEM_STAGE=$IDEM_WORK/next/stage IDEM_CONF=$IDEM_WORK/next/extension.conf LIBRARY="the next library"
	local updates

	idem_say "update"
	idem_stage_next >"$IDEM_WORK/log/next.log" 2>&1 || {
		fail "the next version" "$IDEM_WORK/log/next.log"
		return
	}
	pass "the next version"
	run_regress
	mapfile -t updates < <(cd test/t && ls 9*)
	run_tap 002_upgrade 105_claim_dump 204_outbox_dump 320_update 322_relay_dump "${updates[@]}"
}

# Areas that give way to those that wait.
run_nicely()
{
	renice -n 10 "$BASHPID" >/dev/null
	run_areas "$@"
}

areas=${AREA:-$ALL_AREAS}
for area in $areas; do
	[[ " $ALL_AREAS $MORE_AREAS " == *" $area "* ]] || give_up "no such area: $area (there are: $ALL_AREAS $MORE_AREAS)"
done

rm -rf "$OUTPUT"
if [ -z "${SKIP_PACKAGES:-}" ]; then
	groups=(build)
	! has_area isolation || groups+=(isolation)
	! has_area tap && ! has_area update || groups+=(test)
	! has_area sink || groups+=(sink)
	! has_area compile || groups+=(compile)
	! has_area lint || groups+=(lint)
	! has_area real || groups+=(real)
	! has_area clients || groups+=(clients)
	! has_area model || groups+=(model)
	! has_area random || groups+=(random)
	test/setup/packages.sh "${groups[@]}" || give_up "packages: what is needed could not be installed"
fi

# This script does not check the status of the functions of lib.sh.
idem_make_work
anew=
mkdir -p "$OUTPUT"
if needs_build; then
	idem_say "building for $("$PG_CONFIG" --version)"
	if [ -n "${OLD_PG_CONFIG:-}" ]; then
		build_old_stage || give_up "build for $OLD_PG_CONFIG"
	fi
	[ -e build/id ] || anew=1
	idem_build_stage || give_up "build"
	idem_stage_updates "$(idem_version)" || give_up "scripts that only tests update with"
	idem_stage_test_module || give_up "module of the tests"
	pass build
	copy_tests
	if [ -n "$anew" ] && { has_area compile || has_area lint; }; then
		leave_build
	fi
fi
others=
for area in $areas; do
	[[ " ${COMPUTING[*]} ${IDLING[*]} " == *" $area "* ]] || others+=" $area"
done
rows=()
for row in "${COMPUTING[@]}" "${IDLING[@]}"; do
	asked=
	for area in $areas; do
		[[ " $row " != *" $area "* ]] || asked+=" $area"
	done
	# A row that is alone shows what it does at once.
	if [ "$asked" = " $areas" ]; then
		others=$asked
	elif [ -n "$asked" ]; then
		runner=run_areas
		[[ " ${COMPUTING[*]} " != *" ${row%% *} "* ]] || runner=run_nicely
		# shellcheck disable=SC2086 # a list
		counted_job "row-${#rows[@]}" "$runner" $asked &
		beside+=" $!"
		rows+=("$asked")
	fi
done
# shellcheck disable=SC2086 # a list
run_areas $others
# shellcheck disable=SC2086 # a list
[ -z "$beside" ] || wait $beside
for row in ${rows[@]+"${!rows[@]}"}; do
	job_result "row-$row" || fail "ended without a result:${rows[row]}"
done
[ "$failed" != 0 ] || rm -rf "$OUTPUT"
finish
