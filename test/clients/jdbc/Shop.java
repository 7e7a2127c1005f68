// A producer and a consumer with JDBC, and the checks that ../run.sh counts.
//
// The lines between the marks are those of doc/howto/java.md.

import java.sql.*;
import java.util.*;

import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

public class Shop {
    // >>> statement
    /** Run any statement, a SELECT of a void function as well; the first column of its rows, as text. */
    static List<String> run(Connection conn, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = conn.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++)
                statement.setObject(i + 1, arguments[i]);
            List<String> column = new ArrayList<>();
            if (statement.execute())                // executeUpdate() would fail
                for (ResultSet rows = statement.getResultSet(); rows.next(); )
                    column.add(rows.getString(1));
            return column;
        }
    }

    interface Work<T> { T run() throws SQLException; }

    static <T> T transaction(Connection conn, Work<T> work) throws SQLException {
        conn.setAutoCommit(false);
        try {
            T result = work.run();
            if (conn.unwrap(BaseConnection.class).getTransactionState() == TransactionState.FAILED)
                throw new SQLException("a statement failed before: do not acknowledge", "25P02");
            conn.commit();
            return result;
        } catch (SQLException | RuntimeException e) {
            conn.rollback();
            throw e;
        } finally {
            conn.setAutoCommit(true);
        }
    }
    // <<<

    // >>> producer
    /** The order and its event commit together, or neither of them does. */
    static String placeOrder(Connection conn, int order, int total) throws SQLException {
        return transaction(conn, () -> {
            run(conn, "INSERT INTO orders VALUES (?, ?)", order, total);
            return run(conn, "SELECT idempotency.outbox_enqueue('order', ?::text, 'OrderCreated', ?::jsonb)",
                order, "{\"order\": %d, \"total\": %d}".formatted(order, total)).get(0);
        });
    }
    // <<<

    // >>> consumer
    /** Make one message's effect once. After it has returned, acknowledge all but busy. */
    static String handle(Connection conn, String eventId, int order, int total) throws SQLException {
        return transaction(conn, () -> {
            String verdict = run(conn,
                "SELECT idempotency.claim_event(?::uuid, consumer => 'billing', wait => ?::interval)",
                eventId, "100 ms").get(0);
            if (verdict.equals("claimed")) {
                run(conn, "INSERT INTO invoices VALUES (?, ?, ?::uuid)", order, total, eventId);
                run(conn, "SELECT idempotency.complete_event(?::uuid, consumer => 'billing', result => ?::jsonb)",
                    eventId, "{\"invoice\": %d}".formatted(order));
            }
            return verdict;
        });
    }
    // <<<

    // >>> batch
    static final String BATCH = """
        WITH message AS (
            SELECT * FROM ROWS FROM (
                idempotency.claim_events(?::uuid[]::text[], consumer => 'billing'),
                unnest(?::jsonb[])
            ) AS m (ord, event_id, result, payload)
        ), effect AS (
            INSERT INTO invoices (order_id, total, event_id)
            SELECT (payload->>'order')::int, (payload->>'total')::numeric, event_id::uuid
            FROM message WHERE result = 'claimed'
            RETURNING event_id
        ), done AS (
            SELECT idempotency.complete_events(ARRAY(SELECT event_id::text FROM effect), consumer => 'billing')
        )
        SELECT result FROM message, done ORDER BY ord""";

    /** The same for many, with auto-commit; the verdicts come in the order of the ids. */
    static List<String> handleMany(Connection conn, List<String> ids, List<String> payloads) throws SQLException {
        return run(conn, BATCH, ids.toArray(new String[0]), payloads.toArray(new String[0]));
    }
    // <<<

    /** Wrong: all statements are sent before the verdict is read. */
    static void handleBlindly(Connection conn, String eventId, int order, int total) throws SQLException {
        transaction(conn, () -> run(conn, """
            SELECT idempotency.claim_event(?::uuid, consumer => 'billing');
            INSERT INTO invoices VALUES (?, ?, ?::uuid);
            SELECT idempotency.complete_event(?::uuid, consumer => 'billing')""",
            eventId, order, total, eventId, eventId));
    }

    // Checks

    static Connection conn;

    static void check(String name, boolean good) {
        System.out.println((good ? "ok " : "NOT OK ") + name);
    }

    /** Does it fail with that SQLSTATE? */
    static boolean fails(String sqlstate, Work<?> work) {
        try {
            work.run();
        } catch (SQLException e) {
            return sqlstate.equals(e.getSQLState());
        }
        return false;
    }

    static String value(String sql, Object... arguments) throws SQLException {
        return run(conn, sql, arguments).get(0);
    }

    static int invoices(String eventId) throws SQLException {
        return Integer.parseInt(value("SELECT count(*) FROM invoices WHERE event_id = ?::uuid", eventId));
    }

    public static void main(String[] args) throws SQLException {
        String url = System.getenv("JDBC_URL");
        conn = DriverManager.getConnection(url);
        Connection other = DriverManager.getConnection(url);

        String id = placeOrder(conn, 1, 99);
        check("an event commits with its row", value("SELECT enqueued(1)").equals("1"));
        other.setAutoCommit(false);
        run(other, "INSERT INTO orders VALUES (2, 99)");
        run(other, "SELECT idempotency.outbox_enqueue('order', '2', 'OrderCreated', ?::jsonb)", "{}");
        other.rollback();
        check("an event is rolled back with its row",
            value("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)").equals("0"));

        check("claimed: the effect is made and the result is stored",
            handle(conn, id, 1, 99).equals("claimed") && invoices(id) == 1 &&
            value("SELECT idempotency.event_result(?::uuid, 'billing')->>'invoice'", id).equals("1"));
        check("redelivered: duplicate, and one effect", handle(conn, id, 1, 99).equals("duplicate") && invoices(id) == 1);
        String upper = id.toUpperCase();
        check("an upper-case id is cast to the same event",
            handle(conn, upper, 1, 99).equals("duplicate") && invoices(id) == 1 &&
            value("SELECT status FROM idempotency.event_status(?::text, 'billing')", upper).equals("unknown"));

        String busy = UUID.randomUUID().toString();
        run(other, "SELECT idempotency.claim_event(?::uuid, 'billing')", busy);
        check("busy while another session has the event", handle(conn, busy, 3, 1).equals("busy") && invoices(busy) == 0);
        other.rollback();
        boolean failed = fails("23505", () -> handle(conn, busy, 1, 1));
        check("a handler that failed is tried again",
            failed && handle(conn, busy, 3, 1).equals("claimed") && invoices(busy) == 1);

        List<String> ids = new ArrayList<>(), payloads = new ArrayList<>();
        for (int n = 0; n < 50; n++) {
            ids.add(UUID.randomUUID().toString());
            payloads.add("{\"order\": %d, \"total\": %d}".formatted(100 + n, n));
        }
        ids.addAll(List.copyOf(ids));
        payloads.addAll(List.copyOf(payloads));
        List<String> verdicts = new ArrayList<>(Collections.nCopies(50, "claimed"));
        verdicts.addAll(Collections.nCopies(50, "duplicate"));
        check("a batch of 100 with repeats is one statement",
            handleMany(conn, ids, payloads).equals(verdicts) &&
            value("SELECT count(*) FROM invoices WHERE order_id >= 100").equals("50") &&
            handleMany(conn, ids, payloads).equals(Collections.nCopies(100, "duplicate")) &&
            handleMany(conn, List.of(), List.of()).isEmpty());

        run(other, "INSERT INTO orders VALUES (4, 1)");
        fails("22012", () -> run(other, "SELECT 1/0"));
        other.commit();
        boolean silent = value("SELECT count(*) FROM orders WHERE id = 4").equals("0");
        check("COMMIT of an aborted transaction is noticed",
            silent && fails("25P02", () -> transaction(conn, () -> fails("22012", () -> run(conn, "SELECT 1/0")))));

        String blind = UUID.randomUUID().toString();
        handleBlindly(conn, blind, 5, 1);
        check("a pipelined duplicate fails with ID002, and one statement answers it",
            fails("ID002", () -> { handleBlindly(conn, blind, 6, 1); return null; }) && invoices(blind) == 1 &&
            handleMany(conn, List.of(blind), List.of("{\"order\": 5, \"total\": 1}")).equals(List.of("duplicate")));

        String complete = "SELECT idempotency.complete_event('update', 'billing')";
        boolean refused = transaction(conn, () -> {
            run(conn, "SELECT idempotency.claim_event('update', 'billing')");
            try (PreparedStatement statement = conn.prepareStatement(complete)) {
                return fails("0100E", statement::executeUpdate);
            }
        });
        check("executeUpdate of a void function fails after it has run",
            refused && value("SELECT status FROM idempotency.event_status('update', 'billing')").equals("completed"));
    }
}
