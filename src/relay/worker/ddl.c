/*-------------------------------------------------------------------------
 *
 * ddl.c
 *		Commands of other sessions that concern relays.
 *
 * Some commands need a database without sessions, and DROP EXTENSION needs it without
 * workers: this file says which, idempotency.c keeps the workers down meanwhile.  Other
 * commands change what a relay may do, or where it sends.
 *
 * A relay's dependencies are those of its anchor (anchor.c).  When an anchor is
 * dropped, the relay's row is deleted in the same transaction.  When an anchor
 * gets a new owner, the row notes the owner.  The class of a changed object is checked
 * first, so an object of another class costs a comparison, and another relation a look
 * into the cache.  Without the extension, or while the extension is being
 * dropped, no relation counts as an anchor.
 *
 * Without shared memory there are no workers, and nothing is done here.
 *
 * LOCKING: the command holds the anchor's AccessExclusiveLock; then "relays".
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/ddl.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "relay/anchor.h"
#include "relay/config.h"
#include "relay/kind.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/catalog.h"
#include "shared/fault.h"

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

/* The database that CREATE DATABASE copies. */
static const char *
template_of(const CreatedbStmt *stmt)
{
	const char *name = "template1";
	ListCell   *lc;

	foreach(lc, stmt->options)
	{
		DefElem    *def = lfirst(lc);

		if (strcmp(def->defname, "template") == 0 && def->arg)
			name = defGetString(def);
	}
	return name;
}

/* The database, if it is there and the caller may run the command. */
static Oid
to_clear(const char *name, bool as_template)
{
	Oid			dboid = get_database_oid(name, true);

	return may_clear(dboid, as_template) ? dboid : InvalidOid;
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

void
idem_ddl_object_changed(Oid classid, Oid objid, bool dropped)
{
	IdemAnchor	anchor;
	int			relay_id;

	if (classid != RelationRelationId || !idem_slots_exist() ||
		!idem_anchor_is(objid, &relay_id))
		return;
	if (!dropped)
	{
		/*
		 * It may have a new owner.  Or it has another name or schema, and is
		 * an anchor no more.
		 */
		CommandCounterIncrement();
		if (idem_anchor_find(relay_id, &anchor))
		{
			IDEM_FAULT_POINT("ddl-anchor-altered");
			idem_relay_note_owner(relay_id, anchor.owner);
		}
	}
	else
	{
		IDEM_FAULT_POINT("ddl-anchor-drop");
		idem_relay_forget(relay_id, true);
	}
	idem_relay_config_changed();
}

/* DROP of an extension or of a foreign server. */
static void
read_drop(DropStmt *stmt, IdemStatement *s)
{
	if (stmt->removeType == OBJECT_FOREIGN_SERVER)
	{
		s->changes_relays = true;
		if (stmt->behavior != DROP_CASCADE)
			before_drop_server_restrict(stmt);
	}
	else if (stmt->removeType == OBJECT_EXTENSION && names_our_extension(stmt->objects) &&
			 OidIsValid(idem_extension_oid()) &&
			 has_privs_of_role(GetUserId(), idem_extension_owner()))
		s->clear = MyDatabaseId;
}

void
idem_ddl_read(Node *stmt, IdemStatement *s)
{
	if (!idem_slots_exist())
		return;
	switch (nodeTag(stmt))
	{
		case T_DropdbStmt:
			s->clear = to_clear(((DropdbStmt *) stmt)->dbname, false);
			break;
		case T_AlterDatabaseStmt:
			/* What else it may say needs nobody gone. */
			if (idem_sink_option_value(((AlterDatabaseStmt *) stmt)->options, "tablespace") != NULL)
				s->clear = to_clear(((AlterDatabaseStmt *) stmt)->dbname, false);
			else if (idem_sink_option_value(((AlterDatabaseStmt *) stmt)->options, "allow_connections") != NULL)
				idem_wake_launcher_at_commit();
			break;
		case T_CreatedbStmt:
			s->clear = to_clear(template_of((CreatedbStmt *) stmt), true);
			break;
		case T_DropStmt:
			read_drop((DropStmt *) stmt, s);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
				s->clear = to_clear(((RenameStmt *) stmt)->subname, false);
			else
				s->changes_relays = ((RenameStmt *) stmt)->renameType == OBJECT_FOREIGN_SERVER;
			break;
		case T_AlterOwnerStmt:
			s->changes_relays = ((AlterOwnerStmt *) stmt)->objectType == OBJECT_FOREIGN_SERVER;
			break;
		case T_AlterForeignServerStmt:
		case T_CreateForeignServerStmt:
		case T_CreateUserMappingStmt:
		case T_AlterUserMappingStmt:
		case T_DropUserMappingStmt:
		case T_GrantStmt:
		case T_DropOwnedStmt:
		case T_ReassignOwnedStmt:
			s->changes_relays = true;
			break;
		default:
			break;
	}
}
