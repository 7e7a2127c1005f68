/*-------------------------------------------------------------------------
 *
 * anchor.c
 *		The foreign table that stands for a relay in the catalogs.
 *
 * A row of "relays" has no dependencies and no owner that the server knows of.
 * A foreign table has both.  So each relay has a foreign table without columns,
 * relay_<id>, in the schema of "relays": its server is the server that the
 * relay sends to, its owner the role that the relay acts as.  The owner has no
 * USAGE on that schema and cannot name the anchor: it is reached by what goes
 * by object, DROP OWNED and REASSIGN OWNED, and by relay_drop.  The server itself
 * then keeps relays right: DROP SERVER, DROP OWNED and DROP ... CASCADE of
 * whatever lies below refuse or take the anchor along, DROP ROLE is refused
 * from every database, REASSIGN OWNED hands the relay over, pg_dump writes
 * server and owner by name, and pg_upgrade keeps them.
 *
 * Invariant: a relay sends to the server of its anchor and acts as the owner of
 * its anchor, or does not run.  An anchor is found by its name, which is safe
 * as that of no other object: only roles with CREATE on the schema of tables
 * can make one there, and ids of relays are not used again.
 *
 * An anchor and the row go together, in one transaction: relay_create and
 * relay_drop see to both, and the hook of hooks.c deletes the row of an anchor
 * that goes by other means.
 *
 * A crash leaves what transactions leave.
 *
 * LOCKING: server (AccessShareLock, against its DROP), then the anchor
 * (AccessExclusiveLock, as DROP takes it), then "relays" and its rows.
 *
 * MEMORY: results in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/anchor.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_foreign_table.h"
#include "commands/defrem.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "relay/anchor.h"
#include "shared/catalog.h"
#include "shared/txn_owner.h"

#define ANCHOR_PREFIX "relay_"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

/* The schema of "relays", whatever name it has now. */
static Oid
anchor_schema(void)
{
	return get_rel_namespace(idem_relref_oid(&relays_ref));
}

/* The unqualified name, which the hooks take apart again. */
static char *
anchor_relname(int relay_id)
{
	return psprintf(ANCHOR_PREFIX "%d", relay_id);
}

char *
idem_anchor_name(int relay_id)
{
	return quote_qualified_identifier(get_namespace_name(anchor_schema()),
									  anchor_relname(relay_id));
}

/* Without a lock on the table, so it may be gone: InvalidOid. */
static Oid
server_of(Oid relid)
{
	HeapTuple	tup = SearchSysCache1(FOREIGNTABLEREL, ObjectIdGetDatum(relid));
	Oid			serverid;

	if (!HeapTupleIsValid(tup))
		return InvalidOid;
	serverid = ((Form_pg_foreign_table) GETSTRUCT(tup))->ftserver;
	ReleaseSysCache(tup);
	return serverid;
}

/* Like server_of. */
static Oid
owner_of(Oid relid)
{
	HeapTuple	tup = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tup))
		return InvalidOid;
	owner = ((Form_pg_class) GETSTRUCT(tup))->relowner;
	ReleaseSysCache(tup);
	return owner;
}

/* Without a lock the table may go between two look-ups: then it is not there. */
bool
idem_anchor_find(int relay_id, IdemAnchor *anchor)
{
	Oid			relid = get_relname_relid(anchor_relname(relay_id), anchor_schema());

	memset(anchor, 0, sizeof(*anchor));
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_FOREIGN_TABLE)
		return false;
	anchor->relid = relid;
	anchor->serverid = server_of(relid);
	anchor->owner = owner_of(relid);
	if (OidIsValid(anchor->serverid) && OidIsValid(anchor->owner))
		return true;
	memset(anchor, 0, sizeof(*anchor));
	return false;
}

/*
 * While the extension is being dropped its schema may have lost "relays"
 * already: then nothing is an anchor any more.
 */
bool
idem_anchor_is(Oid relid, int *relay_id)
{
	char	   *name;
	char	   *end;
	long		id;
	Oid			relays;

	if (get_rel_relkind(relid) != RELKIND_FOREIGN_TABLE)
		return false;
	name = get_rel_name(relid);
	if (name == NULL || strncmp(name, ANCHOR_PREFIX, strlen(ANCHOR_PREFIX)) != 0)
		return false;
	id = strtol(name + strlen(ANCHOR_PREFIX), &end, 10);
	if (id <= 0 || id > PG_INT32_MAX || strcmp(name, anchor_relname((int) id)) != 0)
		return false;
	relays = get_relname_relid("relays", get_rel_namespace(relid));
	if (!OidIsValid(relays) || !OidIsValid(idem_extension_oid()) ||
		getExtensionOfObject(RelationRelationId, relays) != idem_extension_oid())
		return false;
	*relay_id = (int) id;
	return true;
}

/* The schema is the extension owner's, the table the current user's. */
static Oid
define_table(CreateForeignTableStmt *stmt)
{
	Oid			save_userid;
	int			save_sec_context;
	ObjectAddress address;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(idem_extension_owner(),
						   save_sec_context | SECURITY_LOCAL_USERID_CHANGE);
	address = DefineRelation(&stmt->base, RELKIND_FOREIGN_TABLE, save_userid, NULL, NULL);
	SetUserIdAndSecContext(save_userid, save_sec_context);
	return address.objectId;
}

void
idem_anchor_lock(Oid relid)
{
	ResourceOwner saved = idem_txn_owner_enter();

	LockRelationOid(relid, AccessExclusiveLock);
	idem_txn_owner_leave(saved);
}

void
idem_anchor_create(int relay_id, const ForeignServer *server)
{
	CreateForeignTableStmt *stmt = makeNode(CreateForeignTableStmt);
	ResourceOwner saved;
	IdemAnchor	anchor;

	if (idem_anchor_find(relay_id, &anchor))
	{
		idem_anchor_lock(anchor.relid);
		idem_anchor_drop(&anchor);
	}
	stmt->base.relation = makeRangeVar(get_namespace_name(anchor_schema()),
									   anchor_relname(relay_id), -1);
	stmt->base.oncommit = ONCOMMIT_NOOP;
	stmt->servername = server->servername;
	saved = idem_txn_owner_enter();
	CreateForeignTable(stmt, define_table(stmt));
	idem_txn_owner_leave(saved);
	CommandCounterIncrement();

	/* The lock keeps a server from being dropped, not from being renamed. */
	if (!idem_anchor_find(relay_id, &anchor))
		elog(ERROR, "could not find the foreign table of relay %d", relay_id);
	idem_anchor_redirect(&anchor, server->serverid);
}

void
idem_anchor_redirect(const IdemAnchor *anchor, Oid serverid)
{
	Relation	rel;
	HeapTuple	tup;

	if (anchor->serverid == serverid)
		return;
	rel = table_open(ForeignTableRelationId, RowExclusiveLock);
	tup = SearchSysCacheCopy1(FOREIGNTABLEREL, ObjectIdGetDatum(anchor->relid));
	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for foreign table %u", anchor->relid);
	((Form_pg_foreign_table) GETSTRUCT(tup))->ftserver = serverid;
	CatalogTupleUpdate(rel, &tup->t_self, tup);
	table_close(rel, RowExclusiveLock);
	if (changeDependencyFor(RelationRelationId, anchor->relid, ForeignServerRelationId,
							anchor->serverid, serverid) != 1)
		elog(ERROR, "foreign table %u has no dependency on its server", anchor->relid);
	CommandCounterIncrement();
}

void
idem_anchor_drop(const IdemAnchor *anchor)
{
	ResourceOwner saved = idem_txn_owner_enter();
	ObjectAddress address;

	ObjectAddressSet(address, RelationRelationId, anchor->relid);
	performDeletion(&address, DROP_CASCADE, 0);
	idem_txn_owner_leave(saved);
}
