/*-------------------------------------------------------------------------
 *
 * hooks.c
 *		Hooks in other sessions: their commands that concern relays.
 *
 * A worker is a session of its database, and serving interrupts does not make
 * it leave.  So commands that need a database empty, and DROP EXTENSION, keep
 * the database's workers down while they run.
 *
 * A relay's dependencies are those of its anchor (anchor.c). object_access_hook
 * tells of each command that drops or alters an anchor.  When an anchor is
 * dropped, the relay's row is deleted in the same transaction.  When an anchor
 * gets a new owner, the row notes the owner.  The hook checks the class first,
 * so an object of another class costs a comparison, and another relation a look
 * into the cache.  Without the extension, or while the extension is being
 * dropped, no relation counts as an anchor.
 *
 * LOCKING: the command holds the anchor's AccessExclusiveLock; then "relays".
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/hooks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "relay/anchor.h"
#include "relay/config.h"
#include "relay/process/hooks.h"
#include "relay/slots.h"
#include "relay/wake.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/spi.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/*
 * May the current user create databases?  PostgreSQL exports its own test only
 * in the newest minor releases.
 */
static bool
may_create_databases(void)
{
	HeapTuple	tup;
	bool		allowed;

	if (superuser())
		return true;
	tup = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (!HeapTupleIsValid(tup))
		return false;
	allowed = ((Form_pg_authid) GETSTRUCT(tup))->rolcreatedb;
	ReleaseSysCache(tup);
	return allowed;
}

/*
 * Does the caller have the privileges for the command?  Anybody may send a
 * DROP DATABASE.  It must not stop the workers of a database if it is going to
 * be refused.
 */
static bool
may_clear(Oid dboid, bool as_template)
{
	HeapTuple	tup = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(dboid));
	Form_pg_database form;
	bool		allowed;

	if (!HeapTupleIsValid(tup))
		return false;
	form = (Form_pg_database) GETSTRUCT(tup);
	allowed = has_privs_of_role(GetUserId(), form->datdba) ||
		(as_template && form->datistemplate && may_create_databases());
	ReleaseSysCache(tup);
	return allowed;
}

/* Is it ALTER DATABASE ... SET TABLESPACE?  What else it may say needs nobody gone. */
static bool
moves_database(const AlterDatabaseStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		if (strcmp(((DefElem *) lfirst(lc))->defname, "tablespace") == 0)
			return true;
	}
	return false;
}

/*
 * The database that a command needs without sessions, if the caller may run
 * the command; InvalidOid: none.
 */
static Oid
database_to_clear(Node *parsetree)
{
	const char *name = NULL;
	Oid			dboid;

	switch (nodeTag(parsetree))
	{
		case T_DropdbStmt:
			name = ((DropdbStmt *) parsetree)->dbname;
			break;
		case T_AlterDatabaseStmt:
			if (moves_database((AlterDatabaseStmt *) parsetree))
				name = ((AlterDatabaseStmt *) parsetree)->dbname;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) parsetree)->renameType == OBJECT_DATABASE)
				name = ((RenameStmt *) parsetree)->subname;
			break;
		case T_CreatedbStmt:
			{
				ListCell   *lc;

				name = "template1";
				foreach(lc, ((CreatedbStmt *) parsetree)->options)
				{
					DefElem    *def = lfirst(lc);

					if (strcmp(def->defname, "template") == 0 && def->arg)
						name = defGetString(def);
				}
				break;
			}
		default:
			break;
	}
	if (name == NULL)
		return InvalidOid;
	dboid = get_database_oid(name, true);
	return may_clear(dboid, IsA(parsetree, CreatedbStmt)) ? dboid : InvalidOid;
}

/* Is our extension among those that DROP EXTENSION names? */
static bool
names_our_extension(List *objects)
{
	ListCell   *lc;

	foreach(lc, objects)
	{
		if (strcmp(strVal(lfirst(lc)), IDEM_EXTENSION_NAME) == 0)
			return true;
	}
	return false;
}

/*
 * The names of the relays that send to a server, for a message; NULL: none.
 */
static char *
relays_of_server(Oid serverid)
{
	StringInfoData names;
	ListCell   *lc;

	initStringInfo(&names);
	foreach(lc, idem_relay_configs())
	{
		const IdemRelayConfig *c = lfirst(lc);

		if (c->serverid == serverid)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
							 quote_identifier(c->name));
	}
	return names.len > 0 ? names.data : NULL;
}

/*
 * Refuse a DROP SERVER without CASCADE if relays send to the server.
 * PostgreSQL would refuse as well, but would name the anchor; this error names
 * the relays.  Anybody may send a DROP SERVER: a role that may not drop the
 * server learns nothing of its relays.
 */
static void
before_drop_server_restrict(DropStmt *stmt)
{
	ListCell   *lc;

	if (!OidIsValid(idem_extension_oid()))
		return;
	foreach(lc, stmt->objects)
	{
		ForeignServer *server = GetForeignServerByName(strVal(lfirst(lc)), true);
		char	   *relays;

		if (server == NULL || !has_privs_of_role(GetUserId(), server->owner))
			continue;
		relays = relays_of_server(server->serverid);
		if (relays != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop server %s because relays send to it", server->servername),
					 errdetail("Relays: %s.", relays),
					 errhint("Use relay_drop, or DROP ... CASCADE to drop the relays too.")));
	}
}

/*
 * An anchor has been altered.  It may have a new owner.  Or it has another
 * name or schema, and is an anchor no more.
 */
static void
anchor_altered(int relay_id)
{
	IdemAnchor	anchor;

	CommandCounterIncrement();
	if (idem_anchor_find(relay_id, &anchor))
	{
		IDEM_FAULT_POINT("ddl-anchor-altered");
		idem_relay_note_owner(relay_id, anchor.owner);
	}
	idem_relay_config_changed();
}

/* Look at the class first: each change of any object calls this hook. */
static void
on_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	int			relay_id;

	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (classId != RelationRelationId || subId != 0 ||
		(access != OAT_DROP && access != OAT_POST_ALTER) ||
		!idem_anchor_is(objectId, &relay_id))
		return;
	if (access == OAT_POST_ALTER)
		anchor_altered(relay_id);
	else
	{
		IDEM_FAULT_POINT("ddl-anchor-drop");
		idem_relay_forget(relay_id);
		idem_relay_config_changed();
	}
}

/* Run the command through the hook that was installed before ours. */
static void
call_next(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
		  ProcessUtilityContext context, ParamListInfo params,
		  QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (prev_process_utility)
		prev_process_utility(pstmt, queryString, readOnlyTree, context, params,
							 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);
}

/* Release the workers after an error or FATAL in the command. */
static void
release_workers(int code, Datum former)
{
	idem_workers_release(DatumGetObjectId(former));
}

/* Run the command while the workers of a database are held down. */
static void
call_next_without_workers(Oid dboid, PlannedStmt *pstmt, const char *queryString,
						  bool readOnlyTree, ProcessUtilityContext context,
						  ParamListInfo params, QueryEnvironment *queryEnv,
						  DestReceiver *dest, QueryCompletion *qc)
{
	Oid			former = idem_workers_current_hold();

	PG_ENSURE_ERROR_CLEANUP(release_workers, ObjectIdGetDatum(former));
	{
		idem_workers_hold(dboid);
		IDEM_FAULT_POINT("ddl-workers-held");
		call_next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	}
	PG_END_ENSURE_ERROR_CLEANUP(release_workers, ObjectIdGetDatum(former));
	IDEM_FAULT_POINT_NO_ERROR("ddl-workers-release");
	idem_workers_release(former);
}

/* Does the command change what a relay may do, or where it sends? */
static bool
concerns_relays(Node *parsetree)
{
	switch (nodeTag(parsetree))
	{
		case T_AlterForeignServerStmt:
		case T_CreateForeignServerStmt:
		case T_CreateUserMappingStmt:
		case T_AlterUserMappingStmt:
		case T_DropUserMappingStmt:
		case T_GrantStmt:
		case T_DropOwnedStmt:
		case T_ReassignOwnedStmt:
			return true;
		case T_AlterOwnerStmt:
			return ((AlterOwnerStmt *) parsetree)->objectType == OBJECT_FOREIGN_SERVER;
		case T_DropStmt:
			return ((DropStmt *) parsetree)->removeType == OBJECT_FOREIGN_SERVER;
		case T_RenameStmt:
			return ((RenameStmt *) parsetree)->renameType == OBJECT_FOREIGN_SERVER;
		default:
			return false;
	}
}

/*
 * What a command means for relays.  All of it is known before the command runs:
 * afterwards its parse tree may be gone, as that of a ROLLBACK in a procedure is.
 */
typedef struct Meaning
{
	Oid			clear;			/* database to keep without workers meanwhile */
	bool		commit_prepared;	/* wake workers for what was prepared */
	bool		config;			/* tell workers that their relays may have
								 * changed */
} Meaning;

static Meaning
meaning_of(Node *parsetree)
{
	Meaning		m = {InvalidOid, false, concerns_relays(parsetree)};

	m.commit_prepared = IsA(parsetree, TransactionStmt) &&
		((TransactionStmt *) parsetree)->kind == TRANS_STMT_COMMIT_PREPARED;
	if (IsA(parsetree, DropStmt) &&
		((DropStmt *) parsetree)->removeType == OBJECT_EXTENSION &&
		names_our_extension(((DropStmt *) parsetree)->objects) &&
		OidIsValid(idem_extension_oid()) &&
		has_privs_of_role(GetUserId(), idem_extension_owner()))
		m.clear = MyDatabaseId;
	else if (!m.commit_prepared && IsTransactionState())
		m.clear = database_to_clear(parsetree);
	return m;
}

/*
 * The utility hook: hold workers down, word the refusal of DROP SERVER, and
 * wake workers afterwards.
 */
static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *parsetree = pstmt->utilityStmt;
	const Meaning meaning = meaning_of(parsetree);

	if (IsA(parsetree, DropStmt) &&
		((DropStmt *) parsetree)->removeType == OBJECT_FOREIGN_SERVER &&
		((DropStmt *) parsetree)->behavior != DROP_CASCADE)
		before_drop_server_restrict((DropStmt *) parsetree);

	if (OidIsValid(meaning.clear))
		call_next_without_workers(meaning.clear, pstmt, queryString, readOnlyTree, context,
								  params, queryEnv, dest, qc);
	else
		call_next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (meaning.commit_prepared)
		idem_wake_committed_prepared();
	if (meaning.config)
		idem_relay_config_changed();
}

void
idem_hooks_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = on_object_access;
}
