/*-------------------------------------------------------------------------
 *
 * segment.c
 *		The tables of the open ring, and their rows as they stand on pages.
 *
 * LOCKING: the callers have a lock on the segment; a page is locked while its rows are
 * visited.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/segment.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "shared/catalog.h"
#include "shared/guard.h"
#include "store/segment.h"

static const IdemColumn columns[IDEM_RING_NATTS] = {
	[IDEM_RING_CLAIMED_AT] = {TIMESTAMPTZOID, true},
	[IDEM_RING_COMPLETED_AT] = {TIMESTAMPTZOID, false},
	[IDEM_RING_DIGEST] = {UUIDOID, true},
	[IDEM_RING_TURN] = {INT2OID, true},
	[IDEM_RING_CLASS] = {INT2OID, true},
	[IDEM_RING_STATE] = {CHAROID, true},
	[IDEM_RING_KEEP_ID] = {BOOLOID, true},
	[IDEM_RING_EVENT_ID] = {TEXTOID, true},
	[IDEM_RING_CONSUMER] = {TEXTOID, true},
	[IDEM_RING_RESULT] = {JSONBOID, false}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_RING_NATTS, .triggers = 2
};

#define SEGMENT_REF(n)		IDEM_TABLEREF("store_segment_" n, &form)

IdemRelRef	idem_store_segments[IDEM_STORE_SEGMENTS] =
{
	SEGMENT_REF("0"), SEGMENT_REF("1"), SEGMENT_REF("2"), SEGMENT_REF("3"),
	SEGMENT_REF("4"), SEGMENT_REF("5"), SEGMENT_REF("6"), SEGMENT_REF("7")
};

Oid
idem_store_segment_oid(int number)
{
	return idem_relref_oid(&idem_store_segments[number]);
}

bool
idem_store_segment_is_drained(int number)
{
	Oid			oid = idem_store_segment_oid(number);

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	UnlockRelationOid(oid, ShareLock);
	return true;
}

Relation
idem_store_segment_open_nowait(int number, LOCKMODE mode)
{
	Relation	heap = idem_table_open_nowait(idem_store_segment_oid(number), mode);

	if (heap != NULL)
		idem_guard_table(&idem_store_segments[number], heap, IDEM_GUARD_READ);
	return heap;
}
