#!/bin/bash
# Measure this tree against the floors and its rivals: test/bench/report/report.md.
#
#	QUICK=1			everything small, pins too; reports into build/bench-quick
#	ONLY=regexp		sections whose name begins so: claims enqueues drain postgres parked latency
#					kafka nats redis rabbitmq mqtt http memory backlog ids; by name alone: many connections redrive leases cursors
#					pin-snapshot pin-writer pin-reader pin-prepared; the results of the
#					others stay as they are
#	BASE=commit		instead: this tree and that commit in turns; see pair.sh
#	DURATION=s		of each pin; 600
#	MAXSIZE=n		of the backlog and of remembered ids; 1000000
#	IDS_MAX=n		of remembered ids alone; the usual table stops at 1e7
#	PROFILE=arm		instead: where the time goes, into report/profile/ARM.md; an arm of
#					arms/ or drain/, ours_bytea, ours_jsonb, ours_function, latency,
#					growth, or pin-NAME
#	COUNT="arm ..."	instead: how many instructions arms of arms/ take, into report/count.md; the
#					first one is what the others are compared with
#	PINNED=1		the servers on the first half of the cores, the load on the others
#	REMARK=text		stands in the report, such as what else the machine did
#	PGQUE_SQL=path	SQL of the rival PgQue, PGMQ_SQL=path of pgmq, where you have it
#	ALLOW_OFFLINE=1	leave out the sections whose broker cannot be fetched
#	SKIP_PACKAGES=1	do not look for missing packages
#	KEEP=1			the work directory stays
#
# The servers are throw-away ones in ${TMPDIR:-/tmp}; they sync to disk, unlike
# those of the tests.  Each section leaves its results in build/bench-data as soon
# as it is done, and its part of the report is made of them; the other parts stay.
# A quick run is no evidence, so it leaves the report of the tree alone.
set -euo pipefail
WERROR=${WERROR-}
# shellcheck source=test/setup/lib.sh
. "$(dirname "$0")/../setup/lib.sh"
cd "$IDEM_TOP"
[ -z "${BASE:-}" ] || exec test/bench/pair.sh "$BASE"
# shellcheck source=test/bench/common.sh
. test/bench/common.sh
# shellcheck source=test/sink/copy.sh
. test/sink/copy.sh

report=test/bench/report
[ -z "${QUICK:-}" ] || report=build/bench-quick
data=build/bench-data

# Two of these run at once, and for long.
pin_conf()
{
	bench_conf
	cat <<-END
		max_wal_size = '8GB'
		autovacuum = on
		autovacuum_naptime = '5s'
		idempotency.outbox_retention = 0
	END
}

# For a thousand sessions.
wide_conf()
{
	bench_conf
	echo "max_connections = 1100"
}

# SQL that is not ours, made readable for the server user.
take_rivals()
{
	[ -z "${PGQUE_SQL:-}" ] || cp "$PGQUE_SQL" "$IDEM_WORK/bench/pgque.sql"
	[ -z "${PGMQ_SQL:-}" ] || cp "$PGMQ_SQL" "$IDEM_WORK/bench/pgmq.sql"
	chmod -R a+rX "$IDEM_WORK/bench"
}

# build_c NAME [MODULE]: a program of NAME.c, with a library.
build_c()
{
	local modules=()

	[ $# = 1 ] || read -ra modules < <(pkg-config --cflags --libs "$2")
	cc -std=gnu11 -O2 -g -Wall -Wextra ${WERROR:+-Werror} -o "$IDEM_WORK/bench/$1" "test/bench/$1.c" "${modules[@]}"
}

# The official Go client's producer of RabbitMQ's streams.
build_stream_go()
{
	! (cd test/bench/stream-go && GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" go build -o "$IDEM_WORK/bench/produce_stream_go" .) || return 0
	[ -n "${ALLOW_OFFLINE:-}" ] ||
		idem_die "section rabbitmq needs the Go of test/bench/stream-go/go.mod, and its modules; ALLOW_OFFLINE=1 leaves the client's arm out"
	echo "NOT RUN  arm stream_client of section rabbitmq: its program cannot be built"
}

# The broker of the section, and the fastest producer of its library.
prepare_broker()
{
	[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh "$1"
	if ! copy_target "$1" "$IDEM_WORK/bench"; then
		[ -n "${ALLOW_OFFLINE:-}" ] ||
			idem_die "the broker of section $1, or its client, cannot be fetched; ALLOW_OFFLINE=1 leaves the section out"
		echo "NOT RUN  section $1: the broker, or its client, cannot be fetched"
		sections=$(grep -vx "$1" <<<"$sections" || true)
		return
	fi
	case $1 in
		kafka) build_c producer rdkafka ;;
		nats) build_c produce_nats libnats ;;
		redis) build_c produce_redis hiredis ;;
		rabbitmq)
			build_c produce_rabbitmq librabbitmq
			build_c produce_stream
			build_stream_go
			;;
		mqtt) build_c produce_mqtt libmosquitto ;;
	esac
	build_ack
	cp test/bench/serve.py "$IDEM_WORK/bench/"
	chmod -R a+rX "$IDEM_WORK/bench"
}

# The program that sees when a sink's answers come.
build_ack()
{
	cc -std=gnu11 -O2 -g -Wall -Wextra ${WERROR:+-Werror} -fPIE -pie "-I$IDEM_TOP/src" \
		-o "$IDEM_STAGE$IDEM_PKGLIBDIR/idempotency-sinks/idempotency-sink-ack" test/bench/ack.c src/sink/protocol/*.c
	chmod -R a+rX "$IDEM_STAGE"
}

# What goes with section http: nginx, libcurl's own loop, a load generator, a slow receiver.
prepare_http()
{
	[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh http
	build_c post libcurl
	build_c generate
	build_ack
	cp test/bench/slow.py "$IDEM_WORK/bench/"
	chmod -R a+rX "$IDEM_WORK/bench"
}

# The servers that a section needs; those that are up stay.
servers_up=
servers_for()
{
	local kind=one

	[[ $1 != pin-* ]] || kind=two
	[ "$1" != connections ] || kind=wide
	[ "$1" != postgres ] || kind=target
	[ "$servers_up" != $kind ] || return 0
	stop_servers
	rm -rf "${IDEM_WORK:?}"/{data,target,free,pinned}
	if [ $kind = two ]; then
		start_server free pin_conf
		start_server pinned pin_conf
	elif [ $kind = target ]; then
		start_server data bench_conf
		start_server target bench_conf
	elif [ $kind = wide ]; then
		start_server data wide_conf
	else
		start_server data bench_conf
	fi
	measure setup
	servers_up=$kind
}

run_section()
{
	local begun=$SECONDS

	servers_for "$1"
	machine "$commit" >"$IDEM_WORK/$1.tsv"
	measure "$1"
	printf 'machine\tname=duration\tvalue=%s s\n' "$((SECONDS - begun))" >>"$IDEM_WORK/$1.tsv"
	mkdir -p "$report"
	cat "$IDEM_WORK/$1.tsv" "$IDEM_WORK/bench/$1.tsv" >"$data/$1.tsv"
	perl test/bench/report.pl "$report" "$data"
}

[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh bench
idem_make_work
sections=$(perl test/bench/measure.pl . --list) || exit
commit=$(commit)
choose_cores
pgq_package=$(dpkg-query -W -f '${Package} ${Version}' "postgresql-$IDEM_MAJOR-pgq3" 2>/dev/null || true)
idem_say "build"
build_tree
copy_program
take_rivals
for section in $sections; do
	case $section in
		kafka | nats | redis | rabbitmq | mqtt) prepare_broker "$section" ;;
	esac
done
if grep -qx http <<<"$sections"; then
	prepare_http
fi
# ids expire by a clock that the tests can set
if grep -qx ids <<<"$sections"; then
	MAKE_ARGS="${MAKE_ARGS:-} PROFILE=" idem_stage_test_module
fi
if [ -n "${PROFILE:-}" ]; then
	# shellcheck source=test/bench/profile.sh
	. test/bench/profile.sh
	for arm in $PROFILE; do
		profile "$arm"
	done
	exit
fi
if [ -n "${COUNT:-}" ]; then
	[ -n "${SKIP_PACKAGES:-}" ] || test/setup/packages.sh analysis
	# shellcheck source=test/bench/count.sh
	. test/bench/count.sh
	# shellcheck disable=SC2086 # a list
	count_arms $COUNT
	exit
fi
# Results of former runs may be older than the report.
rm -rf "$data"
mkdir -p "$data"
begun=$SECONDS
for section in $sections; do
	run_section "$section"
done
idem_say "$((SECONDS - begun)) s; see $report/report.md"
