/*-------------------------------------------------------------------------
 *
 * validator.c
 *		Validators of the foreign-data wrappers, one per kind of sink.
 *
 * A validator sees options and the catalog they are meant for, not the server;
 * hence one wrapper and one validator per kind.  The tables of options stand
 * with the programs they are for (src/sink/<kind>/options.h).
 *
 * INVARIANT
 *		An error says no value, which may be a secret, and where one may be a
 *		secret the server log gets neither the statement nor the SQL text of a
 *		context.  What PostgreSQL itself refuses before it asks the validator
 *		is logged as any statement is.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/validator.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/formatting.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "shared/args.h"
#include "sink/null/options.h"
#include "sink/postgres/options.h"
#include "sink/postgres/setup_sql.h"
#include "sink/protocol/option.h"

PG_FUNCTION_INFO_V1(idem_sink_function_validator);
PG_FUNCTION_INFO_V1(idem_sink_postgres_validator);
PG_FUNCTION_INFO_V1(idem_sink_null_validator);
PG_FUNCTION_INFO_V1(idem_sink_program_validator);
PG_FUNCTION_INFO_V1(idem_sink_setup_sql_fn);

/* The sink without a program. */
static const IdemSinkOption function_options[] = {
	{.name = "function", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_QUALIFIED},
	/* milliseconds a call may take */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 86400000},
	{.name = NULL}
};

/* A program of somebody else's: its options are its own, but for its name. */
static const IdemSinkOption program_options[] = {
	{.name = "program", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .superuser = true},
	{.name = NULL}
};

static bool
belongs_here(const IdemSinkOption *option, Oid catalog)
{
	return catalog == (option->where == IDEM_OPTION_SERVER ?
					   ForeignServerRelationId : UserMappingRelationId);
}

/* The options this object can have, for the hint. */
static char *
good_options(const IdemSinkOption *table, Oid catalog)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (; table->name != NULL; table++)
	{
		if (belongs_here(table, catalog))
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? ", " : "", table->name);
	}
	return buf.data;
}

/* Could the value of an option with that name, known or mistyped, be a secret? */
static bool
looks_secret(const IdemSinkOption *table, const char *name)
{
	static const char *const parts[] = {
		"pass", "pwd", "pw", "secret", "token", "key", "cred", "auth", "sasl", "cert"
	};
	const IdemSinkOption *option = idem_sink_option_find(table, name);
	char	   *lower = asc_tolower(name, strlen(name));

	if (option != NULL && option->where == IDEM_OPTION_SERVER && !option->secret)
		return false;
	for (int i = 0; i < lengthof(parts); i++)
	{
		if (strstr(lower, parts[i]) != NULL)
			return true;
	}
	return false;
}

/* The options that a statement leaves an object with, as a validator sees them. */
typedef struct Checked
{
	const IdemSinkOption *table;
	List	   *options;		/* of DefElem */
	Oid			catalog;
	bool		secret;			/* the statement may have a secret in it */
} Checked;

static Checked
take_options(FunctionCallInfo fcinfo, const IdemSinkOption *table)
{
	Checked		c = {table, untransformRelOptions(PG_GETARG_DATUM(0)), PG_GETARG_OID(1), false};
	ListCell   *lc;

	c.secret = c.catalog == UserMappingRelationId;
	foreach(lc, c.options)
		c.secret |= looks_secret(table, ((DefElem *) lfirst(lc))->defname);
	return c;
}

/*
 * Part of an ereport.  The client has the statement; the log, which others read,
 * shall not, nor the context with the SQL of a function that runs it.
 */
static int
hide_secret(const Checked *c)
{
	errhidestmt(c->secret);
	return errhidecontext(c->secret);
}

pg_noreturn static void
unknown_option(const Checked *c, const char *name)
{
	char	   *good = good_options(c->table, c->catalog);

	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 good[0] ? errhint("Valid options here are: %s.", good) :
			 errhint("There are no options here."),
			 hide_secret(c)));
}

static void
check_option(const Checked *c, DefElem *def)
{
	const IdemSinkOption *option = idem_sink_option_find(c->table, def->defname);
	char		problem[256];

	if (option == NULL || !belongs_here(option, c->catalog))
		unknown_option(c, def->defname);
	if (option->superuser && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only superusers may set option \"%s\"", def->defname),
				 errdetail("It names a file or program that is used as the server's operating system user."),
				 hide_secret(c)));
	if (!idem_sink_option_check(option, defGetString(def), problem, sizeof(problem)))
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("option \"%s\" %s", def->defname, problem),
				 hide_secret(c)));
}

static void
validate(FunctionCallInfo fcinfo, const IdemSinkOption *table)
{
	Checked		c = take_options(fcinfo, table);
	ListCell   *lc;

	foreach(lc, c.options)
		check_option(&c, lfirst(lc));
}

Datum
idem_sink_function_validator(PG_FUNCTION_ARGS)
{
	validate(fcinfo, function_options);
	PG_RETURN_VOID();
}

Datum
idem_sink_postgres_validator(PG_FUNCTION_ARGS)
{
	validate(fcinfo, idem_sink_postgres_options);
	PG_RETURN_VOID();
}

Datum
idem_sink_null_validator(PG_FUNCTION_ARGS)
{
	validate(fcinfo, idem_sink_null_options);
	PG_RETURN_VOID();
}

/*
 * A program's own options cannot be known here; the program refuses what it
 * does not know.  Which program runs is a superuser's choice.
 */
Datum
idem_sink_program_validator(PG_FUNCTION_ARGS)
{
	Checked		c = take_options(fcinfo, program_options);
	ListCell   *lc;

	foreach(lc, c.options)
	{
		DefElem    *def = lfirst(lc);

		if (c.catalog == ForeignDataWrapperRelationId)
			unknown_option(&c, def->defname);
		if (strcmp(def->defname, "program") != 0)
			continue;
		check_option(&c, def);
		if (strspn(defGetString(def), "abcdefghijklmnopqrstuvwxyz0123456789_") !=
			strlen(defGetString(def)))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
					 errmsg("option \"program\" must consist of lower-case letters, digits and underscores"),
					 errhint("The program idempotency-sink-<name> in idempotency.sink_directory is started."),
					 hide_secret(&c)));
	}
	PG_RETURN_VOID();
}

static const char *
option_value(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst(lc);

		if (strcmp(def->defname, name) == 0)
			return defGetString(def);
	}
	return NULL;
}

static char *
quoted_name(const char *value)
{
	char		schema[NAMEDATALEN];
	char		name[NAMEDATALEN];

	if (!idem_sink_split_name(value, schema, name, NAMEDATALEN))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("\"%s\" is not a schema-qualified name", value)));
	return quote_qualified_identifier(schema, name);
}

/* The remote role that the caller's mapping names; the caller's own if none. */
static char *
remote_role(Oid serverid)
{
	UserMapping *mapping = GetUserMapping(GetUserId(), serverid);
	const char *user = option_value(mapping->options, "user");

	return pstrdup(quote_identifier(user ? user : GetUserNameFromId(GetUserId(), false)));
}

Datum
idem_sink_setup_sql_fn(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(idem_get_text_arg(fcinfo, 0, "server", NAMEDATALEN - 1));
	ForeignServer *server = GetForeignServerByName(name, false);
	ForeignDataWrapper *wrapper = GetForeignDataWrapper(server->fdwid);
	const char *table = option_value(server->options, "table");
	const char *position = option_value(server->options, "position_table");
	StringInfoData sql;
	char	   *role;

	if (idem_server_usage_check(server->serverid, GetUserId()) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FOREIGN_SERVER, name);
	initStringInfo(&sql);
	if (strcmp(wrapper->fdwname, "idempotency_postgres") != 0)
	{
		appendStringInfoString(&sql, IDEM_SINK_NO_SETUP_SQL);
		PG_RETURN_TEXT_P(cstring_to_text(sql.data));
	}
	position = quoted_name(position ? position : IDEM_SINK_POSTGRES_POSITION_TABLE);
	role = remote_role(server->serverid);
	appendStringInfo(&sql, IDEM_SINK_POSTGRES_SETUP_SQL, position, position, position, role);
	if (table != NULL)
	{
		char	   *inbox = quoted_name(table);

		appendStringInfo(&sql, IDEM_SINK_POSTGRES_INBOX_SQL, inbox, inbox, role);
	}
	PG_RETURN_TEXT_P(cstring_to_text(sql.data));
}
