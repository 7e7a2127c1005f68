#!/bin/bash
# Fetch what the tests of the http sink take from package registries, and print the
# directory with it.
#
#	http.sh python		a virtual environment: the reference library of Standard Webhooks,
#						an SDK of CloudEvents, HTTP/2	(test/sink/http/requirements.txt)
#	http.sh aws			a virtual environment: mocks of AWS, its SDK	(requirements-aws.txt)
#	http.sh node		node_modules: the reference library	(package.json)
#	http.sh elasticmq	jars: a server of SQS with FIFO queues	(pom.xml)
#	http.sh receiver	a virtual environment: what the receiver of doc/howto/webhooks.md in
#						Python imports	(receive/python)
#	http.sh receivers	what the others import, in directories node and go	(receive/)
#
# The first two and the receiver are kept where test/setup/venv.sh keeps them, the others in
# ${IDEMPOTENCY_HTTP_CACHE:-$HOME/.cache/idempotency-http}, in a directory that is named after
# the list, and are fetched once.
set -euo pipefail
cd "$(dirname "$0")/../.."

what=${1:-}
case $what in
	python) exec test/setup/venv.sh test/sink/http/requirements.txt ;;
	aws) exec test/setup/venv.sh test/sink/http/requirements-aws.txt ;;
	receiver) exec test/setup/venv.sh test/sink/http/receive/python/requirements.txt ;;
	node) list=package.json ;;
	elasticmq) list=pom.xml ;;
	receivers) list="receive/node/package.json receive/go/go.mod receive/go/go.sum" ;;
	*)
		echo "usage: http.sh python|aws|node|elasticmq|receiver|receivers" >&2
		exit 2
		;;
esac
cd test/sink/http
cache=${IDEMPOTENCY_HTTP_CACHE:-$HOME/.cache/idempotency-http}
# shellcheck disable=SC2086 # it is a list
there=$cache/$what-$({ cat $list; /usr/bin/python3 --version; } | sha256sum | cut -c 1-16)

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
	mkdir "$1/node"
	fetch_node "$1/node" receive/node/package.json
	(cd receive/go && GOPATH=$1/go GOCACHE=$1/go-cache GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" go mod download >&2)
}

if [ ! -e "$there/complete" ]; then
	mkdir -p "$cache"
	exec </dev/null
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	"fetch_$what" "$work"
	touch "$work/complete"
	chmod -R a+rX "$work"
	mv -T "$work" "$there" 2>/dev/null || [ -d "$there" ]
fi
echo "$there"
