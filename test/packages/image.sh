#!/bin/bash
# A PostgreSQL that has nothing of the extension but a directory, as CloudNativePG mounts an
# image: a claim, and relays with sink programs.
#
# run.sh runs this in a copy of a folder with nothing but debootstrap's smallest variant, with
# what make image-root laid out in /mnt/idempotency.  VERSION is the server's major.  The last
# line is "N passed, N failed".
set -uo pipefail
# shellcheck source=test/packages/checks.sh
. /tmp/idempotency/test/packages/checks.sh

volume=/extensions/idempotency

# Mounted read-only, and owned by nobody that the server runs as.
mount_volume()
{
	mkdir -p "$volume"
	mount --bind /mnt/idempotency "$volume" && mount -o remount,bind,ro "$volume" && ! touch "$volume/lib/x" 2>/dev/null
}

# The libraries that are not of libc come from the volume.
programs_are_whole()
{
	local program

	for program in "$volume"/lib/idempotency-sinks/*; do
		[ -x "$program" ] || return 1
		! ldd "$program" | grep 'not found' || return 1
		! ldd "$program" | grep -vE '=> /extensions/|/(libc|libm|libdl|librt|libpthread|libresolv)\.so|ld-linux|linux-vdso' || return 1
	done
	[ "$(find "$volume/lib/idempotency-sinks" -type f | wc -l)" = "$(kinds | wc -l)" ]
}

# A licence for each library, by the package that it is from.
licences()
{
	[ -s "$volume/licenses/idempotency/LICENSE" ] && [ "$(find "$volume/licenses" -name copyright -size +0 | wc -l)" -gt 5 ]
}

start()
{
	cat >"$conf" <<-END
		extension_control_path = '\$system:$volume/share'
		dynamic_library_path = '\$libdir:$volume/lib'
		shared_preload_libraries = 'idempotency'
	END
	cluster start && [ "$(mapped)" = "$volume/lib/idempotency.so" ]
}

programs_of_volume()
{
	local pid

	for pid in $(sql -c "SELECT sink_pid FROM idempotency.stat_relay WHERE sink_pid IS NOT NULL"); do
		[[ $(readlink "/proc/$pid/exe") == */lib/idempotency-sinks/* ]] || return 1
	done
	[ -n "${pid:-}" ]
}

lib=$volume/lib
apt update >/dev/null || exit 1
check "the server without the extension" apt install "postgresql-$VERSION"
create_cluster || exit 1
check "the directory, mounted read-only" mount_volume
check "each program has its libraries in the directory" programs_are_whole
check "and their licences are there" licences
check "the server preloads the library" start
check "extension, three relays, a claim" set_up
check "an event arrives" event 1
check "the programs are those of the directory" programs_of_volume
check "what was claimed is remembered" remembered
cluster stop
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
