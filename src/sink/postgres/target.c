/*-------------------------------------------------------------------------
 *
 * target.c
 *		Looks up the function or table for the events, and writes its statement.
 *
 * A function gets the fields whose names its arguments have.  A table has a
 * column for each field, but for those that the option omit_columns names.  The
 * program looks the target up at hello.  If the target changes later, PREPARE
 * mostly raises an error and the program ends; the next program looks the target up
 * again.  A unique index that is gone is found by the planner, so it is an error of
 * the call: after such errors the program looks the target up before it blames
 * events.
 *
 * A function may become STRICT without an error of any statement: the server then
 * answers NULL in its place.  So each transaction looks, after its calls, whether
 * the function's row in pg_proc is still the one that was found good.  It compares
 * oid and xmin, because a function that was STRICT for a moment has another xmin.
 *
 * INVARIANT
 *		No transaction commits calls of a function that was not found good.
 *
 *		A column that was there and is gone ends the program: events are never
 *		acked without a field that the table was to have.
 *
 *		Names go into SQL quoted, and values go as parameters.  Everything of
 *		the catalog is qualified, so that the search_path of the target's role
 *		matters to the called function only.
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

#include "sink/common/hide.h"
#include "sink/postgres/sink.h"

#define NO_FIELD	PGSINK_NFIELDS

/* As IDEM_MAX_NAME_BYTES of the extension */
#define MAX_CONSUMER_BYTES	255

/* The name of each field, and the types in which the sink can give it. */
static const struct
{
	const char *name;
	uint32_t	types[5];
}			fields[PGSINK_NFIELDS] = {
	[PGSINK_FIELD_EVENT_ID] = {"event_id", {PGSINK_TYPE_UUID, PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_SEQ] = {"seq", {PGSINK_TYPE_INT8}},
	[PGSINK_FIELD_AGGREGATE_TYPE] = {"aggregate_type", {PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_AGGREGATE_ID] = {"aggregate_id", {PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_EVENT_TYPE] = {"event_type", {PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_CONTENT_TYPE] = {"content_type", {PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_PAYLOAD] = {"payload", {PGSINK_TYPE_JSONB, PGSINK_TYPE_JSON, PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR, PGSINK_TYPE_BYTEA}},
	[PGSINK_FIELD_PAYLOAD_BYTES] = {"payload_bytes", {PGSINK_TYPE_BYTEA}},
	[PGSINK_FIELD_HEADERS] = {"headers", {PGSINK_TYPE_JSONB, PGSINK_TYPE_JSON, PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR}},
	[PGSINK_FIELD_ENQUEUED_AT] = {"enqueued_at", {PGSINK_TYPE_TIMESTAMPTZ}},
};

/* The field of that name, or NO_FIELD. */
static PgSinkField
find_field(const char *name)
{
	for (int f = 0; f < PGSINK_NFIELDS; f++)
		if (strcmp(fields[f].name, name) == 0)
			return (PgSinkField) f;
	return NO_FIELD;
}

PGresult *
pgsink_look_up(PgSink *p, const char *sql, int nparams, const char *const *values)
{
	const uint32_t types[3] = {PGSINK_TYPE_TEXT, PGSINK_TYPE_TEXT, PGSINK_TYPE_TEXT};
	PgSinkPending pending;
	PGresult   *res;
	PGresult   *found = NULL;

	pgsink_begin(p);
	pgsink_send(p, PGSINK_STEP_QUERY, 0, sql, nparams, types, values, NULL);
	pgsink_send(p, PGSINK_STEP_FRAME, 0, "COMMIT", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_QUERY)
			found = res;
		else
			PQclear(res);
	}
	if (!p->error.set)
		return found;
	PQclear(found);
	pgsink_fail_for_error(p, "look up the target");
	return NULL;
}

/* Use a field as an argument or column of that type.  False: p->failure. */
static bool
use_field(PgSink *p, PgSinkField f, const char *type_oid, const char *type_name)
{
	uint32_t	type = (uint32_t) strtoul(type_oid, NULL, 10);

	for (int i = 0; i < 5; i++)
		if (fields[f].types[i] == type)
		{
			p->used[f] = true;
			p->type[f] = type;
			return true;
		}
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42804",
						  "\"%s\" of %s.%s has type %s, in which the sink cannot give it",
						  fields[f].name, p->config.schema, p->config.name, idem_sink_without_secrets(type_name));
}

/* One row per input argument of the functions of that name. */
#define FUNCTION_QUERY \
	"SELECT p.oid, p.prokind, p.proretset, p.pronargs, p.pronargdefaults," \
	" a.n, a.name, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END," \
	" pg_catalog.format_type(t.oid, NULL), p.provariadic, p.proisstrict," \
	" pg_catalog.concat_ws(' ', p.oid, p.xmin), p.provolatile" \
	" FROM pg_catalog.pg_proc p" \
	" JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) p.pronamespace" \
	" LEFT JOIN LATERAL (SELECT pg_catalog.row_number() OVER () AS n, u.type," \
	" p.proargnames[u.i] AS name" \
	" FROM ROWS FROM (pg_catalog.unnest(COALESCE(p.proallargtypes, p.proargtypes::pg_catalog.oid[]))," \
	" pg_catalog.unnest(p.proargmodes))" \
	" WITH ORDINALITY AS u(type, mode, i)" \
	" WHERE u.type IS NOT NULL AND COALESCE(u.mode, 'i') IN ('i', 'b', 'v')) a ON true" \
	" LEFT JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.type" \
	" WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND p.proname OPERATOR(pg_catalog.=) $2" \
	" ORDER BY p.oid, a.n"

/*
 * Is there exactly one function, and can a call take one event?  False:
 * p->failure.
 */
static bool
check_function(PgSink *p, const PGresult *res)
{
	const char *schema = p->config.schema;
	const char *name = p->config.name;
	int			rows = PQntuples(res);

	if (rows == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42883",
							  "function %s.%s does not exist at the target", schema, name);
	if (strcmp(PQgetvalue(res, 0, 0), PQgetvalue(res, rows - 1, 0)) != 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42725",
							  "function %s.%s is not unique at the target; the sink needs one without overloads",
							  schema, name);
	if (strcmp(PQgetvalue(res, 0, 1), "f") != 0 || strcmp(PQgetvalue(res, 0, 2), "t") == 0 ||
		strcmp(PQgetvalue(res, 0, 9), "0") != 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42809",
							  "%s.%s at the target must be a function that is not an aggregate, variadic or set-returning",
							  schema, name);
	/* the server does not call it where an argument is null, and says nothing */
	if (strcmp(PQgetvalue(res, 0, 10), "t") == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42P13",
							  "function %s.%s at the target is STRICT, and would not be called for events without headers; it has to be CALLED ON NULL INPUT",
							  schema, name);
	/* such a call may be made once, when the statement is planned */
	if (strcmp(PQgetvalue(res, 0, 12), "i") == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42P13",
							  "function %s.%s at the target is IMMUTABLE, and might be called once for many events; it has to be VOLATILE",
							  schema, name);
	return true;
}

/*
 * Use the arguments that have names of fields; the other arguments need a
 * default.  False: p->failure.
 */
static bool
use_arguments(PgSink *p, const PGresult *res)
{
	int			nargs = (int) strtol(PQgetvalue(res, 0, 3), NULL, 10);
	int			ndefaults = (int) strtol(PQgetvalue(res, 0, 4), NULL, 10);

	for (int i = 0; i < nargs && i < PQntuples(res); i++)
	{
		const char *name = PQgetvalue(res, i, 6);
		PgSinkField f = find_field(name);

		if (f != NO_FIELD && !use_field(p, f, PQgetvalue(res, i, 7), PQgetvalue(res, i, 8)))
			return false;
		if (f == NO_FIELD && i < nargs - ndefaults)
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42883",
								  "function %s.%s at the target has an argument \"%s\", which is no part of an event and has no default",
								  p->config.schema, p->config.name, idem_sink_without_secrets(name));
	}
	return true;
}

/* Look up the function and choose its arguments.  False: p->failure. */
static bool
describe_function(PgSink *p)
{
	const char *values[2] = {p->config.schema, p->config.name};
	PGresult   *res = pgsink_look_up(p, FUNCTION_QUERY, 2, values);
	bool		ok = res != NULL && check_function(p, res) && use_arguments(p, res);

	if (ok)
		snprintf(p->function_row, sizeof(p->function_row), "%s", PQgetvalue(res, 0, 11));
	PQclear(res);
	return ok;
}

void
pgsink_send_look(PgSink *p)
{
	const char *values[3] = {p->config.schema, p->config.name, p->function_row};
	const uint32_t types[3] = {PGSINK_TYPE_TEXT, PGSINK_TYPE_TEXT, PGSINK_TYPE_TEXT};

	if (!p->config.is_function)
		return;
	pgsink_send(p, PGSINK_STEP_LOOK, 0,
				"SELECT pg_catalog.bool_and(pg_catalog.concat_ws(' ', p.oid, p.xmin) OPERATOR(pg_catalog.=) $3)"
				" FROM pg_catalog.pg_proc p"
				" JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) p.pronamespace"
				" WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND p.proname OPERATOR(pg_catalog.=) $2",
				3, types, values, NULL);
}

bool
pgsink_read_look(const PGresult *res)
{
	return PQntuples(res) == 1 && strcmp(PQgetvalue(res, 0, 0), "t") == 0;
}

/*
 * One row per column that can be written; the last values: is the column
 * unique; does a crash of the target empty the table, or a part of it; and a rule that
 * rewrites INSERT.
 */
#define TABLE_QUERY \
	"SELECT a.attname, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END," \
	" pg_catalog.format_type(a.atttypid, a.atttypmod)," \
	" EXISTS (SELECT FROM pg_catalog.pg_index i" \
	" WHERE i.indrelid OPERATOR(pg_catalog.=) a.attrelid AND i.indisunique" \
	" AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL" \
	" AND i.indnkeyatts OPERATOR(pg_catalog.=) 1 AND i.indkey[0] OPERATOR(pg_catalog.=) a.attnum)," \
	" " PGSINK_IS_UNLOGGED "," \
	" (SELECT pg_catalog.min(r.rulename::pg_catalog.text) FROM pg_catalog.pg_rewrite r" \
	" WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid AND r.ev_type OPERATOR(pg_catalog.=) '3'" \
	" AND r.ev_enabled OPERATOR(pg_catalog.<>) 'D')" \
	" FROM pg_catalog.pg_attribute a" \
	" JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid" \
	" JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace" \
	" JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid" \
	" WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2" \
	" AND c.relkind IN ('r', 'p') AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped" \
	" AND a.attgenerated OPERATOR(pg_catalog.=) ''"

/*
 * Has the table a column for each field that is not left out on purpose?  A payload
 * of type bytea takes what would go to payload_bytes.  False: p->failure.
 */
static bool
has_all_columns(PgSink *p)
{
	for (int f = 0; f < PGSINK_NFIELDS; f++)
	{
		if (p->used[f] || idem_sink_option_names(p->config.omit_columns, fields[f].name) ||
			(f == PGSINK_FIELD_PAYLOAD_BYTES && p->type[PGSINK_FIELD_PAYLOAD] == PGSINK_TYPE_BYTEA))
			continue;
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42703",
							  "table %s.%s at the target has no column \"%s\"; add it, or, if events are to be stored without it, name it in the server's option \"omit_columns\"",
							  p->config.schema, p->config.name, fields[f].name);
	}
	return true;
}

/* Use the columns that have names of fields.  False: p->failure. */
static bool
use_columns(PgSink *p, const PGresult *res)
{
	const char *schema = p->config.schema;
	const char *name = p->config.name;

	if (PQntuples(res) == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42P01",
							  "table %s.%s does not exist at the target; idempotency.sink_setup_sql(server) prints what to run there",
							  schema, name);
	if (strcmp(PQgetvalue(res, 0, 4), "t") == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
							  "table %s.%s at the target, or a partition of it, is unlogged: a crash of the target would empty it, and the relay would not know; run ALTER TABLE ... SET LOGGED there",
							  schema, name);

	/*
	 * the rule may insert something else, or nothing, and ON CONFLICT raises
	 * no error
	 */
	if (!PQgetisnull(res, 0, 5))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
							  "table %s.%s at the target has rule \"%s\" on INSERT, which may keep events out of it unseen; drop the rule, or use an AFTER trigger in its place",
							  schema, name, idem_sink_without_secrets(PQgetvalue(res, 0, 5)));
	for (int i = 0; i < PQntuples(res); i++)
	{
		PgSinkField f = find_field(PQgetvalue(res, i, 0));

		if (f != NO_FIELD && !use_field(p, f, PQgetvalue(res, i, 1), PQgetvalue(res, i, 2)))
			return false;
		if (f == PGSINK_FIELD_EVENT_ID && strcmp(PQgetvalue(res, i, 3), "t") != 0)
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42P10",
								  "column \"event_id\" of table %s.%s at the target has no unique index of its own; a repeated event would be inserted twice: run ALTER TABLE ... ADD PRIMARY KEY (event_id) there",
								  schema, name);
	}
	if (!p->used[PGSINK_FIELD_EVENT_ID])
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42703",
							  "table %s.%s at the target has no column \"event_id\"",
							  schema, name);
	return has_all_columns(p);
}

/* Look up the table and choose its columns.  False: p->failure. */
static bool
describe_table(PgSink *p)
{
	const char *values[2] = {p->config.schema, p->config.name};
	PGresult   *res = pgsink_look_up(p, TABLE_QUERY, 2, values);
	bool		ok = res != NULL && use_columns(p, res);

	PQclear(res);
	return ok;
}

/* The name of the array type in which a field is sent. */
static const char *
array_type(const PgSink *p, PgSinkField f)
{
	switch (f)
	{
		case PGSINK_FIELD_EVENT_ID:
			return "pg_catalog.uuid[]";
		case PGSINK_FIELD_SEQ:
			return "pg_catalog.int8[]";
		case PGSINK_FIELD_ENQUEUED_AT:
			return "pg_catalog.timestamptz[]";
		default:
			break;
	}
	switch (p->type[f])
	{
		case PGSINK_TYPE_JSONB:
			return "pg_catalog.jsonb[]";
		case PGSINK_TYPE_JSON:
			return "pg_catalog.json[]";
		case PGSINK_TYPE_BYTEA:
			return "pg_catalog.bytea[]";
		default:
			return "pg_catalog.text[]";
	}
}

/*
 * The lists of fields in the statement.  The event_id is always sent, so that a
 * target that takes no field at all is still called once per event.
 */
typedef struct Pieces
{
	char		names[1024];	/* columns of the target table */
	char		values[1024];	/* values of the columns, or arguments */
	char		arrays[1024];	/* unnest of each array parameter */
	char		row[1024];		/* column names of the unnested arrays */
} Pieces;

/* Append an item to one of the lists of Pieces. */
static void
append(char *dst, const char *separator, const char *text)
{
	size_t		len = strlen(dst);

	snprintf(dst + len, 1024 - len, "%s%s", len > 0 ? separator : "", text);
}

/* Write the lists that the statement is made of. */
static void
write_pieces(const PgSink *p, Pieces *s)
{
	char		buf[256];
	int			n = 0;

	memset(s, 0, sizeof(*s));
	for (int f = 0; f < PGSINK_NFIELDS; f++)
	{
		const char *name = fields[f].name;
		const char *cast = f == PGSINK_FIELD_EVENT_ID && p->type[f] != PGSINK_TYPE_UUID ? "::pg_catalog.text" : "";

		if (f != PGSINK_FIELD_EVENT_ID && !p->used[f])
			continue;
		snprintf(buf, sizeof(buf), "pg_catalog.unnest($%d::%s)", ++n, array_type(p, (PgSinkField) f));
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

/*
 * Write the statement that takes a batch.  The function is the argument of another
 * function, which is called with any type and answers a number, so that no result is
 * sent.  There the planner keeps the call as a whole, even if it puts the body of an
 * SQL function in its place.  Of IS NULL over a row it would make conditions on the
 * fields, and leave out the fields that decide nothing.
 */
static void
write_statement(PgSink *p)
{
	Pieces		s;
	char	   *schema = pgsink_quote(p->config.schema);
	char	   *name = pgsink_quote(p->config.name);

	write_pieces(p, &s);
	if (p->config.is_function)
		p->call_sql = pgsink_format("SELECT pg_catalog.num_nulls(%s.%s(%s)) FROM ROWS FROM (%s) AS e(%s)",
									schema, name, s.values, s.arrays, s.row);
	else
		p->call_sql = pgsink_format("INSERT INTO %s.%s (%s) SELECT %s FROM ROWS FROM (%s) AS e(%s)"
									" ON CONFLICT (event_id) DO NOTHING",
									schema, name, s.names, s.values, s.arrays, s.row);
	free(schema);
	free(name);
}

/* Write the statements about claims, which name the schema of the extension. */
static void
write_claims(PgSink *p, const char *extension_schema)
{
	char	   *schema = pgsink_quote(extension_schema);

	p->claim_sql = pgsink_format("SELECT c.ord, c.result::pg_catalog.text FROM %s.claim_events($1::pg_catalog.text[], $2) AS c",
								 schema);
	p->complete_sql = pgsink_format("SELECT %s.complete_events($1::pg_catalog.text[], $2)", schema);
	p->release_sql = pgsink_format("SELECT %s.release_event(e.id, $2) IS NULL FROM pg_catalog.unnest($1::pg_catalog.text[]) AS e(id)",
								   schema);
	free(schema);
}

/*
 * May the consumer claim?  A relay's name may have grown when a dump was restored into another
 * encoding.  Bytes count in the encoding of the target, which alone knows how many they are there.
 * False: p->failure.
 */
static bool
check_consumer(PgSink *p)
{
	const char *values[1] = {p->config.consumer};
	PGresult   *res = pgsink_look_up(p, "SELECT pg_catalog.octet_length($1)", 1, values);
	bool		ok = res != NULL;

	if (ok && strtol(PQgetvalue(res, 0, 0), NULL, 10) > MAX_CONSUMER_BYTES)
		ok = idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "22023",
							"the consumer of the claims is too long: it has %s bytes at the target, and at most %d are allowed; name another consumer in the server's option \"consumer\"",
							PQgetvalue(res, 0, 0), MAX_CONSUMER_BYTES);
	else if (ok && p->config.consumer[0] == '@')
		ok = idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "22023",
							"the consumer of the claims begins with \"@\", as only the extension's own may; name another consumer in the server's option \"consumer\"");
	PQclear(res);
	return ok;
}

/*
 * Find out whether events are claimed.  A replayed event comes again although
 * the position has passed it; its claim keeps it from a second effect.  The
 * unique key of an inbox does the same, so "auto" claims for functions only.
 * False:  p->failure.
 */
static bool
describe_claims(PgSink *p)
{
	PGresult   *res;
	bool		ok = true;

	if (strcmp(p->config.claim, "off") == 0 ||
		(strcmp(p->config.claim, "auto") == 0 && !p->config.is_function))
		return true;
	res = pgsink_look_up(p, "SELECT s.nspname FROM pg_catalog.pg_extension x"
						 " JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) x.extnamespace"
						 " WHERE x.extname OPERATOR(pg_catalog.=) 'idempotency'", 0, NULL);
	if (res == NULL)
		return false;
	if (PQntuples(res) > 0)
	{
		write_claims(p, PQgetvalue(res, 0, 0));
		ok = check_consumer(p);
	}
	else if (strcmp(p->config.claim, "on") == 0)
		ok = idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42704",
							"extension \"idempotency\" is not installed at the target, but option \"claim\" is on");
	PQclear(res);
	return ok;
}

/* Look up the function or table.  False: p->failure. */
static bool
describe(PgSink *p)
{
	return p->config.is_function ? describe_function(p) : describe_table(p);
}

bool
pgsink_check_target(PgSink *p)
{
	PgSink		before = *p;
	bool		sound;

	pgsink_forget_error(p);
	memset(p->used, 0, sizeof(p->used));
	sound = describe(p);

	/* the statement goes on with the fields that it was made of */
	memcpy(p->used, before.used, sizeof(p->used));
	memcpy(p->type, before.type, sizeof(p->type));
	memcpy(p->function_row, before.function_row, sizeof(p->function_row));
	p->error = before.error;
	return sound;
}

bool
pgsink_look_again(PgSink *p)
{
	pgsink_forget_error(p);
	memset(p->used, 0, sizeof(p->used));
	if (!describe(p))
		return false;
	free(p->call_sql);
	write_statement(p);
	return true;
}

bool
pgsink_describe_target(PgSink *p)
{
	if (!describe(p))
		return false;
	write_statement(p);
	return describe_claims(p);
}

/* Statements about claims have these parameters, and the statement for events one array for each field. */
bool
pgsink_rehearse_calls(PgSink *p)
{
	static const uint32_t claim_types[2] = {0, PGSINK_TYPE_TEXT};
	static const uint32_t array_types[PGSINK_NFIELDS] = {0};
	const char *claims[] = {p->claim_sql, p->complete_sql, p->release_sql};
	int			nfields = 0;
	bool		ok;

	for (int f = 0; f < PGSINK_NFIELDS; f++)
		nfields += f == PGSINK_FIELD_EVENT_ID || p->used[f];
	pgsink_forget_error(p);
	ok = pgsink_rehearse(p, PGSINK_STEP_QUERY, p->call_sql, nfields, array_types);
	for (int i = 0; ok && p->claim_sql != NULL && i < 3; i++)
		ok = pgsink_rehearse(p, PGSINK_STEP_QUERY, claims[i], 2, claim_types);
	return ok || pgsink_fail_for_error(p, p->config.is_function ? "call the function" : "insert into the table");
}
