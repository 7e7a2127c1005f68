#!/bin/bash
# Run a command in mount, process, IPC and network namespaces of its own.
#
#	inside.sh COMMAND...		as root
#
# Whatever it mounts, starts, adds to the network or leaves in shared memory is
# gone when it ends, however it ends: the first process of the namespace dies
# with this script, even by SIGKILL, and takes the rest with it.  A loop device
# that a mount made is freed with the mount.
set -euo pipefail

[ $# -gt 0 ] || {
	sed -n 's/^#\t/\t/p' "$0" >&2
	exit 2
}
[ "$(id -u)" = 0 ] || {
	echo "error: namespaces, mounts and loop devices need root" >&2
	exit 1
}
mkdir -p /run/netns
# shellcheck disable=SC2016 # expanded inside
# The shell stays as the first process: it reaps what others leave behind.
exec unshare --mount --propagation private --pid --ipc --net --fork --kill-child --mount-proc \
	bash -c '
		set -e
		mount -t tmpfs -o mode=1777 tmpfs /dev/shm
		mount -t tmpfs tmpfs /run/netns
		ip link set lo up
		"$@" &
		trap "kill -TERM $! 2>/dev/null" TERM INT HUP
		status=0
		wait $! || status=$?
		exit $status' inside "$@"
