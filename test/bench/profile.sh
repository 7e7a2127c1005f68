# Where the time of an arm goes: sampled by perf, folded by fold.pl.  Sourced by
# run.sh.  Root samples the whole machine, so other servers there count, too.

# shellcheck shell=bash
# shellcheck disable=SC2154 # of run.sh and lib.sh

# Root samples the whole machine, kernel included; anybody else the server's
# processes, which are his own, in user space.
perf_record()
{
	local seconds=$1 data=$IDEM_WORK/perf.data who=(-a)

	if [ "$(id -u)" != 0 ]; then
		who=(-e 'cpu-clock:u' -p "$(head -n 1 "$IDEM_WORK/data/postmaster.pid")")
	fi
	perf record -q -F 997 "${who[@]}" -o "$data" -- sleep "$seconds" >"$IDEM_WORK/perf.log" 2>&1 || {
		cat "$IDEM_WORK/perf.log" >&2
		return 1
	}
}

profile()
{
	local arm=$1 seconds=${BENCH_PROFILE_SECONDS:-10} to=$report/profile/$1.md loaded

	if [ "$servers_up" != one ]; then
		stop_servers
		start_server data bench_conf
		measure setup
		servers_up=one
	fi
	rm -f "$IDEM_WORK/bench/profile.go"
	BENCH_PROFILE_SECONDS=$seconds measure profile "$arm" >"$IDEM_WORK/profile.out" &
	loaded=$!
	until [ -e "$IDEM_WORK/bench/profile.go" ]; do
		kill -0 $loaded 2>/dev/null || idem_die "the load of $arm ended early"
		sleep 0.1
	done
	perf_record "$((seconds - 1))"
	wait $loaded
	mkdir -p "${to%/*}"
	{
		printf '# Profile: %s\n\n' "$arm"
		printf 'Of %s, commit %s%s. ' "$(date -u '+%Y-%m-%d %H:%M UTC')" "$commit" "${REMARK:+, $REMARK}"
		printf 'Samples of perf (997 per second and core, %s s) in processes of the server and the sinks, ' "$((seconds - 1))"
		printf 'kernel included where root runs it; waiting does not show. '
		printf 'A single arm runs with synchronous_commit on for the first half, off for the second.\n'
		perf report -i "$IDEM_WORK/perf.data" --stdio -q --sort comm,dso,symbol -t '|' 2>/dev/null |
			perl test/bench/fold.pl
	} >"$to"
	idem_say "see $to"
}
