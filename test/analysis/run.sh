#!/bin/bash
# What tools find without being told where to look: `make analysis`.
#
#	ONLY="cppcheck warnings tidy fuzz sanitizer sinks sql valgrind addresses"	which, default: all
#	SECONDS_EACH=60		of each fuzzer and of the SQL fuzzer
#	SEED=n				of the SQL fuzzer
#	LONG=1				also every TAP file under the sanitizer, every regress file
#						under valgrind, the analyzer without a bound, and the part "assert"
#	ALLOW_OFFLINE=1		name, but do not count, what needs a server whose source
#						cannot be fetched
#	TESTS="names"		only these regress, isolation and TAP files
#	KEEP=1				leave the work directory behind
#
# Everything is built in copies of the tree.  What was found is printed below
# its name.  See README.md for what runs where, and why.
#
# shellcheck disable=SC2317 # parts are called by name
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=test/setup/lib.sh
. "$here/../setup/lib.sh"
# shellcheck source=test/setup/tally.sh
. "$IDEM_TOP/test/setup/tally.sh"
# shellcheck source=test/setup/tree.sh
. "$IDEM_TOP/test/setup/tree.sh"
cd "$IDEM_TOP" || exit 1
exec </dev/null

ALL_PARTS="cppcheck warnings tidy fuzz sanitizer sinks sql valgrind addresses"
[ -z "${LONG:-}" ] || ALL_PARTS+=" assert"
SECONDS_EACH=${SECONDS_EACH:-60}
passed=0
failed=0
started=$SECONDS

# Of ordinary builds, too, whatever else is set outside.
unset COPT SINK_COPT MAKE_ARGS

pass()
{
	passed=$((passed + 1))
	echo "ok $1"
}

# fail NAME [LOG]: every finding of a compiler in the log, then the log's end, which tells
# the way to the last one.
fail()
{
	failed=$((failed + 1))
	echo "NOT OK $1"
	[ -n "${2:-}" ] && [ -s "$2" ] || return 0
	{
		grep -E '^[^ :]+:[0-9]+:[0-9]+: (fatal )?error: ' "$2"
		grep -vE '^[0-9]+ warnings? generated\.$' "$2" | tail -n 60
	} | sed 's/^/    | /'
}

# check NAME COMMAND...
check()
{
	local name=$1 log=$IDEM_WORK/log/$1.log
	shift

	if idem_run "$@" >"$log" 2>&1; then
		pass "$name"
	else
		fail "$name" "$log"
	fi
}

# counted NAME COMMAND...: a script that ends with "N passed, N failed"
counted()
{
	local name=$1 log=$IDEM_WORK/log/$1.log
	shift

	idem_run "$@" >"$log" 2>&1
	tally "$log" $?
	passed=$((passed + TALLY_GOOD))
	if [ "$TALLY_BAD" = 0 ]; then
		echo "ok $name ($TALLY_GOOD)"
	else
		failed=$((failed + TALLY_BAD - 1))
		fail "$name" "$log"
	fi
}

# A copy of the tree without build products; prints its place.
copy_tree()
{
	local dir=$IDEM_WORK/$1

	tree_copy "$dir"
	echo "$dir"
}

# per_file DIR COMMAND...: for each source below DIR, whose name is {} there.
per_file()
{
	local dir=$1 list=$IDEM_WORK/sources
	shift

	find "$dir" -name '*.c' >"$list"
	[ -s "$list" ] && xargs -a "$list" -P "$(nproc)" -I{} "$@"
}

part_cppcheck()
{
	# shellcheck disable=SC2046 # names without spaces
	check cppcheck cppcheck -q -j"$(nproc)" --std=c11 --enable=warning,performance,portability \
		--inline-suppr --suppressions-list="$here/cppcheck.supp" --error-exitcode=1 \
		--library=posix --library="$here/cppcheck.cfg" -Isrc $(find src -name '*.c')
}

# Server headers count as the system's: what they hold is not ours to mend.
part_warnings()
{
	local flags

	mapfile -t flags < <(sed 's/[[:space:]]*#.*//; /^$/d' "$here/gcc-warnings")
	check warnings per_file src gcc -std=gnu11 -O2 -Werror "${flags[@]}" -D_GNU_SOURCE \
		-Isrc -isystem "$("$PG_CONFIG" --includedir-server)" \
		-isystem "$("$PG_CONFIG" --includedir)" -c -o /dev/null {}
	# The analyzer of gcc knows neither longjmp nor palloc: programs only.
	check gcc_analyzer per_file src/sink gcc -std=gnu11 -O1 -Werror -fanalyzer \
		-D_GNU_SOURCE -Isrc -isystem "$("$PG_CONFIG" --includedir)" -c -o /dev/null {}
}

# With a bound, the static analyzer of clang takes a third of the time.
# Assertions are compiled in: it believes them.
part_tidy()
{
	local bound=()

	[ -n "${LONG:-}" ] || bound=(-Xclang -analyzer-config -Xclang max-nodes=40000)
	check tidy per_file src clang-tidy --quiet --config-file="$here/clang-tidy.yaml" {} -- \
		-std=gnu11 -D_GNU_SOURCE -DUSE_ASSERT_CHECKING -Isrc \
		-isystem "$("$PG_CONFIG" --includedir-server)" \
		-isystem "$("$PG_CONFIG" --includedir)" "${bound[@]}"
}

# build_fuzzer NAME SOURCE...: with everything that watches.
build_fuzzer()
{
	local name=$1
	shift

	clang -std=gnu11 -g -O1 -Wall -Wextra -Werror -D_GNU_SOURCE -Isrc -I"$here/fuzz" \
		-I"$("$PG_CONFIG" --includedir)" -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -o "$IDEM_WORK/fuzz/$name/target" "$@" \
		-L"$("$PG_CONFIG" --libdir)" -lpq
}

build_fuzzers()
{
	local protocol=(src/sink/protocol/*.c) program=(src/sink/protocol/*.c src/sink/common/*.c)

	mkdir -p "$IDEM_WORK"/fuzz/{frames,stream,options,arrays}/corpus
	check fuzz_build_frames build_fuzzer frames test/sink/fuzz.c src/sink/common/stream.c "${protocol[@]}"
	check fuzz_build_stream build_fuzzer stream "$here/fuzz/stream.c" "${program[@]}" \
		src/sink/postgres/batch.c
	check fuzz_build_options build_fuzzer options "$here/fuzz/options.c" "${program[@]}" \
		src/sink/postgres/{config,error,sql}.c \
		-Wl,--wrap=idem_sink_failed,--wrap=idem_sink_strdup,--wrap=free
	check fuzz_build_arrays build_fuzzer arrays "$here/fuzz/arrays.c" "${program[@]}" \
		src/sink/postgres/batch.c src/sink/postgres/calls.c src/sink/postgres/array.c
}

# Golden frames are the seeds of the frame decoder: from the worker, after a
# HELLO, and from a sink.
seed_frames()
{
	perl -e '
		my $out = shift;
		for my $file (@ARGV) {
			open my $f, "<", $file or die "$file: $!";
			my $bytes = join "", map { /^([0-9a-f]{2})(?:\*(\d+))?$/i or die "$file: $_";
				chr(hex $1) x ($2 // 1) } map { split } <$f>;
			next if length $bytes > 4096;
			$file =~ s/.*\///;
			for my $peer (0 .. 3) {
				open my $o, ">", "$out/$peer-$file" or die;
				print $o chr($peer), $bytes;
			}
		}' "$IDEM_WORK/fuzz/frames/corpus" test/sink/golden/*.hex
}

# In its own directory, where it leaves the input that broke it.
run_fuzzer()
{
	local name=$1 most=4096

	cd "$IDEM_WORK/fuzz/$name" || return 1
	[ "$name" != frames ] || most=70000
	./target -max_total_time="$SECONDS_EACH" -max_len=$most -timeout=60 -print_final_stats=1 corpus || {
		for input in crash-* leak-* timeout-* oom-*; do
			[ ! -e "$input" ] || { echo "$input:" && base64 "$input"; }
		done
		return 1
	}
}

# Two at a time.
part_fuzz()
{
	local name names=(frames stream options arrays) children=() i

	build_fuzzers
	seed_frames
	for ((i = 0; i < ${#names[@]}; i += 2)); do
		children=()
		for name in "${names[@]:i:2}"; do
			run_fuzzer "$name" >"$IDEM_WORK/log/fuzz_$name.log" 2>&1 &
			children+=("$!")
		done
		for name in "${names[@]:i:2}"; do
			if wait "${children[0]}"; then
				pass "fuzz_$name ($(sed -n 's/^stat::number_of_executed_units: *//p' "$IDEM_WORK/log/fuzz_$name.log") inputs)"
			else
				fail "fuzz_$name" "$IDEM_WORK/log/fuzz_$name.log"
			fi
			children=("${children[@]:1}")
		done
	done
}

# suites DIR NAME AREA TESTS [ENV...]: the suites, as built in that copy.
suites()
{
	local dir=$1 name=$2 area=$3 tests=$4
	shift 4

	counted "$name" env "$@" AREA="$area" TESTS="${TESTS:-$tests}" SKIP_PACKAGES=1 \
		PG_CONFIG="$PG_CONFIG" "$dir/test/setup/run.sh"
}

sanitized_tree=
sanitized()
{
	[ -n "$sanitized_tree" ] || sanitized_tree=$(copy_tree sanitized)
}
# An error in the library ends the backend, and so fails the test.
SANITIZE_LIBRARY="-fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
SANITIZE_PROGRAM="-fsanitize=address,undefined -fno-sanitize-recover=all"
# The programs in C say their last words in 316 and are killed in 400.  302, with
# the sink in Python, and 304, without any, are of the library's side.
SHORT_TAP="302_relay_program_kill 304_relay_function 316_relay_farewell 400_sink_postgres"

part_sanitizer()
{
	sanitized
	suites "$sanitized_tree" sanitizer_sql "regress isolation" "" COPT="$SANITIZE_LIBRARY"
	if [ -n "${LONG:-}" ]; then
		suites "$sanitized_tree" sanitizer_tap tap "" COPT="$SANITIZE_LIBRARY" SINK_COPT="$SANITIZE_PROGRAM"
	fi
}

# Sink programs under a relay of a real server, with kills.  What is found in
# them goes to the server log, where the suites look for it.
part_sinks()
{
	sanitized
	[ -n "${LONG:-}" ] ||
		suites "$sanitized_tree" sinks tap "$SHORT_TAP" COPT="$SANITIZE_LIBRARY" SINK_COPT="$SANITIZE_PROGRAM"
}

part_sql()
{
	sanitized
	counted sql env COPT="$SANITIZE_LIBRARY" SECONDS_EACH="$SECONDS_EACH" SEED="${SEED:-}" \
		PG_CONFIG="$PG_CONFIG" "$sanitized_tree/test/analysis/sql.sh"
}

# assert_server NAME: sets assert_config; a failure of NAME where it cannot be had.
assert_server()
{
	local log=$IDEM_WORK/log/$1_server.log status

	assert_config=$("$here/server.sh" 2>"$log")
	status=$?
	[ "$status" != 0 ] || return 0
	if [ "$status" = 3 ] && [ -n "${ALLOW_OFFLINE:-}" ]; then
		sed 's/^/    | /' "$log"
		echo "NOT RUN  analysis/$1: offline, the source of the server cannot be fetched"
	else
		fail "$1_server" "$log"
	fi
	return 1
}

part_assert()
{
	local dir assert_config

	assert_server assert || return
	dir=$(copy_tree assert)
	PG_CONFIG=$assert_config suites "$dir" assert "regress isolation tap" ""
	PG_CONFIG=$assert_config suites "$dir" assert_discard_caches regress "claim outbox relay" \
		IDEM_EXTRA_CONF="debug_discard_caches = 1"
}

# The address sanitizer in the library alone: every process of the server loads its run-time
# first.  A server with translated messages (NLS) hangs then; this one has none.  A jump out of
# PG_TRY clears the marks around the variables of all frames above it on the stack; "use after
# return" keeps variables elsewhere, where the marks stay.  Leaks do not count: the server frees
# whole contexts, and at exit nothing.  Tests send SIGSEGV: the server tells of that itself.
ADDRESS_LIBRARY="-fsanitize=address $SANITIZE_LIBRARY"
ADDRESS_OPTIONS="detect_stack_use_after_return=1:detect_leaks=0:abort_on_error=1:handle_segv=0"
# Function relays and their parked events, relays with programs, workers of the store.
ADDRESS_TAP="301_relay_parked 304_relay_function 375_relay_patience 110_store_packer"

part_addresses()
{
	local runtime assert_config

	assert_server addresses || return
	runtime=$($("$assert_config" --cc) -print-file-name=libasan.so)
	PG_CONFIG=$assert_config suites "$(copy_tree addresses)" addresses tap "$ADDRESS_TAP" \
		COPT="$ADDRESS_LIBRARY" IDEM_PRELOAD="$runtime" ASAN_OPTIONS="$ADDRESS_OPTIONS"
}

# A file takes up to a minute there: three of them are the way of an event.
part_valgrind()
{
	local assert_config tests=${TESTS:-}

	[ -n "$tests" ] || [ -n "${LONG:-}" ] || tests="claim outbox relay"
	assert_server valgrind || return
	PG_CONFIG=$assert_config counted valgrind env PG_CONFIG="$assert_config" TESTS="$tests" \
		"$(copy_tree valgrind)/test/analysis/valgrind.sh"
}

for part in ${ONLY:-$ALL_PARTS}; do
	declare -F "part_$part" >/dev/null || idem_die "no such part: $part (there are: $ALL_PARTS)"
done
if [ -z "${SKIP_PACKAGES:-}" ]; then
	groups=(build test sink analysis)
	[[ ! " ${ONLY:-$ALL_PARTS} " =~ \ (assert|valgrind|addresses)\  ]] || groups+=(assert)
	test/setup/packages.sh "${groups[@]}" || exit 1
fi
idem_make_work
took=()
for part in ${ONLY:-$ALL_PARTS}; do
	idem_say "$part"
	began=$SECONDS
	"part_$part"
	took+=("$part $((SECONDS - began))")
done
idem_say "$((SECONDS - started)) s:$(printf ' %s s,' "${took[@]}" | sed 's/,$//')"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
