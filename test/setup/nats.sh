#!/bin/bash
# Fetch the nats-server of a newer Debian release than this machine's, and print its path.
#
#	nats.sh [RELEASE]	default: forky, the first with atomic batches; bookworm has a server without
#
# apt does it with lists of its own, and checks Debian's signatures; nothing is installed.
# The server is one static program, which runs on every release.  It is kept in
# ${IDEMPOTENCY_NATS_CACHE:-$HOME/.cache/idempotency-nats}, in a directory per release, and is
# fetched once.
set -euo pipefail
cd "$(dirname "$0")/../.."

release=${1:-forky}
cache=${IDEMPOTENCY_NATS_CACHE:-$HOME/.cache/idempotency-nats}
there=$cache/$release

if [ ! -x "$there/nats-server" ]; then
	# shellcheck disable=SC2016 # apt expands it
	mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 2>/dev/null |
		awk '$1 == "Debian" && $2 !~ /-security/ { print $NF; exit }')
	[ -n "$mirror" ] || {
		echo "nats.sh: apt on this machine has no mirror of Debian; run apt-get update" >&2
		exit 1
	}
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
	echo "deb $mirror $release main" >"$work/sources.list"
	: >"$work/status"
	apt=(apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/nonexistent
		-o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User="$(id -un)")
	{
		"${apt[@]}" update
		(cd "$work" && "${apt[@]}" download nats-server)
		dpkg-deb -x "$work"/nats-server_*.deb "$work/root"
	} >&2 </dev/null
	mkdir -p "$there"
	install -m 755 "$(find "$work/root" -name nats-server -type f -perm -u+x | head -n 1)" "$there/nats-server.new"
	mv "$there/nats-server.new" "$there/nats-server"
	chmod -R a+rX "$there"
fi
echo "$there/nats-server"
