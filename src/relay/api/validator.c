/*-------------------------------------------------------------------------
 *
 * validator.c
 *		Validators of the foreign-data wrappers, one per kind of sink.
 *
 * A validator sees the options and the catalog they are for, not the server.
 * Hence each kind has a wrapper and a validator of its own, made from the list
 * of kinds (kind.h).
 *
 * INVARIANT
 *		An error never shows an option's value, which may be a secret.  Where
 *		the statement may contain a secret, the server log gets neither the
 *		statement nor the SQL text of a context.  A statement that PostgreSQL
 *		itself refuses before it asks the validator is logged like any
 *		statement.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/validator.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "relay/kind.h"

/* Do objects of this catalog have the option? */
static bool
belongs_here(const IdemSinkOption *option, Oid catalog)
{
	return catalog == (option->where == IDEM_OPTION_SERVER ?
					   ForeignServerRelationId : UserMappingRelationId);
}

/*
 * The names of the options that an object of this catalog can have, for the
 * hint.
 */
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

/*
 * The options that an object has after the statement, as a validator sees
 * them.
 */
typedef struct Checked
{
	const IdemSinkKind *kind;
	List	   *options;		/* of DefElem */
	Oid			catalog;
	bool		secret;			/* the statement may contain a secret */
} Checked;

/*
 * Read the arguments of a validator.  A user mapping always counts as secret;
 * for a server the names of its options decide.
 */
static Checked
take_options(FunctionCallInfo fcinfo, const IdemSinkKind *kind)
{
	Checked		c = {kind, untransformRelOptions(PG_GETARG_DATUM(0)), PG_GETARG_OID(1), false};

	c.secret = c.catalog == UserMappingRelationId ||
		idem_sink_options_look_secret(kind, c.options);
	return c;
}

/*
 * Part of an ereport: keep a secret out of the server log, which others read.
 * The log gets neither the statement nor the context, which has the SQL text
 * of a function that runs the statement.  The client has the statement anyway.
 */
static int
hide_secret(const Checked *c)
{
	errhidestmt(c->secret);
	return errhidecontext(c->secret);
}

/*
 * Refuse an option that the object cannot have.  The hint lists names of
 * options; no value is ever shown.
 */
pg_noreturn static void
unknown_option(const Checked *c, const char *name)
{
	char	   *good = good_options(c->kind->options, c->catalog);

	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 good[0] ? errhint("Valid options here are: %s.", good) :
			 errhint("There are no options here."),
			 hide_secret(c)));
}

/* Error unless the value is less than that of the option that has to be larger. */
static void
check_less(const Checked *c, const IdemSinkOption *option, long value)
{
	const char *other = idem_sink_option_value(c->options, option->less_than);
	const char *unless = option->unless != NULL ? idem_sink_option_value(c->options, option->unless) : NULL;
	long		limit = other != NULL ? atol(other) : option->less_than_default;

	if (value >= limit && (unless == NULL || strcmp(unless, option->unless_is) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("option \"%s\" must be less than \"%s\"", option->name, option->less_than),
				 other == NULL ?
				 errhint("\"%s\" is not set, and is %ld then. Lower the one or raise the other.",
						 option->less_than, limit) :
				 errhint("Lower the one or raise the other."),
				 hide_secret(c)));
}

/*
 * Check one option.  Whether the caller may set a server's option for
 * superusers is checked in option_guard.c, which knows the old options.
 */
static void
check_option(Checked *c, const IdemSinkOption *option, DefElem *def)
{
	char		problem[256];

	if (!belongs_here(option, c->catalog))
		unknown_option(c, def->defname);
	if (option->superuser && option->where == IDEM_OPTION_USER_MAPPING && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only superusers may set option \"%s\"", def->defname),
				 errdetail("%s", idem_sink_option_reason(option)),
				 hide_secret(c)));
	if (!idem_sink_option_check(option, defGetString(def), problem, sizeof(problem)))
	{
		bool		login = option->type == IDEM_OPTION_URL && idem_sink_url_has_login(defGetString(def));

		c->secret |= login;
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("option \"%s\" %s", def->defname, problem),
				 login ? errhint("Everybody may read the options of a server. Put user and password into the user mapping, and set the option \"auth\".") : 0,
				 hide_secret(c)));
	}
	if (option->less_than != NULL)
		check_less(c, option, atol(defGetString(def)));
}

/* May objects of the catalog have options that only the program knows? */
static bool
takes_any(const Checked *c)
{
	return (c->kind->flags & IDEM_KIND_OPEN) != 0 &&
		(c->catalog == ForeignServerRelationId || c->catalog == UserMappingRelationId);
}

/*
 * Refuse unknown and bad options.  A missing required option is no error here:
 * the relay shows it as a problem (config.c).
 */
static void
validate(FunctionCallInfo fcinfo, const char *kind)
{
	Checked		c = take_options(fcinfo, idem_sink_kind(kind));
	ListCell   *lc;

	foreach(lc, c.options)
	{
		DefElem    *def = lfirst(lc);
		const IdemSinkOption *option = idem_sink_option_find(c.kind->options, def->defname);

		if (option != NULL)
			check_option(&c, option, def);
		else if (!takes_any(&c))
			unknown_option(&c, def->defname);
	}
}

/* Define the validator of each kind, which SQL calls. */
#define KIND(kind, table, flags) \
	PG_FUNCTION_INFO_V1(idem_sink_##kind##_validator); \
	Datum \
	idem_sink_##kind##_validator(PG_FUNCTION_ARGS) \
	{ \
		validate(fcinfo, #kind); \
		PG_RETURN_VOID(); \
	}

IDEM_SINK_KINDS(KIND)
