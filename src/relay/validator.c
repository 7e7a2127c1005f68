/*-------------------------------------------------------------------------
 *
 * validator.c
 *		Validators of the foreign-data wrappers, one per kind of sink.
 *
 * A validator sees options and the catalog they are meant for, not the server;
 * hence one wrapper and one validator per kind.  The tables of options stand
 * with the programs they are for (src/sink/<kind>/options.h).  A value is never
 * part of a message: it may be a secret.
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

pg_noreturn static void
unknown_option(const IdemSinkOption *table, const char *name, Oid catalog)
{
	char	   *good = good_options(table, catalog);

	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 good[0] ? errhint("Valid options here are: %s.", good) :
			 errhint("There are no options here.")));
}

static void
check_option(const IdemSinkOption *table, DefElem *def, Oid catalog)
{
	const IdemSinkOption *option = idem_sink_option_find(table, def->defname);
	char		problem[256];

	if (option == NULL || !belongs_here(option, catalog))
		unknown_option(table, def->defname, catalog);
	if (option->superuser && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only superusers may set option \"%s\"", def->defname),
				 errdetail("It names a file or program that is used as the server's operating system user.")));
	if (!idem_sink_option_check(option, defGetString(def), problem, sizeof(problem)))
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("option \"%s\" %s", def->defname, problem)));
}

static void
validate(FunctionCallInfo fcinfo, const IdemSinkOption *table)
{
	List	   *options = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid			catalog = PG_GETARG_OID(1);
	ListCell   *lc;

	foreach(lc, options)
		check_option(table, lfirst(lc), catalog);
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
	List	   *options = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid			catalog = PG_GETARG_OID(1);
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst(lc);

		if (catalog == ForeignDataWrapperRelationId)
			unknown_option(program_options, def->defname, catalog);
		if (strcmp(def->defname, "program") != 0)
			continue;
		check_option(program_options, def, catalog);
		if (strspn(defGetString(def), "abcdefghijklmnopqrstuvwxyz0123456789_") !=
			strlen(defGetString(def)))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
					 errmsg("option \"program\" must consist of lower-case letters, digits and underscores"),
					 errhint("The program idempotency-sink-<name> in idempotency.sink_directory is started.")));
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
