// A producer and a consumer with Spring and Hibernate, and the checks that ../run.sh counts.
//
// The lines between the marks are those of doc/howto/java.md.

import java.math.BigDecimal;
import java.sql.SQLException;
import java.util.Properties;
import java.util.UUID;
import java.util.function.Supplier;

import javax.sql.DataSource;

import jakarta.persistence.*;

import org.springframework.context.annotation.*;
import org.springframework.dao.DataAccessException;
import org.springframework.dao.InvalidDataAccessApiUsageException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.*;
import org.springframework.orm.jpa.*;
import org.springframework.orm.jpa.persistenceunit.PersistenceManagedTypes;
import org.springframework.orm.jpa.vendor.HibernateJpaVendorAdapter;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.*;
import org.springframework.transaction.support.TransactionTemplate;

public class Shop {
    @Entity @Table(name = "orders")
    public static class Order {
        @Id int id;
        BigDecimal total;

        protected Order() {}

        Order(int id, int total) {
            this.id = id;
            this.total = BigDecimal.valueOf(total);
        }
    }

    @Entity @Table(name = "invoices")
    public static class Invoice {
        @Id @Column(name = "order_id") int order;
        BigDecimal total;
        @Column(name = "event_id") UUID event;

        protected Invoice() {}

        Invoice(int order, int total, UUID event) {
            this.order = order;
            this.total = BigDecimal.valueOf(total);
            this.event = event;
        }
    }

    // >>> services
    public static class Sales {
        @PersistenceContext EntityManager entities;

        /** The order and its event commit together, or neither of them does. */
        @Transactional
        public String placeOrder(int order, int total) {
            entities.persist(new Order(order, total));
            return (String) entities.createNativeQuery("""
                    SELECT CAST(idempotency.outbox_enqueue('order', CAST(:order AS text), 'OrderCreated',
                                                           CAST(:payload AS jsonb)) AS text)""", String.class)
                .setParameter("order", order)
                .setParameter("payload", "{\"order\": %d, \"total\": %d}".formatted(order, total))
                .getSingleResult();
        }
    }

    public static class Billing {
        @PersistenceContext EntityManager entities;
        final JdbcTemplate jdbc;                // of the DataSource of the JpaTransactionManager

        public Billing(JdbcTemplate jdbc) { this.jdbc = jdbc; }

        /** Make one message's effect once. After it has returned, acknowledge all but busy. */
        @Transactional
        public String handle(String eventId, int order, int total) {
            String verdict = jdbc.queryForObject(
                "SELECT idempotency.claim_event(?::uuid, consumer => 'billing', wait => ?::interval)",
                String.class, eventId, "100 ms");
            if (verdict.equals("claimed")) {
                entities.persist(new Invoice(order, total, UUID.fromString(eventId)));
                entities.flush();               // Hibernate would write at COMMIT, after the completion
                jdbc.queryForObject(
                    "SELECT idempotency.complete_event(?::uuid, consumer => 'billing', result => ?::jsonb)",
                    String.class, eventId, "{\"invoice\": %d}".formatted(order));
            }
            return verdict;
        }
    // <<<

        /** Wrong: the call does not go through the proxy. */
        public String handleAlone(String eventId, int order, int total) {
            return handle(eventId, order, total);
        }

        /** Wrong: no completion. */
        @Transactional
        public void forget(String eventId) {
            jdbc.queryForObject("SELECT idempotency.claim_event(?::uuid, 'billing')", String.class, eventId);
        }

        /** Wrong: what JdbcTemplate sees of an entity that was not flushed. */
        @Transactional
        public int seenWithoutFlush(String eventId) {
            entities.persist(new Invoice(7, 1, UUID.fromString(eventId)));
            return jdbc.queryForObject("SELECT count(*) FROM invoices WHERE order_id = 7", Integer.class);
        }

        /** Wrong: an error that is caught inside. */
        @Transactional
        public void handleCaught(String eventId, boolean complete) {
            jdbc.queryForObject("SELECT idempotency.claim_event(?::uuid, 'billing')", String.class, eventId);
            try {
                jdbc.queryForObject("SELECT 1/0", Integer.class);
            } catch (DataAccessException e) {
                // dropped
            }
            if (complete)
                jdbc.queryForObject("SELECT idempotency.complete_event(?::uuid, 'billing')", String.class, eventId);
        }

        @Transactional
        public void nativeVoid() {
            jdbc.queryForObject("SELECT idempotency.claim_event('void', 'billing')", String.class);
            entities.createNativeQuery("SELECT idempotency.complete_event('void', 'billing')").getSingleResult();
        }
    }

    // >>> sqlstate
    /** Spring and Hibernate wrap the driver's error; ID001 comes with COMMIT, when the method has ended. */
    static String sqlState(Throwable error) {
        while (error != null && !(error instanceof SQLException))
            error = error.getCause();
        return error == null ? null : ((SQLException) error).getSQLState();
    }

    /** Without JPA: a claim that was not completed is a defect of the program, which no retry mends. */
    static JdbcTransactionManager transactionManager(DataSource source) {
        SQLExceptionTranslator standard = new SQLExceptionSubclassTranslator();
        JdbcTransactionManager manager = new JdbcTransactionManager(source);
        manager.setExceptionTranslator((task, sql, e) -> "ID001".equals(e.getSQLState())
            ? new InvalidDataAccessApiUsageException(e.getMessage(), e) : standard.translate(task, sql, e));
        return manager;
    }
    // <<<

    @Configuration @EnableTransactionManagement
    public static class Context {
        @Bean public DataSource source() { return new DriverManagerDataSource(System.getenv("JDBC_URL")); }
        @Bean public JdbcTemplate jdbc(DataSource source) { return new JdbcTemplate(source); }
        @Bean public Sales sales() { return new Sales(); }
        @Bean public Billing billing(JdbcTemplate jdbc) { return new Billing(jdbc); }

        @Bean public LocalContainerEntityManagerFactoryBean entities(DataSource source) {
            LocalContainerEntityManagerFactoryBean factory = new LocalContainerEntityManagerFactoryBean();
            factory.setDataSource(source);
            factory.setJpaVendorAdapter(new HibernateJpaVendorAdapter());
            factory.setManagedTypes(PersistenceManagedTypes.of(Order.class.getName(), Invoice.class.getName()));
            Properties properties = new Properties();
            properties.put("hibernate.hbm2ddl.auto", "validate");
            factory.setJpaProperties(properties);
            return factory;
        }

        @Bean public PlatformTransactionManager transactions(EntityManagerFactory entities) {
            return new JpaTransactionManager(entities);
        }
    }

    // Checks

    static JdbcTemplate jdbc;

    static void check(String name, boolean good) {
        System.out.println((good ? "ok " : "NOT OK ") + name);
    }

    /** The error of the call; null if it has none. */
    static Throwable error(Supplier<?> call) {
        try {
            call.get();
        } catch (RuntimeException e) {
            return e;
        }
        return null;
    }

    static Throwable error(Runnable call) {
        return error(() -> { call.run(); return null; });
    }

    static boolean fails(String sqlstate, Supplier<?> call) {
        return sqlstate.equals(sqlState(error(call)));
    }

    static String value(String sql, Object... arguments) {
        return jdbc.queryForObject(sql, String.class, arguments);
    }

    static boolean billed(String eventId, int invoices, String status) {
        return value("SELECT count(*) FROM invoices WHERE event_id = ?::uuid", eventId).equals("" + invoices) &&
            value("SELECT status FROM idempotency.event_status(?::uuid, 'billing')", eventId).equals(status);
    }

    public static void main(String[] args) {
        try (AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Context.class)) {
            jdbc = context.getBean(JdbcTemplate.class);
            Sales sales = context.getBean(Sales.class);
            Billing billing = context.getBean(Billing.class);
            TransactionTemplate jpa = new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
            TransactionTemplate plain = new TransactionTemplate(transactionManager(context.getBean(DataSource.class)));

            String id = sales.placeOrder(1, 99);
            check("an event commits with its row", value("SELECT enqueued(1) + (SELECT count(*) FROM orders WHERE id = 1)").equals("2"));
            jpa.execute(status -> { status.setRollbackOnly(); return sales.placeOrder(2, 99); });
            check("an event is rolled back with its row",
                value("SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)").equals("0"));
            check("claimed: the effect is made and the result is stored", billing.handle(id, 1, 99).equals("claimed") &&
                billed(id, 1, "completed") && value("SELECT idempotency.event_result(?::uuid, 'billing')->>'invoice'", id).equals("1"));
            check("redelivered: duplicate, and one effect", billing.handle(id, 1, 99).equals("duplicate") && billed(id, 1, "completed"));

            String again = UUID.randomUUID().toString();
            boolean failed = fails("23505", () -> billing.handle(again, 1, 1));
            check("a handler that failed is tried again", failed && billed(again, 0, "unknown") &&
                billing.handle(again, 3, 1).equals("claimed") && billed(again, 1, "completed"));
            check("JdbcTemplate does not see what Hibernate has not flushed",
                billing.seenWithoutFlush(UUID.randomUUID().toString()) == 0 &&
                value("SELECT count(*) FROM invoices WHERE order_id = 7").equals("1"));

            String forgotten = UUID.randomUUID().toString();
            check("a forgotten completion is ID001 when the method has ended",
                fails("ID001", () -> { billing.forget(forgotten); return null; }) && billed(forgotten, 0, "unknown"));
            check("without JPA ID001 is translated", error(() -> plain.execute(status ->
                value("SELECT idempotency.claim_event(?::uuid, 'billing')", forgotten))) instanceof InvalidDataAccessApiUsageException);
            check("a call that does not go through the proxy is ID001",
                fails("ID001", () -> billing.handleAlone(forgotten, 8, 1)) && billed(forgotten, 0, "unknown"));

            String caught = UUID.randomUUID().toString();
            boolean silent = error(() -> billing.handleCaught(caught, false)) == null;
            check("an error that is caught inside: the end is silent, the completion fails with 25P02",
                silent && fails("25P02", () -> { billing.handleCaught(caught, true); return null; }) && billed(caught, 0, "unknown"));
            TransactionTemplate nested = new TransactionTemplate(plain.getTransactionManager());
            nested.setPropagationBehavior(TransactionDefinition.PROPAGATION_NESTED);
            String saved = plain.execute(status -> {
                String verdict = value("SELECT idempotency.claim_event(?::uuid, 'billing')", caught);
                boolean undone = fails("22012", () -> nested.execute(inner -> value("SELECT 1/0")));
                value("SELECT idempotency.complete_event(?::uuid, 'billing')", caught);
                return verdict + undone;
            });
            check("NESTED is a savepoint", saved.equals("claimedtrue") && billed(caught, 0, "completed"));

            billing.nativeVoid();
            check("a native query calls a void function",
                value("SELECT status FROM idempotency.event_status('void', 'billing')").equals("completed"));
        }
    }
}
