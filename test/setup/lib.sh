# Shell functions for all scripts that run a throw-away server.
#
# Source this file from any working directory; it finds the tree itself.  One work
# directory holds everything that a run makes: the staged installation, the data
# directories, the socket, the logs.  The work directory is made under
# ${TMPDIR:-/tmp}, and removed on exit unless KEEP=1.  Nothing is installed
# system-wide.
#
# The server refuses to run as root.  So root runs it as the server user: the user
# "postgres", or "nobody" if there is no "postgres".  Any other user runs the server
# as himself.  The checkout may be readable by root alone: the files that the server
# user needs are copied into the work directory.

# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables

IDEM_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PG_CONFIG=${PG_CONFIG:-pg_config}
# In the builds of tests a warning is an error.  A script that builds for a user
# sets WERROR to the empty string before it sources this file.
export WERROR=${WERROR-1}

idem_say()
{
	echo "== $*"
}

idem_die()
{
	echo "error: $*" >&2
	exit 1
}

# Find the directories of the server to which PG_CONFIG belongs.
idem_find_server()
{
	command -v "$PG_CONFIG" >/dev/null 2>&1 ||
		idem_die "$PG_CONFIG not found; run test/setup/packages.sh build"
	IDEM_BINDIR=$("$PG_CONFIG" --bindir)
	IDEM_PKGLIBDIR=$("$PG_CONFIG" --pkglibdir)
	IDEM_SHAREDIR=$("$PG_CONFIG" --sharedir)
	IDEM_PGXS=$("$PG_CONFIG" --pgxs)
	IDEM_PGSRC=$(cd "$(dirname "$IDEM_PGXS")/../.." && pwd) ||
		idem_die "no PGXS for $PG_CONFIG; run test/setup/packages.sh build"
	IDEM_MAJOR=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	[ -x "$IDEM_BINDIR/postgres" ] ||
		idem_die "no server in $IDEM_BINDIR; run test/setup/packages.sh build"
}

# The user that runs servers and tests.
idem_find_user()
{
	if [ "$(id -u)" != 0 ]; then
		IDEM_USER=$(id -un)
	elif id postgres >/dev/null 2>&1; then
		IDEM_USER=postgres
	else
		IDEM_USER=nobody
	fi
}

# Run a command as the server user, with a home of its own and without the caller's
# PG* variables.  It runs in the work directory or in IDEM_CWD: the caller's
# directory may be closed to the server user.  TAP tests drop LC_ALL,
# so LANG gives their clusters the encoding UTF8, whatever the caller's locale is.
# IDEM_PRELOAD is a library that the command and all its children load before any other.
idem_as()
{
	local clean=(env --chdir="${IDEM_CWD:-$IDEM_WORK}" -u PGHOST -u PGPORT -u PGUSER -u PGDATABASE -u PGPASSWORD
		-u PGSERVICE -u PGOPTIONS -u PGSSLMODE -u PGPASSFILE -u MAKEFLAGS
		-u MAKELEVEL -u MFLAGS -u LC_CTYPE -u LC_COLLATE LC_ALL=C LANG=C.UTF-8
		HOME="$IDEM_WORK/home" TMPDIR="$IDEM_WORK/tmp" ${IDEM_PRELOAD:+LD_PRELOAD="$IDEM_PRELOAD"})

	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid "$IDEM_USER" --regid "$(id -g "$IDEM_USER")" \
			--init-groups -- "${clean[@]}" "$@"
	else
		"${clean[@]}" "$@"
	fi
}

# Make directories that the server user owns.
idem_mkdir()
{
	mkdir -p "$@"
	[ "$(id -u)" != 0 ] || chown "$IDEM_USER" "$@"
}

# Make the directories inside IDEM_WORK, which exists already.
idem_prepare_work()
{
	chmod 755 "$IDEM_WORK"
	IDEM_STAGE=$IDEM_WORK/stage
	mkdir -p "$IDEM_STAGE"
	idem_mkdir "$IDEM_WORK"/{home,tmp,sock,log}
	chmod 700 "$IDEM_WORK/home" "$IDEM_WORK/tmp"
}

# Make a work directory and have it removed on exit.
idem_make_work()
{
	idem_find_server
	idem_find_user
	IDEM_WORK=$(mktemp -d "${TMPDIR:-/tmp}/idem.XXXXXX")
	trap idem_cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	trap 'exit 141' PIPE
	idem_prepare_work
	IDEM_SHM_BEFORE=$(idem_shm_list)
	idem_start_watchdog
}

# Start the watchdog: a process in a session of its own, which cleans up when this
# script was killed by a signal that it could not catch.
idem_start_watchdog()
{
	local lib=$IDEM_TOP/test/setup/lib.sh

	# shellcheck disable=SC2016 # expanded in there
	IDEM_WORK=$IDEM_WORK IDEM_USER=$IDEM_USER IDEM_SHM_BEFORE=$IDEM_SHM_BEFORE \
		setsid bash -c 'trap "" INT HUP PIPE
			. "$1"
			tail --pid="$2" -f /dev/null
			idem_cleanup' watchdog "$lib" $$ >/dev/null 2>&1 </dev/null &
	IDEM_WATCHDOG=$!
	disown "$IDEM_WATCHDOG"
}

# idem_run COMMAND...: run the command in the background and wait for it, so that
# this script answers a signal at once.
idem_run()
{
	"$@" &
	wait $!
}

# Kill the processes whose current directory lies in the work directory: all of them
# belong to this run.
idem_kill_leftovers()
{
	local process

	for process in /proc/[0-9]*; do
		case $(readlink "$process/cwd" 2>/dev/null)/ in
			"$IDEM_WORK"/*) [ "${process##*/}" = $$ ] || kill -KILL "${process##*/}" 2>/dev/null || true ;;
		esac
	done
}

# List the segments of shared memory that the server user owns, one per line.
idem_shm_list()
{
	ipcs -m 2>/dev/null | awk -v u="$IDEM_USER" '$3 == u && $6 == 0 { print "sysv " $2 }'
	find /dev/shm -maxdepth 1 -name 'PostgreSQL.*' -user "$IDEM_USER" \
		-printf 'posix %p\n' 2>/dev/null
}

# Remove the shared memory that servers killed with -9 left: the segments that
# appeared during this run and that no process has mapped.  A server that runs, of
# another run, may keep segments that none of its processes has mapped just now.
idem_shm_drop()
{
	local kind name

	! pgrep -u "$IDEM_USER" -x postgres >/dev/null 2>&1 || return 0
	while read -r kind name; do
		if [ "$kind" = sysv ]; then
			idem_as ipcrm -m "$name" 2>/dev/null || true
		elif ! grep -qsF "$name" /proc/[0-9]*/maps; then
			rm -f "$name"
		fi
	done < <(comm -13 <(echo "$IDEM_SHM_BEFORE" | sort) <(idem_shm_list | sort))
}

# Clean up.  Stop every server whose data directory lies in the work directory, by
# the process id in its pid file; end the other processes that work in there; remove
# the work directory.
idem_cleanup()
{
	local status=$? pidfile

	trap - EXIT INT TERM HUP PIPE
	trap '' PIPE
	cd /
	[ -z "${IDEM_WATCHDOG:-}" ] || idem_stop_watchdog
	while read -r pidfile; do
		idem_stop_by_pidfile "$pidfile"
	done < <(find "$IDEM_WORK" -name postmaster.pid 2>/dev/null)
	idem_kill_leftovers
	idem_shm_drop
	if [ -n "${KEEP:-}" ]; then
		echo "kept: $IDEM_WORK" >&2
	else
		rm -rf "$IDEM_WORK"
	fi
	exit "$status"
}

# End the watchdog by its session, so that its tail(1) ends, too.
idem_stop_watchdog()
{
	kill -KILL -- "-$IDEM_WATCHDOG" 2>/dev/null || true
}

idem_stop_by_pidfile()
{
	local pid try

	pid=$(head -n 1 "$1" 2>/dev/null) || return 0
	idem_is_postmaster "$pid" "$1" || return 0
	kill -INT "$pid" 2>/dev/null || return 0
	for try in $(seq 300); do
		kill -0 "$pid" 2>/dev/null || return 0
		[ "$try" != 200 ] || kill -QUIT "$pid" 2>/dev/null || true
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
}

# Is this process still the server of the data directory with this pid file?
idem_is_postmaster()
{
	[ -n "$1" ] && [ "$(readlink "/proc/$1/cwd" 2>/dev/null)" = "$(realpath "$(dirname "$2")")" ]
}

# Build in the tree and install into the stage.
idem_build_stage()
{
	local log=$IDEM_WORK/build.log

	# shellcheck disable=SC2086 # MAKE_ARGS is a list
	if ! "${MAKE:-make}" -C "$IDEM_TOP" --no-print-directory -s -j"$(nproc)" \
		PG_CONFIG="$PG_CONFIG" all ${MAKE_ARGS:-} >"$log" 2>&1 ||
		! "${MAKE:-make}" -C "$IDEM_TOP" --no-print-directory \
			PG_CONFIG="$PG_CONFIG" DESTDIR="$IDEM_STAGE" install ${MAKE_ARGS:-} >>"$log" 2>&1; then
		cat "$log" >&2
		return 1
	fi
	chmod -R a+rX "$IDEM_STAGE"
	idem_write_conf >"${IDEM_CONF:-$IDEM_WORK/extension.conf}"
}

# The version of the extension that the tree holds.
idem_version()
{
	sed -n "s/^default_version = '\(.*\)'$/\1/p" "$IDEM_TOP/idempotency.control"
}

# idem_stage_updates VERSION: put a version VERSION.test into the stage, so that tests can
# update to it and from it.
idem_stage_updates()
{
	local extension=$IDEM_STAGE$IDEM_SHAREDIR/extension

	install -m 644 "$IDEM_TOP/test/setup/update.sql" "$extension/idempotency--$1--$1.test.sql"
	install -m 644 "$IDEM_TOP/test/setup/update.sql" "$extension/idempotency--$1.test--$1.sql"
}

# Build the version after the tree's own (test/update/next.py), in a copy of the tree with
# what is built there already, and install it into IDEM_STAGE.  There CREATE EXTENSION
# makes the tree's version still: its SQL with the next library.
idem_stage_next()
{
	local version tree=$IDEM_WORK/next/tree

	version=$(idem_version)
	mkdir -p "$tree" "$IDEM_STAGE"
	(
		cd "$IDEM_TOP" && tree_copy "$tree" &&
			find build/id src test/module \( -name '*.[oda]' -o -name id -o -path 'src/sink/bin/*' \) -type f -print0 |
			tar -c --null -T - -f - | tar -x -C "$tree"
		cd "$tree" && sed -i "s/^## $version (unreleased)/## $version (a day)/" CHANGELOG.md &&
			{ [ -e "sql/release/idempotency--$version.sql" ] || test/lint/frozen.sh --freeze; } &&
			test/update/next.py . && test/lint/frozen.sh
	) || return 1
	local IDEM_TOP=$tree
	idem_build_stage && idem_stage_updates "$version" && idem_stage_test_module &&
		sed -i "s/^default_version = .*/default_version = '$version'/" "$IDEM_STAGE$IDEM_SHAREDIR/extension/idempotency.control"
}

# Put the module with the tests' own functions (test/module) into the stage.
idem_stage_test_module()
{
	local log=$IDEM_WORK/build-module.log

	# shellcheck disable=SC2086 # MAKE_ARGS is a list
	"${MAKE:-make}" -C "$IDEM_TOP" --no-print-directory PG_CONFIG="$PG_CONFIG" DESTDIR="$IDEM_STAGE" \
		install-test-module ${MAKE_ARGS:-} >"$log" 2>&1 || {
		cat "$log" >&2
		return 1
	}
	chmod -R a+rX "$IDEM_STAGE"
}

# Print the configuration that makes a server use the staged extension.
# idem_preload_conf prints the preloading, because some tests want a server without
# it.
idem_write_conf()
{
	local known

	known=$("$IDEM_BINDIR/postgres" --describe-config | cut -f 1)
	if grep -qx extension_control_path <<<"$known"; then
		echo "extension_control_path = '$IDEM_STAGE$IDEM_SHAREDIR:\$system'"
	elif grep -qx extension_destdir <<<"$known"; then
		echo "extension_destdir = '$IDEM_STAGE'"
	else
		idem_die "this server has neither extension_control_path nor extension_destdir: it cannot use a staged extension"
	fi
	echo "dynamic_library_path = '$IDEM_STAGE$IDEM_PKGLIBDIR:\$libdir'"
	# the staged sink programs, if the library knows the setting
	if grep -qa 'idempotency\.sink_directory' "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency.so"; then
		echo "idempotency.sink_directory = '$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks'"
	fi
}

# idem_initdb DATADIR [preload]: make a data directory.  IDEM_EXTRA_CONF is a further
# line of configuration.
idem_initdb()
{
	idem_as "$IDEM_BINDIR/initdb" -D "$1" -U postgres -A trust -E UTF8 \
		--locale=C -N >"$IDEM_WORK/log/initdb-${1##*/}.log" 2>&1 || {
		cat "$IDEM_WORK/log/initdb-${1##*/}.log" >&2
		return 1
	}
	{
		cat "${IDEM_CONF:-$IDEM_WORK/extension.conf}"
		[ "${2:-}" != preload ] || echo "shared_preload_libraries = 'idempotency'"
		cat <<-END
			listen_addresses = '127.0.0.1'
			unix_socket_directories = '$IDEM_WORK/sock'
			max_worker_processes = 32
			max_prepared_transactions = 10
			wal_level = logical
			fsync = off
			log_line_prefix = '%m [%p] %q%a '
			log_min_messages = info
			timezone = 'UTC'
			${IDEM_EXTRA_CONF:-}
		END
	} | idem_as tee -a "$1/postgresql.conf" >/dev/null
}

# Print a TCP port on which no process listens now, below those that the kernel gives to
# connections: a server that is started again would find somebody's connection there.
idem_free_port()
{
	perl -MIO::Socket::INET -e '
		my ($lowest) = split " ", <>;
		my $s;

		for (my $try = 0; !$s; $try++)
		{
			die "no free port: $!\n" if $try == 1000;
			$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 1,
				LocalPort => $lowest > 12000 ? 10000 + int(rand($lowest - 10000)) : 0);
		}
		print $s->sockport, "\n";' /proc/sys/net/ipv4/ip_local_port_range
}

# idem_start DATADIR LOGFILE: start the server; idem_client reaches this server from
# then on.  If another process has taken the port meanwhile, try another port.
idem_start()
{
	local try

	for try in 1 2 3 4 5; do
		IDEM_PORT=$(idem_free_port)
		if idem_as "$IDEM_BINDIR/pg_ctl" -D "$1" -l "$2" -w -t 600 -s \
			-o "-p $IDEM_PORT" start >&2; then
			IDEM_SOCK=$IDEM_WORK/sock
			return 0
		fi
		grep -q 'could not bind' "$2" || break
	done
	tail -n 40 "$2" >&2
	return 1
}

idem_stop()
{
	idem_as "$IDEM_BINDIR/pg_ctl" -D "$1" -w -t 600 -m fast -s stop
}

# Run a client program against the server that was started last.
idem_client()
{
	local program=$1
	shift
	idem_as env PGHOST="$IDEM_SOCK" PGPORT="$IDEM_PORT" PGUSER=postgres \
		"$IDEM_BINDIR/$program" "$@"
}
