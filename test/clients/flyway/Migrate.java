// Flyway runs the migrations of doc/howto/deploy.md as a plain role, and the checks that ../run.sh counts.

import java.io.IOException;
import java.nio.file.*;
import java.sql.*;
import java.util.regex.*;

import org.flywaydb.core.Flyway;
import org.flywaydb.core.api.FlywayException;
import org.flywaydb.core.api.configuration.FluentConfiguration;

public class Migrate {
    static void check(String name, boolean good) {
        System.out.println((good ? "ok " : "NOT OK ") + name);
    }

    static String url(String role) {
        return System.getenv("JDBC_URL").replaceFirst("user=\\w+", "user=" + role);
    }

    static String value(String role, String sql) throws SQLException {
        try (Connection conn = DriverManager.getConnection(url(role)); Statement statement = conn.createStatement()) {
            ResultSet rows = statement.executeQuery(sql);
            rows.next();
            return rows.getString(1);
        }
    }

    static String tables(String schema) throws SQLException {
        return value("postgres", "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = '" + schema + "'::regnamespace");
    }

    /** A part of migrations.sql as a file of Flyway's. */
    static void write(Path directory, String file, String part) throws IOException {
        Matcher found = Pattern.compile("-- >>> " + part + "\n(.*?)-- <<<", Pattern.DOTALL).matcher(Files.readString(Path.of("migrations.sql")));
        found.find();
        Files.writeString(directory.resolve(file), found.group(1).replaceAll("(?m)^(SET ROLE shop_migrate|BEGIN|COMMIT);\n", ""));
    }

    public static void main(String[] args) throws Exception {
        Path directory = Files.createTempDirectory("migrations");
        FluentConfiguration configuration = Flyway.configure().dataSource(url("shop_migrate"), "shop_migrate", null)
            .locations("filesystem:" + directory).cleanDisabled(false);
        String before = tables("idempotency_data");

        write(directory, "V1__billing.sql", "migration");
        configuration.load().migrate();
        value("shop_app", "SELECT idempotency.outbox_enqueue('order', '42', 'OrderCreated', '{}')");
        String arrived = "0";
        for (int tries = 0; tries < 1200 && arrived.equals("0"); tries++) {
            Thread.sleep(100);
            arrived = value("shop_app", "SELECT count(*) FROM invoices WHERE order_id = '42'");
        }
        check("a plain role migrates, and its relay delivers", arrived.equals("1"));

        write(directory, "V2__failing.sql", "back");
        Files.writeString(directory.resolve("V2__failing.sql"), "SELECT 1/0;", StandardOpenOption.APPEND);
        boolean failed = false;
        try {
            configuration.load().migrate();
        } catch (FlywayException e) {
            failed = true;
        }
        check("a migration that fails leaves relay and consumer as they were", failed &&
            value("shop_migrate", "SELECT count(*) FROM idempotency.stat_relay WHERE relay = 'invoices'").equals("1") &&
            value("shop_migrate", "SELECT count(*) FROM idempotency.claim_consumers WHERE consumer = 'billing'").equals("1"));

        Files.delete(directory.resolve("V2__failing.sql"));
        write(directory, "V2__back.sql", "back");
        configuration.load().migrate();
        check("the way back is a migration as well",
            value("shop_migrate", "SELECT count(*) FROM idempotency.stat_relay").equals("0"));

        configuration.load().clean();
        check("clean drops the application's tables and leaves the extension",
            value("postgres", "SELECT to_regclass('public.invoices') IS NULL").equals("t") && tables("idempotency_data").equals(before));
        configuration.schemas("public", "idempotency_data").load().clean();
        check("a plain role's clean leaves the extension even if its schema is named", tables("idempotency_data").equals(before));
        configuration.dataSource(url("postgres"), "postgres", null).load().clean();
        check("a superuser's clean drops the extension if its schema is named",
            value("postgres", "SELECT to_regnamespace('idempotency_data') IS NULL").equals("t"));
    }
}
