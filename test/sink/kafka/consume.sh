#!/bin/bash
# Run the consumers of doc/howto/kafka-consume.md, with a relay to a topic for each, and
# kill them, the server and the broker; see consume.py.  Then break their rules, and see
# that it is noticed; see consume_wrong.py.
#
#	consume.sh [NAME...]	page python java go wrong, default: all
#	KILLS=10			so many of each language
#	SEED=n				repeat the schedule of an earlier run
#	ALLOW_OFFLINE=1		name, but do not count, what cannot be fetched
#	KEEP=1				leave the work directory behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# The drivers, of the versions that the folders of consume/ name, come from where this
# machine's pip, Maven and Go get packages, and go to the work directory.  "page" compares
# the page with the programs.  "wrong" has wrong programs of the languages that are named,
# or of all.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/count.sh
. test/setup/count.sh
# shellcheck source=test/setup/tally.sh
. test/setup/tally.sh
# shellcheck source=test/sink/copy.sh
. test/sink/copy.sh
# shellcheck source=test/crash/stage.sh
. test/crash/stage.sh

ALL="page python java go wrong"
names=${*:-$ALL}
for name in $names; do
	[[ " $ALL " == *" $name "* ]] || give_up "consume: no such program: $name (there are: $ALL)"
done
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh crash kafka drivers || give_up "consume: packages"
KILLS=${KILLS:-10}
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}

# prepare NAME: the program and its drivers, in its folder, which is the working directory.
prepare()
{
	case $1 in
		python) /usr/bin/python3 -m venv venv && venv/bin/pip install --no-cache-dir --quiet -r requirements.txt ;;
		java)
			mvn -B -q -Dmaven.repo.local="$PWD/repository" dependency:copy-dependencies -DoutputDirectory="$PWD/lib" &&
				javac -d classes -cp "lib/*" Billing.java
			;;
		go)
			GOPATH=$PWD/go GOCACHE=$PWD/go-cache GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" \
				go build -o billing .
			;;
	esac
}

# prepare_wrong NAME: the wrong programs of a language, in the folder of the right one.
prepare_wrong()
{
	local wrong

	/usr/bin/python3 -B ../../consume_wrong.py make "$PWD" || return 1
	for wrong in wrong/*; do
		case $1 in
			python) ;;
			java) javac -d "$wrong/classes" -cp "lib/*" "$wrong/Billing.java" || return 1 ;;
			go)
				GOPATH=$PWD/go GOCACHE=$PWD/go-cache GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" \
					go build -o "$wrong/billing" "./$wrong" || return 1
				;;
		esac
	done
}

# What each one fetches from.
registry()
{
	case $1 in
		python) echo PyPI ;;
		java) echo "Maven Central" ;;
		go) echo "the Go module proxy" ;;
	esac
}

# unreachable NAME REGISTRY [LOG]
unreachable()
{
	if [ -n "${ALLOW_OFFLINE:-}" ]; then
		echo "NOT RUN  consume, $1: it cannot be fetched from $2"
	else
		fail "consume, $1" "it cannot be fetched from $2" "${3:-}"
	fi
}

run_page()
{
	local line

	while read -r line; do
		case $line in
			"ok "*) pass "${line#ok }" ;;
			*) fail page "${line#NOT OK }" ;;
		esac
	done < <(/usr/bin/python3 -B test/clients/page.py doc/howto/kafka-consume.md test/sink/kafka/consume 2>&1)
}

# The database of a program, with its tables.
make_database()
{
	idem_client createdb "$1" &&
		idem_client psql -XqAt -v ON_ERROR_STOP=1 -d "$1" -c 'SET client_min_messages = warning' \
			-c 'CREATE EXTENSION idempotency CASCADE' -f "$IDEM_WORK/crash/kafka/consume/schema.sql" >/dev/null
}

# Put broker, driver and programs where the server user can read them.
copy_all()
{
	copy_broker "$1" "$IDEM_WORK/crash"
	cp -R test/sink/kafka/consume "$IDEM_WORK/crash/kafka/"
	chmod -R a+rX "$IDEM_WORK/crash/kafka"
	idem_mkdir "$IDEM_WORK/round" "$IDEM_WORK/data"
}

# in_folder NAME FUNCTION: call prepare or prepare_wrong for a language, in its folder.
in_folder()
{
	(cd "$IDEM_WORK/crash/kafka/consume/$1" && umask 022 && idem_run timeout -k 10 "${FETCH_LIMIT:-600}" \
		bash -c "$(declare -f "$2"); $2 $1") >"$IDEM_WORK/log/$1.log" 2>&1
}

run_programs()
{
	local name jars ready=()

	crash_stage || give_up "consume: build"
	jars=$(test/setup/kafka.sh) || {
		unreachable broker "Maven Central"
		return
	}
	copy_all "$jars"
	for name in "$@"; do
		if ! in_folder "$name" prepare; then
			unreachable "$name" "$(registry "$name")" "$IDEM_WORK/log/$name.log"
		elif [ -n "$wrong" ] && ! in_folder "$name" prepare_wrong; then
			fail "consume, $name" "its wrong programs cannot be made" "$IDEM_WORK/log/$name.log"
		else
			ready+=("$name")
		fi
	done
	[ ${#ready[@]} -gt 0 ] || return
	chmod -R a+rX "$IDEM_WORK/crash"
	{ idem_initdb "$IDEM_WORK/data" preload && idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log" &&
		idem_client psql -XqAt -d postgres -c 'CREATE ROLE shop LOGIN' -c 'ALTER ROLE shop SET synchronous_commit = off'; } || give_up "consume: server"
	[ -z "$kill" ] || kill_programs "${ready[@]}"
	[ -z "$wrong" ] || wrong_programs "${ready[@]}"
}

# judge PROGRAM ARGUMENT...: run a program that judges the consumers, add up its result.
judge()
{
	local log=$IDEM_WORK/log/consume.log

	idem_run idem_as env PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" /usr/bin/python3 -B "$IDEM_WORK/crash/kafka/$1" \
		"${@:2}" 2>&1 | tee "$log"
	tally "$log" "${PIPESTATUS[0]}"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
}

kill_programs()
{
	local name

	for name in "$@"; do
		make_database "$name" || give_up "consume: database"
	done
	make_database pasted || give_up "consume: database"
	idem_say "consumers in $*: $KILLS kills of each, seed $SEED"
	judge consume.py "$SEED" "$KILLS" "$IDEM_WORK/round" "$@"
}

wrong_programs()
{
	make_database wrong || give_up "consume: database"
	idem_say "wrong consumers in $*"
	judge consume_wrong.py run "$IDEM_WORK/round" "$@"
}

programs=()
wrong=
kill=
for name in $names; do
	case $name in
		page) run_page ;;
		wrong) wrong=1 ;;
		*)
			programs+=("$name")
			kill=1
			;;
	esac
done
[ ${#programs[@]} -gt 0 ] || [ -z "$wrong" ] || programs=(python java go)
if [ ${#programs[@]} -gt 0 ]; then
	run_programs "${programs[@]}"
fi
echo "== $SECONDS s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
