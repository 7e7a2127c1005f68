#!/bin/bash
# Check that frozen.sh sees each way to change what was released.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/idem-frozen.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sql/install,sql/release,test/lint}
cp test/lint/frozen.sh "$work/test/lint"
cd "$work"
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost

commit()
{
	git add -A
	git commit -q -m "$1"
}

# sees WHAT: the check fails with a line that has these words.
sees()
{
	local said

	said=$(test/lint/frozen.sh) && said="(nothing)"
	grep -qF -- "$1" <<<"$said" || {
		echo "frozen.sh should say \"$1\", and says: $said"
		exit 1
	}
}

# refused: nothing is frozen now.
refused()
{
	if test/lint/frozen.sh --freeze >/dev/null; then
		echo "frozen.sh --freeze should refuse"
		exit 1
	fi
}

# fine: the check finds nothing.
fine()
{
	test/lint/frozen.sh || {
		echo "frozen.sh should find nothing"
		exit 1
	}
}

git init -q .
echo "CREATE FUNCTION one();" >sql/install/10.sql
echo "default_version = '1.0'" >idempotency.control
echo "## 1.0 (unreleased)" >CHANGELOG.md
fine
refused
echo "## 1.0 (2027-01-01)" >CHANGELOG.md
test/lint/frozen.sh --freeze >/dev/null
commit "Release 1.0"
fine
refused

echo "CREATE FUNCTION two();" >>sql/install/10.sql
sees "a change needs a new version"
echo "default_version = '1.1'" >idempotency.control
sees "no script updates from 1.0"
echo "CREATE FUNCTION two();" >sql/release/idempotency--1.0--1.1.sql
fine
echo "-- while the version is in work" >>sql/release/idempotency--1.0--1.1.sql
fine
commit "Version 1.1"

echo "-- later" >>sql/release/idempotency--1.0.sql
sees "idempotency--1.0.sql: FAILED"
(cd sql/release && sha256sum idempotency--1.0.sql >SHA256SUMS)
commit "A new checksum for a changed script"
sees "a checksum was taken away or changed"
git reset -q --hard HEAD^
rm sql/release/idempotency--1.0.sql
sees "idempotency--1.0.sql: FAILED"
git checkout -q .

echo "## 1.1 (2027-02-01)" >CHANGELOG.md
test/lint/frozen.sh --freeze >/dev/null
commit "Release 1.1"
fine
echo "-- later" >>sql/release/idempotency--1.0--1.1.sql
sees "idempotency--1.0--1.1.sql: FAILED"
git checkout -q .
echo "SELECT 1;" >sql/release/idempotency--1.0--1.0.1.sql
sees "neither frozen nor an update"
