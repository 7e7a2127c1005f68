#!/bin/bash
# Fetch what the tests of the http sink take from package registries, and print the
# directory with it.
#
#	http.sh python		a virtual environment: the reference library of Standard Webhooks,
#						an SDK of CloudEvents, HTTP/2	(test/sink/http/requirements.txt)
#	http.sh aws			a virtual environment: mocks of AWS, its SDK	(requirements-aws.txt)
#	http.sh node		node_modules: the reference library	(package.json)
#	http.sh elasticmq	jars: a server of SQS with FIFO queues	(pom.xml)
#	http.sh receivers	what the receivers of doc/howto/webhooks.md import, in directories
#						python, node and go	(receive/)
#
# Each is kept in ${IDEMPOTENCY_HTTP_CACHE:-$HOME/.cache/idempotency-http}, in a
# directory that is named after the list, and is fetched once.
set -euo pipefail
cd "$(dirname "$0")/../.."

what=${1:-}
case $what in
	python) list=requirements.txt ;;
	aws) list=requirements-aws.txt ;;
	node) list=package.json ;;
	elasticmq) list=pom.xml ;;
	receivers) list="receive/python/requirements.txt receive/node/package.json receive/go/go.mod receive/go/go.sum" ;;
	*)
		echo "usage: http.sh python|aws|node|elasticmq|receivers" >&2
		exit 2
		;;
esac
cd test/sink/http
cache=${IDEMPOTENCY_HTTP_CACHE:-$HOME/.cache/idempotency-http}
# shellcheck disable=SC2086 # it is a list
there=$cache/$what-$({ cat $list; /usr/bin/python3 --version; } | sha256sum | cut -c 1-16)

# make_venv DIRECTORY LIST
make_venv()
{
	/usr/bin/python3 -m venv "$1"
	"$1/bin/pip" install --no-cache-dir --quiet -r "$2" >&2
}

fetch_node()
{
	cp "${2:-$list}" "$1/"
	(cd "$1" && npm install --loglevel=error --cache "$1/npm-cache" --ignore-scripts --no-package-lock --no-audit --no-fund >&2)
	rm -rf "$1/npm-cache"
}

fetch_elasticmq()
{
	mvn -q -B -f "$list" -Dmaven.repo.local="$1/repository" dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$1/jars" >&2
	mv "$1"/jars/*.jar "$1/"
	rm -rf "$1/repository" "$1/jars"
}

fetch_receivers()
{
	make_venv "$1/python" receive/python/requirements.txt
	mkdir "$1/node"
	fetch_node "$1/node" receive/node/package.json
	(cd receive/go && GOPATH=$1/go GOCACHE=$1/go-cache GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" go mod download >&2)
}

# What has an environment of Python is made in its place, because its programs have its
# path in them; a file says that it is complete.
if [ ! -e "$there/complete" ]; then
	mkdir -p "$cache"
	exec </dev/null
	case $what in
		python | aws | receivers)
			rm -rf "$there"
			if [ "$what" = receivers ]; then
				mkdir "$there"
				fetch_receivers "$there"
			else
				make_venv "$there" "$list"
			fi
			touch "$there/complete"
			;;
		*)
			work=$(mktemp -d "$cache/fetch.XXXXXX")
			trap 'rm -rf "$work"' EXIT
			"fetch_$what" "$work"
			touch "$work/complete"
			chmod -R a+rX "$work"
			mv -T "$work" "$there" 2>/dev/null || [ -d "$there" ]
			;;
	esac
fi
echo "$there"
