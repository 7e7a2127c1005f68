#!/bin/bash
# Fetch the valkey-server of a newer Debian release than this machine's, and print the path
# of a program that starts it.  Beside it, in hiredis/, is the hiredis of that release,
# which has TLS.
#
#	valkey.sh [RELEASE]		default: trixie, the first with Valkey; bookworm has Redis 7.0
#
# apt does it with lists of its own, and checks Debian's signatures; nothing is installed.
# The server comes with the libraries of its release, and their loader starts it.  It is
# kept in ${IDEMPOTENCY_VALKEY_CACHE:-$HOME/.cache/idempotency-valkey}, in a directory per
# release, and is fetched once.
set -euo pipefail
cd "$(dirname "$0")/../.."

release=${1:-trixie}
cache=${IDEMPOTENCY_VALKEY_CACHE:-$HOME/.cache/idempotency-valkey}
there=$cache/$release

if [ ! -x "$there/valkey-server" ]; then
	# shellcheck disable=SC2016 # apt expands it
	mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 2>/dev/null |
		awk '$1 == "Debian" && $2 !~ /-security/ { print $NF; exit }')
	[ -n "$mirror" ] || {
		echo "valkey.sh: apt on this machine has no mirror of Debian; run apt-get update" >&2
		exit 1
	}
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
	echo "deb $mirror $release main" >"$work/sources.list"
	: >"$work/status"
	apt=(apt-get -q -y -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/nonexistent
		-o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
		-o Acquire::Check-Valid-Until=false -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1)
	{
		"${apt[@]}" update
		"${apt[@]}" --no-install-recommends --download-only install valkey-server libhiredis-dev
		for package in "$work"/cache/archives/lib*.deb "$work"/cache/archives/valkey-*.deb; do
			dpkg-deb -x "$package" "$work/root"
		done
	} >&2 </dev/null
	loader=$(find "$work/root" -name 'ld-linux*.so.*' | head -n 1)
	libraries=$(find "$work/root" -name libc.so.6 -printf '%h\n' | head -n 1)
	arch=${libraries#"$work/root"}
	server=$(readlink -f "$work/root/usr/bin/valkey-server")
	rm -rf "$there"
	mkdir -p "$there"
	cp -RL "$libraries" "$there/lib"
	cp "$loader" "$there/loader"
	mkdir -p "$there/hiredis/usr/include" "$there/hiredis$arch"
	cp -R "$work/root/usr/include/hiredis" "$there/hiredis/usr/include/"
	cp -R "$work/root$arch"/libhiredis*.so* "$work/root$arch/pkgconfig" "$there/hiredis$arch/"
	cp "$server" "$there/server"
	cat >"$there/valkey-server.new" <<-'END'
		#!/bin/sh
		there=$(dirname "$0")
		exec "$there/loader" --library-path "$there/lib" --argv0 valkey-server "$there/server" "$@"
	END
	chmod 755 "$there/valkey-server.new" "$there/loader" "$there/server"
	chmod -R a+rX "$there"
	"$there/valkey-server.new" --version >&2
	mv "$there/valkey-server.new" "$there/valkey-server"
fi
echo "$there/valkey-server"
