#!/bin/bash
# Run the regression tests with stock pg_regress, against a server that is installed and
# running, or against a temporary one:
#
#	installcheck.sh installed	the server of PGHOST, PGPORT and so on: make installcheck
#	installcheck.sh temporary	a server of its own with this tree's build: make check
#
#	REGRESS="claim lease"		the regression tests to run
#	ISOLATION="claim-twin"		the isolation specs to run, at the server's isolation level
#	REGRESS_OPTS, ISOLATION_OPTS, EXTRA_REGRESS_OPTS	further options of pg_regress
#
# The first use needs neither root nor a build nor the network, but a superuser's login.
# A test that needs what the server does not have is skipped; its name is printed and
# counted.  The status is that of pg_regress, and regression.diffs shows what differs.
#
# Each test has a database of its own.  pg_regress has one database for all tests, so
# it is told to use one that exists (it never looks), and to start the clients with a
# launcher: this script, as "installcheck.sh launch CLIENT ARGUMENT...", which makes the
# database, runs the client in it, and drops it.
#
# The databases are named regress_NAME.  A database of such a name that is left from
# a killed run is dropped, as pg_regress does with its own.  A test that leaves a role,
# a setting, a prepared transaction or a slot on the server has failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

# sql DATABASE COMMAND...: run commands, each by itself, and print the bare results.
sql()
{
	local db=$1 command commands=()
	shift

	for command; do
		commands+=(-c "$command")
	done
	PGOPTIONS="-c client_min_messages=warning -c default_transaction_read_only=off" PGAPPNAME=installcheck \
		"$CHECK_PSQL" -XAtq -v ON_ERROR_STOP=1 -d "$db" "${commands[@]}" </dev/null
}

# The settings that the output of tests depends on get the value that the server has
# by itself, whatever its configuration says.
own_settings()
{
	sql postgres "SELECT format('ALTER DATABASE %s SET %s = %L', '$1', name, boot_val) FROM pg_settings
		WHERE context IN ('user', 'superuser') AND reset_val IS DISTINCT FROM boot_val AND boot_val IS NOT NULL
		AND (name LIKE 'idempotency.%' AND name <> 'idempotency.sink_directory' OR name IN (
			'backslash_quote', 'bytea_output', 'check_function_bodies', 'client_min_messages', 'default_tablespace',
			'default_toast_compression', 'default_transaction_deferrable', 'default_transaction_isolation',
			'default_transaction_read_only', 'escape_string_warning', 'extra_float_digits',
			'idle_in_transaction_session_timeout', 'idle_session_timeout', 'lock_timeout', 'quote_all_identifiers',
			'row_security', 'search_path', 'session_replication_role', 'standard_conforming_strings',
			'statement_timeout', 'synchronous_commit', 'temp_file_limit', 'temp_tablespaces',
			'timezone_abbreviations', 'transaction_timeout', 'transform_null_equals', 'xmlbinary', 'xmloption'))"
}

# make_database DATABASE FILE: make a test's database.  It has the extension, unless the
# test creates the extension itself.
make_database()
{
	local extension=() settings

	grep -qiE 'create[[:space:]]+extension.*idempotency' "$2" ||
		extension=('CREATE EXTENSION pgcrypto' 'CREATE EXTENSION idempotency')
	mapfile -t settings < <(own_settings "$1")
	sql postgres "DROP DATABASE IF EXISTS $1 WITH (FORCE)" \
		"CREATE DATABASE $1 TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER libc LOCALE 'C'" \
		"ALTER DATABASE $1 SET lc_messages = 'C'" ${settings[@]+"${settings[@]}"} \
		${CHECK_MODULE:+"ALTER DATABASE $1 SET dynamic_library_path = '$CHECK_MODULE'"} &&
		{ [ ${#extension[@]} = 0 ] || sql "$1" "${extension[@]}"; }
}

# launch CLIENT ARGUMENT...: run a test's client in the test's database.  pg_regress puts
# the name of the test into PGAPPNAME, and the name of its own database behind -d; that
# of the isolation tester is a connection string.
launch()
{
	local test=${PGAPPNAME#*/} db file status client argument last=
	local words=()

	# the names of specs have dashes
	db=regress_${test//-/_}
	case $PGAPPNAME in
		isolation/*) file=test/isolation/specs/$test.spec ;;
		*) file=sql/$test.sql ;;
	esac
	client=$1
	shift
	for argument; do
		[ "$last" != -d ] || argument=$db
		last=$argument
		case $argument in dbname=*) argument=dbname=$db ;; esac
		words+=("$argument")
	done
	make_database "$db" "$file" && "$client" ${words[@]+"${words[@]}"}
	status=$?
	sql postgres "DROP DATABASE IF EXISTS $db WITH (FORCE)" || status=3
	return "$status"
}

# Print what the server holds beside databases' contents.
remains()
{
	sql postgres "SELECT 'role ' || quote_ident(rolname) FROM pg_roles
		UNION ALL SELECT 'database ' || quote_ident(datname) FROM pg_database
		UNION ALL SELECT 'setting of a role or database: ' || s FROM pg_db_role_setting, unnest(setconfig) AS s
		UNION ALL SELECT 'setting in postgresql.auto.conf: ' || name FROM pg_file_settings WHERE sourcefile LIKE '%postgresql.auto.conf'
		UNION ALL SELECT 'prepared transaction ' || quote_literal(gid) FROM pg_prepared_xacts
		UNION ALL SELECT 'replication slot ' || slot_name FROM pg_replication_slots
		UNION ALL SELECT 'tablespace ' || spcname FROM pg_tablespace
		UNION ALL SELECT 'relay of database ' || quote_ident(datname) FROM pg_stat_activity
			WHERE backend_type = 'idempotency relay' AND datname LIKE 'regress\\_%'" | sort
}

new_remains()
{
	comm -13 <(echo "$before") <(remains)
}

# Remove what tests leave that fail or are interrupted.
sweep()
{
	local kind name

	while read -r kind name; do
		case $kind:${name#\"} in
			database:regress_*) sql postgres "DROP DATABASE $name WITH (FORCE)" ;;
			role:regress_*) sql postgres "DROP ROLE $name" ;;
		esac
	done < <(new_remains)
}

# needs FILE: print what a test needs and the server has not.
needs()
{
	local name=${1##*/}

	case $name in
		nopreload*) [ -z "$preloaded" ] || echo "a server that does not preload the library" ;;
		*) [ -n "$preloaded" ] || ! grep -qE 'idempotency\.relay_create\(|^SHOW idempotency\.' "$1" ||
			echo "shared_preload_libraries = 'idempotency'" ;;
	esac
	! grep -q "'idempotency_test'" "$1" || [ -n "$has_module" ] ||
		echo "the tests' module: make test-module, on the machine of the server"
	! grep -q '^[^-#]*PREPARE TRANSACTION' "$1" || [ "$prepared" -ge 3 ] || echo "max_prepared_transactions = 3"
}

# choose KIND FILE...: put the tests that can run into the array chosen, and say why
# others cannot.
choose()
{
	local kind=$1 file name missing
	shift

	chosen=()
	for file; do
		name=$(basename "${file%.*}")
		[ -f "$file" ] || die "no such test: $name"
		missing=$(needs "$file" | head -n 1)
		if [ -n "$missing" ]; then
			skipped=$((skipped + 1))
			printf 'skipped  %s (needs %s)\n' "$kind/$name" "$missing"
		else
			chosen+=("$name")
		fi
	done
}

die()
{
	echo "installcheck: $*" >&2
	exit 1
}

# run DIFFS PROGRAM OPTION...: run the chosen tests with pg_regress, in the background, so
# that a signal is answered at once.
run()
{
	local diffs=$1 program=$2
	shift 2

	[ ${#chosen[@]} -gt 0 ] || return 0
	ran=$((ran + ${#chosen[@]}))
	"$pgxs_top/src/test/$program" --bindir="$bindir" --use-existing --dbname=regress_of_each \
		--launcher="$BASH test/setup/installcheck.sh launch" "$@" "${chosen[@]}" &
	child=$!
	wait "$child" || {
		status=1
		broken+=("$diffs")
	}
	child=
}

# What the tests depend on, asked once.
ask_server()
{
	sql postgres 'SELECT' ||
		die "no server answers; PGHOST, PGPORT and PGUSER say which to use, and make check needs none"
	[ "$(sql postgres "SELECT rolsuper FROM pg_roles WHERE rolname = current_user")" = t ] ||
		die "the tests need a superuser; set PGUSER"
	# Some servers find extensions that they do not list.
	sql postgres 'BEGIN' 'CREATE EXTENSION IF NOT EXISTS pgcrypto' 'CREATE EXTENSION IF NOT EXISTS idempotency' 'ROLLBACK' ||
		die "the server cannot create the extension; run make install, with the server's own PG_CONFIG"
	preloaded=$(sql postgres "SELECT 1 FROM regexp_split_to_table(current_setting('shared_preload_libraries'), '[\", ]+') AS l
		WHERE l ~ '(^|/)idempotency(\.so)?$'")
	prepared=$(sql postgres 'SHOW max_prepared_transactions')
	has_module=
	CHECK_MODULE=
	if sql postgres "LOAD 'idempotency_test'" 2>/dev/null; then
		has_module=1
	elif sql postgres "LOAD '$PWD/test/module/idempotency_test.so'" 2>/dev/null; then
		has_module=1
		CHECK_MODULE="$PWD/test/module:$(sql postgres 'SHOW dynamic_library_path')"
	fi
	export CHECK_MODULE
	# Nobody but the server can take these back.
	sql postgres "SELECT format('note: %s = %s in the server''s configuration; the tests expect %s', name, setting, boot_val)
		FROM pg_settings WHERE name LIKE 'idempotency.%' AND context NOT IN ('user', 'superuser')
		AND setting IS DISTINCT FROM boot_val AND name <> 'idempotency.sink_directory'"
}

check_installed()
{
	local left

	bindir=$("${PG_CONFIG:-pg_config}" --bindir) || die "${PG_CONFIG:-pg_config} not found"
	pgxs_top=$(dirname "$("${PG_CONFIG:-pg_config}" --pgxs)")/../..
	[ -x "$pgxs_top/src/test/regress/pg_regress" ] || die "no pg_regress; install the server's development files"
	export CHECK_PSQL=$bindir/psql
	chosen=()
	ran=0
	skipped=0
	status=0
	broken=()
	ask_server
	before=$(remains)
	child=
	trap '[ -z "$child" ] || kill "$child"; sweep' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	# Lists, and options of several words.
	# shellcheck disable=SC2046,SC2086
	{
		[ -z "${REGRESS:-}" ] || choose regress $(printf 'sql/%s.sql ' $REGRESS)
		run regression.diffs regress/pg_regress --inputdir=. --outputdir=. ${EXTRA_REGRESS_OPTS:-} ${REGRESS_OPTS:-}
		chosen=()
		[ -z "${ISOLATION:-}" ] || choose isolation $(printf 'test/isolation/specs/%s.spec ' $ISOLATION)
		run output_iso/regression.diffs isolation/pg_isolation_regress --inputdir=test/isolation --outputdir=output_iso \
			${EXTRA_REGRESS_OPTS:-} ${ISOLATION_OPTS:-}
	}
	left=$(new_remains)
	if [ -n "$left" ]; then
		printf 'left on the server:\n%s\n' "$left"
		status=1
	fi
	echo "$ran run, $skipped skipped${broken:+; see ${broken[*]}}"
	[ "$ran" -gt 0 ] || die "no test was run"
	exit "$status"
}

# A server in a temporary directory, whose configuration makes no test but one skipped.
check_temporary()
{
	WERROR=${WERROR-}
	# shellcheck source=test/setup/lib.sh
	. test/setup/lib.sh
	idem_make_work
	idem_build_stage && idem_stage_test_module && idem_mkdir "$IDEM_WORK/data" &&
		idem_initdb "$IDEM_WORK/data" preload && idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log" ||
		exit 1
	idem_run env -u PGDATABASE -u PGSERVICE -u PGOPTIONS PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" PGUSER=postgres \
		"$BASH" test/setup/installcheck.sh installed
	status=$?
	[ "$status" = 0 ] || tail -n 20 "$IDEM_WORK/log/server.log"
	exit "$status"
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
	installed) check_installed ;;
	temporary) check_temporary ;;
	launch) launch "$@" ;;
	*) die "usage: installcheck.sh installed | temporary" ;;
esac
