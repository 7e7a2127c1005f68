#!/bin/bash
# Run the suites on every supported server.
#
#	VERSIONS="15 17 18 19"	which, default all; "bare" is a machine without a server
#	AREA="compile regress isolation tap"	default: these; in "bare" lint as well
#	TESTS=...				as for make test
#
# The version that this machine has runs as it is.  Every other one lives in a
# folder that debootstrap makes from the Debian release that carries it, out of
# the mirror this machine uses, and that is kept between runs in
# ${IDEMPOTENCY_MATRIX_CACHE:-$HOME/.cache/idempotency-matrix}.
#
# Each folder also holds PostgreSQL 15, out of the release that carries that: pg_upgrade
# comes from it.  Not from the version before: 17.12 writes an option pg_attver into its
# catalog, and 18.6, the newest that is packaged, takes no dump that has it.
#
# "bare" is Debian as a fresh machine has it: debootstrap's smallest variant with
# git, make and the certificates that a mirror may need.  There the sources run
# `make demo` and `make test`, as a user would, and install what they lack.  In
# another copy the commands of README.md are tried as they stand (readme.sh).  The
# folder that is kept stays bare: each run works on a copy.
#
# A run inside has mount, process and IPC namespaces of its own: when it ends,
# however it ends, its mounts are gone, its processes dead and its shared memory
# freed.  The sources and all output lie on a tmpfs that goes with them.
set -uo pipefail
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
# shellcheck source=test/setup/tally.sh
. "$IDEM_TOP/test/setup/tally.sh"
# shellcheck source=test/setup/tree.sh
. "$IDEM_TOP/test/setup/tree.sh"
# shellcheck source=test/matrix/root.sh
. "$IDEM_TOP/test/matrix/root.sh"
cd "$IDEM_TOP" || exit 1

VERSIONS=${VERSIONS:-15 17 18 19}
bare_area=${AREA:-compile regress isolation tap lint}
AREA=${AREA:-compile regress isolation tap}
bare_version=15
# The version to upgrade from
old_version=15
passed=0
failed=0
summary=()

# count VERSION STATUS LOG
count()
{
	tally "$3" "$2"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	summary+=("$1: $TALLY_SAID")
}

# make_root VERSION: the folder, complete or not at all.
make_root()
{
	local version=$1 root=$cache/pg$1 new=$cache/pg$1.new suite extra mirror

	[ ! -x "$root/usr/lib/postgresql/$version/bin/postgres" ] || return 0
	read -r suite extra < <(suite_of "$version") || {
		echo "no Debian release is known for PostgreSQL $version" >&2
		return 1
	}
	mirror=$(need_mirror) || return 1
	mkdir -p "$cache"
	rm -rf "$root" "$new"
	bootstrap "$suite" "$new" "$mirror" || return 1
	[ -z "$extra" ] || server_from "$new" "$version" "$extra" "$mirror"
	no_services "$new"
	inside "$new" "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install \
		postgresql-$version postgresql-server-dev-$version libpq-dev" || return 1
	mv "$new" "$root"
}

# add_old VERSION: the server to upgrade from into its folder, once.  Of the other
# release's development package only the files: its compiler is not needed.
add_old()
{
	local root=$cache/pg$1 suite mirror

	[ ! -e "$root/usr/include/postgresql/$old_version/server/postgres.h" ] || return 0
	suite=$(suite_of "$old_version")
	mirror=$(find_mirror)
	echo "deb $mirror $suite main" >"$root/etc/apt/sources.list.d/old.list"
	inside "$root" "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install \
		postgresql-$old_version && cd /tmp && apt-get -q download postgresql-server-dev-$old_version &&
		dpkg -x postgresql-server-dev-${old_version}_*.deb /"
}

# make_bare: the folder of a bare machine, complete or not at all.
make_bare()
{
	local root=$cache/bare new=$cache/bare.new mirror

	[ ! -d "$root" ] || return 0
	mirror=$(need_mirror) || return 1
	mkdir -p "$cache"
	rm -rf "$new"
	bootstrap "$(suite_of "$bare_version")" "$new" "$mirror" || return 1
	inside "$new" "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install \
		git make ca-certificates && apt-get clean" || return 1
	mv "$new" "$root"
}

# What a commit of the tree as it is would hold, as one archive.
pack_sources()
{
	tree_copy "$work/idempotency"
	tar -c -C "$work" -f "$work/sources.tar" idempotency
}

run_native()
{
	idem_say "PostgreSQL $1, this machine"
	AREA=$AREA TESTS=${TESTS:-} test/setup/run.sh 2>&1 | tee "$work/$1.log"
	count "$1" "${PIPESTATUS[0]}" "$work/$1.log"
}

run_inside()
{
	local version=$1

	idem_say "PostgreSQL $version"
	if ! { make_root "$version" && add_old "$version"; } >"$work/$version.root" 2>&1; then
		echo "NOT OK   PostgreSQL $version: its folder could not be made"
		tail -n 30 "$work/$version.root" | sed 's/^/    | /'
		count "$version" 1 /dev/null
		return
	fi
	SOURCES=$work/sources.tar inside "$cache/pg$version" "cd /tmp/idempotency && exec test/setup/run.sh" \
		AREA="$AREA" TESTS="${TESTS:-}" WERROR="${WERROR-1}" \
		PG_CONFIG="/usr/lib/postgresql/$version/bin/pg_config" \
		OLD_PG_CONFIG="/usr/lib/postgresql/$old_version/bin/pg_config" 2>&1 |
		tee "$work/$version.log"
	count "$version" "${PIPESTATUS[0]}" "$work/$version.log"
}

# As a user does it, in a clone.
# shellcheck disable=SC2016 # expanded inside
bare_script='
	cd /tmp/idempotency || exit 1
	git init -q . && git add -A &&
		git -c user.name=bare -c user.email=bare@localhost commit -q -m "The tree as it is" || exit 1
	if ! make demo; then
		echo "NOT OK   make demo"
		echo "0 passed, 1 failed"
		exit 1
	fi
	echo "ok       make demo"
	exec make test AREA="$AREA" TESTS="$TESTS"'

run_bare()
{
	local root=$work/bare

	idem_say "a bare machine, Debian $(suite_of "$bare_version")"
	if ! { make_bare && cp -a "$cache/bare" "$root"; } >"$work/bare.root" 2>&1; then
		echo "NOT OK   bare: its folder could not be made"
		tail -n 30 "$work/bare.root" | sed 's/^/    | /'
		count bare 1 /dev/null
		return
	fi
	SOURCES=$work/sources.tar inside "$root" "$bare_script" AREA="$bare_area" TESTS="${TESTS:-}" 2>&1 |
		tee "$work/bare.log"
	count bare "${PIPESTATUS[0]}" "$work/bare.log"
	rm -rf "$root"
	idem_say "README.md on a bare machine"
	cp -a "$cache/bare" "$root"
	SOURCES=$work/sources.tar inside "$root" "exec /tmp/idempotency/test/matrix/readme.sh sources" 2>&1 | tee "$work/readme.log"
	count "README.md" "${PIPESTATUS[0]}" "$work/readme.log"
	rm -rf "$root"
}

[ "$(id -u)" = 0 ] || [ "$VERSIONS" = "$(pg_config --version 2>/dev/null | sed 's/^PostgreSQL \([0-9]*\).*/\1/')" ] ||
	idem_die "the matrix makes folders with debootstrap and mounts in them: run it as root"
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-matrix.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
test/setup/packages.sh build matrix || idem_die "packages could not be installed"
pack_sources
here=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
for version in $VERSIONS; do
	if [ "$version" = bare ]; then
		run_bare
	elif [ "$version" = "$here" ]; then
		run_native "$version"
	else
		run_inside "$version"
	fi
done
idem_say "matrix"
printf '   %s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
