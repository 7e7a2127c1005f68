#!/bin/bash
# Walk every state of the models of this folder, and of their mutants.
#
#	run.sh
#	ONLY="ring relay"	only these models
#	MUTANTS="a b"		only these mutants, and no unbroken model
#	LONG=1				the larger bounds of a model
#	TRAIL=1				print how each mutant is caught, by a shortest trail
#	JOBS=n				walks at a time, default: one per core
#	MEMORY=n			MB for a walk, default 5000, with LONG=1 14000
#	LIMIT=n				seconds for a walk, default 3600, with LONG=1 14400
#	KEEP=1				leave the work directory behind
#	SKIP_PACKAGES=1		do not look for missing packages
#
# A model NAME.pml says what concerns the runner in comments at the start of a
# line:
#
#	/* BOUNDS name: what they are */		walk it with -DBOUNDS_name; default: once, with none
#	/* MUTANT name: what is broken */		a walk with -DMUTANT_name finds a violation
#	/* MUTANT name in bounds: ... */		the same, in these bounds; default: the first
#	/* REACH name: what is reached */		a walk with -DREACH_name finds a violation
#	/* COMPILE: options */					for the C compiler, e.g. -DNOREDUCE
#	/* COMPILE LONG: options */				the same, with LONG=1 only
#
# The unbroken model is walked completely, without a violation, in all bounds:
# for assertions and end states, and for each "ltl" formula, weakly fair.  A
# walk that was cut short, by depth, memory, time or an approximation, is a
# failure whatever it found before.  A mutant is caught by an assertion, an
# invalid end state or an acceptance cycle, and by nothing else.
#
# The last line is "N passed, N failed".  README.md tells how to read a trail.
set -uo pipefail
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
# shellcheck source=test/setup/count.sh
. "$IDEM_TOP/test/setup/count.sh"
cd "$IDEM_TOP" || exit 1

MODELS=$IDEM_TOP/test/model
TRAIL_LINES=${TRAIL_LINES:-80}
FAIL_LINES=$TRAIL_LINES
# Steps that a walk may go down; the stack of the search is allocated at once.
DEPTH=${DEPTH:-4000000}
# A walk of a mutant begins with so many seconds of the processor (SIGXCPU ends it then, with status 152), and
# with little room: to set up the room of a complete walk takes longer than most of these walks.
QUICK=8
QUICK_ROOM=(-m100000 -w20)
VIOLATION='assertion violated|invalid end state|acceptance cycle|non-progress cycle'
# What pan says when it gave up, or approximated.
INCOMPLETE='max search depth too small|Search not completed|MEMLIM bound|out of memory|Bit statespace|[Hh]ash-[Cc]ompact|VECTORSZ|too many'

wanted_models()
{
	local file names

	if [ -n "${ONLY:-}" ]; then
		read -ra names <<<"$ONLY"
		printf '%s\n' "${names[@]}"
		return
	fi
	for file in "$MODELS"/*.pml; do
		[ ! -e "$file" ] || basename "$file" .pml
	done
}

# notes MODEL KIND: its lines "/* KIND name [in bounds]: ... */" as "name bounds".
notes()
{
	sed -nE "s,^/\* $2 ([A-Za-z0-9_]+)( in ([A-Za-z0-9_]+))?:.*,\1 \3,p" "$MODELS/$1.pml"
}

# The names of a model's bounds; one empty line if it has no name for them.
bounds()
{
	if grep -q '^/\* BOUNDS ' "$MODELS/$1.pml"; then
		notes "$1" BOUNDS | tr -d ' '
	else
		echo
	fi
}

formulas()
{
	sed -nE 's,^ltl[[:space:]]+([A-Za-z0-9_]+).*,\1,p' "$MODELS/$1.pml"
}

compile_options()
{
	sed -nE -e 's,^/\* COMPILE: (.*) \*/.*,\1,p' ${LONG:+-e 's,^/\* COMPILE LONG: (.*) \*/.*,\1,p'} "$MODELS/$1.pml"
}

# walk DIR MODEL BOUNDS FORMULA MACRO...: make the verifier in DIR and run it; prints
# one line: "complete ...", "violation ..." or "failed ...".
walk()
{
	local dir=$1 model=$2 bounds=$3 formula=$4 macros=() cc=() pan=() compiler said status started=$SECONDS
	shift 4

	macros=("${@/#/-D}")
	[ -z "$bounds" ] || macros+=("-DBOUNDS_$bounds")
	[ -z "${LONG:-}" ] || macros+=(-DLONG)
	read -ra cc <<<"$(compile_options "$model" | tr '\n' ' ')"
	if [ -z "$formula" ]; then
		cc+=(-DSAFETY -DNOCLAIM)
		[ -z "${TRAIL:-}" ] || cc+=(-DBFS)
	else
		cc+=(-DNFAIR=4)
		pan=(-a -f -N "$formula")
	fi
	mkdir -p "$dir"
	cp "$MODELS"/*.pml "$dir"
	cd "$dir" || return
	printf '%s\n' "${macros[*]}" >macros.txt
	if ! spin -a "${macros[@]}" "$model.pml" >spin.log 2>&1 || grep -qi '^spin: .*error' spin.log; then
		echo "failed spin does not take it	$dir/spin.log"
		return
	fi
	# Mostly a broken model is left soon: to compile its verifier well takes a hundred times as long.
	# One that is not begins anew, with a verifier that is twice as fast.
	for compiler in ${1:+tcc} "gcc -O1"; do
		# shellcheck disable=SC2086 # with its options
		if ! $compiler -w -DMEMLIM="$MEMORY" "${cc[@]}" -o pan pan.c >gcc.log 2>&1; then
			echo "failed its verifier does not compile	$dir/gcc.log"
			return
		fi
		if [ "$compiler" = tcc ]; then
			(ulimit -St "$QUICK" && exec ./pan -n "${QUICK_ROOM[@]}" "${pan[@]}") >pan.log 2>&1
			status=$?
			! grep -qE "^pan:1: .*($VIOLATION)" pan.log || break
			[ "$status" = 152 ] || grep -qE "$INCOMPLETE" pan.log || break
		else
			timeout -k 10 "$LIMIT" ./pan -n -m"$DEPTH" "${pan[@]}" >pan.log 2>&1
			status=$?
		fi
	done
	said=$(grep -m 1 -E "^pan:1: .*($VIOLATION)" pan.log | sed -E 's/^pan:1: //; s/ \(at depth ([0-9]+)\)/, at step \1/')
	if [ -n "$said" ] && [[ $said != *"invalid array index"* ]]; then
		echo "violation $said"
	elif [ "$status" = 124 ] || [ "$status" = 137 ]; then
		echo "failed the walk took longer than $LIMIT s	$dir/pan.log"
	elif grep -qE "$INCOMPLETE" pan.log; then
		echo "failed the walk is incomplete: $(grep -m 1 -oE "$INCOMPLETE" pan.log)	$dir/pan.log"
	elif [ "$status" = 0 ] && grep -q 'errors: 0$' pan.log && grep -q '^Full statespace search' pan.log; then
		echo "complete $(awk '/states, stored/ { print $1 }' pan.log) states, $((SECONDS - started)) s"
	else
		echo "failed the walk did not end as it should	$dir/pan.log"
	fi
}

# The steps of a violation, those of the model's own statements.
trail()
{
	local dir=$1 model=$2 macros=()

	cd "$dir" || return
	read -ra macros <macros.txt
	spin -t -p -g "${macros[@]}" "$model.pml" >trail 2>&1
}

# A job appends one line to the results: NAME, a tab, and "ok ..." or what is
# wrong, a tab and a file that tells more.
unbroken_job()
{
	local model=$1 bounds=$2 formula=$3 dir said

	dir=$IDEM_WORK/$model${bounds:+.$bounds}${formula:+.$formula}
	said=$(walk "$dir" "$model" "$bounds" "$formula")
	case $said in
		complete\ *) said="ok ${said#complete }" ;;
		violation\ *)
			(trail "$dir" "$model")
			said="${said#violation }	$dir/trail"
			;;
		failed\ *) said=${said#failed } ;;
		*) said="the walk said nothing" ;;
	esac
	printf '%s\t%s\n' "$model${bounds:+ in $bounds}${formula:+/$formula}" "$said"
}

broken_job()
{
	local model=$1 bounds=$2 macro=$3 dir=$IDEM_WORK/$1.$3 formula said

	for formula in "" $(formulas "$model"); do
		rm -rf "$dir"
		said=$(walk "$dir" "$model" "$bounds" "$formula" "$macro")
		[[ $said == complete\ * ]] || break
	done
	case $said in
		complete\ *) said="nothing notices it in ${said#complete }" ;;
		violation\ *)
			said="ok ${said#violation }"
			[ -z "${TRAIL:-}" ] || (trail "$dir" "$model")
			;;
		failed\ *) said=${said#failed } ;;
		*) said="the walk said nothing" ;;
	esac
	printf '%s\t%s\n' "$model/$macro" "$said"
}

# Start a job when there is room for it.
run_jobs()
{
	local kind model bounds arg

	# Not a tab: "read" takes two of them for one.
	while IFS=: read -r kind model bounds arg; do
		while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
			wait -n
		done
		("${kind}_job" "$model" "$bounds" "$arg") >>"$IDEM_WORK/results" </dev/null &
	done
	wait
}

# list_jobs MODEL: a line KIND:MODEL:BOUNDS:FORMULA-OR-MACRO per walk.
list_jobs()
{
	local model=$1 name bounds first kind

	first=$(bounds "$model" | head -n 1)
	if [ -z "${MUTANTS:-}" ]; then
		while read -r bounds; do
			echo "unbroken:$model:$bounds:"
			while read -r name; do
				echo "unbroken:$model:$bounds:$name"
			done < <(formulas "$model")
		done < <(bounds "$model")
	fi
	for kind in MUTANT REACH; do
		while read -r name bounds; do
			[ -z "${MUTANTS:-}" ] || [[ " $MUTANTS " == *" $name "* ]] || continue
			echo "broken:$model:${bounds:-$first}:${kind}_$name"
		done < <(notes "$model" "$kind")
	done
}

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh model ||
	idem_die "what is needed could not be installed"
command -v spin >/dev/null || idem_die "spin not found; run test/setup/packages.sh model"
IDEM_WORK=$(mktemp -d "${TMPDIR:-/tmp}/idem-model.XXXXXX")
trap 'stop_jobs; cd /; if [ -n "${KEEP:-}" ]; then echo "kept: $IDEM_WORK"; else rm -rf "$IDEM_WORK"; fi' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
JOBS=${JOBS:-$(nproc)}
MEMORY=${MEMORY:-$([ -z "${LONG:-}" ] && echo 5000 || echo 14000)}
LIMIT=${LIMIT:-$([ -z "${LONG:-}" ] && echo 3600 || echo 14400)}

: >"$IDEM_WORK/jobs"
: >"$IDEM_WORK/results"
while read -r model; do
	if [ ! -f "$MODELS/$model.pml" ]; then
		fail "$model" "there is no such model"
	elif ! grep -q '^/\* MUTANT ' "$MODELS/$model.pml"; then
		fail "$model" "it names no mutant, so nobody knows whether it notices any"
	else
		list_jobs "$model" >>"$IDEM_WORK/jobs"
	fi
done < <(wanted_models)

idem_say "walking $(wc -l <"$IDEM_WORK/jobs") models and mutants, $JOBS at a time${LONG:+, large bounds}"
run_jobs <"$IDEM_WORK/jobs"
while IFS=$'\t' read -r name verdict file; do
	case $verdict in
		ok\ *)
			pass "$name (${verdict#ok })"
			file=$IDEM_WORK/${name/\//.}/trail
			[ -z "${TRAIL:-}" ] || [ ! -s "$file" ] || tail -n "$TRAIL_LINES" "$file" | sed 's/^/    | /'
			;;
		*) fail "$name" "$verdict" "$file" ;;
	esac
done < <(sort "$IDEM_WORK/results")
[ "$(wc -l <"$IDEM_WORK/results")" = "$(wc -l <"$IDEM_WORK/jobs")" ] ||
	fail "models" "some walks have said nothing"
finish
