/*-------------------------------------------------------------------------
 *
 * slot.c
 *		Slots: opening them, and reading their rows.
 *
 * A slot is read directly, without the executor and without a snapshot.  The
 * rule of visibility is simple, because nothing updates or deletes rows: a
 * frozen row is there for everybody, and another row is there if its
 * transaction committed.  slot_write.c writes rows frozen.  Rows that a restore
 * brought are not frozen; those of a restore that aborted are not there.  Rows
 * that a packer wrote before it failed are there, but no end mark names them.
 *
 * A body is looked for at the block where its writer put it.  The index finds
 * it wherever it is, e.g. after VACUUM FULL or a restore.  A look at a block
 * believes nothing: the block may be past the end of the file, without
 * contents, or have rows of another kind or run.  A row that an index entry
 * leads to is compared with the entry's key, too: after a crash in the middle
 * of emptying (shared/empty.c) the entry may be older than the file, and VACUUM
 * may have given the place of a dead row to another row.
 *
 * LOCKING: the lock on the heap that the slot was opened with, and the same
 * lock on the index from its first use on; both until the slot is closed.  A
 * body that is handed out is on a page that is pinned and share-locked; the
 * caller releases both (UnlockReleaseBuffer), and meanwhile looks at no other
 * page of the slot.
 *
 * MEMORY: what a function returns, and what a scan needs, is in the context
 * that is current at the call that makes it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/slot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/guard.h"
#include "shared/lock_wait.h"
#include "store/slot.h"

/* Columns of the index, from 1. */
enum
{
	KEY_KIND = 1,
	KEY_RUN,
	KEY_DIGEST,
	NKEYS = KEY_DIGEST
};

/* Rows of every run. */
#define ANY_RUN		(-1)

static const IdemColumn columns[IDEM_SLOT_NATTS] = {
	[IDEM_SLOT_PACKER] = {XID8OID, true},
	[IDEM_SLOT_RUN] = {INT8OID, true},
	[IDEM_SLOT_DIGEST] = {UUIDOID, true},
	[IDEM_SLOT_KIND] = {INT2OID, true},
	[IDEM_SLOT_TURN] = {INT2OID, false},
	[IDEM_SLOT_STATE] = {CHAROID, false},
	[IDEM_SLOT_CLAIMED_AT] = {TIMESTAMPTZOID, false},
	[IDEM_SLOT_COMPLETED_AT] = {TIMESTAMPTZOID, false},
	[IDEM_SLOT_EVENT_ID] = {TEXTOID, false},
	[IDEM_SLOT_CONSUMER] = {TEXTOID, false},
	[IDEM_SLOT_RESULT] = {JSONBOID, false},
	[IDEM_SLOT_BODY] = {BYTEAOID, false, true}
};

static const IdemIndexForm index_form = {
	.text = "(kind, run, digest)", .n = NKEYS,
	.columns = {IDEM_SLOT_KIND + 1, IDEM_SLOT_RUN + 1, IDEM_SLOT_DIGEST + 1},
	.compare = {F_BTINT2CMP, F_BTINT8CMP, F_UUID_CMP}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_SLOT_NATTS, .exact = true, .triggers = 2, .index = &index_form
};

#define SLOT_REF(n) IDEM_TABLEREF("store_slot_" n, &form)

#define TEN_SLOT_REFS(n) \
	SLOT_REF(n "0"), SLOT_REF(n "1"), SLOT_REF(n "2"), SLOT_REF(n "3"), SLOT_REF(n "4"), \
	SLOT_REF(n "5"), SLOT_REF(n "6"), SLOT_REF(n "7"), SLOT_REF(n "8"), SLOT_REF(n "9")

IdemRelRef	idem_store_slots[] = {
	TEN_SLOT_REFS(""), TEN_SLOT_REFS("1"), TEN_SLOT_REFS("2"), TEN_SLOT_REFS("3"),
	SLOT_REF("40"), SLOT_REF("41"), SLOT_REF("42"), SLOT_REF("43"),
	SLOT_REF("44"), SLOT_REF("45"), SLOT_REF("46"), SLOT_REF("47")
};


/* The rows that a reader wants. */
typedef struct Wanted
{
	IdemSlotKind kind;
	int64		run;			/* or ANY_RUN */
	const pg_uuid_t *digest;	/* NULL: any */
} Wanted;

struct IdemSlotScan
{
	const IdemSlot *slot;
	Wanted		wanted;
	pg_uuid_t	digest;			/* wanted.digest points to it */
	IndexScanDesc scan;			/* NULL: the index has no entries */
};

/* Opening */

Oid
idem_slot_oid(int number)
{
	return idem_relref_oid(&idem_store_slots[number]);
}

/* Fill in a slot whose heap is open and locked. */
static void
init_slot(IdemSlot *slot, int number, LOCKMODE mode, Relation heap)
{
	memset(slot, 0, offsetof(IdemSlot, locked));
	slot->number = number;
	slot->mode = mode;
	slot->heap = heap;
	idem_guard_table(&idem_store_slots[number], heap,
					 mode == AccessShareLock ? IDEM_GUARD_READ : IDEM_GUARD_WRITE);
	slot->nblocks = RelationGetNumberOfBlocks(heap);
}

void
idem_slot_open(IdemSlot *slot, int number, LOCKMODE mode)
{
	init_slot(slot, number, mode, idem_table_open_patiently(idem_slot_oid(number), mode));
}

/* Lock all indexes, if their locks are free. */
static bool
lock_indexes_nowait(IdemSlot *slot)
{
	Oid			oids[IDEM_TABLE_INDEXES];
	int			n = idem_table_indexes(slot->heap, oids);

	for (int i = 0; i < n; i++)
	{
		if (!ConditionalLockRelationOid(oids[i], slot->mode))
			return false;
		slot->locked[slot->nlocked++] = oids[i];
	}
	return true;
}

bool
idem_slot_open_nowait(IdemSlot *slot, int number, LOCKMODE mode)
{
	Relation	heap = idem_table_open_nowait(idem_slot_oid(number), mode);

	if (heap == NULL)
		return false;
	init_slot(slot, number, mode, heap);
	if (lock_indexes_nowait(slot))
		return true;
	idem_slot_close(slot, mode);
	return false;
}

void
idem_slot_close(IdemSlot *slot, LOCKMODE mode)
{
	if (slot->index != NULL)
		index_close(slot->index, NoLock);
	for (int i = 0; i < slot->nlocked && mode != NoLock; i++)
		UnlockRelationOid(slot->locked[i], slot->mode);
	table_close(slot->heap, mode);
	slot->heap = slot->index = NULL;
	slot->nlocked = 0;
}

void
idem_slot_open_indexes(const IdemSlot *slot, IdemTableIndexes *indexes)
{
	idem_table_open_indexes(slot->heap, &index_form, indexes);
}

/*
 * The index to read from.  It is opened at its first use, so the slot changes
 * although callers that only read have it as const.
 */
static Relation
slot_index(const IdemSlot *slot)
{
	IdemSlot   *mutable = unconstify(IdemSlot *, slot);
	Oid			oid;

	if (slot->index != NULL)
		return slot->index;
	oid = idem_table_index(slot->heap, &index_form);
	if (slot->nlocked > 0)
		mutable->index = index_open(oid, NoLock);
	else
	{
		mutable->index = index_open(oid, slot->mode);
		mutable->locked[mutable->nlocked++] = oid;
	}
	return slot->index;
}

/* Rows */

Datum
idem_slot_value(const IdemSlot *slot, HeapTuple tuple, int column, bool *isnull)
{
	return heap_getattr(tuple, column + 1, RelationGetDescr(slot->heap), isnull);
}

const pg_uuid_t *
idem_slot_digest(const IdemSlot *slot, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetUUIDP(idem_slot_value(slot, tuple, IDEM_SLOT_DIGEST, &isnull));
}

/*
 * Is the row there, for everybody?  SnapshotSelf counts rows that committed,
 * and our own transaction's.
 */
static bool
is_there(HeapTuple tuple, Buffer buffer)
{
	HeapTupleHeader header = tuple->t_data;

	if (HeapTupleHeaderXminFrozen(header) && (header->t_infomask & HEAP_XMAX_INVALID) != 0)
		return true;
	return HeapTupleSatisfiesVisibility(tuple, SnapshotSelf, buffer);
}

/* Has the row the wanted key?  A row that lacks a part of its key has none. */
static bool
is_wanted(const IdemSlot *slot, HeapTuple tuple, const Wanted *wanted)
{
	bool		no_kind;
	bool		no_run;
	bool		no_digest;
	Datum		kind = idem_slot_value(slot, tuple, IDEM_SLOT_KIND, &no_kind);
	Datum		run = idem_slot_value(slot, tuple, IDEM_SLOT_RUN, &no_run);
	Datum		digest = idem_slot_value(slot, tuple, IDEM_SLOT_DIGEST, &no_digest);

	/* the columns are NOT NULL, but nobody vouches for that */
	if (no_kind || no_run || no_digest || DatumGetInt16(kind) != wanted->kind)
		return false;
	if (wanted->run != ANY_RUN && DatumGetInt64(run) != wanted->run)
		return false;
	return wanted->digest == NULL ||
		idem_digest_compare(DatumGetUUIDP(digest), wanted->digest) == 0;
}

/* Point a tuple to the row at an offset of a locked page, if it is wanted. */
static bool
find_row(const IdemSlot *slot, Buffer buffer, OffsetNumber offset, const Wanted *wanted,
		 HeapTuple tuple)
{
	return idem_table_row_at(slot->heap, buffer, offset, tuple) && is_wanted(slot, tuple, wanted) &&
		is_there(tuple, buffer);
}

/*
 * Pin and share-lock a block; InvalidBuffer if it is past the end of the file,
 * e.g. InvalidBlockNumber, or without contents.
 */
static Buffer
lock_block(const IdemSlot *slot, BlockNumber block)
{
	Buffer		buffer;

	/* our own transaction may have written since the slot was opened */
	if (block >= slot->nblocks && block >= RelationGetNumberOfBlocks(slot->heap))
		return InvalidBuffer;
	buffer = ReadBufferExtended(slot->heap, MAIN_FORKNUM, block, RBM_NORMAL, slot->strategy);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (!PageIsNew(BufferGetPage(buffer)))
		return buffer;
	UnlockReleaseBuffer(buffer);
	return InvalidBuffer;
}

/* Find the row at tid, if it is wanted; its page is pinned and locked then. */
static bool
lock_row(const IdemSlot *slot, ItemPointer tid, const Wanted *wanted, HeapTuple tuple, Buffer *buffer)
{
	*buffer = lock_block(slot, ItemPointerGetBlockNumber(tid));
	if (!BufferIsValid(*buffer))
		return false;
	if (find_row(slot, *buffer, ItemPointerGetOffsetNumber(tid), wanted, tuple))
		return true;
	UnlockReleaseBuffer(*buffer);
	*buffer = InvalidBuffer;
	return false;
}

/* The body of a row. */
static const char *
row_body(const IdemSlot *slot, HeapTuple tuple, int *len)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, IDEM_SLOT_BODY, &isnull);

	if (isnull || VARATT_IS_EXTENDED(DatumGetPointer(value)) ||
		VARSIZE(DatumGetPointer(value)) - VARHDRSZ > IDEM_SLOT_BODY_BYTES)
		idem_report_row(ERROR, RelationGetRelid(slot->heap), &tuple->t_self, IDEM_SLOT_ROW_HINT);
	*len = VARSIZE(DatumGetPointer(value)) - VARHDRSZ;
	return VARDATA(DatumGetPointer(value));
}

const char *
idem_slot_body_at(const IdemSlot *slot, BlockNumber block, IdemSlotKind kind,
				  int64 run, const pg_uuid_t *digest, int *len, Buffer *buffer)
{
	Wanted		wanted = {kind, run, digest};
	HeapTupleData tuple;
	OffsetNumber last;

	*buffer = lock_block(slot, block);
	if (!BufferIsValid(*buffer))
		return NULL;
	last = PageGetMaxOffsetNumber(BufferGetPage(*buffer));
	for (OffsetNumber offset = FirstOffsetNumber; offset <= last; offset++)
	{
		if (find_row(slot, *buffer, offset, &wanted, &tuple))
			return row_body(slot, &tuple, len);
	}
	UnlockReleaseBuffer(*buffer);
	*buffer = InvalidBuffer;
	return NULL;
}

XLogRecPtr
idem_slot_lsn(const IdemSlot *slot, ItemPointer tid)
{
	Buffer		buffer = lock_block(slot, ItemPointerGetBlockNumber(tid));
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (BufferIsValid(buffer))
	{
		lsn = BufferGetLSNAtomic(buffer);
		UnlockReleaseBuffer(buffer);
	}
	return lsn;
}

/* By the index */

/* Scan keys for the wanted rows; returns how many. */
static int
init_keys(const Wanted *wanted, ScanKey keys)
{
	int			n = 0;

	ScanKeyInit(&keys[n++], KEY_KIND, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(wanted->kind));
	if (wanted->run != ANY_RUN)
		ScanKeyInit(&keys[n++], KEY_RUN, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(wanted->run));
	if (wanted->digest != NULL)
		ScanKeyInit(&keys[n++], KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ,
					UUIDPGetDatum(wanted->digest));
	return n;
}

/*
 * Begin a scan of the index; NULL if the index has no entries.  The scan
 * returns places, with "entries" also what the index has of the rows, and does not visit
 * the heap, so it needs no snapshot.  A
 * crash in the middle of emptying may have left an index without blocks.
 */
static IndexScanDesc
begin_scan(const IdemSlot *slot, ScanKey keys, int nkeys, bool entries)
{
	Relation	index = slot_index(slot);
	IndexScanDesc scan;

	if (RelationGetNumberOfBlocks(index) <= IDEM_EMPTY_INDEX_BLOCKS)
		return NULL;
	scan = idem_compat_index_beginscan(slot->heap, index, SnapshotAny, nkeys);
	scan->xs_want_itup = entries;
	index_rescan(scan, keys, nkeys, NULL, 0);
	return scan;
}

static void
end_scan(IndexScanDesc scan)
{
	if (scan != NULL)
		index_endscan(scan);
}

const char *
idem_slot_body_by_index(const IdemSlot *slot, IdemSlotKind kind, int64 run,
						const pg_uuid_t *digest, int *len, Buffer *buffer)
{
	Wanted		wanted = {kind, run, NULL};
	ScanKeyData keys[NKEYS];
	int			nkeys = init_keys(&wanted, keys);
	IndexScanDesc scan;
	ItemPointer tid;
	HeapTupleData tuple;
	const char *body = NULL;

	ScanKeyInit(&keys[nkeys++], KEY_DIGEST, BTLessEqualStrategyNumber, F_UUID_LE,
				UUIDPGetDatum(digest));
	*buffer = InvalidBuffer;
	scan = begin_scan(slot, keys, nkeys, false);
	while (body == NULL && scan != NULL &&
		   (tid = index_getnext_tid(scan, BackwardScanDirection)) != NULL)
	{
		if (lock_row(slot, tid, &wanted, &tuple, buffer))
			body = row_body(slot, &tuple, len);
		else
			CHECK_FOR_INTERRUPTS();
	}
	end_scan(scan);
	return body;
}

int64
idem_slot_next_run(const IdemSlot *slot, IdemSlotKind kind, int64 after)
{
	Wanted		wanted = {kind, ANY_RUN, NULL};
	ScanKeyData keys[NKEYS];
	int			nkeys = init_keys(&wanted, keys);
	IndexScanDesc scan;
	int64		run = 0;
	bool		isnull;

	ScanKeyInit(&keys[nkeys++], KEY_RUN, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(after));
	scan = begin_scan(slot, keys, nkeys, true);
	if (scan != NULL && index_getnext_tid(scan, ForwardScanDirection) != NULL)
		run = DatumGetInt64(index_getattr(scan->xs_itup, KEY_RUN, scan->xs_itupdesc, &isnull));
	end_scan(scan);
	return run;
}

int64
idem_slot_count(const IdemSlot *slot, IdemSlotKind kind, int64 run, int64 enough)
{
	Wanted		wanted = {kind, run, NULL};
	ScanKeyData keys[NKEYS];
	IndexScanDesc scan = begin_scan(slot, keys, init_keys(&wanted, keys), true);
	pg_uuid_t	last;
	int64		n = 0;

	while (scan != NULL && n < enough && index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		bool		isnull;
		const pg_uuid_t *digest = DatumGetUUIDP(index_getattr(scan->xs_itup, KEY_DIGEST, scan->xs_itupdesc, &isnull));

		CHECK_FOR_INTERRUPTS();
		if (isnull)
			continue;
		if (n > 0 && kind != IDEM_SLOT_DETAIL && idem_digest_compare(digest, &last) == 0)
			continue;
		last = *digest;
		n++;
	}
	end_scan(scan);
	return n;
}

IdemSlotScan *
idem_slot_scan_begin(const IdemSlot *slot, IdemSlotKind kind, int64 run, const pg_uuid_t *digest)
{
	IdemSlotScan *scan = palloc(sizeof(IdemSlotScan));
	ScanKeyData keys[NKEYS];

	scan->slot = slot;
	scan->wanted = (Wanted)
	{
		kind, run < 0 ? ANY_RUN : run, NULL
	};
	if (digest != NULL)
	{
		scan->digest = *digest;
		scan->wanted.digest = &scan->digest;
	}
	scan->scan = begin_scan(slot, keys, init_keys(&scan->wanted, keys), false);
	return scan;
}

/*
 * Go to the next wanted row, and lock its page; false at the end.  A scan of a
 * btree begins anew if it is asked once more, so it is closed at the end.
 */
static bool
lock_next(IdemSlotScan *scan, HeapTuple tuple, Buffer *buffer)
{
	ItemPointer tid;

	while (scan->scan != NULL &&
		   (tid = index_getnext_tid(scan->scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (lock_row(scan->slot, tid, &scan->wanted, tuple, buffer))
			return true;
	}
	end_scan(scan->scan);
	scan->scan = NULL;
	return false;
}

HeapTuple
idem_slot_scan_next(IdemSlotScan *scan)
{
	HeapTupleData tuple;
	HeapTuple	copy;
	Buffer		buffer;

	if (!lock_next(scan, &tuple, &buffer))
		return NULL;
	copy = heap_copytuple(&tuple);
	UnlockReleaseBuffer(buffer);
	return copy;
}

bool
idem_slot_scan_next_body(IdemSlotScan *scan, char *body, int *len)
{
	HeapTupleData tuple;
	Buffer		buffer;
	const char *in_place;

	if (!lock_next(scan, &tuple, &buffer))
		return false;
	in_place = row_body(scan->slot, &tuple, len);
	memcpy(body, in_place, *len);
	UnlockReleaseBuffer(buffer);
	return true;
}

void
idem_slot_scan_end(IdemSlotScan *scan)
{
	end_scan(scan->scan);
	pfree(scan);
}
