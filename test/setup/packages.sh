#!/bin/bash
# Install the Debian packages that building and testing need.
#
#	packages.sh build|isolation|test|sink|compile|lint|real|clients|drivers|kafka|nats|redis|rabbitmq|mqtt|http|monitoring|patroni|model|random|mutants|bench|matrix|crash|machine|analysis|assert ...
#
# Each need is probed first: a command, a pkg-config module, a Perl module.  On a
# machine that has everything, from whatever source, nothing is installed and apt is
# not asked.  A need that cannot be met ends the run with one line that names the
# need.  Packages stay installed.  The services of the packages are not started, and
# no database cluster is created.
set -euo pipefail

missing=()

die()
{
	echo "packages.sh: $*" >&2
	exit 1
}

# need_cmd COMMAND PACKAGE: install the package if the command is missing.
need_cmd()
{
	PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_perl()
{
	perl -M"$1" -e 1 2>/dev/null || missing+=("$2")
}

# The same for a Python module of Debian's own interpreter.
need_python()
{
	/usr/bin/python3 -c "import $1" 2>/dev/null || missing+=("$2")
}

need_lib()
{
	pkg-config --exists "$1" 2>/dev/null || missing+=("$2")
}

# The same for a library without a pkg-config module, which is found by its header.
need_header()
{
	echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1 || missing+=("$2")
}

# The major version to install if there is no server yet: the version of this
# Debian release's package postgresql.
default_major()
{
	apt-cache depends postgresql 2>/dev/null |
		sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1
}

need_server()
{
	local pg_config=${PG_CONFIG:-pg_config} major headers bindir

	if command -v "$pg_config" >/dev/null 2>&1; then
		headers=$("$pg_config" --includedir-server 2>/dev/null || true)
		bindir=$("$pg_config" --bindir 2>/dev/null || true)
		# Debian ships the makefiles with the client.  So a machine may have
		# the makefiles and the server, but no headers to compile against.
		if [ -f "$headers/postgres.h" ] && [ -f "$("$pg_config" --pgxs)" ] &&
			[ -x "$bindir/postgres" ]; then
			return
		fi
		major=$("$pg_config" --version 2>/dev/null |
			sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	fi
	# A server that was chosen by its path is not replaced by another server.
	case $pg_config in
		*/*) die "PG_CONFIG=$pg_config has no server, headers and PGXS beside it" ;;
	esac
	major=${PG_MAJOR:-${major:-}}
	if [ -z "$major" ]; then
		update_lists
		major=$(default_major)
	fi
	[ -n "$major" ] || die "no PostgreSQL server is installed and apt offers none"
	missing+=("postgresql-$major" "postgresql-server-dev-$major" libpq-dev)
}

# libpq is found by its header: pkg-config would also need the libraries that libpq
# uses.
need_libpq()
{
	local dir

	dir=$("${PG_CONFIG:-pg_config}" --includedir 2>/dev/null || true)
	[ -f "${dir:-/usr/include/postgresql}/libpq-fe.h" ] || missing+=(libpq-dev)
}

need_build()
{
	local module package

	need_cmd gcc gcc
	need_cmd make make
	need_cmd pkg-config pkg-config
	need_header stdio.h libc6-dev
	need_server
	need_libpq
	# The client libraries of the sink programs
	while read -r _ _ module package; do
		need_lib "$module" "$package"
	done < <(cat src/sink/*/program.mk 2>/dev/null | grep '^# Debian: ')
}

# need_extension NAME PACKAGE: an extension of the server, from postgresql-MAJOR-PACKAGE if
# Debian has it for this server.
need_extension()
{
	local pg_config=${PG_CONFIG:-pg_config} major

	[ ! -f "$("$pg_config" --sharedir 2>/dev/null)/extension/$1.control" ] || return 0
	command -v apt-get >/dev/null 2>&1 || return 0
	major=$("$pg_config" --version 2>/dev/null | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	[ -n "$major" ] || major=$(default_major)
	update_lists
	! apt-cache show "postgresql-$major-$2" >/dev/null 2>&1 || missing+=("postgresql-$major-$2")
}

need_test()
{
	need_build
	need_extension pg_repack repack
	need_cmd perl perl
	need_cmd prove perl
	need_cmd patch patch
	need_perl IPC::Run libipc-run-perl
	need_python psycopg2 python3-psycopg2
	need_cmd setpriv util-linux
}

need_sink()
{
	need_build
	need_cmd python3 python3
	need_cmd openssl openssl
	need_cmd curl curl
	need_cmd setpriv util-linux
	need_cmd redis-server redis-server
	need_python ensurepip python3-venv
	[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || need_cmd rabbitmq-server rabbitmq-server
	need_cmd mosquitto mosquitto
	# pgbouncer is in a directory that only root's PATH has
	[ -x /usr/sbin/pgbouncer ] || need_cmd pgbouncer pgbouncer
}

need_compile()
{
	need_build
	need_cmd clang clang
}

need_lint()
{
	need_build
	need_cmd pg_bsd_indent pg-bsd-indent
	need_cmd shellcheck shellcheck
	need_cmd nm binutils
	need_cmd git git
	need_cmd python3 python3
	need_mutants
}

need_random()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python psycopg2 python3-psycopg2
	need_cmd setpriv util-linux
}

# Expected outputs of other isolation levels are differences.
need_isolation()
{
	need_cmd patch patch
}

need_mutants()
{
	need_cmd patch patch
	need_cmd pkill procps
}

need_real()
{
	need_test
	[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
	need_cmd npm npm
	need_cmd node nodejs
}

# What runs the program of test/clients in Python.
need_clients()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd curl curl
	[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
}

# What runs those in all languages.
need_drivers()
{
	need_clients
	need_cmd node nodejs
	need_cmd npm npm
	need_cmd javac default-jdk-headless
	need_cmd mvn maven
	need_cmd go golang-go
}

# What fetches a Kafka broker and runs it.
need_kafka()
{
	need_build
	need_cmd python3 python3
	need_cmd setpriv util-linux
	need_cmd javac default-jdk-headless
	need_cmd mvn maven
	need_cmd openssl openssl
	need_cmd curl curl
	need_cmd sha256sum coreutils
	[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
}

# What fetches a nats-server (test/setup/nats.sh) and runs it, and the client that reads it.
need_nats()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd setpriv util-linux
	need_cmd openssl openssl
	need_cmd dpkg-deb dpkg
}

# What runs redis-server, and fetches a newer valkey-server (test/setup/valkey.sh), and the client that
# reads them.
need_redis()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd redis-server redis-server
	need_cmd openssl openssl
	need_cmd dpkg-deb dpkg
	need_header openssl/ssl.h libssl-dev
}

# What runs a rabbitmq-server (test/setup/rabbitmq.sh), and the clients that read it.
need_rabbitmq()
{
	need_build
	need_cmd python3 python3
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd openssl openssl
	[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || need_cmd rabbitmq-server rabbitmq-server
	[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
}

# What runs mosquitto, and the client that reads it.
need_mqtt()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd mosquitto mosquitto
	need_cmd setpriv util-linux
	need_cmd openssl openssl
}

# What fetches and runs the peers of the http sink: receivers, nginx, mocks of clouds.
need_http()
{
	need_build
	need_cmd python3 python3
	need_cmd /usr/bin/python3 python3
	need_python ensurepip python3-venv
	need_cmd setpriv util-linux
	need_cmd nginx nginx
	need_cmd openssl openssl
	need_cmd curl curl
	need_cmd node nodejs
	need_cmd npm npm
	need_cmd go golang-go
	need_cmd javac default-jdk-headless
	need_cmd mvn maven
	need_cmd sha256sum coreutils
	[ -s /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
}

# What scrapes a server: exporters and Prometheus, promtool with it; and what draws the dashboard.
need_monitoring()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python psycopg2 python3-psycopg2
	need_python yaml python3-yaml
	need_python ensurepip python3-venv
	need_cmd setpriv util-linux
	need_cmd prometheus prometheus
	need_cmd prometheus-sql-exporter prometheus-sql-exporter
	need_cmd prometheus-postgres-exporter prometheus-postgres-exporter
}

# The rival that Debian packages, if there is a package for this server.  The arms
# that need the rival say so if it is absent.
need_pgq()
{
	need_extension pgq pgq3
}

need_bench()
{
	need_build
	need_pgq
	need_cmd perf linux-perf
}

need_crash()
{
	need_build
	need_cmd /usr/bin/python3 python3
	need_python psycopg2 python3-psycopg2
	need_cmd setpriv util-linux
}

# A Patroni with etcd: both come from Debian, and their services are not started.
need_patroni()
{
	need_crash
	need_cmd patroni patroni
	need_cmd patronictl patroni
	need_cmd etcd etcd-server
	need_python etcd python3-etcd
	need_cmd curl curl
}

# The tools for disks, networks and namespaces that the tests break.
need_machine()
{
	need_crash
	need_cmd unshare util-linux
	need_cmd losetup mount
	need_cmd mkfs.xfs xfsprogs
	need_cmd xfs_io xfsprogs
	need_cmd ip iproute2
	need_cmd nft nftables
	need_cmd pgbouncer pgbouncer
}

# The run-time of libFuzzer and of clang's sanitizers is a package of its own.
need_analysis()
{
	local clang_rt

	need_sink
	need_python psycopg2 python3-psycopg2
	need_cmd clang clang
	need_cmd clang-tidy clang-tidy
	need_cmd cppcheck cppcheck
	clang_rt=$(clang --print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null || true)
	[ -f "$clang_rt" ] || missing+=("libclang-rt-$(clang_major)-dev")
}

# The major version of clang that is installed or that will be installed.
clang_major()
{
	if command -v clang >/dev/null 2>&1; then
		clang -dumpversion | cut -d . -f 1
	else
		apt-cache depends clang | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p' | head -n 1
	fi
}

# The tools to build an assert-enabled server from the distribution's source.
need_assert()
{
	need_analysis
	need_cmd dpkg-source dpkg-dev
	need_cmd valgrind valgrind
	need_cmd bison bison
	need_cmd flex flex
	need_header openssl/ssl.h libssl-dev
	need_header zlib.h zlib1g-dev
	need_header valgrind/memcheck.h valgrind
}

# The model checker, and compilers for the C program that it writes: one for its speed, one for its program's.
need_model()
{
	need_cmd spin spin
	need_cmd gcc gcc
	need_cmd tcc tcc
	need_header stdio.h libc6-dev
}

need_matrix()
{
	need_cmd debootstrap debootstrap
	need_cmd mount mount
	need_cmd chroot coreutils
}

as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo -n "$@" || die "sudo refused to run: $*"
	else
		die "not root and no sudo; install first: ${missing[*]:-apt package lists}"
	fi
}

lists_updated=
update_lists()
{
	[ -z "$lists_updated" ] || return 0
	command -v apt-get >/dev/null 2>&1 || die "no apt-get; install first: ${missing[*]:-a PostgreSQL server and its headers}"
	as_root apt-get -qq update >&2 </dev/null || die "apt-get update failed"
	lists_updated=1
}

cluster_conf=/etc/postgresql-common/createcluster.d/idempotency-test.conf
policy=/usr/sbin/policy-rc.d
policy_ours=
log=

undo_install_policy()
{
	[ -z "$log" ] || rm -f "$log"
	as_root rm -f "$cluster_conf"
	as_root rmdir --ignore-fail-on-non-empty "${cluster_conf%/*}"
	[ -z "$policy_ours" ] || as_root rm -f "$policy"
}

# While packages are unpacked, no service starts and no cluster is made.
set_install_policy()
{
	trap undo_install_policy EXIT
	as_root mkdir -p "${cluster_conf%/*}"
	echo "create_main_cluster = false" | as_root tee "$cluster_conf" >/dev/null
	if [ ! -e "$policy" ]; then
		policy_ours=1
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod 755 "$policy"
	fi
}

install_missing()
{
	local packages

	mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
	echo "packages.sh: installing ${packages[*]}" >&2
	update_lists
	set_install_policy
	log=$(mktemp "${TMPDIR:-/tmp}/idem-packages.XXXXXX")
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
		-o DPkg::Lock::Timeout=600 --no-install-recommends install "${packages[@]}" >"$log" 2>&1 </dev/null || {
		tail -n 30 "$log" >&2
		die "apt-get could not install: ${packages[*]}"
	}
}

cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || die "usage: packages.sh build|isolation|test|sink|compile|lint|real|clients|drivers|kafka|nats|redis|rabbitmq|mqtt|http|monitoring|patroni|model|random|mutants|bench|matrix|crash|machine|analysis|assert ..."
for group; do
	case $group in
		build | isolation | test | sink | compile | lint | real | clients | drivers | kafka | nats | redis | rabbitmq | mqtt | http | monitoring | patroni | model | random | mutants | bench | matrix | crash | machine | analysis | assert) "need_$group" ;;
		*) die "unknown group: $group" ;;
	esac
done
[ ${#missing[@]} = 0 ] || install_missing
