# Where the time of an arm goes: sampled by perf, and what its processes wait for,
# by pg_stat_activity; folded by fold.pl.  Sourced by run.sh.

# shellcheck shell=bash
# shellcheck disable=SC2154 # of run.sh and lib.sh

# Root samples the whole machine, kernel included, so other servers there count,
# too; anybody else the server's processes, which are his own, in user space.
perf_record()
{
	local seconds=$1 data=$2 who=(-a)

	if [ "$(id -u)" != 0 ]; then
		who=(-e 'cpu-clock:u' -p "$(head -n 1 "$IDEM_WORK/data/postmaster.pid")")
	fi
	perf record -q -F 997 "${who[@]}" -o "$data" -- sleep "$seconds" >"$IDEM_WORK/perf.log" 2>&1 || {
		cat "$IDEM_WORK/perf.log" >&2
		return 1
	}
}

# record_phase SECONDS SYNC: what the load does from now on, as a section.
record_phase()
{
	local seconds=$1 sync=$2 data=$IDEM_WORK/perf.data.$2

	perf_record "$seconds" "$data"
	# Who watches ends a little later than the samples.
	until grep -q '^watched' "$IDEM_WORK/bench/profile.$sync"; do
		kill -0 "$loaded" 2>/dev/null || idem_die "nobody watched $arm"
		sleep 0.1
	done
	printf '\n## synchronous_commit %s\n' "$sync"
	perf report -i "$data" --stdio -q --sort pid,dso,symbol -t '|' 2>/dev/null |
		perl test/bench/fold.pl "$IDEM_WORK/bench/profile.$sync"
}

# profile ARM: into report/profile/ARM.md
profile()
{
	local arm=$1 seconds=${BENCH_PROFILE_SECONDS:-10} to=$report/profile/$1.md sync loaded

	if [ "$servers_up" != one ]; then
		stop_servers
		start_server data bench_conf
		measure setup
		servers_up=one
	fi
	rm -f "$IDEM_WORK"/bench/profile.{on,off}
	BENCH_PROFILE_SECONDS=$seconds measure profile "$arm" >"$IDEM_WORK/profile.out" &
	loaded=$!
	mkdir -p "${to%/*}"
	{
		printf '# Profile: %s\n\n' "$arm"
		printf 'Of %s, commit %s%s. ' "$(date -u '+%Y-%m-%d %H:%M UTC')" "$commit" "${REMARK:+, $REMARK}"
		printf 'How the processes spent their time is read from /proc/PID/schedstat; the wait events are samples of pg_stat_activity. '
		printf 'Where they ran: samples of perf, 997 per second and core, kernel included where root runs it; waiting does not show there.\n'
		# Each phase says when its load runs.
		while kill -0 "$loaded" 2>/dev/null; do
			for sync in on off; do
				if [ -e "$IDEM_WORK/bench/profile.$sync" ] && [ ! -e "$IDEM_WORK/perf.data.$sync" ]; then
					record_phase "$((seconds - 1))" "$sync"
				fi
			done
			sleep 0.1
		done
	} >"$to"
	wait "$loaded" || idem_die "the load of $arm failed: see $IDEM_WORK/profile.out"
	[ -n "$(find "$IDEM_WORK" -maxdepth 1 -name 'perf.data.*')" ] || idem_die "$arm ran without a profile"
	rm -f "$IDEM_WORK"/perf.data.*
	idem_say "see $to"
}
