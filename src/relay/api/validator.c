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

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "relay/api/api.h"
#include "relay/kind.h"

/* Do objects of this catalog have the option? */
static bool
belongs_here(const IdemSinkOption *option, Oid catalog)
{
	return catalog == (option->where == IDEM_OPTION_SERVER ?
					   ForeignServerRelationId : UserMappingRelationId);
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
	StringInfoData good;		/* the names of options that the object can
								 * have */

	initStringInfo(&good);
	for (const IdemSinkOption *o = c->kind->options; o->name != NULL; o++)
	{
		if (belongs_here(o, c->catalog))
			appendStringInfo(&good, "%s%s", good.len > 0 ? ", " : "", o->name);
	}
	ereport(ERROR,
			(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
			 errmsg("invalid option \"%s\"", name),
			 good.len > 0 ? errhint("Valid options here are: %s.", good.data) :
			 errhint("There are no options here."),
			 hide_secret(c)));
}

/* Error unless the value is less than that of the option that has to be larger. */
static void
check_less(const Checked *c, const IdemSinkOption *option, long value)
{
	const char *other = idem_sink_option_value(c->options, option->less_than);
	const char *unless = option->unless != NULL ? idem_sink_option_value(c->options, option->unless) : NULL;
	long		limit = other != NULL ? strtol(other, NULL, 10) : option->less_than_default;

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
 * superusers is checked in idem_option_guard_check, which knows the old options.
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
		check_less(c, option, strtol(defGetString(def), NULL, 10));
}

/*
 * Refuse unknown and bad options.  A missing required option is no error here:
 * the relay shows it as a problem (config.c).  A user mapping always counts as secret;
 * for a server the names of its options decide.
 */
static void
validate(FunctionCallInfo fcinfo, const char *kind)
{
	Checked		c = {
		.kind = idem_sink_kind(kind),
		.options = untransformRelOptions(PG_GETARG_DATUM(0)),
		.catalog = PG_GETARG_OID(1)
	};
	ListCell   *lc;

	c.secret = c.catalog == UserMappingRelationId ||
		idem_sink_options_look_secret(c.kind, c.options);
	foreach(lc, c.options)
	{
		DefElem    *def = lfirst(lc);
		const IdemSinkOption *option = idem_sink_option_find(c.kind->options, def->defname);

		if (option != NULL)
			check_option(&c, option, def);
		/* options that only the program knows */
		else if ((c.kind->flags & IDEM_KIND_OPEN) == 0 ||
				 (c.catalog != ForeignServerRelationId && c.catalog != UserMappingRelationId))
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

/*
 * Lets only superusers change servers' options that are for superusers.
 *
 * Some options of a server name a program or a file, which is used as the
 * server's operating system user.  The server's owner may change all other
 * options.  A validator cannot tell a change from an old value: it is given the
 * options that the server will have, and neither the server nor its present
 * options.  So object_access_hook compares old and new options, because both
 * exist there: the new tuple of pg_foreign_server is written, and the catalog
 * caches still have the old tuple, because the command counter has not moved.
 * A concurrent change cannot come in between: only the command that updated the
 * tuple can change it.
 *
 * INVARIANT
 * The present state of each option for superusers was made by a superuser,
 * in every server below one of our wrappers: its value was set, or it was
 * left out or dropped.  This holds for any command that writes the
 * options, also where the wrapper's validator was taken away.  It holds
 * where the library is not preloaded as well: the validator, which runs
 * first, loads the library.
 *
 * PostgreSQL calls no such hook for user mappings.  Their validator refuses a
 * list with an option for superusers, whoever set the option.
 */

/* The options as the running command has written them, and the kind of the server. */
static List *
new_options(Oid serverid, const IdemSinkKind **kind)
{
	Relation	rel = table_open(ForeignServerRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	List	   *options = NIL;

	*kind = NULL;
	ScanKeyInit(&key, Anum_pg_foreign_server_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(serverid));
	scan = systable_beginscan(rel, ForeignServerOidIndexId, true, SnapshotSelf, 1, &key);
	tup = systable_getnext(scan);
	if (HeapTupleIsValid(tup))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tup, Anum_pg_foreign_server_srvoptions,
										 RelationGetDescr(rel), &isnull);
		Oid			fdwid = ((Form_pg_foreign_server) GETSTRUCT(tup))->srvfdw;
		const char *name;

		name = idem_sink_wrapper_kind(GetForeignDataWrapper(fdwid)->fdwname);
		*kind = name ? idem_sink_kind(name) : NULL;
		if (!isnull)
			options = untransformRelOptions(datum);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return options;
}

/* Refuse a changed option; the log gets no statement that may have a secret. */
static void
check_change(const IdemSinkKind *kind, const IdemSinkOption *option, List *before, List *after)
{
	const char *name = option->name;
	const char *old = idem_sink_option_value(before, name);
	const char *new = idem_sink_option_value(after, name);
	bool		secret = idem_sink_options_look_secret(kind, after);

	if (old == new || (old != NULL && new != NULL && strcmp(old, new) == 0))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 new ? errmsg("only superusers may set option \"%s\"", name) :
			 errmsg("only superusers may drop option \"%s\"", name),
			 errdetail("%s", idem_sink_option_reason(option)),
			 errhidestmt(secret),
			 errhidecontext(secret)));
}

/*
 * For a caller who is no superuser: refuse a change of an option for
 * superusers.
 */
void
idem_option_guard_check(Oid classid, Oid serverid, bool created)
{
	const IdemSinkKind *kind;
	List	   *after;
	List	   *before = NIL;

	if (classid != ForeignServerRelationId || superuser())
		return;
	after = new_options(serverid, &kind);
	if (kind == NULL)
		return;
	if (!created)
	{
		ForeignServer *server = GetForeignServerExtended(serverid, FSV_MISSING_OK);

		before = server ? server->options : NIL;
	}
	for (const IdemSinkOption *o = kind->options; o->name != NULL; o++)
	{
		if (o->superuser && o->where == IDEM_OPTION_SERVER)
			check_change(kind, o, before, after);
	}
}
