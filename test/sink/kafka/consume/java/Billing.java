// Consume from Kafka into PostgreSQL, each record once.  ../../consume.py kills it.
//
// The lines between the marks are those of doc/howto/kafka-consume.md.

// >>> program
import java.sql.*;
import java.time.Duration;
import java.util.*;

import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Billing {
    static final String GROUP = System.getenv("KAFKA_GROUP"), TOPIC = System.getenv("KAFKA_TOPIC");
    static final int SESSION = Integer.parseInt(System.getenv().getOrDefault("KAFKA_SESSION_TIMEOUT", "45000"));    // ms
    static final int BATCH = 50, TRIES = 20;

    static final String DRAW = "SELECT nextval('reader_generation')";
    static final String RESUME =
        "SELECT result, next_offset FROM idempotency.resume_offset(?, ?, ?, generation => ?, wait => '30 s')";
    static final String CLAIM = """
        SELECT result, new_from
        FROM idempotency.claim_offset(?, ?, ?, first_offset => ?, next_offset => ?, generation => ?, wait => '1 s')""";
    static final String CHARGE = """
        INSERT INTO accounts
        VALUES (convert_from(?::bytea, 'UTF8'), (convert_from(?::bytea, 'UTF8')::jsonb->>'total')::numeric)
        ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed""";
    static final String ENQUEUE = """
        SELECT idempotency.outbox_enqueue('account', convert_from(?::bytea, 'UTF8'), 'AccountCharged',
            jsonb_build_object('cause', format('%s/%s/%s', ?::text, ?::int, ?::bigint)))""";
    static final String REJECT = """
        INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, key, value, sqlstate, error)
        VALUES (?, ?, ?, ?, ?::bytea, ?::bytea, ?, ?)""";

    /** The offset behind what we have claimed, of each partition. */
    static final Map<TopicPartition, Long> position = new HashMap<>();
    static long generation;             // of this reader
    static Connection conn;

    /** Run any statement; its first row as text, or null if there is none. */
    static String[] run(String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = conn.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++)
                statement.setObject(i + 1, arguments[i]);
            if (!statement.execute() || !statement.getResultSet().next())
                return null;
            String[] row = new String[statement.getMetaData().getColumnCount()];
            for (int i = 0; i < row.length; i++)
                row[i] = statement.getResultSet().getString(i + 1);
            return row;
        }
    }

    /** Go on where the database says; whoever read the partitions before is fenced from now on. */
    static void assigned(Consumer<byte[], byte[]> consumer, Collection<TopicPartition> partitions) throws SQLException {
        generation = Long.parseLong(run(DRAW)[0]);
        for (TopicPartition p : partitions) {
            String[] row = run(RESUME, GROUP, p.topic(), p.partition(), generation);
            if (!row[0].equals("claimed"))
                throw new IllegalStateException(p + " cannot be resumed: " + row[0]);
            position.put(p, row[1] == null ? 0 : Long.parseLong(row[1]));
            if (row[1] == null)
                consumer.seekToBeginning(List.of(p));
            else
                consumer.seek(p, position.get(p));
        }
        conn.commit();
    }

    /** The effect of one message, or its row in rejected_messages. */
    static void handle(ConsumerRecord<byte[], byte[]> message) throws SQLException {
        Savepoint before = conn.setSavepoint();
        try {
            run(CHARGE, message.key(), message.value());
            run(ENQUEUE, message.key(), message.topic(), message.partition(), message.offset());
            conn.releaseSavepoint(before);
        } catch (SQLException e) {
            String state = String.valueOf(e.getSQLState());
            if (!state.startsWith("22") && !state.startsWith("23"))
                throw e;
            conn.rollback(before);                          // this message will never do
            run(REJECT, GROUP, message.topic(), message.partition(), message.offset(), message.key(), message.value(),
                state, e.getMessage());
        }
    }

    /** Claim what was polled, and make its effects, in one transaction. */
    static void handleBatch(ConsumerRecords<byte[], byte[]> messages) throws SQLException {
        Map<TopicPartition, Long> ends = new HashMap<>(), newFrom = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> m : messages)
            ends.put(new TopicPartition(m.topic(), m.partition()), m.offset() + 1);
        for (TopicPartition p : ends.keySet()) {
            long first = position.get(p), end = ends.get(p);
            String[] row = run(CLAIM, GROUP, p.topic(), p.partition(), first, end, generation);
            if (row[0].equals("busy"))                      // another transaction has the partition right now
                throw new SQLException(p + " is busy", "40001");
            if (!row[0].equals("claimed"))
                throw new IllegalStateException(p + ", offsets " + first + " to " + end + ": " + row[0]);
            newFrom.put(p, Long.parseLong(row[1]));
        }
        for (ConsumerRecord<byte[], byte[]> m : messages)
            if (m.offset() >= newFrom.get(new TopicPartition(m.topic(), m.partition())))
                handle(m);
        conn.commit();
        position.putAll(ends);
    }

    static void handleWithRetries(ConsumerRecords<byte[], byte[]> messages) throws SQLException, InterruptedException {
        for (int tries = 1; ; tries++)
            try {
                handleBatch(messages);
                return;
            } catch (SQLException e) {
                if (tries == TRIES || !String.valueOf(e.getSQLState()).startsWith("40"))
                    throw e;
                conn.rollback();
                System.err.println("again: " + e.getMessage());
                Thread.sleep((long) (Math.random() * 200));
            }
    }

    public static void main(String[] args) throws Exception {
        conn = DriverManager.getConnection(System.getenv("JDBC_URL"));
        run("SET idle_in_transaction_session_timeout = '10s'");
        conn.setAutoCommit(false);
        Map<String, Object> config = Map.of(
            "bootstrap.servers", System.getenv("KAFKA_BROKERS"), "group.id", GROUP,
            "session.timeout.ms", SESSION, "heartbeat.interval.ms", SESSION / 10, "max.poll.records", BATCH,
            "enable.auto.commit", false, "isolation.level", "read_committed", "auto.offset.reset", "none",
            "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class);
        Thread main = Thread.currentThread();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try {
                    main.join();
                } catch (InterruptedException e) {
                    // the JVM ends anyway
                }
            }));
            consumer.subscribe(List.of(TOPIC), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    try {
                        assigned(consumer, partitions);
                    } catch (SQLException e) {
                        throw new IllegalStateException(e);
                    }
                }

                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    position.keySet().removeAll(partitions);
                }
            });
            while (true) {
                ConsumerRecords<byte[], byte[]> messages = consumer.poll(Duration.ofSeconds(1));
                if (!messages.isEmpty())
                    handleWithRetries(messages);
            }
        } catch (WakeupException e) {
            conn.close();
        }
    }
}
// <<<
