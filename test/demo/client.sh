#!/bin/bash
# A client of the demo: run by run.sh as the server's user, in a session of
# its own, so that it and its psql or pgbench are killed as one.
#
#	client.sh producer|consumer|redeliverer NAME BINDIR
#
# Bash and psql, because they are on every machine that has the server; the
# work is in the SQL files beside.  Whatever goes wrong (the server is killed
# under it again and again) it tries again until the file "stop" is there.
# A producer is stopped by "stop-producing".
set -u
kind=$1 name=$2 bindir=$3
cd "$(dirname "$0")" || exit 1
echo $$ >"pid/$name"
export PGAPPNAME="demo $kind"

# A statement cannot be cut off by its own failure: each try is a new session.
produce()
{
	"$bindir/pgbench" -n -c 4 -R "$DEMO_RATE" -T "$DEMO_SECONDS" -f transfer.sql bank
}

consume()
{
	"$bindir/psql" -XqAt -v batch="$name.batch" -f fetch.sql ledger
	[ -s "$name.batch" ]
}

# Every fifth message is delivered again some time after its acknowledgement,
# as a broker does that lost the ack.
redeliver()
{
	"$bindir/psql" -XqAt -c "UPDATE inbox SET acked = false, repeated = true
		WHERE acked AND NOT repeated AND seq % 5 = 0" ledger
	sleep 0.5
}

while [ ! -e stop ]; do
	case $kind in
		producer)
			[ ! -e stop-producing ] || exit 0
			produce
			;;
		consumer) consume ;;
		redeliverer) redeliver ;;
	esac || sleep 0.1
done
