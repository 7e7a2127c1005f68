#!/bin/bash
# The programs of the how-tos, run with the real drivers: a producer and a consumer in
# each language, a payment API, holders of leases; and canonical JSON against a library.
#
#	run.sh [NAME...]	page psycopg asyncpg jcs payments leases sqlalchemy django alembic node jdbc
#						spring flyway pgx payments-go, default: all
#	ALLOW_OFFLINE=1		name, but do not count, a program whose driver cannot be fetched
#	NEED_TOOLS=1		a program fails if this machine lacks a tool for it; otherwise it is
#						named as NOT RUN
#	KEEP=1				leave the work directory behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# Each program has a folder of its own.  Its driver, of the version that the folder
# names, comes from where this machine's pip, npm, Maven or Go get packages, and
# goes to the work directory.  The program works in a database of its own, as a
# role that is a producer and a consumer, and prints "ok" or "NOT OK" for each
# check.  "page" compares the pages of doc/howto with the programs.  "jcs" compares
# canonical_json with a library of RFC 8785.  "payments" and "leases" are driven by their
# drive.py, which kills them.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
exec </dev/null
# shellcheck source=test/setup/lib.sh
. test/setup/lib.sh
# shellcheck source=test/setup/count.sh
. test/setup/count.sh

ALL="page psycopg asyncpg jcs payments leases sqlalchemy django alembic node jdbc spring flyway pgx payments-go"
# What every program checks, and what those check whose driver sends statements
# before it has read the answers.
CHECKS="an event commits with its row
an event is rolled back with its row
claimed: the effect is made and the result is stored
redelivered: duplicate, and one effect
an upper-case id is cast to the same event
busy while another session has the event
a handler that failed is tried again
a batch of 100 with repeats is one statement
COMMIT of an aborted transaction is noticed"
DJANGO="an event commits with its row
an event is rolled back with its row
claimed: the effect is made and the result is stored
redelivered: duplicate, and one effect
an upper-case id is cast to the same event
a handler that failed is tried again
COMMIT of an aborted transaction is noticed
a claim outside of atomic() is ID001"
ALEMBIC="without the filter a plain role fails
without the filter a superuser would drop the extension's tables
include_object comes too late for a plain role
with the filter shop sees the application's tables only
with the filter postgres sees the application's tables only"
SPRING="an event commits with its row
an event is rolled back with its row
claimed: the effect is made and the result is stored
redelivered: duplicate, and one effect
a handler that failed is tried again
JdbcTemplate does not see what Hibernate has not flushed
a forgotten completion is ID001 when the method has ended
without JPA ID001 is translated
a call that does not go through the proxy is ID001
an error that is caught inside: the end is silent, the completion fails with 25P02
NESTED is a savepoint
a native query calls a void function"
FLYWAY="a plain role migrates, and its relay delivers
a migration that fails leaves relay and consumer as they were
the way back is a migration as well
clean drops the application's tables and leaves the extension
a plain role's clean leaves the extension even if its schema is named
a superuser's clean drops the extension if its schema is named"
JCS="doubles have the text of the library
keys have the order of the library
documents have the text and the hash of the library
fields have the hash of an object with a member per pointer
an integer that the library refuses keeps its digits"
PIPELINED="a pipelined duplicate fails with ID002, and one statement answers it"

not_run()
{
	echo "NOT RUN  $*"
}

# The first tool of a program that this machine lacks.
missing_tool()
{
	case $1 in
		psycopg | asyncpg | sqlalchemy | django | alembic | jcs | payments | leases)
			/usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null || echo "python3 with its module venv"
			;;
		node)
			command -v node >/dev/null || echo node
			command -v npm >/dev/null || echo npm
			;;
		jdbc)
			# text blocks of 15, and a program run from its source
			{ command -v javac >/dev/null && [ "$(java_major)" -ge 15 ]; } || echo "a JDK, 15 or later"
			command -v mvn >/dev/null || echo mvn
			;;
		spring | flyway)
			{ command -v javac >/dev/null && [ "$(java_major)" -ge 17 ]; } || echo "a JDK, 17 or later"
			command -v mvn >/dev/null || echo mvn
			;;
		pgx | payments-go) command -v go >/dev/null || echo go ;;
	esac | head -n 1
}

java_major()
{
	local major

	major=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = \([0-9]*\).*/\1/p')
	echo "${major:-0}"
}

# fetch NAME: its driver, into its folder, which is the working directory.
fetch()
{
	case $1 in
		psycopg | asyncpg | sqlalchemy | django | alembic | jcs | payments | leases) with_pip requirements.txt ;;
		node)
			npm install --loglevel=error --cache npm-cache --ignore-scripts --no-package-lock --no-audit --no-fund
			;;
		jdbc | spring | flyway)
			mvn -B -q -Dmaven.repo.local="$PWD/repository" dependency:copy-dependencies -DoutputDirectory="$PWD/lib"
			;;
		pgx) with_go list -deps . ;;
		payments-go) with_pip ../payments/requirements.txt && with_go list -deps . ;;
	esac
}

with_pip()
{
	/usr/bin/python3 -m venv venv && venv/bin/pip install --no-cache-dir --quiet -r "$1"
}

# In the folder of the program, with no toolchain but this machine's; what it
# leaves can be removed.
with_go()
{
	GOPATH=$PWD/go GOCACHE=$PWD/go-cache GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" go "$@"
}

# compiled NAME CLASS: compile a program of which Spring makes proxies; that is its command.
compiled()
{
	command=(java -XX:TieredStopAtLevel=1 -cp "classes:lib/*" "$2")
	(cd "$IDEM_WORK/clients/$1" && javac -parameters -d classes -cp "lib/*" "$2.java")
}

# program NAME: run it in its folder, in a database of its own.
program()
{
	local command schema=schema.sql

	case $1 in
		psycopg) command=(sh -c "venv/bin/python -B shop.py && venv/bin/python -B try.py") ;;
		asyncpg | sqlalchemy | django) command=(venv/bin/python -B shop.py) ;;
		alembic) command=(venv/bin/python -B check.py) ;;
		payments) command=(venv/bin/python -B drive.py venv/bin/python -B api.py "{port}") ;;
		leases) command=(venv/bin/python -B drive.py) ;;
		jcs) command=(venv/bin/python -B jcs.py) ;;
		node) command=(node shop.js) ;;
		jdbc) command=(java -cp "lib/*" Shop.java) ;;
		spring) compiled spring Shop || return 1 ;;
		flyway) compiled flyway Migrate || return 1 ;;
		pgx)
			command=(./shop)
			(cd "$IDEM_WORK/clients/pgx" && with_go build -o shop .) || return 1
			;;
		payments-go)
			command=(venv/bin/python -B ../payments/drive.py ./payments "{port}")
			(cd "$IDEM_WORK/clients/payments-go" && with_go build -o payments .) || return 1
			;;
	esac
	case $1 in
		payments* | leases | flyway) schema=${1%-go}/schema.sql ;;
	esac
	idem_client createdb "$1" &&
		idem_client psql -XqAt -v ON_ERROR_STOP=1 -d "$1" -c 'SET client_min_messages = warning' \
			-c 'CREATE EXTENSION idempotency CASCADE' -f "$IDEM_WORK/clients/$schema" >/dev/null &&
		IDEM_CWD=$IDEM_WORK/clients/$1 idem_as env PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" PGUSER=shop PGDATABASE="$1" \
			JDBC_URL="jdbc:postgresql://127.0.0.1:$IDEM_PORT/$1?user=shop" timeout -k 10 "${LIMIT:-600}" "${command[@]}"
}

# count NAME LOG STATUS: what it says, what it should have said, and how it ended.
count()
{
	local line checks=$CHECKS

	while read -r line; do
		case $line in
			"ok "*) pass "$1: ${line#ok }" ;;
			*) fail "$1" "${line#NOT OK }" ;;
		esac
	done < <(grep -E '^(ok|NOT OK) ' "$2")
	case $1 in
		psycopg) checks+=$'\n'$PIPELINED$'\nthe lines to try it: claimed, then duplicate' ;;
		asyncpg | sqlalchemy) ;;
		django) checks=$DJANGO ;;
		alembic) checks=$ALEMBIC ;;
		spring) checks=$SPRING ;;
		flyway) checks=$FLYWAY ;;
		jcs) checks=$JCS ;;
		payments* | leases) checks="" ;;
		*) checks+=$'\n'$PIPELINED ;;
	esac
	while read -r line && [ -n "$line" ]; do
		grep -qxF -e "ok $line" -e "NOT OK $line" "$2" || fail "$1" "no word of: $line"
	done <<<"$checks"
	[ "$3" = 0 ] || fail "$1" "it ended with status $3" "$2"
}

run_client()
{
	local name=$1 log=$IDEM_WORK/log/$1.log missing

	missing=$(missing_tool "$name")
	if [ -n "$missing" ]; then
		if [ -n "${NEED_TOOLS:-}" ]; then
			fail "$name" "this machine lacks $missing"
		else
			not_run "clients/$name: this machine lacks $missing"
		fi
	elif ! (cd "$IDEM_WORK/clients/$name" && umask 022 && idem_run timeout -k 10 "${FETCH_LIMIT:-600}" \
		bash -c "$(declare -f with_go with_pip fetch); fetch $name") >"$log" 2>&1; then
		if [ -n "${ALLOW_OFFLINE:-}" ]; then
			tail -n 5 "$log" | sed 's/^/    | /'
			not_run "clients/$name: offline, its driver cannot be fetched"
		else
			fail "$name" "offline, its driver cannot be fetched" "$log"
		fi
	else
		idem_run program "$name" >"$log" 2>&1
		count "$name" "$log" $?
	fi
}

# run_page PAGE FILE...: the page has the marked lines of these files and folders.
run_page()
{
	local log=$IDEM_WORK/log/page.log line

	/usr/bin/python3 -B test/clients/page.py "doc/howto/$1" test/clients "${@:2}" >"$log" 2>&1 ||
		fail page "page.py failed" "$log"
	while read -r line; do
		case $line in
			"ok "*) pass "${line#ok }" ;;
			*) fail page "${line#NOT OK }" ;;
		esac
	done < <(grep -E '^(ok|NOT OK) ' "$log")
}

names=${*:-$ALL}
for name in $names; do
	[[ " $ALL " == *" $name "* ]] || give_up "clients: no such program: $name (there are: $ALL)"
done
group=clients
[[ ! " $names " =~ \ (node|jdbc|spring|flyway|pgx|payments-go)\  ]] || group=drivers
# what is missing all the same is told below
[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh build "$group"
idem_make_work
if [ "$names" != page ]; then
	idem_build_stage || give_up "clients: build"
	cp -R test/clients test/python "$IDEM_WORK/"
	chmod -R a+rX "$IDEM_WORK/clients" "$IDEM_WORK/python"
	idem_mkdir "$IDEM_WORK/data"
	{ idem_initdb "$IDEM_WORK/data" preload && idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log"; } ||
		give_up "clients: server"
	idem_client psql -XqAt -d postgres -c 'CREATE ROLE shop LOGIN' -c 'CREATE ROLE pay LOGIN' -c 'CREATE ROLE job LOGIN' || give_up "clients: role"
fi
for name in $names; do
	if [ "$name" = page ]; then
		run_page python.md schema.sql psycopg asyncpg sqlalchemy django
		run_page node.md schema.sql node
		run_page java.md schema.sql jdbc spring
		run_page go.md schema.sql pgx
		run_page deploy.md alembic flyway
		run_page payments.md payments payments-go
		run_page leases.md leases
	else
		run_client "$name"
	fi
done
finish
