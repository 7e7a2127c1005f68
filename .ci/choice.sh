# Choose the suites of tier 2 for a commit: by its number, and by the files that it
# touches.
#
# Source this file with the tree's top as the working directory.  The same commit
# gets the same choice in every clone that has the commit's parent.  A clone of one
# commit, or a tree without git, has only the number.

# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables

# By its number a commit gets one other server, one of the parts, and a third of
# the mutants if the part is mutants.
MAJORS="15 17 18 19"
PARTS="history store environment points mutants analysis clients kafka nats redis rabbitmq mqtt http steady monitoring debs update patroni"
SHARDS=3

# The parts that also run if the commit touches a file whose name begins so.  For a
# file its first matching line counts.  Only the mutants that touched_mutants names
# run for the file.
TOUCHED='
Makefile                  bare
README.md                 bare
test/setup/               bare
test/matrix/root.sh       bare debs
test/matrix/readme.sh     bare debs
test/matrix/              bare
test/demo/                bare
src/packaging/monitoring/ monitoring
src/packaging/            debs
test/packages/            debs
src/sink/kafka/           kafka
src/sink/nats/            nats
src/sink/redis/           redis
src/sink/rabbitmq/        rabbitmq
src/sink/mqtt/            mqtt
src/sink/http/            http
src/sink/common/          fuzz mutants points kafka nats redis rabbitmq mqtt http
src/sink/sink.mk          debs fuzz mutants points
src/sink/                 fuzz mutants points
src/claim/                points mutants store
src/store/                points mutants store
src/relay/                points mutants steady
src/outbox/               points mutants steady
src/                      points mutants
sql/install/              mutants update
sql/release/              update
test/update/              update
test/t/9                  update
test/t/320_update.pl      update mutants
test/analysis/            analysis
test/clients/             clients
doc/howto/python.md       clients
doc/howto/node.md         clients
doc/howto/java.md         clients
doc/howto/go.md           clients
doc/howto/deploy.md       clients
doc/howto/leases.md       clients
doc/howto/payments.md     clients
doc/howto/kafka-consume.md kafka
test/sink/kafka/          kafka
test/sink/nats/           nats
test/sink/redis/          redis
test/sink/rabbitmq/       rabbitmq
test/sink/mqtt/           mqtt
test/sink/kills.sh        nats redis rabbitmq mqtt http
doc/howto/webhooks.md     http
test/sink/http/           http
test/monitoring/          monitoring
doc/howto/alerts.md       monitoring
test/patroni/             patroni
doc/patroni-pgbouncer.md  patroni
test/python/              history points environment
test/crash/points         points
test/crash/environment    environment
test/crash/inside.sh      environment
test/crash/store          store
test/crash/machine/       environment
test/crash/scenarios/     environment
test/crash/               history points
test/mutants/             mutants
test/isolation/           mutants
test/sink/                mutants
test/t/                   mutants
sql/                      mutants
'

# seconds PART [MUTANTS]: the part's time on a quiet machine with two cores.
seconds()
{
	local faults

	faults=$(MUTANTS=${2:-} test/crash/faults.sh --takes | sed -n "s/^$1 //p")
	case $1 in
		postgresql-*) echo 1020 ;;
		bare) echo 200 ;;
		fuzz) echo 180 ;;
		clients) echo 400 ;;
		kafka) echo 900 ;;
		nats) echo 150 ;;
		redis) echo 180 ;;
		rabbitmq) echo 400 ;;
		mqtt) echo 150 ;;
		http) echo 500 ;;
		steady) echo 80 ;;
		monitoring) echo 120 ;;
		patroni) echo 140 ;;
		debs) echo 960 ;;
		update) echo 330 ;;
		*) echo "${faults:-600}" ;;
	esac
}

in_git()
{
	git -c safe.directory='*' "$@" 2>/dev/null
}

# Print the number to choose by: CI_CHOICE, or the first bits of the commit's name,
# which every clone knows.
choice_number()
{
	local hash

	if [[ ${CI_CHOICE:-} =~ ^[0-9]{1,15}$ ]]; then
		echo $((10#$CI_CHOICE))
	else
		hash=$(in_git rev-parse --verify HEAD) || hash=0
		echo $((16#${hash:0:7}))
	fi
}

# Print the commit with which the files are compared: CI_BASE, or the commit where
# the branch left main, or, on main, the commit's first parent.
choice_base()
{
	local base

	if [ -n "${CI_BASE:-}" ]; then
		in_git rev-parse --verify "$CI_BASE^{commit}"
		return
	fi
	base=$(in_git merge-base HEAD origin/main)
	if [ -z "$base" ] || [ "$base" = "$(in_git rev-parse --verify HEAD)" ]; then
		base=$(in_git rev-parse --verify 'HEAD^1^{commit}')
	fi
	[ -n "$base" ] && echo "$base"
}

# nth N WORD...: print word number N; after the last word the first follows again.
nth()
{
	local n=$1
	shift

	echo "${@:n % $# + 1:1}"
}

# touched_parts FILE...: print the parts that TOUCHED has for the files.
touched_parts()
{
	local file prefix parts

	for file; do
		while read -r prefix parts; do
			if [ -n "$prefix" ] && [[ $file == "$prefix"* ]]; then
				printf '%s\n' "$parts"
				break
			fi
		done <<<"$TOUCHED"
	done | tr ' ' '\n' | sort -u
}

# list_mutants: print a line per mutant: the patch, "all" if its tests are slow or "-", and
# the files that decide whether the mutant is caught: the files that it breaks, and the
# tests that notice.
list_mutants()
{
	local sinks

	mapfile -t sinks < <(find test/sink -mindepth 2 -maxdepth 2 -name '*.py' 2>/dev/null | sort)
	awk '
	# the files of a sink that define a test
	FILENAME ~ /\.py$/ {
		if (match($0, /def [A-Za-z0-9_]+/)) {
			split(FILENAME, part, "/")
			test = part[3] " " substr($0, RSTART + 4, RLENGTH - 4)
			where[test] = where[test] " " FILENAME
		}
		next
	}
	function tests_of(caught, word, n, i, all, test) {
		n = split(caught, word, " ")
		for (i = 2; i <= n; i++) {
			if (word[1] == "regress")
				all = all " sql/" word[i] ".sql"
			else if (word[1] == "isolation")
				all = all " test/isolation/specs/" word[i] ".spec"
			else if (word[1] == "tap")
				all = all " test/t/" word[i] ".pl"
			else if (word[1] == "sink")
				all = all where["postgres " word[i]]
			else {
				test = word[1] " " word[i]
				all = all (test in where ? where[test] : " test/sink/" word[1] "/points_test.py")
			}
		}
		return all
	}
	function print_it() {
		if (patch != "")
			print patch, run == "all" ? "all" : "-", files tests_of(caught)
	}
	FNR == 1 {
		print_it()
		patch = FILENAME
		run = caught = files = ""
		header = 1
	}
	/^diff / { header = 0 }
	header && /^Run:/ { run = $2 }
	header && /^Caught-by:/ && caught == "" { caught = substr($0, 11) }
	/^\+\+\+ b\// { files = files " " substr($0, 7) }
	END { print_it() }' ${sinks[@]+"${sinks[@]}"} test/mutants/*.patch
}

# touched_mutants FILE...: print the mutants that break, or are caught by, one of
# the files.  A mutant with slow tests is printed only if its patch is touched.
touched_mutants()
{
	local patch run files file
	local -A touched=()

	[ $# -gt 0 ] || return 0
	for file; do
		touched[$file]=1
	done
	while read -r patch run files; do
		[ "$run" != all ] || files=
		for file in "$patch" $files; do
			if [ -n "${touched[$file]:-}" ]; then
				basename "$patch" .patch
				break
			fi
		done
	done < <(list_mutants)
}

# shard N: print one of SHARDS equal shares of the mutants whose tests are quick.
shard()
{
	list_mutants | awk -v n="$(($1 % SHARDS))" -v all="$SHARDS" '
		$2 != "all" && i++ % all == n {
			gsub(/.*\/|\.patch$/, "", $1)
			print $1
		}'
}

# choose HERE: the plan for a machine with this major version.  Sets CHOICE_NUMBER,
# CHOICE_SAID (how the files were found), CHOICE_PLAN (parts in their order),
# CHOICE_WHY and CHOICE_MUTANTS.
choose()
{
	local n base files=() majors=() parts part major chosen touched

	n=$(choice_number)
	for major in $MAJORS; do
		[ "$major" = "$1" ] || majors+=("$major")
	done
	read -ra parts <<<"$PARTS"
	major=postgresql-$(nth "$n" "${majors[@]}")
	chosen=$(nth $((n / ${#majors[@]})) "${parts[@]}")
	if base=$(choice_base); then
		mapfile -t files < <(in_git -c core.quotePath=false diff --no-renames --name-only "$base" HEAD --)
		CHOICE_SAID="${#files[@]} files differ from ${base:0:10}"
	else
		CHOICE_SAID="this clone has no parent of the commit: what it touches is not known"
	fi

	CHOICE_NUMBER=$n
	declare -gA CHOICE_WHY=(["$chosen"]="in turn" ["$major"]="in turn")
	CHOICE_PLAN=("$chosen" "$major")
	CHOICE_MUTANTS=$(touched_mutants ${files[@]+"${files[@]}"})
	mapfile -t touched < <(touched_parts ${files[@]+"${files[@]}"})
	for part in ${touched[@]+"${touched[@]}"}; do
		case $part in
			# the part analysis runs the fuzzers, too
			fuzz) [[ " $chosen ${touched[*]} " != *" analysis "* ]] ;;
			mutants) [ -n "$CHOICE_MUTANTS" ] ;;
		esac || continue
		[ -n "${CHOICE_WHY[$part]:-}" ] || CHOICE_PLAN+=("$part")
		CHOICE_WHY[$part]+="${CHOICE_WHY[$part]:+, and }touched"
	done
	# the mutants have what time the others leave
	if [ -n "${CHOICE_WHY[mutants]:-}" ]; then
		mapfile -t CHOICE_PLAN < <(printf '%s\n' "${CHOICE_PLAN[@]}" | sed '/^mutants$/d')
		CHOICE_PLAN+=(mutants)
	fi
	[ "$chosen" != mutants ] ||
		CHOICE_MUTANTS=$({ echo "$CHOICE_MUTANTS"; shard $((n / (${#majors[@]} * ${#parts[@]}))); } | sed '/^$/d' | sort -u)
	CHOICE_MUTANTS=$(paste -sd ' ' <<<"$CHOICE_MUTANTS")
}
