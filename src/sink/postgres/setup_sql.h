/*-------------------------------------------------------------------------
 *
 * setup_sql.h
 *		The DDL that a target database of the postgres sink needs.
 *
 * The sink creates nothing by itself.  The SQL function sink_setup_sql(server)
 * prints this text, and an operator runs it at the target.  If the table is
 * missing, the program's message names that function.  The text can be run
 * again, for a second relay to the same target or for another role.  Text of
 * the foreign server's owner stands in it as quoted names only.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/setup_sql.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_POSTGRES_SETUP_SQL_H
#define IDEM_SINK_POSTGRES_SETUP_SQL_H

/*
 * The four %s are the position table three times, then the sink's role at the
 * target.  All are quoted SQL names; the table has its schema.
 */
#define IDEM_SINK_POSTGRES_SETUP_SQL \
	"CREATE TABLE IF NOT EXISTS %s (\n" \
	"    relay text PRIMARY KEY,\n" \
	"    epoch bigint NOT NULL,\n" \
	"    incarnation text,\n" \
	"    row_id bigint,\n" \
	"    k bigint,\n" \
	"    updated_at timestamptz NOT NULL DEFAULT now()\n" \
	") WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000);\n" \
	"COMMENT ON TABLE %s IS\n" \
	"    'Positions of idempotency relays that deliver to this database; written with each batch';\n" \
	"GRANT SELECT, INSERT, UPDATE ON %s TO %s;\n"

/*
 * Added for the option "table": an inbox, whose columns are below.  A column that
 * the option "omit_columns" names is left out.  The %s are the inbox; the lines of the
 * columns; the inbox, the role.
 */
#define IDEM_SINK_POSTGRES_INBOX_SQL \
	"CREATE TABLE IF NOT EXISTS %s (\n" \
	"    event_id uuid PRIMARY KEY%s\n" \
	");\n" \
	"GRANT SELECT, INSERT ON %s TO %s;\n"

static const struct
{
	const char *name;
	const char *type;
}			idem_sink_postgres_inbox[] = {
	{"seq", "bigint NOT NULL"},
	{"aggregate_type", "text NOT NULL"},
	{"aggregate_id", "text NOT NULL"},
	{"event_type", "text NOT NULL"},
	{"content_type", "text"},
	{"payload", "jsonb"},
	{"payload_bytes", "bytea"},
	{"headers", "jsonb"},
	{"enqueued_at", "timestamptz NOT NULL"},
};

/* What sink_setup prints for a sink without a target that needs anything. */
#define IDEM_SINK_NO_SETUP \
	"# Nothing has to be prepared at the target of this server.\n"

/* The text of sink_setup_sql for a foreign server of another kind of sink. */
#define IDEM_SINK_NO_SETUP_SQL \
	"-- Nothing has to be prepared: the server is of another foreign-data wrapper than idempotency_postgres.\n"

#endif							/* IDEM_SINK_POSTGRES_SETUP_SQL_H */
