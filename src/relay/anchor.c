/*-------------------------------------------------------------------------
 *
 * anchor.c
 *		The foreign table that stands for a relay in the catalogs.
 *
 * PostgreSQL records no dependencies and no owner for a row of "relays".  A
 * foreign table has both.  So each relay has an anchor: a foreign table without
 * columns, relay_<id>, in the schema of "relays".  The anchor's server is the
 * server that the relay sends to.  The anchor's owner is the role that the
 * relay acts as.
 *
 * The owner has no USAGE on that schema and cannot name the anchor.  Only
 * commands that find objects by OID, DROP OWNED and REASSIGN OWNED, and
 * relay_drop reach the anchor.
 *
 * PostgreSQL itself then keeps relays right.  DROP SERVER, DROP OWNED and DROP
 * ... CASCADE of any object that the anchor depends on either refuse or drop
 * the anchor as well.  DROP ROLE is refused from every database.  REASSIGN
 * OWNED hands the relay over. pg_dump writes server and owner by name, and
 * pg_upgrade keeps both.
 *
 * Invariant: a relay sends to the server of its anchor and acts as the owner of
 * its anchor, or does not run.  An anchor is found by its name.  For an anchor,
 * unlike other objects, that is safe: only roles with CREATE on the schema of
 * the tables can make a table there, and ids of relays are not used again.
 *
 * An anchor and its row come and go in one transaction: relay_create makes
 * both, relay_drop deletes both, and the hook in ddl.c deletes the row when
 * another command drops the anchor.
 *
 * A crash leaves what the committed transactions wrote.
 *
 * LOCKING: the server (AccessShareLock, which conflicts with its DROP), then
 * the anchor (AccessExclusiveLock, as DROP takes it), then "relays" and its
 * rows.
 *
 * MEMORY: results are in the caller's context.
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
#include "utils/syscache.h"

#include "relay/anchor.h"
#include "shared/catalog.h"
#include "shared/txn_owner.h"

#define ANCHOR_PREFIX "relay_"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

/* Find the schema of "relays" by OID: the schema may be renamed. */
static Oid
anchor_schema(void)
{
	return get_rel_namespace(idem_relref_oid(&relays_ref));
}

/* The anchor's unqualified name; idem_anchor_is parses it. */
static char *
anchor_relname(int relay_id)
{
	return psprintf(ANCHOR_PREFIX "%d", relay_id);
}

char *
idem_anchor_name(int relay_id)
{
	return quote_qualified_identifier(idem_schema_name(anchor_schema(), IDEM_EXTENSION_NAME),
									  anchor_relname(relay_id));
}

/*
 * No lock is held, so the table may be dropped between two look-ups.  Then the
 * relay has no anchor.
 */
bool
idem_anchor_find(int relay_id, IdemAnchor *anchor)
{
	Oid			relid = get_relname_relid(anchor_relname(relay_id), anchor_schema());
	HeapTuple	tup;

	memset(anchor, 0, sizeof(*anchor));
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_FOREIGN_TABLE)
		return false;
	anchor->relid = relid;
	tup = SearchSysCache1(FOREIGNTABLEREL, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tup))
	{
		anchor->serverid = ((Form_pg_foreign_table) GETSTRUCT(tup))->ftserver;
		ReleaseSysCache(tup);
	}
	tup = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tup))
	{
		anchor->owner = ((Form_pg_class) GETSTRUCT(tup))->relowner;
		ReleaseSysCache(tup);
	}
	if (OidIsValid(anchor->serverid) && OidIsValid(anchor->owner))
		return true;
	memset(anchor, 0, sizeof(*anchor));
	return false;
}

/*
 * While the extension is being dropped its schema may have lost "relays"
 * already.  Then no table counts as an anchor.
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

/*
 * Make the table as the extension's owner, whose schema it is, and give it to
 * the current user.
 */
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
	stmt->base.relation = makeRangeVar(idem_schema_name(anchor_schema(), IDEM_EXTENSION_NAME),
									   anchor_relname(relay_id), -1);
	stmt->base.oncommit = ONCOMMIT_NOOP;
	stmt->servername = server->servername;
	saved = idem_txn_owner_enter();
	CreateForeignTable(stmt, define_table(stmt));
	idem_txn_owner_leave(saved);
	CommandCounterIncrement();

	/*
	 * The caller's lock prevents the server's DROP, not its renaming, so the
	 * name may have led to another server.
	 */
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
