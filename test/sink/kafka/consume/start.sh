# "Run it" of doc/howto/kafka-consume.md, which shows the lines between the marks.  consume.py
# runs them, those of one language, with the addresses of the test.

# consume.sh has built this program.
go()
{
	exec ./billing
}

kafka-console-producer.sh()
{
	java -cp "$KAFKA_JARS/*" org.apache.kafka.tools.ConsoleProducer "$@"
}

# >>> start
export KAFKA_BROKERS=localhost:9092 KAFKA_GROUP=billing KAFKA_TOPIC=orders
export PGHOST=localhost PGUSER=shop PGPASSWORD=secret PGDATABASE=app
export JDBC_URL='jdbc:postgresql://localhost/app?user=shop&password=secret'
venv/bin/python billing.py                              # Python
java -cp 'lib/*' Billing.java                           # Java, with the drivers in lib
go run .                                                # Go
# <<<

# >>> send
printf 'customer 1\t{"total": 99}\n' |
    kafka-console-producer.sh --bootstrap-server $KAFKA_BROKERS --topic orders --property parse.key=true
# <<<
