#!/bin/bash
# README.md as pasted: the commands of its Install, and the SQL of its first event.
#
#	readme.sh sources	with the commands that build and install the sources; run.sh runs this in
#						a copy of the bare folder
#	readme.sh packages	with those that build and install packages, which test/packages has
#						built already: they are in /mnt/new
#
# The sources are in /tmp/idempotency.  The folder has no sudo and no systemd: functions
# stand in for these two, and for a make debs.  apt asks nothing there.  The last line is
# "N passed, N failed".
set -uo pipefail

readme=/tmp/idempotency/README.md
# The server that README.md names
version=15
good=0
bad=0

sudo()
{
	if [ "$1" = -u ]; then
		runuser -u "$2" -- "${@:3}"
	else
		"$@"
	fi
}

# README.md restarts a server that is running; after this start, it is.
systemctl()
{
	pg_ctlcluster "$version" main "$1"
}

make()
{
	if [ "${1:-}" = debs ]; then
		[ "$*" = "debs VERSIONS=$version" ] && [ -f src/packaging/debs.sh ] && mkdir -p build/debs &&
			ln -s /mnt/new "build/debs/$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
	else
		command make "$@"
	fi
}

# The address of README.md: a repository of the tree as it is.
make_repository()
{
	apt-get -q -y install git && cd /tmp/idempotency && git init -q . && git add -A &&
		git -c user.name=readme -c user.email=readme@localhost commit -q -m "The tree as it is"
}

# section NAME: its lines.
section()
{
	awk -v name="## $1" '/^## / { inside = $0 == name } inside' "$readme"
}

# install_block N: the commands of an indented block of Install.
install_block()
{
	section Install | awk -v n="$1" '/^    / { if (!inside) block++; inside = 1; if (block == n) print substr($0, 5); next }
		{ inside = 0 }'
}

# sql_block N: of the first event.
sql_block()
{
	section "Your first event" | awk -v n="$1" '/^```/ { inside = !inside; if (inside && /^```sql/) block++; sql = inside && /^```sql/; next }
		sql && block == n'
}

# check NAME COMMAND...: not as the condition of an if, where set -e has no effect
check()
{
	local out status

	out=$("${@:2}" 2>&1)
	status=$?
	if [ "$status" = 0 ]; then
		echo "ok       README: $1"
		good=$((good + 1))
	else
		echo "NOT OK   README: $1"
		tail -n 40 <<<"$out" | sed 's/^/    | /'
		bad=$((bad + 1))
	fi
}

run_block()
{
	local commands

	commands=$(install_block "$1")
	[ -n "$commands" ] || return 1
	(
		set -e
		# shellcheck disable=SC2034 # the commands of README.md use it
		URL=/tmp/idempotency
		eval "$commands"
	)
}

preloads()
{
	[ "$(sudo -u postgres psql -At -c 'SHOW shared_preload_libraries')" = "pg_stat_statements, idempotency" ]
}

first_event()
{
	local tries

	sql_block 1 | sudo -u postgres psql -q -v ON_ERROR_STOP=1 || return 1
	for tries in {1..600}; do
		[ "$(sql_block 2 | sudo -u postgres psql -At)" != "42|99.90" ] || return 0
		sleep 0.1
	done
	echo "no invoice after $tries tries:"
	sql_block 3 | sudo -u postgres psql
	return 1
}

echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/91readme
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
mkdir /tmp/readme && cd /tmp/readme && chmod 755 . || exit 1
check "the repository that is cloned" make_repository
if [ "${1:-}" = packages ]; then
	check "clone, build and installation of packages" run_block 1
else
	check "packages, clone, build and installation" run_block 2
fi
# The network is that of the machine, where others may have servers: this one has a socket only.
printf "listen_addresses = ''\nport = 5432\n" >"/etc/postgresql/$version/main/conf.d/socket.conf"
# a server that preloads something already, as servers do
sed -i 's/^#*shared_preload_libraries.*/shared_preload_libraries = '"'pg_stat_statements'"'/' "/etc/postgresql/$version/main/postgresql.conf"
systemctl restart
check "preload and extension" run_block 3
check "what was preloaded still is" preloads
check "the first event" first_event
systemctl stop
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
