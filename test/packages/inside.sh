#!/bin/bash
# The life of the packages in a clean Debian: installed, used, upgraded, removed, installed
# again, purged.  The commands for the upgrade and the end are those of doc/howto/upgrade.md
# and remove.md.
#
# run.sh runs this in a copy of a folder with nothing but debootstrap's smallest variant,
# with the packages of a lower version in /mnt/old and those of this tree in /mnt/new.
# VERSION is the server's major.  The last line is "N passed, N failed".
set -uo pipefail
# shellcheck source=test/packages/checks.sh
. /tmp/idempotency/test/packages/checks.sh
# shellcheck source=test/packages/page.sh
. /tmp/idempotency/test/packages/page.sh

core=postgresql-$VERSION-idempotency

# The packages' own names, of what is in the folder.
names()
{
	local deb

	for deb in "$1"/*.deb; do
		case $deb in
			*-dbgsym_*) ;;
			*) dpkg-deb -f "$deb" Package ;;
		esac
	done
}

install_from()
{
	local debs

	mapfile -t debs < <(names "$1" | sed "s|.*|$1/&_*.deb|")
	# shellcheck disable=SC2068 # patterns of file names
	apt install ${debs[@]}
}

# The folder has neither sudo nor systemd, and nobody answers apt.
sudo()
{
	"$@"
}

systemctl()
{
	local unit=${2#postgresql@}

	pg_ctlcluster "${unit%%-*}" "${unit#*-}" "$1"
}

# run_span PAGE BEGINNING: the command of the page.
run_span()
{
	local command

	command=$(code_span "$1" "$2")
	echo "$command"
	[ -n "$command" ] && eval "$command"
}

# What a package could leave behind: all files but those of apt, dpkg and the administrator.
files()
{
	find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /tmp -o -path /mnt \
		-o -path /etc/postgresql -o -path /var/lib/postgresql -o -path /var/tmp -o -path /root \) -prune -o -print | sort
}

# Packages that the core needs beside the server itself, and that the server does not need.
foreign()
{
	comm -23 <(depends "$core" | grep -vx "postgresql-$VERSION") <(depends "postgresql-$VERSION")
}

# depends PACKAGE: the names, without versions.
depends()
{
	dpkg-query -W -f '${Depends}\n' "$1" | tr ',|' '\n' | sed 's/^ *//; s/[ (:].*//' | sort -u
}

core_is_light()
{
	local found

	found=$(foreign)
	[ -z "$found" ] || {
		echo "the server does not need: $found"
		return 1
	}
}

preload()
{
	echo "shared_preload_libraries = 'idempotency'" >"$conf"
}

start()
{
	preload
	cluster start
}

# Each kind that has a program finds it by the core's link, with all its libraries.
programs_are_whole()
{
	local kind program

	for kind in $(kinds); do
		program=$lib/idempotency-sinks/idempotency-sink-$kind
		[ -x "$program" ] || {
			echo "not there: $program"
			return 1
		}
		! ldd "$program" | grep 'not found' || return 1
	done
}

# The pages and the monitoring files are where the pages say, and not compressed.
documents_are_whole()
{
	local path

	for path in README.md doc src/packaging/monitoring; do
		diff -r "/tmp/idempotency/$path" "/usr/share/doc/idempotency-doc/$path" || return 1
	done
}

installed_version()
{
	dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$@" | sort -u
}

upgrade()
{
	local before

	before=$(postmaster)
	mkdir /tmp/new && cp "${debs[@]}" /tmp/new && (cd /tmp/new && run_span upgrade 'sudo apt install') || return 1
	[ "$(installed_version "${ours[@]}")" = "installed $(dpkg-deb -f "$(echo /mnt/new/"${core}"_*.deb)" Version)" ] &&
		[ "$(postmaster)" = "$before" ] && [ "$(mapped)" = "$lib/idempotency.so (deleted)" ]
}

restart()
{
	run_span upgrade 'sudo systemctl restart' && [ "$(mapped)" = "$lib/idempotency.so" ]
}

# The version, the update; relays are back.
update()
{
	blocks upgrade "The update" /tmp/update && blocks upgrade "Afterwards" /tmp/afterwards &&
		runuser -u postgres -- psql -X -v ON_ERROR_STOP=1 -f - <<<"$(cat /tmp/update/*.block)" &&
		until_is "$(cat /tmp/afterwards/01.output)" in_columns /tmp/afterwards/01.block
}

# The output of a block as a page has it.
in_columns()
{
	runuser -u postgres -- psql -X -f - <"$1" | sed 's/[ \t]*$//'
}

remove()
{
	apt remove "${ours[@]}" && sql -c 'SELECT' && [ ! -e "$lib/idempotency.so" ]
}

# As PostgreSQL does with every library that is preloaded and gone.
refuses_to_start()
{
	cluster stop && ! cluster start && grep 'FATAL:  could not access file "idempotency": No such file or directory' "$log"
}

# From 18 on the message is without the directory.
starts_without()
{
	rm "$conf"
	cluster start && [ "$(sql -c 'SELECT count(*) FROM invoices')" = 3 ] &&
		! sql -c "SELECT idempotency.claim_event('evt-2')" 2>/tmp/answer || return 1
	cat /tmp/answer
	grep -qE 'could not access file "([$]libdir/)?idempotency": No such file or directory' /tmp/answer
}

again()
{
	install_from /mnt/new || return 1
	preload
	cluster restart
}

# Another library that is preloaded stays.
off_the_server()
{
	sql -c "ALTER SYSTEM SET shared_preload_libraries = auto_explain, idempotency" && rm "$conf" && cluster restart && sql -c 'DROP EXTENSION idempotency CASCADE' || return 1
	blocks remove "Off the server" /tmp/off && runuser -u postgres -- psql -X -v ON_ERROR_STOP=1 -f - </tmp/off/01.block && cluster restart &&
		[ "$(sql -c 'SHOW shared_preload_libraries')" = auto_explain ] && [ "$(mapped)" = "" ]
}

purge()
{
	run_span remove 'sudo apt purge' && cluster restart && cluster stop && apt -o APT::AutoRemove::SuggestsImportant=false -o APT::AutoRemove::RecommendsImportant=false autoremove --purge || return 1
	[ -z "$(dpkg-query -W -f '${Package}\n' '*idempotency*' 2>/dev/null)" ] && diff /tmp/before <(files)
}

apt update >/dev/null || exit 1
check "the server without the extension" apt install "postgresql-$VERSION"
create_cluster || exit 1
files >/tmp/before
mapfile -t ours < <(names /mnt/new)
mapfile -t debs < <(printf '%s\n' /mnt/new/*.deb | grep -v -e -dbgsym_)
check "the lower version is installed" install_from /mnt/old
check "the core needs nothing that the server does not" core_is_light
check "each sink's program is there, and its libraries are" programs_are_whole
check "the documents and the monitoring files are there" documents_are_whole
check "the server preloads the library" start
check "extension, three relays, a claim" set_up
check "an event arrives" event 1
check "upgrade of the packages, with the server running" upgrade
check "the server goes on" event 2
check "a restart takes the new library" restart
check "update of the extension" update
check "an event arrives after the restart" event 3
check "what was claimed is remembered" remembered
check "remove, with the server running" remove
check "the server does not start with the library preloaded and gone, and says why" refuses_to_start
check "it starts without" starts_without
check "the packages again" again
check "an event arrives again" event 4
check "what was claimed still is remembered" remembered
check "the extension and the preload are taken away" off_the_server
check "purge leaves nothing" purge
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
