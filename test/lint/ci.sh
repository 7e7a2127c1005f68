#!/bin/bash
# Check continuous integration itself (.ci), in trees whose suites are stubs: the
# parts that a commit gets, parts that do not fit into the time, suites that are cut
# off, and the end.
#
# Prints the defects, and exits nonzero if there is any.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/idem-ci-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
unset CI_CHOICE CI_BASE CI_BUDGET PARTS MUTANTS VERSIONS AREA TESTS ONLY
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
wrong=0

git_in()
{
	git -C "$1" -c user.name=check -c user.email=check@localhost -c init.defaultBranch=main -c commit.gpgsign=false "${@:2}"
}

# stub FILE LINE: make a script that prints how it was called, and then runs LINE.
stub()
{
	mkdir -p "$work/tree/${1%/*}"
	# shellcheck disable=SC2016 # expanded in there
	printf '#!/bin/bash\necho "CALLED ${0#./} PARTS=${PARTS:-} VERSIONS=${VERSIONS:-} ONLY=${ONLY:-} MUTANTS=${MUTANTS:-} SLOW=${SLOW:-}"\n%s\n' \
		"$2" >"$work/tree/$1"
	chmod +x "$work/tree/$1"
}

# Make a tree with the real .ci, and with suites that pass at once.
make_tree()
{
	rm -rf "$work/tree"
	mkdir -p "$work/tree/test/setup" "$work/tree/src/relay/stream"
	cp -R .ci "$work/tree/"
	cp test/setup/tally.sh "$work/tree/test/setup/"
	cp -R --parents test/mutants "$work/tree/"
	for file in test/setup/run.sh test/crash/history.sh test/matrix/run.sh test/clients/run.sh test/sink/kafka/run.sh test/sink/nats/run.sh test/sink/redis/run.sh test/sink/rabbitmq/run.sh test/sink/mqtt/run.sh test/sink/http/run.sh test/monitoring/run.sh test/patroni/run.sh test/packages/run.sh; do
		stub "$file" 'echo "1 passed, 0 failed"'
	done
	stub test/setup/packages.sh 'exit 0'
	# shellcheck disable=SC2016 # expanded in there
	stub test/crash/faults.sh '[ "${1:-}" != --takes ] || { printf "%s 100\n" history store environment points mutants analysis; exit; }
		echo "1 passed, 0 failed"'
	git_in "$work/tree" init -q
	commit first
}

commit()
{
	git_in "$work/tree" add -A
	git_in "$work/tree" commit -q --allow-empty -m "$1"
}

ci()
{
	(cd "$work/tree" && env "$@" PG_CONFIG=/nonexistent timeout 600 .ci/run ${PLAN:+--plan}) >"$work/log" 2>&1
	status=$?
}

plan()
{
	PLAN=1 ci "$@"
}

# says REGEXP, silent REGEXP: check that the last run printed it, or did not print it.
says()
{
	grep -qE -- "$1" "$work/log" || {
		echo "$name: nothing matches $1:"
		tail -n 40 "$work/log"
		wrong=1
	}
}

silent()
{
	! grep -qE -- "$1" "$work/log" || {
		echo "$name: something matches $1:"
		tail -n 40 "$work/log"
		wrong=1
	}
}

ends_with()
{
	[ "$(tail -n 1 "$work/log") $status" = "$*" ] || {
		echo "$name: it does not end with $*:"
		tail -n 20 "$work/log"
		wrong=1
	}
}

name="one commit"
make_tree
plan A=1
says "no parent of the commit"
says "^   postgresql-1[789], in turn"
cp "$work/log" "$work/plan"
plan A=1
cmp -s "$work/log" "$work/plan" || { echo "$name: the plan changes"; wrong=1; }

name="a choice by hand"
# thirty numbers choose each pair of three servers and ten parts
for n in {0..29}; do
	plan CI_CHOICE="$n"
	grep -oE '^   [a-z0-9-]+, in turn' "$work/log" | paste -sd ' '
done | sort -u >"$work/plans"
[ "$(wc -l <"$work/plans")" = 30 ] || { echo "$name: not every pair is reached"; cat "$work/plans"; wrong=1; }
plan CI_CHOICE=08
says "^choice 8;"
plan CI_CHOICE=nonsense
silent "^choice nonsense"

name="no git"
mv "$work/tree/.git" "$work/git"
GIT_CEILING_DIRECTORIES=$work plan A=1
says "^choice 0; .*no parent"
says "in turn"
mv "$work/git" "$work/tree/.git"

name="what a commit touches"
echo "int x;" >"$work/tree/src/relay/stream/gate.c"
commit second
plan CI_CHOICE=1
says "1 files? differs? from"
says "^   points, touched"
name="the same commit in a clone of some commits"
git clone -q --depth 2 "file://$work/tree" "$work/clone"
mv "$work/tree" "$work/origin"
mv "$work/clone" "$work/tree"
plan CI_CHOICE=1
says "^   points, touched"
name="the same commit in a clone of one"
rm -rf "$work/tree"
git clone -q --depth 1 "file://$work/origin" "$work/tree"
plan CI_CHOICE=1
says "no parent of the commit"
silent "touched"
rm -rf "$work/tree"
mv "$work/origin" "$work/tree"

name="broken builds"
# a mutant whose tests are quick
patch=$(cd test/mutants && grep -L '^Run: all' relay-*.patch | xargs grep -l '^+++ b/src/relay/' | sed -n 1p)
file=$(sed -n 's,^+++ b/,,p' "test/mutants/$patch" | head -n 1)
mkdir -p "$work/tree/${file%/*}"
echo "int y;" >"$work/tree/$file"
commit third
plan CI_CHOICE=0
says "^   mutants, touched"
says "^   broken builds: .*${patch%.patch}"

name="all passes"
ci CI_CHOICE=0
says "^CALLED test/setup/run.sh "
says "^CALLED test/crash/faults.sh PARTS=history .*SLOW=100"
says "^CALLED test/matrix/run.sh .*VERSIONS=17"
says "^CALLED test/crash/faults.sh PARTS=mutants .*MUTANTS=.*${patch%.patch}"
says "NOT RUN: environment: .*make test-faults PARTS=environment"
says "NOT RUN: postgresql-18: .*make test-matrix VERSIONS=18"
says "NOT RUN: long run: make torture"
ends_with "7 passed, 0 failed 0"

name="the programs in all languages"
ci CI_CHOICE=18
says "^CALLED test/clients/run.sh "
ci CI_CHOICE=0
says "NOT RUN: clients: .*make test-clients"

name="the store of claims"
mkdir -p "$work/tree/src/store"
echo "int s;" >"$work/tree/src/store/s.c"
commit store
plan CI_CHOICE=0
says "^   store, touched"
says "^   points, touched"
git_in "$work/tree" reset -q --hard HEAD~1

name="README.md alone"
echo "to be pasted" >"$work/tree/README.md"
commit readme
plan CI_CHOICE=0
says "^   bare, touched"
git_in "$work/tree" reset -q --hard HEAD~1

name="the packages"
mkdir -p "$work/tree/src/packaging"
echo "to be built" >"$work/tree/src/packaging/debs.sh"
commit packages
ci CI_CHOICE=0
says "^CALLED test/packages/run.sh PARTS=debs pgxn VERSIONS=15"
ci CI_CHOICE=1
says "^CALLED test/packages/run.sh PARTS=debs image VERSIONS=17"
git_in "$work/tree" reset -q --hard HEAD~1

for sink in kafka nats redis rabbitmq mqtt http; do
	name="the $sink sink"
	mkdir -p "$work/tree/src/sink/$sink"
	echo "int s;" >"$work/tree/src/sink/$sink/s.c"
	commit "$sink"
	ci CI_CHOICE=0
	says "^CALLED test/sink/$sink/run.sh "
	git_in "$work/tree" reset -q --hard HEAD~1
done

name="the monitoring files"
mkdir -p "$work/tree/src/packaging/monitoring"
echo "x = 1" >"$work/tree/src/packaging/monitoring/source.py"
commit monitoring
ci CI_CHOICE=0
says "^CALLED test/monitoring/run.sh "
git_in "$work/tree" reset -q --hard HEAD~1

name="the page about Patroni"
mkdir -p "$work/tree/doc"
echo "# Under Patroni" >"$work/tree/doc/patroni-pgbouncer.md"
commit patroni
ci CI_CHOICE=0
says "^CALLED test/patroni/run.sh "
git_in "$work/tree" reset -q --hard HEAD~1

name="no time left"
ci CI_CHOICE=0 CI_BUDGET=50
says "NOT RUN: postgresql-17 .*do not fit"
ends_with "2 passed, 0 failed 0"

name="a failure"
stub test/matrix/run.sh 'echo "NOT OK   regress/claim"; echo "    | why"; echo "9 passed, 1 failed"; exit 1'
ci CI_CHOICE=0
says "^---- postgresql-17"
ends_with "15 passed, 1 failed 1"
stub test/matrix/run.sh 'echo "1 passed, 0 failed"'

name="a suite that hangs"
stub test/setup/run.sh 'echo "5 passed, 0 failed"; sleep 60'
ci CI_CHOICE=0 CI_BUDGET=1
says "all tests: 5 passed, 0 failed, cut off"
ends_with "6 passed, 1 failed 1"

name="a suite that leaves a process behind"
# shellcheck disable=SC2016 # expanded in there
stub test/setup/run.sh '
	setsid bash -c "until [ -e \"$PWD/../gone\" ] || [ ! -d \"$PWD\" ]; do sleep 0.5; done" &
	echo "1 passed, 0 failed"'
ci CI_CHOICE=0 CI_BUDGET=50
touch "$work/gone"
ends_with "2 passed, 0 failed 0"

name="a suite that says nothing"
stub test/setup/run.sh 'exit 0'
ci CI_CHOICE=0 CI_BUDGET=50
ends_with "1 passed, 1 failed 1"

exit "$wrong"
