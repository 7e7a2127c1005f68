# Put the tests' servers of a sink's target where the server user can read them.  Source this
# file after test/setup/lib.sh.
# shellcheck shell=bash

# copy_broker JARS DIR: copy what kafka/broker.py needs below DIR, which is where the
# programs that import it start, and the jars, whose copy becomes KAFKA_JARS.
copy_broker()
{
	mkdir "$2/kafka"
	cp test/sink/kafka/*.py test/sink/kafka/*.java "$2/kafka/"
	cp -R test/sink/notrun.py test/python/server.py test/crash/machine "$2/"
	cp -R "$1" "$IDEM_WORK/jars"
	chmod -R a+rX "$2" "$IDEM_WORK/jars"
	export KAFKA_JARS=$IDEM_WORK/jars
}

# copy_target SINK DIR: the same for any sink, with the clients that read its target; what
# this machine lacks is fetched.  The modules of SINK come below DIR, those of http into
# DIR/receiver: a package "http" would hide Python's.  False: something cannot be fetched.
copy_target()
{
	local sink=$1 dir=$2 folder=${1/http/receiver} fetched

	if [ "$sink" = kafka ]; then
		fetched=$(test/setup/kafka.sh) || return
		copy_broker "$fetched" "$dir"
		return
	fi
	mkdir "$dir/$folder"
	cp "test/sink/$sink"/*.py "$dir/$folder/"
	[ "$sink" = http ] || cp test/sink/{sinklib.py,brokerlib.py,notrun.py,idempotency-sink-pytest} test/python/server.py "$dir/"
	case $sink in
		nats)
			fetched=$(test/setup/nats.sh) || return
			export NATS_SERVER=$dir/nats-server
			cp "$fetched" "$NATS_SERVER"
			;;
		rabbitmq)
			export RABBITMQ_SH=$dir/rabbitmq.sh
			cp test/setup/rabbitmq.sh "$RABBITMQ_SH"
			;;
	esac
	if [ "$sink" != http ]; then
		fetched=$(test/setup/venv.sh "test/sink/$sink/requirements.txt") || return
		export SINK_CLIENTS=$dir/$sink-clients
		cp -R "$fetched"/lib/python3*/site-packages "$SINK_CLIENTS"
	fi
	chmod -R a+rX "$dir"
}
