#!/bin/bash
# Lay out the extension as an image volume: lib/, share/ and licenses/ below a directory.
#
#	image-root.sh DIR		what make image-root calls; PG_CONFIG chooses the server
#
# The layout is the one that CloudNativePG mounts by default: extension_control_path is
# DIR/share, dynamic_library_path is DIR/lib, and each licence is in licenses/PACKAGE/.
# The server has to know extension_control_path, that is, to be 18 or later.
#
# The libraries of the sink programs are copied into lib, where the programs look for them:
# the operand image has few of them.  libc is the image's own.  So an image is made on the
# distribution of the operand image, and made again when one of its libraries is mended.
set -euo pipefail
cd "$(dirname "$0")/../.."

die()
{
	echo "image-root: $*" >&2
	exit 1
}

# The libraries that the programs load, a path each, less those of libc.
libraries()
{
	ldd "$root"/lib/idempotency-sinks/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
		grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv)\.so\.[0-9]+$'
}

# package_of FILE: the Debian package that a library is from.  Its directory may be a link.
package_of()
{
	{ dpkg-query -S "$1" || dpkg-query -S "$(realpath "$1")" || dpkg-query -S "/usr$1" || dpkg-query -S "${1#/usr}"; } 2>/dev/null |
		sed 's/[:,].*//' | head -n 1
}

[ $# = 1 ] || die "usage: image-root.sh DIR"
major=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
[ "$major" -ge 18 ] || die "PostgreSQL $major has no extension_control_path, 18 and later have; set PG_CONFIG"
root=$1
stage=$(mktemp -d "${TMPDIR:-/tmp}/idem-image.XXXXXX")
trap 'rm -rf "$stage"' EXIT
"${MAKE:-make}" --no-print-directory -s install DESTDIR="$stage" >/dev/null
rm -rf "$root"
mkdir -p "$root"/{lib,share,licenses/idempotency}
cp -R "$stage$("$PG_CONFIG" --pkglibdir)"/* "$root/lib/"
cp -R "$stage$("$PG_CONFIG" --sharedir)/extension" "$root/share/"
cp LICENSE "$root/licenses/idempotency/"
for library in $(libraries); do
	cp -L "$library" "$root/lib/"
	package=$(package_of "$library")
	[ -n "$package" ] || die "no package has $library: its licence is not known"
	mkdir -p "$root/licenses/$package"
	cp -L "/usr/share/doc/$package/copyright" "$root/licenses/$package/"
done
echo "$root: PostgreSQL $major, $(find "$root" -type f | wc -l) files, $(du -sm "$root" | cut -f 1) MB"
