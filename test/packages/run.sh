#!/bin/bash
# Build the packages and try them, each in a clean folder of its Debian release:
#
#	VERSIONS="15 17"	the releases that carry these PostgreSQL majors, default: these;
#						18 and 19 are others
#	PARTS="debs pgxn image"	default: all
#
#	debs	per version: the packages are built, lintian finds no error and no warning,
#			piuparts installs, upgrades and purges them and finds nothing left, they are
#			installed, used, upgraded, removed and purged beside a server (inside.sh), and the
#			tests of debian/tests pass on the installed server; a cluster at work is backed up
#			and restored by doc/howto/backup.md (backup.sh); those for 15 are installed and used
#			by the commands of README.md (test/matrix/readme.sh)
#			Of two versions that follow each other: pg_upgradecluster from the one to the other,
#			with the packages of both (major.sh)
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

# in_layer build_folder|clean_folder VERSION SCRIPT [NAME=VALUE...]: in a changed copy of the
# version's folder.
in_layer()
{
	local folder

	mkdir -p "$work/layer"
	folder=$("$1" "$2") && LAYER=$work/layer SOURCES=$work/sources.tar SHARE=$work/share inside "$folder" "${@:3}"
}

# build_folder VERSION: print the path of the folder in which debs.sh builds.
build_folder()
{
	src/packaging/debs.sh --folder "$1"
}

build_debs()
{
	DEBS=$work/debs VERSIONS=$1 src/packaging/debs.sh
}

# The packages of $work/share/new as a lower version, which differs in nothing else: into
# $work/share/old.
lower_version()
{
	local deb tree=$work/package

	mkdir "$work/share/old"
	for deb in "$work"/share/new/*.deb; do
		[[ $deb != *-dbgsym_* ]] || continue
		dpkg-deb -R "$deb" "$tree" && sed -i 's/^\(Version: [^+]*\)/\1~lower/' "$tree/DEBIAN/control" &&
			dpkg-deb -Zgzip -b "$tree" "$work/share/old" >/dev/null || return 1
		rm -rf "$tree"
	done
}

# shellcheck disable=SC2016 # expanded inside
lint_script='runuser -u builder -- lintian --fail-on error,warning /mnt/new/*.changes'

# All packages at once, in a clean Debian of its own, out of the repositories that this has.
# Without a lower version that apt knows piuparts would leave out the upgrade.
# shellcheck disable=SC2016 # expanded inside
piuparts_script='
	set -eo pipefail
	(cd /mnt/old && dpkg-scanpackages . >Packages)
	read -r _ mirror suite _ </etc/apt/sources.list
	mapfile -t more < <(sed "1d; s/^/--extra-repo=/" /etc/apt/sources.list)
	piuparts --basetgz /mnt/clean.tar.gz --distribution "$suite" --mirror "$mirror main" "${more[@]}" --no-check-valid-until \
		--no-eatmydata --bindmount /mnt/old --extra-repo "deb [trusted=yes] file:///mnt/old ./" \
		$(ls /mnt/new/*.deb | grep -v dbgsym) | tee /tmp/piuparts.log
	grep "PASS: Installation and purging test" /tmp/piuparts.log
	grep "PASS: Installation, upgrade and purging tests" /tmp/piuparts.log'

# try_piuparts VERSION
try_piuparts()
{
	tar -C "$(clean_folder "$1")" -c . | gzip -1 >"$work/share/clean.tar.gz" &&
		in_layer build_folder "$1" "$piuparts_script" && rm "$work/share/clean.tar.gz"
}

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
	local version=$1 suite

	read -r suite _ < <(suite_of "$version")
	step "packages for $version" build_debs "$version" || return
	rm -rf "$work/share"
	mkdir -p "$work/share" "$work/built"
	cp -al "$work/debs/$suite" "$work/built/$version"
	mv "$work/debs/$suite" "$work/share/new"
	step "the same as a lower version" lower_version || return
	step "lintian in $suite" in_layer build_folder "$version" "$lint_script"
	step "piuparts in $suite" try_piuparts "$version"
	step "packages in $suite" in_layer clean_folder "$version" \
		"exec bash /tmp/idempotency/test/packages/inside.sh" VERSION="$version"
	step "doc/howto/backup.md in $suite" in_layer clean_folder "$version" \
		"exec bash /tmp/idempotency/test/packages/backup.sh" VERSION="$version"
	# README.md names the packages of one release
	[ "$version" != 15 ] || step "README.md in $suite" in_layer clean_folder "$version" \
		"rm /etc/postgresql-common/createcluster.d/* && exec /tmp/idempotency/test/matrix/readme.sh packages"
	step "debian/tests in $suite" in_layer build_folder "$version" "$test_script"
}

# try_major OLD NEW
try_major()
{
	local old=$1 version=$2 suite old_suite

	read -r suite _ < <(suite_of "$version")
	read -r old_suite _ < <(suite_of "$old")
	rm -rf "$work/share"
	mkdir "$work/share"
	cp -al "$work/built/$old" "$work/share/old" && cp -al "$work/built/$version" "$work/share/new" || return
	step "from $old to $version in $suite" in_layer clean_folder "$version" \
		"exec bash /tmp/idempotency/test/packages/major.sh" VERSION="$version" OLD="$old" OLD_SUITE="$old_suite"
}

# The packages of each version, and the way from the version before.
try_all_debs()
{
	local version former=

	for version in $VERSIONS; do
		try_debs "$version"
		[ -z "$former" ] || try_major "$former" "$version"
		former=$version
	done
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
	step "the archive, by pgxnclient in $suite" in_layer build_folder 15 "$pgxn_script" VERSION=15
}

try_image()
{
	local suite

	read -r suite _ < <(suite_of "$image_version")
	rm -rf "$work/share"
	mkdir -p "$work/share"
	step "make image-root in $suite" in_layer build_folder "$image_version" "make -C /tmp/idempotency -j$(nproc) image-root IMAGE_ROOT=/mnt/idempotency" \
		PG_CONFIG="/usr/lib/postgresql/$image_version/bin/pg_config" WERROR=1 || return
	step "the image's directories in $suite" in_layer clean_folder "$image_version" \
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
		debs) try_all_debs ;;
		pgxn) try_pgxn ;;
		image) try_image ;;
		*) idem_die "no such part: $part" ;;
	esac
done
idem_say "packages"
printf '   %s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
