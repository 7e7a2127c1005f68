#!/bin/bash
# The way to another major version on Debian, by pg_upgradecluster as doc/howto/upgrade.md has it: a
# server of the former release, with the packages of that release, beside the server of this one.
#
# run.sh runs this in a copy of a folder with nothing but debootstrap's smallest variant, with
# the packages for this release in /mnt/new, and those for OLD, of the former release, in
# /mnt/old.  VERSION is this release's major, OLD_SUITE the name of the former release.  The
# last line is "N passed, N failed".
set -uo pipefail
new=$VERSION
VERSION=$OLD
# shellcheck source=test/packages/checks.sh
. /tmp/idempotency/test/packages/checks.sh
# shellcheck source=test/packages/page.sh
. /tmp/idempotency/test/packages/page.sh

# The old server comes from the former release, as on a machine that came from there.
former_release()
{
	local mirror

	read -r _ mirror _ </etc/apt/sources.list
	echo "deb $mirror $OLD_SUITE main" >/etc/apt/sources.list.d/old.list
	printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$OLD_SUITE" >/etc/apt/preferences.d/old
	apt update
}

# install VERSION DIR: that server, with the extension and two programs of sinks.
install()
{
	apt install "postgresql-$1" "$2/postgresql-$1-idempotency"_*.deb "$2"/idempotency-sink-{null,postgres}_*.deb
}

start()
{
	create_cluster && printf "%s\n" "shared_preload_libraries = 'idempotency'" "idempotency.publish_as = 'shop'" >"$conf" && cluster start
}

sudo()
{
	"$@"
}

# The page's command; its output is kept.
upgrade()
{
	blocks upgrade "On Debian" /tmp/major &&
		eval "$(sed "s/ 15 / $OLD /" /tmp/major/01.block)" >/tmp/upgrade.log 2>&1
}

# Without the preload, and the old server goes on.
is_refused()
{
	! upgrade && grep -rq 'security label provider "idempotency" is not loaded' /var/log/postgresql/pg_upgradecluster-* &&
		[ "$(pg_lsclusters -h | wc -l)" = 1 ]
}

# What conf.d has
set_by_alter_system()
{
	sql -c "ALTER SYSTEM SET shared_preload_libraries = 'idempotency'" -c "ALTER SYSTEM SET idempotency.publish_as = 'shop'" -c "ALTER SYSTEM SET listen_addresses = ''"
}

is_new()
{
	upgrade || {
		cat /tmp/upgrade.log
		return 1
	}
	[ "$(sql -c "SELECT current_setting('server_version_num')::int / 10000")" = "$new" ]
}

purge_old()
{
	apt purge "postgresql-$OLD" "postgresql-$OLD-idempotency" && pg_ctlcluster "$new" main restart
}

check "the former release" former_release
check "its server and packages" install "$OLD" /mnt/old
check "a cluster that preloads the library" start
check "extension, three relays, a claim" set_up
check "an event arrives" event 1
check "the new server and packages" install "$new" /mnt/new
check "the old server goes on" event 2
check "no upgrade with the preload in conf.d" is_refused
check "the old server still goes on" event 3
check "the settings by ALTER SYSTEM" set_by_alter_system
check "the upgrade" is_new
check "the relays go on" event 4
check "what was claimed is remembered" remembered
check "without the old server" purge_old
check "the relays still go on" event 5
pg_ctlcluster "$new" main stop
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
