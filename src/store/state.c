/*-------------------------------------------------------------------------
 *
 * state.c
 *		The state of the dedup store: one number, changed in place.
 *
 * The number has the counter in its upper bits, then how many slots may have runs,
 * then the number of the current segment, then a bit for each segment that needs no
 * probe.  So a claim reads all of it at once, and two equal numbers mean that nothing
 * has changed.
 *
 * The packer fills the first empty slot (plan.c), so a store has runs in its first
 * slots, and a new session opens these only: to open a table for the first time
 * costs about 35 us.
 *
 * A state that is not sealed was set by somebody else: pg_upgrade restores the
 * value without the seal, and a restore of rows breaks the seal on purpose
 * (idem_store_unseal).  Nothing is relied on then: every segment is probed, and
 * the end marks of runs are read for each look-up.  Whoever finds the state so
 * seals it again, as soon as nobody else holds the packer's lock; a restore
 * holds that lock until it has committed.
 *
 * Invariant: a segment whose bit is set has no row that is not in a run.  A run counts
 * in no slot that had no row when the state was written.  The entries of a run that
 * was begun later are in their segment, or in the runs that were merged, until the state
 * changes again.
 *
 * A crash leaves the state as it was written last, since each write is
 * WAL-logged on its own, before anything that follows from it.
 *
 * LOCKING: the page's content lock.  Readers hold any lock on the sequence
 * store_state; who changes the state holds ShareUpdateExclusiveLock on it, the
 * packer's lock, and takes AccessShareLock on one slot after the other, if it is
 * free.
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
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/empty.h"
#include "store/ring.h"
#include "store/slot.h"
#include "store/state.h"

#define SEGMENT_BITS	3
#define SLOT_BITS		6
#define ALL_SEGMENTS	((1 << IDEM_STORE_SEGMENTS) - 1)

StaticAssertDecl(IDEM_STORE_SEGMENTS == 1 << SEGMENT_BITS, "the state has room for as many segments");
StaticAssertDecl(IDEM_STORE_SLOTS < 1 << SLOT_BITS, "the state has room for the number of slots");

/* Where the parts of the number begin. */
#define CURRENT_SHIFT	IDEM_STORE_SEGMENTS
#define SLOTS_SHIFT		(CURRENT_SHIFT + SEGMENT_BITS)
#define COUNTER_SHIFT	(SLOTS_SHIFT + SLOT_BITS)

static IdemRelRef state_ref = IDEM_RELREF("store_state");

Oid
idem_store_state_oid(void)
{
	return idem_relref_oid(&state_ref);
}

/* The number of the current segment. */
static int
current_of(int64 value)
{
	return (value >> CURRENT_SHIFT) & (IDEM_STORE_SEGMENTS - 1);
}

/* What the cell says. */
static IdemStoreState
decode(IdemCell cell)
{
	IdemStoreState state = {
		.value = cell.value,
		.current = current_of(cell.value),
		.unprobed = cell.sealed ? cell.value & ALL_SEGMENTS : 0,
		.slots = cell.sealed ? (cell.value >> SLOTS_SHIFT) & ((1 << SLOT_BITS) - 1) : IDEM_STORE_SLOTS,
		.sealed = cell.sealed
	};

	return state;
}

IdemStoreState
idem_store_state(Relation rel)
{
	return decode(rel == NULL ? idem_cell_read_ref(&state_ref) : idem_cell_read(rel));
}

IdemStoreState
idem_store_state_look(Buffer page)
{
	return decode(idem_cell_look(page));
}

int
idem_store_state_guess(Buffer page)
{
	return current_of(idem_cell_glance(page));
}

/* How many slots are there up to the last one that may have rows?  One that is locked may. */
static int
count_slots(void)
{
	int			n;
	bool		rows = false;

	for (n = IDEM_STORE_SLOTS; n > 0; n--)
	{
		Relation	heap = idem_table_open_nowait(idem_slot_oid(n - 1), AccessShareLock);

		CHECK_FOR_INTERRUPTS();
		if (heap == NULL)
			break;
		rows = RelationGetNumberOfBlocks(heap) > 0;
		table_close(heap, AccessShareLock);
		if (rows)
			break;
	}
	return n;
}

void
idem_store_set_state(int current, uint32 unprobed)
{
	Relation	rel = relation_open(idem_store_state_oid(), NoLock);
	int64		counter = idem_cell_read(rel).value >> COUNTER_SHIFT;

	Assert((unprobed & (1 << current)) == 0);
	idem_cell_write(rel, (counter + 1) << COUNTER_SHIFT | (int64) count_slots() << SLOTS_SHIFT |
					current << CURRENT_SHIFT | (unprobed & ALL_SEGMENTS));
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
	Relation	heap = idem_table_open_nowait(idem_store_segment_oid(number), ShareLock);
	bool		unused;

	if (heap == NULL)
		return false;
	unused = idem_empty_is_pristine(heap);
	table_close(heap, ShareLock);
	return unused;
}

bool
idem_store_seal(void)
{
	Oid			oid = idem_store_state_oid();
	IdemStoreState state;
	uint32		unprobed = 0;

	if (!ConditionalLockRelationOid(oid, ShareUpdateExclusiveLock))
		return false;
	state = idem_store_state(NULL);
	if (!state.sealed)
	{
		for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		{
			if (i != state.current && is_unused(i))
				unprobed |= 1 << i;
		}
		idem_store_set_state(state.current, unprobed);
	}
	UnlockRelationOid(oid, ShareUpdateExclusiveLock);
	return true;
}
