#!/bin/bash
# Fetch a Kafka broker with its tools, or Debezium's connector, from Maven Central, and
# print the directory with its jars.
#
#	kafka.sh [broker|debezium]
#
# The versions are in test/sink/kafka/pom.xml and test/sink/kafka/debezium/pom.xml.  The
# jars, 54 MB and 8 MB, are kept in
# ${IDEMPOTENCY_KAFKA_CACHE:-$HOME/.cache/idempotency-kafka}, in directories that are
# named after the poms, and are fetched once.  Needs Maven and Java 17.
set -euo pipefail
cd "$(dirname "$0")/../.."

case ${1:-broker} in
	broker) pom=test/sink/kafka/pom.xml ;;
	debezium) pom=test/sink/kafka/debezium/pom.xml ;;
	*)
		echo "usage: kafka.sh [broker|debezium]" >&2
		exit 2
		;;
esac
cache=${IDEMPOTENCY_KAFKA_CACHE:-$HOME/.cache/idempotency-kafka}
jars=$cache/$(sha256sum "$pom" | cut -c 1-16)

if [ ! -d "$jars" ]; then
	command -v mvn >/dev/null || {
		echo "kafka.sh: no mvn; run test/setup/packages.sh kafka" >&2
		exit 1
	}
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mvn -q -B -f "$pom" -Dmaven.repo.local="$work/repository" dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$work/jars" >&2 </dev/null
	chmod -R a+rX "$work"
	mv -T "$work/jars" "$jars" 2>/dev/null || [ -d "$jars" ]
fi
echo "$jars"
