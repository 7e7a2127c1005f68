#!/bin/bash
# Fetch the real payloads into a directory: fetch.sh DIR
#
# They are the examples of GitHub's webhook events in the npm package
# @octokit/webhooks-examples (MIT), got anew for each run by npm from whatever
# registry it is set up with.  Nothing of it is kept in the tree.
set -euo pipefail

package=@octokit/webhooks-examples
version=7.6.1
dir=${1:?usage: fetch.sh DIR}

command -v npm >/dev/null || {
	echo "npm is missing; run test/setup/packages.sh real"
	exit 1
}
mkdir -p "$dir"
cd "$dir"
cache=$(mktemp -d "${TMPDIR:-/tmp}/idem-npm.XXXXXX")
trap 'rm -rf "$cache"' EXIT
timeout 120 npm pack --loglevel=error --cache "$cache" "$package@$version" >tarball.name 2>npm.log || {
	echo "offline: npm could not fetch $package@$version"
	tail -n 3 npm.log
	exit 1
}
tar -xzf "$(tail -n 1 tarball.name)" package/api.github.com/index.json
mv package/api.github.com/index.json github.json
rm -rf package ./*.tgz tarball.name npm.log
chmod a+r github.json
