#!/bin/bash
# Build the packages and try them, each in a clean folder of its Debian release:
#
#	VERSIONS="15 17"	the releases that carry these PostgreSQL majors, default: these;
#						18 is another
#	PARTS="debs pgxn image"	default: all
#
#	debs	per version: the packages are built, lintian finds no error and no warning, they
#			are installed, used, upgraded, removed and purged (inside.sh), and the tests of
#			debian/tests pass on the installed server
#	pgxn	the archive of make dist, installed by pgxnclient
#	image	what make image-root lays out, mounted under a PostgreSQL 18 that has nothing
#			else of the extension
#
# src/packaging/debs.sh says what the folders are.  What is tried is the tree as it is; only
# the archive of make dist has what is committed.  The last line is "N passed, N failed".
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

VERSIONS=${VERSIONS:-15 17}
PARTS=${PARTS:-debs pgxn image}
# The server that is tried with an image volume: the first that takes one.
image_version=18
passed=0
failed=0
summary=()

# step NAME COMMAND...: run the command and add up what it counts.  A command that
# counts nothing is one check.
step()
{
	local name=$1 status began=$SECONDS
	shift

	idem_say "$name"
	"$@" >"$work/log" 2>&1
	status=$?
	if grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$work/log"; then
		grep -E '^(ok |NOT OK |    \| )' "$work/log"
	else
		echo "$((status == 0)) passed, $((status != 0)) failed" >>"$work/log"
		if [ "$status" = 0 ]; then
			echo "ok       $name"
		else
			echo "NOT OK   $name"
			tail -n 61 "$work/log" | head -n 60 | sed 's/^/    | /'
		fi
	fi
	tally "$work/log" "$status"
	passed=$((passed + TALLY_GOOD))
	failed=$((failed + TALLY_BAD))
	summary+=("$name: $TALLY_SAID, $((SECONDS - began)) s")
	return "$status"
}

# in_layer FOLDER SCRIPT [NAME=VALUE...]: in a changed copy of the folder.
in_layer()
{
	mkdir -p "$work/layer"
	LAYER=$work/layer SOURCES=$work/sources.tar SHARE=$work/share inside "$@"
}

# build_folder SUITE: the folder in which debs.sh builds.
build_folder()
{
	src/packaging/debs.sh --folder "$1"
}

build_debs()
{
	DEBS=$work/$1 OTHER_VERSION=$2 VERSIONS=$3 src/packaging/debs.sh
}

# shellcheck disable=SC2016 # expanded inside
lint_script='runuser -u builder -- lintian --fail-on error,warning /mnt/new/*.changes'

# The source package is unpacked, and its tests run as a user of its own.
# shellcheck disable=SC2016 # expanded inside
test_script='
	set -e
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -y install $(ls /mnt/new/*.deb | grep -v dbgsym)
	cd /tmp
	runuser -u builder -- dpkg-source --no-check -x /mnt/new/*.dsc source
	cd source
	runuser -u builder -- debian/tests/installcheck'

try_debs()
{
	local version=$1 suite release

	read -r suite _ < <(suite_of "$version")
	release=$(dpkg-parsechangelog -l src/packaging/debian/changelog -S Version 2>/dev/null ||
		sed -n '1s/.*(\(.*\)).*/\1/p' src/packaging/debian/changelog)
	step "packages for $version of a lower version" build_debs old "$release~lower" "$version" &&
		step "packages for $version" build_debs new "" "$version" || return
	rm -rf "$work/share"
	mkdir -p "$work/share"
	mv "$work/old/$suite" "$work/share/old"
	mv "$work/new/$suite" "$work/share/new"
	step "lintian in $suite" in_layer "$(build_folder "$suite")" "$lint_script"
	step "packages in $suite" in_layer "$(clean_folder "$suite")" \
		"exec bash /tmp/idempotency/test/packages/inside.sh" VERSION="$version"
	step "debian/tests in $suite" in_layer "$(build_folder "$suite")" "$test_script"
}

# As a user of PGXN does it, and with two tests of make installcheck.
# shellcheck disable=SC2016 # expanded inside
pgxn_script='
	set -e
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q update
	apt-get -q -y install pgxnclient
	cd /tmp
	archive=$(echo /mnt/*.zip)
	pgxn install --unstable "$archive"
	pg_createcluster -p 5432 "$VERSION" main -- --auth-local=trust
	echo "listen_addresses = '"''"'" >"/etc/postgresql/$VERSION/main/conf.d/socket.conf"
	echo "shared_preload_libraries = '"'idempotency'"'" >"/etc/postgresql/$VERSION/main/conf.d/idempotency.conf"
	pg_ctlcluster "$VERSION" main start
	export PGUSER=postgres TESTS="claim_key"
	psql -c "CREATE EXTENSION idempotency CASCADE" postgres
	pgxn check --unstable -d postgres "$archive"'

try_pgxn()
{
	local suite

	read -r suite _ < <(suite_of 15)
	rm -rf "$work/share"
	mkdir -p "$work/share"
	step "make dist" make --no-print-directory dist || return
	cp "build/$(sed -n 's/^ *"name": "\(.*\)",$/\1/p;T;q' META.json)-"*.zip "$work/share/"
	step "the archive, by pgxnclient in $suite" in_layer "$(build_folder "$suite")" "$pgxn_script" VERSION=15
}

try_image()
{
	local suite

	read -r suite _ < <(suite_of "$image_version")
	rm -rf "$work/share"
	mkdir -p "$work/share"
	step "make image-root in $suite" in_layer "$(build_folder "$suite")" "make -C /tmp/idempotency -j$(nproc) image-root IMAGE_ROOT=/mnt/idempotency" \
		PG_CONFIG="/usr/lib/postgresql/$image_version/bin/pg_config" WERROR=1 || return
	step "the image's directories in $suite" in_layer "$(clean_folder "$suite")" \
		"exec bash /tmp/idempotency/test/packages/image.sh" VERSION="$image_version"
}

[ "$(id -u)" = 0 ] || idem_die "the packages are tried in folders that debootstrap makes: run it as root"
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
test/setup/packages.sh matrix || idem_die "packages could not be installed"
tree_copy "$work/idempotency"
tar -c -C "$work" -f "$work/sources.tar" idempotency
mkdir "$work/share"
for part in $PARTS; do
	case $part in
		debs) for version in $VERSIONS; do try_debs "$version"; done ;;
		pgxn) try_pgxn ;;
		image) try_image ;;
		*) idem_die "no such part: $part" ;;
	esac
done
idem_say "packages"
printf '   %s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
