/*-------------------------------------------------------------------------
 *
 * state.c
 *		The state of the dedup store: one number, changed in place.
 *
 * The number has the counter in its upper bits, then the number of the current
 * segment, then a bit for each segment that needs no probe.  So a claim reads
 * all of it at once, and two equal numbers mean that nothing has changed.
 *
 * A state that is not sealed was set by somebody else: pg_upgrade restores the
 * value without the seal, and a restore of rows breaks the seal on purpose
 * (idem_store_unseal).  Nothing is relied on then: every segment is probed, and
 * the end marks of runs are read for each look-up.  Whoever finds the state so
 * seals it again, as soon as nobody else holds the packer's lock; a restore
 * holds that lock until it has committed.
 *
 * Invariant: a segment whose bit is set has no row that is not in a run.
 *
 * A crash leaves the state as it was written last, since each write is
 * WAL-logged on its own, before anything that follows from it.
 *
 * LOCKING: the page's content lock.  Readers hold any lock on the sequence
 * store_state; who changes the state holds ShareUpdateExclusiveLock on it, the
 * packer's lock.
 *
 * MEMORY: nothing is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/empty.h"
#include "store/ring.h"
#include "store/state.h"

#define SEGMENT_BITS	3
#define ALL_SEGMENTS	((1 << IDEM_STORE_SEGMENTS) - 1)

StaticAssertDecl(IDEM_STORE_SEGMENTS == 1 << SEGMENT_BITS, "the state has room for as many segments");

static IdemRelRef state_ref = IDEM_RELREF("store_state");

Oid
idem_store_state_oid(void)
{
	return idem_relref_oid(&state_ref);
}

IdemStoreState
idem_store_state(Relation rel)
{
	IdemCell	cell = idem_cell_read(rel);
	IdemStoreState state = {
		.value = cell.value,
		.current = (cell.value >> IDEM_STORE_SEGMENTS) & (IDEM_STORE_SEGMENTS - 1),
		.unprobed = cell.sealed ? cell.value & ALL_SEGMENTS : 0,
		.sealed = cell.sealed
	};

	return state;
}

void
idem_store_set_state(int current, uint32 unprobed)
{
	Relation	rel = relation_open(idem_store_state_oid(), NoLock);
	int64		counter = idem_cell_read(rel).value >> (IDEM_STORE_SEGMENTS + SEGMENT_BITS);

	Assert((unprobed & (1 << current)) == 0);
	idem_cell_write(rel, (((counter + 1) << SEGMENT_BITS | current) << IDEM_STORE_SEGMENTS) |
					(unprobed & ALL_SEGMENTS));
	relation_close(rel, NoLock);
}

void
idem_store_unseal(void)
{
	Relation	rel = relation_open(idem_store_state_oid(), ShareUpdateExclusiveLock);

	idem_cell_unseal(rel);
	relation_close(rel, NoLock);
}

/*
 * Does the segment have no row, and no writer?  Then it needs no probe, until it
 * becomes current.  A writer that found it current long ago still holds its
 * lock.
 */
static bool
is_unused(int number)
{
	Oid			oid = idem_store_segment_oid(number);
	Relation	heap;
	bool		unused;

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	heap = table_open(oid, NoLock);
	unused = idem_empty_is_pristine(heap);
	table_close(heap, ShareLock);
	return unused;
}

bool
idem_store_seal(Relation rel)
{
	IdemStoreState state;
	uint32		unprobed = 0;

	if (!ConditionalLockRelationOid(RelationGetRelid(rel), ShareUpdateExclusiveLock))
		return false;
	state = idem_store_state(rel);
	if (!state.sealed)
	{
		for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		{
			if (i != state.current && is_unused(i))
				unprobed |= 1 << i;
		}
		idem_store_set_state(state.current, unprobed);
	}
	UnlockRelationOid(RelationGetRelid(rel), ShareUpdateExclusiveLock);
	return true;
}
