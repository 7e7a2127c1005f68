/*-------------------------------------------------------------------------
 *
 * target.c
 *		Looks up what the events go into, and writes the statement for it.
 *
 * A function is called with those of the known arguments it declares, by
 * name; a table is filled in those of the known columns it has.  All that is
 * decided once, at hello: a later change of the target shows as an error of
 * PREPARE and ends the program, and the next one looks again.
 *
 * INVARIANT
 *		Names go into SQL quoted, values as parameters; everything of the
 *		catalog is qualified, so that the target role's search_path matters to
 *		its own function only.
 *
 * MEMORY
 *		The statements live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/target.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

/* The name of each field and the types that it can be given as. */
static const struct
{
	const char *name;
	uint32_t	types[5];
}			fields[PG_NFIELDS] = {
	[PG_EVENT_ID] = {"event_id", {PG_UUID, PG_TEXT, PG_VARCHAR}},
	[PG_SEQ] = {"seq", {PG_INT8}},
	[PG_AGGREGATE_TYPE] = {"aggregate_type", {PG_TEXT, PG_VARCHAR}},
	[PG_AGGREGATE_ID] = {"aggregate_id", {PG_TEXT, PG_VARCHAR}},
	[PG_EVENT_TYPE] = {"event_type", {PG_TEXT, PG_VARCHAR}},
	[PG_CONTENT_TYPE] = {"content_type", {PG_TEXT, PG_VARCHAR}},
	[PG_PAYLOAD] = {"payload", {PG_JSONB, PG_JSON, PG_TEXT, PG_VARCHAR, PG_BYTEA}},
	[PG_PAYLOAD_BYTES] = {"payload_bytes", {PG_BYTEA}},
	[PG_HEADERS] = {"headers", {PG_JSONB, PG_JSON, PG_TEXT, PG_VARCHAR}},
	[PG_ENQUEUED_AT] = {"enqueued_at", {PG_TIMESTAMPTZ}},
};

const char *
pg_field_name(PgField field)
{
	return fields[field].name;
}

static int
find_field(const char *name)
{
	for (int f = 0; f < PG_NFIELDS; f++)
		if (strcmp(fields[f].name, name) == 0)
			return f;
	return -1;
}

/* Run one look-up and return its result; the end on any error. */
static PGresult *
look_up(PgSink *p, const char *sql, int nparams, const char *const *values)
{
	const uint32_t types[3] = {PG_TEXT, PG_TEXT, PG_TEXT};
	PgPending	what;
	PGresult   *res;
	PGresult   *found = NULL;

	pg_send(p, PG_STEP_QUERY, 0, sql, nparams, types, values, NULL);
	pg_sync(p);
	while ((res = pg_next(p, &what)) != NULL)
	{
		if (what.step == PG_STEP_QUERY)
			found = res;
		else
			PQclear(res);
	}
	if (p->error.set)
		pg_give_up(p, "look up the target");
	return found;
}

/* Take a declared argument or column of that type into use. */
static bool
use_field(PgSink *p, const char *name, const char *type_oid, const char *type_name)
{
	int			f = find_field(name);
	uint32_t	type = (uint32_t) strtoul(type_oid, NULL, 10);

	if (f < 0)
		return false;
	for (int i = 0; i < 5; i++)
		if (fields[f].types[i] == type)
		{
			p->used[f] = true;
			p->type[f] = type;
			return true;
		}
	idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42804",
					 "\"%s\" of %s.%s has type %s, in which the sink cannot give it",
					 name, p->config.schema, p->config.name, type_name);
}

static void
describe_function(PgSink *p)
{
	const char *values[2] = {p->config.schema, p->config.name};
	PGresult   *res = look_up(p,
							  "SELECT p.oid, p.prokind, p.proretset, p.pronargs, p.pronargdefaults,"
							  " a.n, a.name, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END,"
							  " pg_catalog.format_type(t.oid, NULL), p.provariadic"
							  " FROM pg_catalog.pg_proc p"
							  " JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) p.pronamespace"
							  " LEFT JOIN LATERAL (SELECT pg_catalog.row_number() OVER () AS n, u.type,"
							  " p.proargnames[u.i] AS name"
							  " FROM ROWS FROM (pg_catalog.unnest(COALESCE(p.proallargtypes, p.proargtypes::pg_catalog.oid[])),"
							  " pg_catalog.unnest(p.proargmodes))"
							  " WITH ORDINALITY AS u(type, mode, i)"
							  " WHERE u.type IS NOT NULL AND COALESCE(u.mode, 'i') IN ('i', 'b', 'v')) a ON true"
							  " LEFT JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.type"
							  " WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND p.proname OPERATOR(pg_catalog.=) $2"
							  " ORDER BY p.oid, a.n", 2, values);
	int			rows = PQntuples(res);
	int			nargs;
	int			ndefaults;

	if (rows == 0)
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42883",
						 "function %s.%s does not exist at the target", values[0], values[1]);
	if (strcmp(PQgetvalue(res, 0, 0), PQgetvalue(res, rows - 1, 0)) != 0)
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42725",
						 "function %s.%s is not unique at the target; the sink needs one without overloads",
						 values[0], values[1]);
	if (strcmp(PQgetvalue(res, 0, 1), "f") != 0 || strcmp(PQgetvalue(res, 0, 2), "t") == 0 ||
		strcmp(PQgetvalue(res, 0, 9), "0") != 0)
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42809",
						 "%s.%s at the target must be a function that is not an aggregate, variadic or set-returning",
						 values[0], values[1]);
	nargs = (int) strtol(PQgetvalue(res, 0, 3), NULL, 10);
	ndefaults = (int) strtol(PQgetvalue(res, 0, 4), NULL, 10);
	for (int i = 0; i < nargs && i < rows; i++)
		if (!use_field(p, PQgetvalue(res, i, 6), PQgetvalue(res, i, 7), PQgetvalue(res, i, 8)) &&
			i < nargs - ndefaults)
			idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42883",
							 "function %s.%s at the target has an argument \"%s\", which is no part of an event and has no default",
							 values[0], values[1], PQgetvalue(res, i, 6));
	PQclear(res);
}

static void
describe_table(PgSink *p)
{
	const char *values[2] = {p->config.schema, p->config.name};
	PGresult   *res = look_up(p,
							  "SELECT a.attname, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END,"
							  " pg_catalog.format_type(a.atttypid, a.atttypmod),"
							  " EXISTS (SELECT FROM pg_catalog.pg_index i"
							  " WHERE i.indrelid OPERATOR(pg_catalog.=) a.attrelid AND i.indisunique"
							  " AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL"
							  " AND i.indnkeyatts OPERATOR(pg_catalog.=) 1 AND i.indkey[0] OPERATOR(pg_catalog.=) a.attnum)"
							  " FROM pg_catalog.pg_attribute a"
							  " JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid"
							  " JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace"
							  " JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid"
							  " WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2"
							  " AND c.relkind IN ('r', 'p') AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped"
							  " AND a.attgenerated OPERATOR(pg_catalog.=) ''", 2, values);

	if (PQntuples(res) == 0)
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42P01",
						 "table %s.%s does not exist at the target; idempotency.sink_setup_sql(server) prints what to run there",
						 values[0], values[1]);
	for (int i = 0; i < PQntuples(res); i++)
	{
		use_field(p, PQgetvalue(res, i, 0), PQgetvalue(res, i, 1), PQgetvalue(res, i, 2));
		if (strcmp(PQgetvalue(res, i, 0), fields[PG_EVENT_ID].name) == 0 &&
			strcmp(PQgetvalue(res, i, 3), "t") != 0)
			idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42P10",
							 "column \"event_id\" of table %s.%s at the target has no unique index of its own; a repeated event would be inserted twice",
							 values[0], values[1]);
	}
	PQclear(res);
	if (!p->used[PG_EVENT_ID])
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42703",
						 "table %s.%s at the target has no column \"event_id\"",
						 values[0], values[1]);
}

/* The type of the array that a field travels in, and the cast to its target. */
static const char *
array_type(const PgSink *p, PgField f)
{
	switch (f)
	{
		case PG_EVENT_ID:
			return "pg_catalog.uuid[]";
		case PG_SEQ:
			return "pg_catalog.int8[]";
		case PG_ENQUEUED_AT:
			return "pg_catalog.timestamptz[]";
		default:
			break;
	}
	switch (p->type[f])
	{
		case PG_JSONB:
			return "pg_catalog.jsonb[]";
		case PG_JSON:
			return "pg_catalog.json[]";
		case PG_BYTEA:
			return "pg_catalog.bytea[]";
		default:
			return "pg_catalog.text[]";
	}
}

/*
 * Write the pieces of the statement that name fields: arguments ("a" => e."a")
 * or columns, values, array parameters, and the row's column names.  The id is
 * always sent, so that there is one row per event whatever else is wanted.
 */
typedef struct Pieces
{
	char		names[1024];
	char		values[1024];
	char		arrays[1024];
	char		row[1024];
} Pieces;

static void
append(char *dst, const char *separator, const char *text)
{
	size_t		len = strlen(dst);

	snprintf(dst + len, 1024 - len, "%s%s", len > 0 ? separator : "", text);
}

static void
write_pieces(const PgSink *p, Pieces *s)
{
	char		buf[256];
	int			n = 0;

	memset(s, 0, sizeof(*s));
	for (int f = 0; f < PG_NFIELDS; f++)
	{
		const char *name = fields[f].name;
		const char *cast = f == PG_EVENT_ID && p->type[f] != PG_UUID ? "::pg_catalog.text" : "";

		if (f != PG_EVENT_ID && !p->used[f])
			continue;
		snprintf(buf, sizeof(buf), "pg_catalog.unnest($%d::%s)", ++n, array_type(p, (PgField) f));
		append(s->arrays, ", ", buf);
		append(s->row, ", ", name);
		if (!p->used[f])
			continue;
		append(s->names, ", ", name);
		snprintf(buf, sizeof(buf), p->config.is_function ? "%s => e.%s%s" : "%.0se.%s%s",
				 name, name, cast);
		append(s->values, ", ", buf);
	}
}

static void
write_statement(PgSink *p)
{
	Pieces		s;
	char	   *schema = pg_quote(p->config.schema);
	char	   *name = pg_quote(p->config.name);

	write_pieces(p, &s);
	if (p->config.is_function)
		p->call_sql = pg_format("SELECT (%s.%s(%s)) IS NULL FROM ROWS FROM (%s) AS e(%s)",
								schema, name, s.values, s.arrays, s.row);
	else
		p->call_sql = pg_format("INSERT INTO %s.%s (%s) SELECT %s FROM ROWS FROM (%s) AS e(%s)"
								" ON CONFLICT (event_id) DO NOTHING",
								schema, name, s.names, s.values, s.arrays, s.row);
	free(schema);
	free(name);
}

/*
 * Claims make one effect of an event that is sent again although its position
 * passed (a replay).  An inbox does so by its key already, so "auto" claims
 * for functions only.
 */
static void
describe_claims(PgSink *p)
{
	PGresult   *res;
	char	   *schema;

	if (strcmp(p->config.claim, "off") == 0 ||
		(strcmp(p->config.claim, "auto") == 0 && !p->config.is_function))
		return;
	res = look_up(p, "SELECT s.nspname FROM pg_catalog.pg_extension x"
				  " JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) x.extnamespace"
				  " WHERE x.extname OPERATOR(pg_catalog.=) 'idempotency'", 0, NULL);
	if (PQntuples(res) == 0)
	{
		if (strcmp(p->config.claim, "on") == 0)
			idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "42704",
							 "extension \"idempotency\" is not installed at the target, but option \"claim\" is on");
		PQclear(res);
		return;
	}
	schema = pg_quote(PQgetvalue(res, 0, 0));
	PQclear(res);
	p->claim_sql = pg_format("SELECT c.ord, c.result::pg_catalog.text FROM %s.claim_events($1::pg_catalog.text[], $2) AS c",
							 schema);
	p->complete_sql = pg_format("SELECT %s.complete_events($1::pg_catalog.text[], $2)", schema);
	p->release_sql = pg_format("SELECT %s.release_event(e.id, $2) IS NULL FROM pg_catalog.unnest($1::pg_catalog.text[]) AS e(id)",
							   schema);
	free(schema);
}

void
pg_describe_target(PgSink *p)
{
	if (p->config.is_function)
		describe_function(p);
	else
		describe_table(p);
	write_statement(p);
	describe_claims(p);
}
