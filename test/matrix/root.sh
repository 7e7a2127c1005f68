# Debian releases as folders, which debootstrap makes out of the mirror that this machine
# uses, and commands that run inside of such a folder.
#
# Source this file.  A folder is complete or is not there: it is made under another name.
# It stays in $cache between runs.

# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variable

cache=${IDEMPOTENCY_MATRIX_CACHE:-$HOME/.cache/idempotency-matrix}

# The Debian release that carries a major version, and another that is to be
# used on top of it.
suite_of()
{
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
		19) echo "sid experimental" ;;
		*) return 1 ;;
	esac
}

# The mirror that apt on this machine gets Debian from.
find_mirror()
{
	# shellcheck disable=SC2016 # apt expands it
	apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 2>/dev/null |
		awk '$1 == "Debian" && $2 !~ /-security/ { print $NF; exit }'
}

# The same, after asking apt again if it names none.
need_mirror()
{
	local mirror

	mirror=$(find_mirror)
	[ -n "$mirror" ] || { apt-get -q update >&2 && mirror=$(find_mirror); }
	[ -n "$mirror" ] || {
		echo "apt names no Debian mirror" >&2
		return 1
	}
	echo "$mirror"
}

apt_opts()
{
	local proxy

	cat <<-END
		Acquire::Check-Valid-Until "false";
		Acquire::Retries "3";
		APT::Install-Recommends "false";
	END
	# A proxy that this machine's apt goes through is needed inside, too.
	proxy=$(apt-config dump 2>/dev/null | grep -iE '^Acquire::https?::Proxy ')
	[ -z "$proxy" ] || echo "$proxy"
}

# bootstrap SUITE DIR MIRROR: the smallest Debian, which knows its mirror.
bootstrap()
{
	# One script fits every release; an older debootstrap lacks the newest names.  Its
	# mounts go with it, however it ends.
	unshare --mount debootstrap --variant=minbase "$1" "$2" "$3" /usr/share/debootstrap/scripts/sid || return 1
	apt_opts >"$2/etc/apt/apt.conf.d/90idempotency"
	echo "deb $3 $1 main" >"$2/etc/apt/sources.list"
}

# server_from ROOT VERSION SUITE MIRROR: let the folder take this server out of another
# release as well, and nothing else from there.
server_from()
{
	echo "deb $4 $3 main" >>"$1/etc/apt/sources.list"
	printf 'Package: src:postgresql-%s\nPin: release a=%s\nPin-Priority: 990\n' "$2" "$3" >"$1/etc/apt/preferences.d/idempotency"
}

# no_services ROOT: a cluster or a service that a package would start does not start there.
no_services()
{
	printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
	chmod 755 "$1/usr/sbin/policy-rc.d"
	mkdir -p "$1/etc/postgresql-common/createcluster.d"
	echo 'create_main_cluster = false' >"$1/etc/postgresql-common/createcluster.d/idempotency-test.conf"
}

# clean_folder VERSION: print the path of the smallest Debian of the release that carries
# this server.  It has its lists of packages, and starts no services.
clean_folder()
{
	local suite extra root new mirror

	read -r suite extra < <(suite_of "$1") || return 1
	root=$cache/debian-$suite
	new=$root.new
	echo "$root"
	[ ! -d "$root" ] || return 0
	{
		mirror=$(need_mirror) && mkdir -p "$cache" && rm -rf --one-file-system "$new" && bootstrap "$suite" "$new" "$mirror" || return 1
		if [ -n "$extra" ]; then
			server_from "$new" "$1" "$extra" "$mirror"
			# Debian's tools take a server for supported once its own release has it
			mkdir -p "$new/etc/postgresql-common"
			echo "$1" >"$new/etc/postgresql-common/supported_versions"
		fi
		no_services "$new"
		inside "$new" "apt-get -q update" && mv "$new" "$root"
	} >&2
}

# made_folder NAME VERSION COMMAND: print the path of a copy of it in which the command has run.
made_folder()
{
	local root=$cache/$1 new=$cache/$1.new clean

	echo "$root"
	[ ! -d "$root" ] || return 0
	{
		clean=$(clean_folder "$2") && rm -rf --one-file-system "$new" && cp -a "$clean" "$new" &&
			inside "$new" "apt-get -q update && $3" DEBIAN_FRONTEND=noninteractive && mv "$new" "$root"
	} >&2
}

# inside ROOT COMMAND [NAME=VALUE...]: with that environment, in namespaces of its
# own, with the usual file systems.  If they are set, the archive SOURCES is unpacked in
# /tmp, the directory SHARE is /mnt, and LAYER is an empty directory over which the folder
# looks changed: the folder stays as it is, and the changes go with the command.
inside()
{
	local root=$1 command=$2
	shift 2

	# shellcheck disable=SC2016 # expanded inside
	ROOT=$root COMMAND=$command unshare --mount --pid --ipc --fork --kill-child bash -c '
		set -e
		if [ -n "${LAYER:-}" ]; then
			mount -t tmpfs tmpfs "$LAYER"
			mkdir "$LAYER"/{upper,work,root}
			mount -t overlay -o "lowerdir=$ROOT,upperdir=$LAYER/upper,workdir=$LAYER/work" overlay "$LAYER/root"
			ROOT=$LAYER/root
		fi
		mount -t proc proc "$ROOT/proc"
		mount --rbind /dev "$ROOT/dev"
		mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
		mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
		[ -z "${SHARE:-}" ] || mount --bind "$SHARE" "$ROOT/mnt"
		[ -z "${SOURCES:-}" ] || tar -x -C "$ROOT/tmp" -f "$SOURCES"
		cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf" 2>/dev/null || true
		exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
			TERM="${TERM:-dumb}" "$@" chroot "$ROOT" /bin/bash -c "$COMMAND"' inside "$@" </dev/null
}
