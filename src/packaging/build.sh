#!/bin/bash
# Build the Debian packages inside of a clean folder; debs.sh runs this there.
#
# The sources are in /tmp/idempotency, and what is built goes to /mnt: the source package,
# the packages, and the build's log.  Debian's tools want the folder debian/ at the top of
# the sources: it is put there.
set -euo pipefail

release=$(sed -n 's/^ *"version": "\(.*\)",$/\1/p;T;q' /tmp/idempotency/META.json)
tree=/tmp/build/idempotency-$release
mkdir /tmp/build
mv /tmp/idempotency "$tree"
cd "$tree"
tar -c -C .. --xz -f "../idempotency_$release.orig.tar.xz" "idempotency-$release"
cp -R src/packaging/debian .
# The packages of a release are newer than those of the release before, which have other
# libraries.  SUITE is a name, which is in no order; sid has no number.
number=$(awk -F , -v suite="$SUITE" '$3 == suite { print $1 }' /usr/share/distro-info/debian.csv)
sed -i "1s/(\(.*\))/(\1+${number:+deb}${number:-$SUITE})/" debian/changelog
pg_buildext updatecontrol
chown -R builder: /tmp/build
export WERROR=1 DEB_BUILD_OPTIONS="parallel=$JOBS"
[ -n "$CHECK" ] || DEB_BUILD_OPTIONS+=" nocheck"
unshare --net -- bash -c 'ip link set lo up && exec runuser -u builder -- dpkg-buildpackage -us -uc' 2>&1 | tee /mnt/build.log
cp ../idempotency_* ../*.deb /mnt
