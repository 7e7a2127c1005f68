#!/bin/bash
# Build the Debian packages of this tree, each in a clean folder of its Debian release:
#
#	VERSIONS="15 17"	the releases that carry these PostgreSQL majors, default: these;
#						18 and 19 are others
#	DEBS=DIR			where they go, in a folder per release; default: build/debs
#	debs.sh --folder VERSION	only print the folder in which the packages are built
#	CHECK=1				run the regression tests during the build, as a build of Debian does
#
# A folder has what debootstrap's smallest variant, build-essential and Build-Depends of
# debian/control.in bring, lintian and piuparts.  It is made once, and again when Build-Depends
# changes; test/matrix/root.sh says where it stays.  The build has no network, and is not
# root.  A warning of the compiler is an error.  The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/matrix/root.sh
. test/matrix/root.sh
# shellcheck source=test/setup/tree.sh
. test/setup/tree.sh

VERSIONS=${VERSIONS:-15 17}
DEBS=$(realpath -m "${DEBS:-build/debs}")
passed=0
failed=0

# The packages of Build-Depends, as one line for apt-get satisfy.
build_depends()
{
	sed -n '/^Build-Depends:/,/^[^ ]/ s/^ //p' src/packaging/debian/control.in | tr -d '\n'
}

# build_folder VERSION: print the folder to build in.
build_folder()
{
	local suite command id old

	read -r suite _ < <(suite_of "$1") || return 1
	# lo is up for the tests of a build, which has no other network.  What Build-Depends calls
	# all servers are those of the release: 19 has to be named.
	command="apt-get -q -y install build-essential iproute2 lintian fakeroot piuparts postgresql-$1 postgresql-server-dev-$1 &&
		apt-get -q -y satisfy '$(build_depends)' && useradd --create-home builder"
	id=debs-$suite-$(md5sum <<<"$command" | cut -c 1-8)
	for old in "$cache/debs-$suite"-*; do
		[ "$old" = "$cache/$id" ] || rm -rf --one-file-system "$old"
	done
	made_folder "$id" "$1" "$command"
}

# build VERSION: the packages for the release that carries this server.
build()
{
	local suite folder

	read -r suite _ < <(suite_of "$1") && folder=$(build_folder "$1") && [ -d "$folder" ] || return 1
	rm -rf "${DEBS:?}/$suite"
	mkdir -p "$DEBS/$suite"
	# sudo make debs must not leave files in the tree that its owner cannot write
	[[ $DEBS != "$PWD"/build/* ]] || chown --reference=. build "$DEBS" "$DEBS/$suite"
	SOURCES=$work/sources.tar SHARE=$DEBS/$suite inside "$folder" "exec bash /tmp/idempotency/src/packaging/build.sh" \
		SUITE="$suite" CHECK="${CHECK:-}" JOBS="$(nproc)"
}

[ "$(id -u)" = 0 ] || {
	echo "debs.sh makes folders with debootstrap and mounts in them: run it as root" >&2
	exit 1
}
test/setup/packages.sh matrix || exit 1
if [ "${1:-}" = --folder ]; then
	build_folder "$2"
	exit
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-debs.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
tree_copy "$work/idempotency"
tar -c -C "$work" -f "$work/sources.tar" idempotency
for version in $VERSIONS; do
	echo "== packages for PostgreSQL $version"
	if build "$version" >"$work/log" 2>&1; then
		echo "ok       packages for PostgreSQL $version: $(find "$DEBS/$(suite_of "$version" | cut -d ' ' -f 1)" -name '*.deb' ! -name '*dbgsym*' | wc -l) in $DEBS"
		passed=$((passed + 1))
	else
		echo "NOT OK   packages for PostgreSQL $version"
		tail -n "${FAIL_LINES:-60}" "$work/log" | sed 's/^/    | /'
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
