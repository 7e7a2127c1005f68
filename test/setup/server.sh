#!/bin/bash
# A throw-away server with the extension of this tree, for trying things out.
#
#	server.sh start [DIR]		build, stage, initdb and start in DIR (default:
#								a new directory); prints how to reach the server.  If that
#								fails, DIR is removed, but with KEEP=1
#	server.sh psql DIR [ARG...]	run psql in the server
#	server.sh reload DIR		build again, stage and restart; the data stay
#	server.sh backup DIR		take a base backup of the server, which runs on
#	server.sh restore DIR		put the base backup in the place of the server's data, and start
#	server.sh stop DIR			stop the server and remove DIR
#	server.sh shell				start, psql, stop: nothing is left
#
# DIR must not be below a directory that the server user cannot enter.
set -euo pipefail
WERROR=${WERROR-}
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/lib.sh"

usage()
{
	sed -n 's/^#\t/\t/p' "$0" >&2
	exit 2
}

# Use the directory of an earlier start.
attach()
{
	[ -f "${1:-}/server.env" ] || idem_die "${1:-no DIR}: not a directory made by server.sh start"
	IDEM_WORK=$(realpath "$1")
	# shellcheck disable=SC1091
	. "$IDEM_WORK/server.env"
	export PG_CONFIG
	idem_find_server
	idem_find_user
	IDEM_STAGE=$IDEM_WORK/stage
	IDEM_SOCK=$IDEM_WORK/sock
}

save_env()
{
	printf 'PG_CONFIG=%q\nIDEM_PORT=%q\n' "$PG_CONFIG" "$IDEM_PORT" >"$IDEM_WORK/server.env"
}

start()
{
	idem_find_server
	idem_find_user
	if [ $# -gt 0 ]; then
		[ ! -e "$1" ] || [ -z "$(ls -A "$1")" ] || idem_die "$1 is not empty"
		mkdir -p "$1"
		IDEM_WORK=$(realpath "$1")
	else
		IDEM_WORK=$(mktemp -d "${TMPDIR:-/tmp}/idem.XXXXXX")
	fi
	trap 'clean_up $?' EXIT
	idem_prepare_work
	idem_build_stage
	idem_mkdir "$IDEM_WORK/data"
	idem_initdb "$IDEM_WORK/data" preload
	idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log"
	save_env
	idem_client psql -qXc 'CREATE EXTENSION idempotency CASCADE' postgres 2>&1 |
		grep -v 'installing required extension' >&2 || true
}

stop()
{
	local pidfile=$IDEM_WORK/data/postmaster.pid

	[ ! -f "$pidfile" ] || idem_stop_by_pidfile "$pidfile"
	rm -rf "$IDEM_WORK"
}

# The end of a start with this status.
clean_up()
{
	trap - EXIT
	[ "$1" = 0 ] || [ -n "${KEEP:-}" ] || stop
	exit "$1"
}

command=${1:-}
[ -n "$command" ] || usage
shift
case $command in
	start)
		start "$@"
		cat <<-END
			directory  $IDEM_WORK
			connect    psql -h $IDEM_SOCK -p $IDEM_PORT -U postgres postgres
			log        $IDEM_WORK/log/server.log
			stop       $0 stop $IDEM_WORK
		END
		;;
	psql)
		attach "$@"
		shift
		[ $# -gt 0 ] || set -- postgres
		idem_client psql -X "$@"
		;;
	reload)
		attach "$@"
		idem_build_stage
		idem_stop "$IDEM_WORK/data" || true
		idem_start "$IDEM_WORK/data" "$IDEM_WORK/log/server.log"
		save_env
		;;
	backup)
		attach "$@"
		rm -rf "$IDEM_WORK/backup"
		idem_mkdir "$IDEM_WORK/backup"
		chmod 700 "$IDEM_WORK/backup"
		idem_client pg_basebackup -D "$IDEM_WORK/backup" -c fast
		;;
	restore)
		attach "$@"
		idem_stop "$IDEM_WORK/data"
		rm -rf "$IDEM_WORK/data"
		cp -a "$IDEM_WORK/backup" "$IDEM_WORK/data"
		idem_as "$IDEM_BINDIR/pg_ctl" -D "$IDEM_WORK/data" -l "$IDEM_WORK/log/server.log" -w -t 600 -s -o "-p $IDEM_PORT" start >&2
		;;
	stop)
		attach "$@"
		stop
		;;
	shell)
		start
		trap 'status=$?; trap - EXIT; stop; exit $status' EXIT
		idem_client psql -X postgres
		;;
	*)
		usage
		;;
esac
