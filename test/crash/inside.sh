#!/bin/bash
# Run a command in mount, process, IPC and network namespaces of its own.
#
#	inside.sh COMMAND...		as root
#
# However the command ends, its mounts, processes, networks and shared memory are then
# gone: the first process of the namespace dies with this script, even by SIGKILL, and
# the namespace ends with its first process.  A loop device that a mount made is freed
# with the mount.
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
# The shell stays as the first process: it reaps the processes that others leave.
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
