/*-------------------------------------------------------------------------
 *
 * setup_sql.h
 *		The DDL that a target database of the postgres sink needs.
 *
 * The sink creates nothing by itself.  The server's sink_setup_sql(server)
 * prints this text for somebody to run at the target, and the program refers
 * to that function when the table is missing.  The text can be run again, for
 * a second relay to the same target or for another role.  No text of the server's
 * owner stands in it but as a quoted name.
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
 * Four %s: the position table three times, then the sink's role there.  All
 * are quoted SQL names, the table with its schema.
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
 * In addition for the option "table": an inbox with every column the sink can
 * fill, any of which but event_id may be left out.  Three %s: the inbox twice,
 * then the role.
 */
#define IDEM_SINK_POSTGRES_INBOX_SQL \
	"CREATE TABLE IF NOT EXISTS %s (\n" \
	"    event_id uuid PRIMARY KEY,\n" \
	"    seq bigint NOT NULL,\n" \
	"    aggregate_type text NOT NULL,\n" \
	"    aggregate_id text NOT NULL,\n" \
	"    event_type text NOT NULL,\n" \
	"    payload jsonb,\n" \
	"    headers jsonb,\n" \
	"    enqueued_at timestamptz NOT NULL\n" \
	");\n" \
	"GRANT SELECT, INSERT ON %s TO %s;\n"

/* For a server of another kind of sink. */
#define IDEM_SINK_NO_SETUP_SQL \
	"-- Nothing has to be prepared: the server is of another foreign-data wrapper than idempotency_postgres.\n"

#endif							/* IDEM_SINK_POSTGRES_SETUP_SQL_H */
