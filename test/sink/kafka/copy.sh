# Put the broker of the tests where the server user can read it.  Source this file.
# shellcheck shell=bash

# copy_broker JARS DIR: copy what broker.py needs below DIR, which is where the
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
