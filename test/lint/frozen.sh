#!/bin/bash
# Check that the scripts of released versions never change, or freeze those of a release.
#
#	frozen.sh [--freeze]	--freeze: store the install script of the version that
#							idempotency.control names, and take down its checksum and
#							those of the update scripts that lead to it
#
# sql/release/README.md says what is kept there.  Without --freeze the script prints a
# line for each fault, and fails if there is one.
set -euo pipefail
cd "$(dirname "$0")/../.."

release=sql/release
sums=$release/SHA256SUMS
version=$(sed -n "s/^default_version = '\(.*\)'$/\1/p" idempotency.control)
own=$release/idempotency--$version.sql

# Print the scripts whose checksums are not taken down.
unfrozen()
{
	local file

	for file in "$release"/*.sql; do
		[ ! -e "$file" ] || grep -qsF "  ${file##*/}" "$sums" || echo "$file"
	done
}

# The install script as it is now.
built()
{
	cat sql/install/*.sql
}

freeze()
{
	local file

	! grep -q "^## $version (unreleased)" CHANGELOG.md || {
		echo "CHANGELOG.md calls $version unreleased: give it its date first"
		return 1
	}
	[ ! -e "$own" ] || {
		echo "$version is frozen already: what changes now is another version, in idempotency.control"
		return 1
	}
	built >"$own"
	unfrozen | while read -r file; do
		(cd "$release" && sha256sum "${file##*/}") >>"$sums"
		echo "frozen: $file"
	done
}

# Print each fault.
faults()
{
	local file from

	if [ -e "$sums" ]; then
		(cd "$release" && sha256sum --check --strict --quiet SHA256SUMS 2>&1) | sed "s,^,$release: ," || true
		# the list itself only grows
		git -c safe.directory='*' log --format= -p -- "$sums" 2>/dev/null | grep -E '^-[0-9a-f]{64}' |
			sed 's/^-/a checksum was taken away or changed: /' || true
	fi
	unfrozen | grep -v -- "--.*--$version\.sql$" | sed 's/$/: neither frozen nor an update to the version in work/' || true
	if [ -e "$own" ] && ! built | cmp -s - "$own"; then
		echo "sql/install differs from $own: a change needs a new version in idempotency.control"
	fi
	for file in "$release"/idempotency--*.sql; do
		from=${file##*/idempotency--}
		from=${from%.sql}
		if [ -e "$file" ] && [[ $from != *--* ]] && [ "$from" != "$version" ] &&
			! compgen -G "$release/idempotency--$from--*.sql" >/dev/null; then
			echo "no script updates from $from"
		fi
	done
}

case ${1:-} in
	--freeze) freeze ;;
	*)
		found=$(faults)
		[ -z "$found" ] || {
			echo "$found"
			exit 1
		}
		;;
esac
