# How many instructions an arm takes: counted by callgrind in a single-user server, so
# that a busy machine does not matter.  Sourced by run.sh.

# shellcheck shell=bash
# shellcheck disable=SC2154 # of run.sh and lib.sh

# Events of an arm: for what a database does once, such as making a table's first pages; to
# warm up a process; and to be counted.
COUNT_FIRST=3
COUNT_FEW=300
COUNT_MANY=1500

# count_runs ARM KIND FROM N [COMMAND...]: N runs of its script, counted into
# $IDEM_WORK/count/ARM.KIND if the command does so
count_runs()
{
	local arm=$1 to=$IDEM_WORK/count/$1.$2 from=$3 n=$4
	shift 4

	perl test/bench/count.pl script "$arm" "$from" "$n" >"$to.sql"
	chmod a+r "$to.sql"
	idem_as "$@" \
		"$IDEM_BINDIR/postgres" --single -D "$IDEM_WORK/data" -c synchronous_commit=off postgres \
		<"$to.sql" >"$to.log" 2>&1
	if grep -qE '(ERROR|FATAL|PANIC):' "$to.log"; then
		grep -m 3 -E '(ERROR|FATAL|PANIC):' "$to.log" >&2
		idem_die "$arm: its script failed"
	fi
}

# The same under callgrind.
count_with()
{
	count_runs "$@" valgrind -q --tool=callgrind --callgrind-out-file="$IDEM_WORK/count/$1.$2"
}

# count_arms ARM...: into report/count.md
count_arms()
{
	local arm events few many

	start_server data bench_conf
	measure setup
	stop_servers
	idem_mkdir "$IDEM_WORK/count"
	for arm in "$@"; do
		events=$(perl test/bench/count.pl events "$arm")
		few=$(((COUNT_FEW + events - 1) / events))
		many=$(((COUNT_MANY + events - 1) / events))
		count_runs "$arm" first 1 "$COUNT_FIRST"
		count_with "$arm" few "$((COUNT_FIRST + 1))" "$few"
		count_with "$arm" many "$((COUNT_FIRST + few + 1))" "$many"
	done
	mkdir -p "$report"
	{
		printf '# Instructions per event\n\n'
		printf 'Of %s, commit %s%s. %s. ' "$(date -u '+%Y-%m-%d %H:%M UTC')" "$commit" "${REMARK:+, $REMARK}" \
			"$("$IDEM_BINDIR/postgres" --version)"
		printf 'Counted by callgrind in a single-user server, prepared statements, synchronous_commit off: the executor with all that a statement calls, and the commit. '
		printf 'Neither the kernel nor the client counts, and nothing waits.\n\n'
		perl test/bench/count.pl table "$IDEM_WORK/count" "$((COUNT_MANY - COUNT_FEW))" "$@"
	} >"$report/count.md"
	idem_say "see $report/count.md"
}
