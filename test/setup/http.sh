#!/bin/bash
# Fetch what the tests of the http sink take from package registries, and print the
# directory with it.
#
#	http.sh python		a virtual environment: the reference library of Standard Webhooks,
#						an SDK of CloudEvents, HTTP/2	(test/sink/http/requirements.txt)
#	http.sh aws			a virtual environment: mocks of AWS, its SDK	(requirements-aws.txt)
#	http.sh node		node_modules: the reference library	(package.json)
#	http.sh elasticmq	jars: a server of SQS with FIFO queues	(pom.xml)
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
	*)
		echo "usage: http.sh python|aws|node|elasticmq" >&2
		exit 2
		;;
esac
list=$PWD/test/sink/http/$list
cache=${IDEMPOTENCY_HTTP_CACHE:-$HOME/.cache/idempotency-http}
there=$cache/$what-$({ cat "$list"; [ "$list" = "${list%.txt}" ] || /usr/bin/python3 --version; } | sha256sum | cut -c 1-16)

# The environment is made in its place, because its programs have its path in them; a
# file says that it is complete.
fetch_python()
{
	rm -rf "$there"
	/usr/bin/python3 -m venv "$there"
	"$there/bin/pip" install --no-cache-dir --quiet -r "$list" >&2
	touch "$there/complete"
}

fetch_node()
{
	cp "$list" "$1/"
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

if [ ! -d "$there" ] || { [ "${list##*.}" = txt ] && [ ! -e "$there/complete" ]; }; then
	mkdir -p "$cache"
	exec </dev/null
	case $what in
		python | aws) fetch_python ;;
		*)
			work=$(mktemp -d "$cache/fetch.XXXXXX")
			trap 'rm -rf "$work"' EXIT
			"fetch_$what" "$work"
			chmod -R a+rX "$work"
			mv -T "$work" "$there" 2>/dev/null || [ -d "$there" ]
			;;
	esac
fi
echo "$there"
