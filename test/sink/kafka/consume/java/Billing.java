// Consume from Kafka into PostgreSQL, each event once.  ../../consume.py kills it.
//
// The lines between the marks are those of doc/howto/kafka-consume.md.

// >>> program
import java.sql.*;
import java.time.Duration;
import java.util.*;

import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Billing {
    static final String GROUP = System.getenv("KAFKA_GROUP"), TOPIC = System.getenv("KAFKA_TOPIC");
    static final int SESSION = Integer.parseInt(System.getenv().getOrDefault("KAFKA_SESSION_TIMEOUT", "45000"));    // ms
    static final int BATCH = 50, TRIES = 20;

    static final String RESTORE = """
        INSERT INTO kafka_offsets VALUES (?, ?, ?, -2)
        ON CONFLICT (consumer_group, topic, kafka_partition) DO UPDATE SET next_offset = kafka_offsets.next_offset
        RETURNING next_offset""";
    static final String STORE = """
        UPDATE kafka_offsets SET next_offset = ?
        WHERE consumer_group = ? AND topic = ? AND kafka_partition = ? AND next_offset = ?
        RETURNING next_offset""";
    static final String CLAIM =
        "SELECT idempotency.claim_event(convert_from(?::bytea, 'UTF8')::uuid, consumer => ?, wait => '1 s')";
    static final String CHARGE = """
        INSERT INTO accounts
        VALUES (convert_from(?::bytea, 'UTF8'), (convert_from(?::bytea, 'UTF8')::jsonb->>'total')::numeric)
        ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed""";
    static final String ENQUEUE = """
        SELECT idempotency.outbox_enqueue('account', convert_from(?::bytea, 'UTF8'), 'AccountCharged',
            jsonb_build_object('cause', convert_from(?::bytea, 'UTF8')::uuid))""";
    static final String COMPLETE =
        "SELECT idempotency.complete_event(convert_from(?::bytea, 'UTF8')::uuid, consumer => ?)";
    static final String REJECT = """
        INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, event_id, key, value, sqlstate, error)
        VALUES (?, ?, ?, ?, ?::bytea, ?::bytea, ?::bytea, ?, ?)""";

    /** Where each partition goes on, as we stored it. */
    static final Map<TopicPartition, Long> position = new HashMap<>();
    static Connection conn;

    /** Run any statement; the first column of its first row, or null if there is none. */
    static String run(String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = conn.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++)
                statement.setObject(i + 1, arguments[i]);
            if (!statement.execute() || !statement.getResultSet().next())
                return null;
            return statement.getResultSet().getString(1);
        }
    }

    /** Go on where the database says; a transaction of the former owner has ended by then. */
    static void assigned(Consumer<byte[], byte[]> consumer, Collection<TopicPartition> partitions) throws SQLException {
        for (TopicPartition p : partitions) {
            long next = Long.parseLong(run(RESTORE, GROUP, p.topic(), p.partition()));
            position.put(p, next);
            if (next < 0)
                consumer.seekToBeginning(List.of(p));
            else
                consumer.seek(p, next);
        }
        conn.commit();
    }

    /** The effect of one message, or its row in rejected_messages. */
    static void handle(ConsumerRecord<byte[], byte[]> message) throws SQLException {
        Header header = message.headers().lastHeader("id");
        byte[] eventId = header == null ? null : header.value();
        Savepoint before = conn.setSavepoint();
        try {
            String verdict = run(CLAIM, eventId, GROUP);
            if (verdict.equals("claimed")) {
                run(CHARGE, message.key(), message.value());
                run(ENQUEUE, message.key(), eventId);
                run(COMPLETE, eventId, GROUP);
            } else if (!verdict.equals("duplicate"))        // another transaction has the event right now
                throw new SQLException(verdict, "40001");
            conn.releaseSavepoint(before);
        } catch (SQLException e) {
            String state = String.valueOf(e.getSQLState());
            if (!state.startsWith("22") && !state.startsWith("23"))
                throw e;
            conn.rollback(before);                          // this message will never do
            run(REJECT, GROUP, message.topic(), message.partition(), message.offset(), eventId, message.key(),
                message.value(), state, e.getMessage());
        }
    }

    /** The effects of the messages and the offsets behind them, in one transaction. */
    static void handleBatch(ConsumerRecords<byte[], byte[]> messages) throws SQLException {
        Map<TopicPartition, Long> ends = new TreeMap<>(
            Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition));
        for (ConsumerRecord<byte[], byte[]> m : messages)
            ends.put(new TopicPartition(m.topic(), m.partition()), m.offset() + 1);
        for (Map.Entry<TopicPartition, Long> end : ends.entrySet()) {
            TopicPartition p = end.getKey();
            if (run(STORE, end.getValue(), GROUP, p.topic(), p.partition(), position.get(p)) == null)
                throw new IllegalStateException(p + " has another owner now");
        }
        for (ConsumerRecord<byte[], byte[]> m : messages)
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
