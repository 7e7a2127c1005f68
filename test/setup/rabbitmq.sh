#!/bin/bash
# Run a RabbitMQ server in a directory of its own, on loopback, as the user who calls this;
# for root as the user of the Debian package.
#
#	rabbitmq.sh make DIR [AMQP_PORT [STREAM_PORT]]	choose ports and write DIR/rabbitmq.env
#	rabbitmq.sh epmd DIR		become the epmd of DIR
#	rabbitmq.sh server DIR		become the server of DIR; its epmd has to run
#	rabbitmq.sh ctl DIR ...		run rabbitmqctl with the arguments
#	rabbitmq.sh start DIR		make if it is not made, then run both in the background, and wait
#	rabbitmq.sh stop DIR		end both
#
# "become": the process that runs this script is the server's, so its parent ends it by its
# process id.  Erlang's epmd, which every node asks for the port of another one, would
# otherwise be started as a daemon on a port that all servers of the machine share.
# More settings can be appended to DIR/rabbitmq.conf between make and server.  A user
# "admin" with the password "admin" may do everything.
set -euo pipefail

HERE=/usr/lib/rabbitmq/bin

usage()
{
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

# free_port: a port of loopback that nobody listens at now, below those that the kernel gives to
# connections: a server that is started again would find somebody's connection there.
free_port()
{
	local port lowest

	read -r lowest _ </proc/sys/net/ipv4/ip_local_port_range
	while :; do
		port=$((10000 + RANDOM % (lowest > 12000 ? lowest - 10000 : 20000)))
		(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
	done
	echo "$port"
}

# write_files [AMQP_PORT [STREAM_PORT]]
write_files()
{
	local amqp=${1:-$(free_port)} stream=${2:-$(free_port)} dist epmd

	dist=$(free_port)
	epmd=$(free_port)
	mkdir -p "$dir/home" "$dir/data" "$dir/log" "$dir/tmp"
	chmod 700 "$dir/home"
	cat >"$dir/rabbitmq.env" <<-END
		RABBIT_PORT=$amqp
		RABBIT_STREAM_PORT=$stream
		RABBIT_DIST_PORT=$dist
		RABBIT_EPMD_PORT=$epmd
	END
	cat >"$dir/rabbitmq.conf" <<-END
		listeners.tcp.local = 127.0.0.1:$amqp
		stream.listeners.tcp.local = 127.0.0.1:$stream
		stream.advertised_host = 127.0.0.1
		stream.advertised_port = $stream
		default_user = admin
		default_pass = admin
		log.file.level = warning
		disk_free_limit.absolute = 1MB
		vm_memory_high_watermark.absolute = 2GB
	END
	echo '[rabbitmq_stream].' >"$dir/enabled_plugins"
	[ "$(id -u)" != 0 ] || chown -R rabbitmq: "$dir"
}

# Set the environment of the programs of DIR, and nothing else.
environment()
{
	# shellcheck source=/dev/null
	. "$dir/rabbitmq.env"
	settings=(
		PATH="$PATH" LC_ALL=C.UTF-8 HOME="$dir/home" TMPDIR="$dir/tmp"
		ERL_EPMD_PORT="$RABBIT_EPMD_PORT" ERL_EPMD_ADDRESS=127.0.0.1
		RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_DIST_PORT="$RABBIT_DIST_PORT"
		RABBITMQ_MNESIA_BASE="$dir/data" RABBITMQ_LOG_BASE="$dir/log"
		RABBITMQ_ENABLED_PLUGINS_FILE="$dir/enabled_plugins" RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf"
		RABBITMQ_CONF_ENV_FILE="$dir/none" RABBITMQ_PID_FILE="$dir/pid"
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none +S 2:2"
		RABBITMQ_CTL_ERL_ARGS="+S 1:1"
	)
	as=(env -i)
	[ "$(id -u)" != 0 ] || as=(setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups env -i)
}

[ $# -ge 2 ] || usage
what=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2
case $what in
	make)
		write_files "$@"
		;;
	epmd)
		environment
		exec "${as[@]}" "${settings[@]}" epmd -port "$RABBIT_EPMD_PORT" -address 127.0.0.1 -relaxed_command_check
		;;
	server)
		environment
		# With a socket to notify, the script becomes the virtual machine; nobody listens there.
		exec "${as[@]}" "${settings[@]}" NOTIFY_SOCKET="$dir/none" "$HERE/rabbitmq-server" </dev/null
		;;
	ctl)
		environment
		exec "${as[@]}" "${settings[@]}" "$HERE/rabbitmqctl" "$@"
		;;
	start)
		[ -e "$dir/rabbitmq.env" ] || write_files
		"$0" epmd "$dir" >"$dir/log/epmd" 2>&1 </dev/null &
		echo $! >"$dir/epmd.pid"
		"$0" server "$dir" >"$dir/log/server" 2>&1 </dev/null &
		echo $! >"$dir/server.pid"
		# shellcheck source=/dev/null
		. "$dir/rabbitmq.env"
		for ((i = 0; i < 1800; i++)); do
			kill -0 "$(<"$dir/server.pid")" 2>/dev/null || break
			if (exec 3<>"/dev/tcp/127.0.0.1/$RABBIT_PORT" && exec 4<>"/dev/tcp/127.0.0.1/$RABBIT_STREAM_PORT") 2>/dev/null; then
				cat "$dir/rabbitmq.env"
				exit 0
			fi
			sleep 0.1
		done
		cat "$dir/log/server" >&2
		exit 1
		;;
	stop)
		for process in server epmd; do
			[ -e "$dir/$process.pid" ] || continue
			pid=$(<"$dir/$process.pid")
			kill "$pid" 2>/dev/null || true
			while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
			rm "$dir/$process.pid"
		done
		;;
	*) usage ;;
esac
