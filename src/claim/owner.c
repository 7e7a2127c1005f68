/*-------------------------------------------------------------------------
 *
 * owner.c
 *		The role that owns a consumer.
 *
 * The row of a consumer notes its owner by name, by OID, and by the cluster in
 * which the role has that OID.  In that cluster the OID decides: a role that was
 * renamed is still the owner, and a new role with the former name is not.  A role
 * that was dropped leaves a consumer whose owner does not exist.  Only superusers
 * claim for such a consumer, until an operator gives it another owner.
 *
 * Each change of the row notes the owner anew: its present name, which the next
 * dump names, or that the role does not exist.  What was noted as missing stays so,
 * even if the OID is given to another role when OIDs have wrapped around.
 *
 * A dump brings the row to another cluster, where the OID may be another role's.
 * The trigger of the table looks the name up when the row arrives, and notes the
 * OID that the role has there.  If no role has the name then, the owner does not
 * exist, and does not begin to exist when a role of that name is made later.
 * Rows that arrive without the trigger (pg_upgrade, pg_restore --disable-triggers)
 * have an owner if the role has both the noted name and the noted OID.
 *
 * The column is no regrole: a role that is missing would make a restore fail.
 * There is no entry in pg_shdepend, which cannot describe a row of a table.
 *
 * LOCKING: none but those of the system caches.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/owner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "claim/consumers.h"
#include "claim/owner.h"

/* Is the OID of a note that of this cluster? */
static bool
is_from_here(const IdemOwnerNote *note)
{
	return note->cluster == (int64) GetSystemIdentifier();
}

bool
idem_owner_exists(Oid role)
{
	return OidIsValid(role) && SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
}

Oid
idem_owner_role(const IdemOwnerNote *note)
{
	const char *name;

	if (!OidIsValid(note->oid) || is_from_here(note))
		return note->oid;
	name = GetUserNameFromId(note->oid, true);
	return name != NULL && strcmp(name, note->role) == 0 ? note->oid : InvalidOid;
}

bool
idem_owner_allows(Oid owner)
{
	if (idem_owner_exists(owner))
		return has_privs_of_role(GetUserId(), owner);
	return superuser_arg(GetUserId());
}

IdemOwnerNote
idem_owner_read(HeapTuple row, TupleDesc desc)
{
	IdemOwnerNote note = {NULL, InvalidOid, IDEM_OWNER_CLUSTER_UNNOTED};
	bool		isnull;
	Datum		value = heap_getattr(row, IDEM_CONSUMERS_OWNER, desc, &isnull);

	if (!isnull)
		note.role = TextDatumGetCString(value);
	value = heap_getattr(row, IDEM_CONSUMERS_OWNER_OID, desc, &isnull);
	if (!isnull)
		note.oid = DatumGetObjectId(value);
	value = heap_getattr(row, IDEM_CONSUMERS_OWNER_CLUSTER, desc, &isnull);
	if (!isnull)
		note.cluster = DatumGetInt64(value);
	return note;
}

/*
 * The role that a row which is about to be stored names.  A row of consumer_create
 * or consumer_alter has the OID of this cluster, and no cluster yet.
 */
static Oid
role_of_new_row(const IdemOwnerNote *note, bool added)
{
	if (note->cluster == IDEM_OWNER_CLUSTER_UNNOTED)
		return note->oid;
	if (added && !is_from_here(note))
		return get_role_oid(note->role, true);
	return idem_owner_role(note);
}

HeapTuple
idem_owner_localize(HeapTuple row, TupleDesc desc, bool added)
{
	int			columns[3] = {
		IDEM_CONSUMERS_OWNER, IDEM_CONSUMERS_OWNER_OID, IDEM_CONSUMERS_OWNER_CLUSTER
	};
	bool		nulls[3] = {false, false, false};
	Datum		values[3];
	IdemOwnerNote note = idem_owner_read(row, desc);
	const char *name;
	Oid			role;

	if (note.role == NULL)
		return row;
	role = role_of_new_row(&note, added);
	name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	values[0] = CStringGetTextDatum(name != NULL ? name : note.role);
	values[1] = ObjectIdGetDatum(name != NULL ? role : InvalidOid);
	values[2] = Int64GetDatum((int64) GetSystemIdentifier());
	return heap_modify_tuple_by_cols(row, desc, 3, columns, values, nulls);
}
