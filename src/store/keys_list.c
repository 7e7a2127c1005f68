/*-------------------------------------------------------------------------
 *
 * keys_list.c
 *		Where the rows of an event stand in a segment, on a standby.
 *
 * A standby has no keys, because their pages are not logged, and writes none.  So a
 * transaction lists the entries of all rows of a segment, in memory, at its first
 * look-up.  What changes on a standby comes by WAL, so a block whose LSN is that of
 * the last look has no new rows.  A look-up asks all blocks for their LSN, about
 * 0.1 us for each of the 512 of a segment of 4 MB, unless its snapshot is that of the look-up
 * before.
 *
 * Invariant: an entry is there for each row that any snapshot may see which was taken
 * before the look-up.  Entries of rows that are gone stay; they are harmless.
 *
 * LOCKING: the caller has AccessShareLock on the segment.
 *
 * MEMORY: 8 bytes for each row and for each block, to the end of the transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"
#include "store/keys_list.h"
#include "store/keys_page.h"
#include "store/segment.h"

/* With more entries that are not sorted, all are sorted. */
#define TAIL		1024

typedef struct RowList
{
	uint32		of;				/* the segment's file; 0: nothing is listed */
	BlockNumber blocks;
	XLogRecPtr *lsns;			/* of each block, when it was listed */
	uint64	   *entries;
	Size		n;
	Size		sorted;			/* so many of them */
	Size		room;
} RowList;

static RowList lists[IDEM_STORE_SEGMENTS];
static MemoryContext context = NULL;

/* Callback: the transaction ends. */
static void
forget_lists(void *arg)
{
	memset(lists, 0, sizeof(lists));
	context = NULL;
}

static void
make_context(void)
{
	MemoryContextCallback *callback;

	context = AllocSetContextCreate(TopTransactionContext, "idempotency rows of segments", ALLOCSET_DEFAULT_SIZES);
	callback = MemoryContextAllocZero(context, sizeof(MemoryContextCallback));
	callback->func = forget_lists;
	MemoryContextRegisterResetCallback(context, callback);
}

/* Enlarge an array. */
static void *
enlarge(void *array, Size bytes)
{
	return array == NULL ? MemoryContextAllocExtended(context, bytes, MCXT_ALLOC_HUGE) :
		repalloc_huge(array, bytes);
}

static int
compare(const void *a, const void *b)
{
	uint64		left = *(const uint64 *) a;
	uint64		right = *(const uint64 *) b;

	return left < right ? -1 : left > right;
}

/* Sort all entries; each is there once. */
static void
sort(RowList *list)
{
	Size		n = 0;

	qsort(list->entries, list->n, sizeof(uint64), compare);
	for (Size i = 0; i < list->n; i++)
	{
		if (n == 0 || list->entries[i] != list->entries[n - 1])
			list->entries[n++] = list->entries[i];
	}
	list->n = list->sorted = n;
}

/* Callback of idem_store_segment_visit_page: list a row. */
static void
add(Relation heap, HeapTuple row, void *arg)
{
	RowList    *list = arg;
	bool		isnull;
	Datum		digest = heap_getattr(row, IDEM_RING_DIGEST + 1, RelationGetDescr(heap), &isnull);

	if (!isnull)
		list->entries[list->n++] = idem_keypage_entry(idem_keypage_hash(DatumGetUUIDP(digest), 0), &row->t_self);
	if (!isnull && list->entries[list->n - 1] == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a segment of the dedup store is larger than a standby can look into"),
				 errhint("Ask the primary.")));
}

/* RowList the rows of a block, if it has changed. */
static void
list_block(RowList *list, Relation heap, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(heap, block);
	XLogRecPtr	lsn;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	lsn = PageGetLSN(BufferGetPage(buffer));
	idem_keypage_unlock(buffer);
	if (lsn == list->lsns[block] && !XLogRecPtrIsInvalid(lsn))
		return;
	if (list->n + MaxHeapTuplesPerPage > list->room)
	{
		list->room = Max(2 * list->room, 64 * MaxHeapTuplesPerPage);
		list->entries = enlarge(list->entries, list->room * sizeof(uint64));
	}
	/* noted first: what is replayed between the two looks is listed twice */
	list->lsns[block] = lsn;
	idem_store_segment_visit_page(heap, block, add, list);
}

/* RowList what has come since the last look. */
static void
refresh(RowList *list, Relation heap)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(heap);

	if (list->of != IDEM_REL_FILE_NUMBER(heap))
	{
		list->of = IDEM_REL_FILE_NUMBER(heap);
		list->n = list->sorted = 0;
		list->blocks = 0;
	}
	if (blocks > list->blocks)
	{
		list->lsns = enlarge(list->lsns, blocks * sizeof(XLogRecPtr));
		memset(list->lsns + list->blocks, 0, (blocks - list->blocks) * sizeof(XLogRecPtr));
	}
	list->blocks = blocks;
	for (BlockNumber block = 0; block < blocks; block++)
	{
		CHECK_FOR_INTERRUPTS();
		list_block(list, heap, block);
	}
	if (list->n - list->sorted > TAIL)
		sort(list);
}

/* The first of the sorted entries that is not less. */
static Size
lower_bound(const RowList *list, uint64 entry)
{
	Size		low = 0;
	Size		high = list->sorted;

	while (low < high)
	{
		Size		middle = low + (high - low) / 2;

		if (list->entries[middle] < entry)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Visit the place of an entry.  VACUUM may have cut the file before it. */
static void
visit_entry(const RowList *list, uint64 entry, void (*visit) (ItemPointerData *tid, void *arg), void *arg)
{
	ItemPointerData tid;

	idem_keypage_tid(entry, &tid);
	if (ItemPointerGetBlockNumber(&tid) < list->blocks)
		visit(&tid, arg);
}

void
idem_keys_list_visit(int number, Relation heap, const pg_uuid_t *digest, bool again,
					 void (*visit) (ItemPointerData *tid, void *arg), void *arg)
{
	RowList    *list = &lists[number];
	uint32		hash = idem_keypage_hash(digest, 0);
	ItemPointerData tid;
	uint64		first;
	uint64		last;

	if (context == NULL)
		make_context();
	if (!again || list->of != IDEM_REL_FILE_NUMBER(heap))
		refresh(list, heap);
	ItemPointerSet(&tid, 0, 0);
	first = idem_keypage_entry(hash, &tid);
	last = first | ((UINT64CONST(1) << (64 - IDEM_KEYPAGE_HASH_BITS)) - 1);
	for (Size i = lower_bound(list, first); i < list->sorted && list->entries[i] <= last; i++)
		visit_entry(list, list->entries[i], visit, arg);
	for (Size i = list->sorted; i < list->n; i++)
	{
		if (list->entries[i] >= first && list->entries[i] <= last)
			visit_entry(list, list->entries[i], visit, arg);
	}
}
