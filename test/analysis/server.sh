#!/bin/bash
# Build an assert-enabled server that valgrind understands, from the source
# package of the distribution, and print the path of its pg_config.
#
#	server.sh				of the major version of PG_CONFIG
#
# The source is Debian's, with its patches: extension_destdir is one of them,
# and without it a server could not use a staged extension.  Source entries are
# kept in lists of this script's own; those of the machine are not touched.
# The result is kept, one directory per major version, in
# $IDEMPOTENCY_ANALYSIS_CACHE; it must be readable by the user who runs
# servers, hence not in root's home.  The status is 3 if the source cannot be
# fetched, and 1 after any other failure.
set -euo pipefail
cd "$(dirname "$0")"
# The server's makefiles make their headers only where no other make is above.
unset MAKELEVEL MAKEFLAGS MFLAGS

if [ "$(id -u)" = 0 ]; then
	default=/var/cache/idempotency-analysis
else
	default=$HOME/.cache/idempotency-analysis
fi
CACHE=${IDEMPOTENCY_ANALYSIS_CACHE:-$default}
PG_CONFIG=${PG_CONFIG:-pg_config}
# Little optimization: valgrind's stacks name the right lines then.
CONFIGURE=(--enable-cassert --enable-debug --enable-tap-tests --with-openssl
	--without-readline CPPFLAGS=-DUSE_VALGRIND
	"CFLAGS=-O1 -fno-omit-frame-pointer")

CONTRIB=(pgcrypto amcheck pgstattuple)

die()
{
	echo "server.sh: $*" >&2
	exit 1
}

# fetch SOURCE DIR: the unpacked and patched source, in DIR/src, and its version,
# in DIR/version.
fetch()
{
	local source=$1 dir=$2
	local options=(-o Dir::Etc::SourceList="$dir/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::State::Lists="$dir/apt/lists" -o Dir::Cache="$dir/apt/cache"
		-o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false)

	mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial"
	# shellcheck disable=SC2016 # apt expands it
	apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' "Identifier: Packages" |
		grep -i debian | sort -u >"$dir/apt/sources.list"
	apt-get -qq "${options[@]}" update
	# A mirror may lack the newest one.
	while read -r version; do
		if (cd "$dir" && apt-get -qq "${options[@]}" --only-source source "$source=$version"); then
			mv "$dir"/postgresql-*/ "$dir/src"
			echo "$version" >"$dir/version"
			return
		fi
	done < <(apt-cache "${options[@]}" --only-source showsrc "$source" |
		sed -n 's/^Version: //p' | sort -uVr)
	return 1
}

# build DIR TARGET
build()
{
	local part

	(
		cd "$1/src"
		./configure --prefix="$2" "${CONFIGURE[@]}"
		for part in . "${CONTRIB[@]/#/contrib/}"; do
			make -s -j"$(nproc)" -C "$part"
			make -s -C "$part" install
		done
		make -s -C src/test/isolation
		make -s -C src/test/isolation install
		install -m 644 src/tools/valgrind.supp "$2/valgrind.supp"
	)
}

# What fails in a function leaves while the log is still its output.
exec {stderr}>&2

finish()
{
	local status=$?

	if [ "$status" != 0 ]; then
		tail -n 40 "$work/log" >&"$stderr"
		echo "server.sh: could not $doing $source" >&"$stderr"
	fi
	rm -rf "$work"
	exit "$status"
}

source=postgresql-$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
target=$CACHE/$source
[ "${1:-}" = "" ] || die "usage: server.sh"
if [ "$(cat "$target/complete" 2>/dev/null)" != "${CONTRIB[*]}" ]; then
	mkdir -p "$CACHE"
	work=$(mktemp -d "${TMPDIR:-/tmp}/idem-server.XXXXXX")
	doing=fetch
	trap finish EXIT
	rm -rf "$target"
	fetch "$source" "$work" >"$work/log" 2>&1 || exit 3
	doing=build
	# On a line of its own: a failure inside ends the script.
	build "$work" "$target" >>"$work/log" 2>&1
	echo "${CONTRIB[*]}" >"$target/complete"
	chmod -R a+rX "$CACHE"
fi
echo "$target/bin/pg_config"
