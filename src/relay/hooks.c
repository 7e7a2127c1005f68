/*-------------------------------------------------------------------------
 *
 * hooks.c
 *		Commands of other people's sessions that concern relays.
 *
 * A worker is a session of its database, and serving interrupts does not make
 * it leave.  So commands that need a database empty, and DROP EXTENSION, keep
 * its workers down while they run.  DROP SERVER: a relay is a row and has no
 * pg_depend entry, so its dependency on the server is kept here.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/hooks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
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
#include "relay/hooks.h"
#include "relay/slots.h"
#include "relay/spi.h"
#include "relay/wake.h"
#include "shared/catalog.h"
#include "shared/fault.h"

static ProcessUtility_hook_type prev_process_utility = NULL;

/* The server exports its own test in the newest minor releases only. */
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
 * Would the caller be let through to the command itself?  Anybody may send a
 * DROP DATABASE; it must not stop the workers of a database if it is going to
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

/* The database a command needs without sessions; InvalidOid: none. */
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

/* The relays that send to a server, as a readable list; NULL: none. */
static char *
relays_of_server(const char *server)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(server)};
	MemoryContext caller = CurrentMemoryContext;
	char	   *names = NULL;

	SPI_connect();
	if (idem_spi_run("SELECT pg_catalog.string_agg(pg_catalog.quote_ident(relay), ', ' ORDER BY relay)"
					 " FROM %s.relays WHERE server = $1", 1, types, values, NULL) == 1)
	{
		names = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
		if (names)
			names = MemoryContextStrdup(caller, names);
	}
	SPI_finish();
	return names;
}

/* Is there such a server, and will the command itself be let through to it? */
static bool
may_drop_server(const char *name)
{
	ForeignServer *server = GetForeignServerByName(name, true);

	return server != NULL && has_privs_of_role(GetUserId(), server->owner);
}

/*
 * RESTRICT refuses while relays send there; CASCADE drops them.  Anybody may
 * send a DROP SERVER: who will be refused learns nothing of relays, and IF
 * EXISTS of what is not there touches none.
 */
static void
before_drop_server(DropStmt *stmt)
{
	ListCell   *lc;

	if (!OidIsValid(idem_extension_oid()))
		return;
	foreach(lc, stmt->objects)
	{
		const char *server = strVal(lfirst(lc));
		char	   *relays = may_drop_server(server) ? relays_of_server(server) : NULL;
		Oid			types[1] = {TEXTOID};
		Datum		values[1] = {CStringGetTextDatum(server)};

		if (relays == NULL)
			continue;
		if (stmt->behavior != DROP_CASCADE)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop server %s because relays send to it", server),
					 errdetail("Relays: %s.", relays),
					 errhint("Use relay_drop, or DROP ... CASCADE to drop the relays too.")));
		SPI_connect();
		IDEM_FAULT_POINT("ddl-drop-server");
		idem_spi_run("WITH gone AS (DELETE FROM %s.relays WHERE server = $1 RETURNING relay_id)"
					 " DELETE FROM %s.relay_parked WHERE relay_id IN (SELECT relay_id FROM gone)",
					 1, types, values, NULL);
		SPI_finish();
		idem_relay_config_changed(false);
	}
}

/* A renamed server keeps its relays. */
static void
after_rename_server(RenameStmt *stmt)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];

	if (!OidIsValid(idem_extension_oid()))
		return;
	values[0] = CStringGetTextDatum(strVal(stmt->object));
	values[1] = CStringGetTextDatum(stmt->newname);
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	idem_spi_run("UPDATE %s.relays SET server = $2 WHERE server = $1", 2, types, values, NULL);
	PopActiveSnapshot();
	SPI_finish();
	IDEM_FAULT_POINT("ddl-rename-server");
	idem_relay_config_changed(false);
}

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

static void
release_workers(int code, Datum former)
{
	idem_workers_release(DatumGetObjectId(former));
}

/* The same, with the workers of a database down meanwhile. */
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

/* Things that change what a relay may do or where it goes. */
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

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *parsetree = pstmt->utilityStmt;
	Oid			clear = InvalidOid;
	bool		commit_prepared = IsA(parsetree, TransactionStmt) &&
	((TransactionStmt *) parsetree)->kind == TRANS_STMT_COMMIT_PREPARED;
	bool		drop_server = IsA(parsetree, DropStmt) &&
	((DropStmt *) parsetree)->removeType == OBJECT_FOREIGN_SERVER;
	bool		rename_server = IsA(parsetree, RenameStmt) &&
	((RenameStmt *) parsetree)->renameType == OBJECT_FOREIGN_SERVER;

	if (IsA(parsetree, DropStmt) &&
		((DropStmt *) parsetree)->removeType == OBJECT_EXTENSION &&
		names_our_extension(((DropStmt *) parsetree)->objects) &&
		OidIsValid(idem_extension_oid()) &&
		has_privs_of_role(GetUserId(), idem_extension_owner()))
		clear = MyDatabaseId;
	else if (!commit_prepared && IsTransactionState())
		clear = database_to_clear(parsetree);

	if (drop_server)
		before_drop_server((DropStmt *) parsetree);

	if (OidIsValid(clear))
		call_next_without_workers(clear, pstmt, queryString, readOnlyTree, context,
								  params, queryEnv, dest, qc);
	else
		call_next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (commit_prepared)
		idem_wake_committed_prepared();
	if (rename_server)
		after_rename_server((RenameStmt *) parsetree);
	if (concerns_relays(parsetree))
		idem_relay_config_changed(false);
}

void
idem_hooks_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
