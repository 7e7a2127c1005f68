/*-------------------------------------------------------------------------
 *
 * option_guard.c
 *		Lets only superusers change servers' options that are for superusers.
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
 *		The present state of each option for superusers was made by a superuser,
 *		in every server below one of our wrappers: its value was set, or it was
 *		left out or dropped.  This holds for any command that writes the
 *		options, also where the wrapper's validator was taken away.  It holds
 *		where the library is not preloaded as well: the validator, which runs
 *		first, loads the library.
 *
 * PostgreSQL calls no such hook for user mappings.  Their validator refuses a
 * list with an option for superusers, whoever set the option.
 *
 * MEMORY: the caller's context.  LOCKING: AccessShareLock on pg_foreign_server.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/option_guard.c
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
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "relay/api/option_guard.h"
#include "relay/kind.h"

/* The options in a tuple that is not in the catalog caches yet. */
static List *
options_of_tuple(HeapTuple tup, TupleDesc desc)
{
	bool		isnull;
	Datum		datum = heap_getattr(tup, Anum_pg_foreign_server_srvoptions, desc, &isnull);

	return isnull ? NIL : untransformRelOptions(datum);
}

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
		Oid			fdwid = ((Form_pg_foreign_server) GETSTRUCT(tup))->srvfdw;

		*kind = idem_sink_kind_of_wrapper(GetForeignDataWrapper(fdwid)->fdwname);
		options = options_of_tuple(tup, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return options;
}

/* The options as they were before the running command. */
static List *
old_options(Oid serverid)
{
	ForeignServer *server = GetForeignServerExtended(serverid, FSV_MISSING_OK);

	return server ? server->options : NIL;
}

/* Refuse a changed option; the log gets no statement that may have a secret. */
static void
check_option(const IdemSinkKind *kind, const IdemSinkOption *option, List *before, List *after)
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
static void
check_server(Oid serverid, bool created)
{
	const IdemSinkKind *kind;
	List	   *after = new_options(serverid, &kind);
	List	   *before;

	if (kind == NULL)
		return;
	before = created ? NIL : old_options(serverid);
	for (const IdemSinkOption *o = kind->options; o->name != NULL; o++)
	{
		if (o->superuser && o->where == IDEM_OPTION_SERVER)
			check_option(kind, o, before, after);
	}
}

void
idem_option_guard_check(Oid classid, Oid objid, bool created)
{
	if (classid == ForeignServerRelationId && !superuser())
		check_server(objid, created);
}
