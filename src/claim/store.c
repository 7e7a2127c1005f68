/*-------------------------------------------------------------------------
 *
 * store.c
 *		The rows that remember which events were completed.
 *
 * The table idempotency_data.processed has one row per (event_id, consumer).
 * A row without completed_at is a kept claim.  Rows are inserted, never
 * updated: to replace a row means to delete it and to insert another.
 *
 * This file calls heap and index directly.  SPI would cost several times as
 * much.  SPI would also let a row security policy, a rule,
 * session_replication_role or the search_path influence what is remembered.  On
 * the other hand triggers on the table do not fire.  All indexes of the table
 * are maintained, however many there are.  A check, not-null or exclusion
 * constraint or a generated column that somebody added is refused, because
 * nothing here would enforce it.  A foreign key is not noticed and not
 * enforced, because its triggers do not fire.
 *
 * Claims probe with a dirty snapshot.  The snapshot of the statement is older
 * than the lock that the claim takes inside the statement, and would miss rows
 * that the lock's former holder committed.  Uniqueness is guaranteed because a
 * claim probes and writes under the event's lock; the unique index is a
 * backstop.
 *
 * LOCKING: a store that only reads takes AccessShareLock on the table and its
 * primary key; a store that may write takes RowExclusiveLock.  The first row
 * that is written adds RowExclusiveLock on the other indexes.  A long result
 * adds it on the TOAST table and its index.  Closing the store keeps these
 * locks.  They belong to the subtransaction (txn_owner.h), and fall with its
 * rows at ROLLBACK TO, or at the end of the transaction.  Rows of an event are
 * written under the event's advisory lock (lock.c).  idem_store_next_row locks
 * the table only, and gives that lock back (rows.c).
 *
 * A store is opened, used and closed in one subtransaction, which owns
 * everything that the store holds open.
 *
 * MEMORY: a store, and what it needs to write, are in the context that is
 * current when the store is opened.  What a probe or a look-up makes for the
 * store, a scan or a slot, is in the context that is current at that call.
 * That context must live as long as the store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/store.c
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
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "claim/store.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/rows.h"
#include "shared/txn_owner.h"

/*
 * Columns of idempotency_data.processed, in order.  Later versions may add
 * more.
 */
enum
{
	COL_CLAIMED_AT,
	COL_COMPLETED_AT,
	COL_EVENT_ID,
	COL_CONSUMER,
	COL_RESULT
};

/* Columns of its primary key */
#define KEY_EVENT_ID	1
#define KEY_CONSUMER	2

static IdemRelRef processed = IDEM_RELREF("processed");
static IdemRelRef processed_pkey = IDEM_RELREF("processed_pkey");

/* Room for a text value that needs no allocation. */
typedef struct TextBuffer
{
	union
	{
		int32		align;
		char		data[VARHDRSZ + IDEM_MAX_ID_BYTES];
	}			u;
} TextBuffer;

/* An index to maintain. */
typedef struct StoreIndex
{
	Relation	rel;
	IndexInfo  *info;
	ExprState  *predicate;		/* NULL: the index has every row */
} StoreIndex;

struct IdemStore
{
	MemoryContext context;
	Relation	heap;
	Relation	pkey;

	/* Probing, made by the first probe */
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *found;

	/* Writing, made by the first insert */
	int			nindexes;
	StoreIndex *indexes;
	EState	   *estate;			/* NULL: no index has expressions or a
								 * predicate */
	int			nslots;
	MemoryContext chunk_context;	/* NULL: only single rows so far */

	/* Not set when the store is opened, because they take some kilobytes */
	TupleTableSlot *slots[IDEM_STORE_CHUNK];
	TextBuffer	id;
	TextBuffer	consumer;
};

/*
 * Error 0A000: the table has a constraint, or the like, that only the executor
 * could enforce.  hint is a sentence.
 */
pg_noreturn static void
report_unsupported(const char *what, const char *name, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s \"%s\" on \"%s.%s\" is not supported",
					what, name, IDEM_DATA_SCHEMA_NAME, processed.name),
			 errdetail("Claims write their rows without the executor, which would enforce it."),
			 errhint("%s", hint)));
}

/* May the column be NULL?  The columns of the key and claimed_at may not. */
static bool
is_nullable(int column)
{
	return column != COL_CLAIMED_AT && column != COL_EVENT_ID && column != COL_CONSUMER;
}

/* Refuse constraints that somebody added, since nothing here evaluates them. */
static void
check_constraints(Relation heap)
{
	TupleDesc	desc = RelationGetDescr(heap);
	TupleConstr *constr = desc->constr;

	if (constr == NULL)
		return;
	if (constr->num_check > 0)
		report_unsupported("check constraint", constr->check[0].ccname,
						   "Drop the constraint.");
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || !is_nullable(i))
			continue;
		if (att->attnotnull)
			report_unsupported("not-null constraint of column", NameStr(att->attname),
							   "Drop the constraint.");
		if (att->attgenerated == ATTRIBUTE_GENERATED_STORED)
			report_unsupported("generated column", NameStr(att->attname),
							   "Drop the column.");
	}
}

IdemStore *
idem_store_open(bool for_write)
{
	LOCKMODE	mode = for_write ? RowExclusiveLock : AccessShareLock;
	IdemStore  *store = palloc(sizeof(IdemStore));
	ResourceOwner saved;

	memset(store, 0, offsetof(IdemStore, slots));
	store->context = CurrentMemoryContext;
	saved = idem_txn_owner_enter();
	store->heap = table_open(idem_relref_oid(&processed), mode);
	store->pkey = index_open(idem_relref_oid(&processed_pkey), mode);
	idem_txn_owner_leave(saved);
	if (for_write)
		check_constraints(store->heap);
	return store;
}

void
idem_store_close(IdemStore *store)
{
	ResourceOwner saved = idem_txn_owner_enter();

	if (store->scan != NULL)
		index_endscan(store->scan);
	if (store->found != NULL)
		ExecDropSingleTupleTableSlot(store->found);
	for (int i = 0; i < store->nslots; i++)
		ExecDropSingleTupleTableSlot(store->slots[i]);
	for (int i = 0; i < store->nindexes; i++)
	{
		idem_compat_index_insert_cleanup(store->indexes[i].rel, store->indexes[i].info);
		index_close(store->indexes[i].rel, NoLock);
	}
	if (store->estate != NULL)
		FreeExecutorState(store->estate);
	if (store->chunk_context != NULL)
		MemoryContextDelete(store->chunk_context);
	index_close(store->pkey, NoLock);
	table_close(store->heap, NoLock);
	idem_txn_owner_leave(saved);
	pfree(store);
}

/* Reading */

/* Make a text value in the buffer; valid until the buffer is filled again. */
static Datum
fill_text(TextBuffer *buf, const char *data, int len)
{
	Assert(len <= IDEM_MAX_ID_BYTES);
	SET_VARSIZE(buf->u.data, VARHDRSZ + len);
	memcpy(VARDATA(buf->u.data), data, len);
	return PointerGetDatum(buf->u.data);
}

/* Begin the scan that all probes of this store use. */
static void
start_probing(IdemStore *store)
{
	InitDirtySnapshot(store->dirty);
	store->scan = idem_compat_index_beginscan(store->heap, store->pkey,
											  &store->dirty, 2);
	if (store->found == NULL)
		store->found = table_slot_create(store->heap, NULL);
}

/*
 * Describe the row that the scan returned: a committed row, or our own
 * transaction's.
 */
static void
describe_row(IdemStore *store, IdemRow *row)
{
	TupleTableSlot *slot = store->found;
	HeapTuple	tup = ((HeapTupleTableSlot *) slot)->tuple;
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	TransactionId xmin = HeapTupleHeaderGetRawXmin(tup->t_data);

	row->status = slot_attisnull(slot, COL_COMPLETED_AT + 1) ?
		IDEM_ROW_PROCESSING : IDEM_ROW_COMPLETED;
	if (row->status == IDEM_ROW_COMPLETED)
		row->completed_at = DatumGetTimestampTz(slot->tts_values[COL_COMPLETED_AT]);
	row->ref.tid = slot->tts_tid;
	row->claimed_at = DatumGetTimestampTz(slot->tts_values[COL_CLAIMED_AT]);
	row->own = TransactionIdIsCurrentTransactionId(xmin);
	row->in_snapshot = row->own || !IsolationUsesXactSnapshot() ||
		table_tuple_satisfies_snapshot(store->heap, slot,
									   GetTransactionSnapshot());

	/*
	 * The transaction that wrote a frozen tuple may have left the commit log.
	 * But the WAL record that froze the tuple is younger than the
	 * transaction's commit record, and the page is at least as new as the
	 * freezing record.
	 */
	if (row->own)
		row->commit_lsn = InvalidXLogRecPtr;
	else if (HeapTupleHeaderXminFrozen(tup->t_data))
		row->commit_lsn = BufferGetLSNAtomic(buffer);
	else
		row->commit_lsn = TransactionIdGetCommitLSN(xmin);
}

/*
 * Look up a key.  Afterwards xs_heaptid is valid if the index has an entry for
 * the key, of a dead row too.
 */
static void
scan_key(IdemStore *store, ScanKey scankeys, IdemRow *row)
{
	index_rescan(store->scan, scankeys, 2, NULL, 0);
	ItemPointerSetInvalid(&store->scan->xs_heaptid);

	row->status = IDEM_ROW_NONE;
	while (index_getnext_slot(store->scan, ForwardScanDirection, store->found))
	{
		/*
		 * The visibility test sets these if another transaction is writing or
		 * removing the row.
		 */
		if (TransactionIdIsValid(store->dirty.xmin) ||
			TransactionIdIsValid(store->dirty.xmax))
		{
			row->status = IDEM_ROW_BUSY;
			break;
		}
		describe_row(store, row);
	}
}

/* Scan keys on the primary key; they point into the store's text buffers. */
static void
init_scankeys(IdemStore *store, const IdemClaimKey *key, ScanKey scankeys)
{
	ScanKeyInit(&scankeys[0], KEY_EVENT_ID, BTEqualStrategyNumber, F_TEXTEQ,
				fill_text(&store->id, key->id, key->idlen));
	ScanKeyInit(&scankeys[1], KEY_CONSUMER, BTEqualStrategyNumber, F_TEXTEQ,
				fill_text(&store->consumer, key->consumer, key->consumerlen));
}

void
idem_store_probe(IdemStore *store, const IdemClaimKey *key, IdemRow *row)
{
	ResourceOwner saved = idem_txn_owner_enter();
	ScanKeyData scankeys[2];

	if (store->scan == NULL)
		start_probing(store);
	init_scankeys(store, key, scankeys);
	scan_key(store, scankeys, row);

	/*
	 * The index has entries for the key, but only of dead rows.  A
	 * transaction that replaced a row may have committed between our reads of
	 * the leaf page and of the row.  That transaction has ended by now, so a
	 * second scan finds its row.  While we hold the event's lock, nobody else
	 * writes rows of the event.  A caller without the lock may get NONE
	 * although there is a row.
	 */
	if (row->status == IDEM_ROW_NONE && ItemPointerIsValid(&store->scan->xs_heaptid))
		scan_key(store, scankeys, row);
	ExecClearTuple(store->found);
	idem_txn_owner_leave(saved);
}

void
idem_store_look_up(IdemStore *store, const IdemClaimKey *key, IdemRow *row)
{
	ResourceOwner saved = idem_txn_owner_enter();
	ScanKeyData scankeys[2];
	IndexScanDesc scan;

	/* Rows that the current command wrote count, too. */
	CommandCounterIncrement();
	PushCopiedSnapshot(IsolationUsesXactSnapshot() ? GetTransactionSnapshot() : GetLatestSnapshot());
	UpdateActiveSnapshotCommandId();

	if (store->found == NULL)
		store->found = table_slot_create(store->heap, NULL);
	init_scankeys(store, key, scankeys);
	scan = idem_compat_index_beginscan(store->heap, store->pkey, GetActiveSnapshot(), 2);
	index_rescan(scan, scankeys, 2, NULL, 0);
	row->status = IDEM_ROW_NONE;
	if (index_getnext_slot(scan, ForwardScanDirection, store->found))
		describe_row(store, row);
	ExecClearTuple(store->found);
	index_endscan(scan);
	PopActiveSnapshot();
	idem_txn_owner_leave(saved);
}

bool
idem_store_result(IdemStore *store, const IdemRowRef *ref, Datum *result)
{
	ResourceOwner saved = idem_txn_owner_enter();
	ItemPointerData tid = ref->tid;
	bool		isnull = true;
	Datum		value;

	if (store->found == NULL)
		store->found = table_slot_create(store->heap, NULL);
	if (table_tuple_fetch_row_version(store->heap, &tid, SnapshotAny,
									  store->found))
	{
		value = slot_getattr(store->found, COL_RESULT + 1, &isnull);
		if (!isnull)
			*result = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	}
	ExecClearTuple(store->found);
	idem_txn_owner_leave(saved);
	return !isnull;
}

/* Writing */

/*
 * Open one index.  Makes the executor state if the index has expressions or a
 * predicate.
 */
static void
open_index(IdemStore *store, Oid indexid, StoreIndex *index)
{
	index->rel = index_open(indexid, RowExclusiveLock);
	index->info = BuildIndexInfo(index->rel);
	index->predicate = NULL;

	if (index->info->ii_ExclusionOps != NULL)
		report_unsupported("exclusion constraint", RelationGetRelationName(index->rel),
						   "Drop the constraint.");

	if (store->estate == NULL &&
		(index->info->ii_Expressions != NIL || index->info->ii_Predicate != NIL))
		store->estate = CreateExecutorState();
	if (index->info->ii_Predicate != NIL)
		index->predicate = ExecPrepareQual(index->info->ii_Predicate,
										   store->estate);
}

/* Open all indexes of the table. */
static void
start_writing(IdemStore *store)
{
	MemoryContext old = MemoryContextSwitchTo(store->context);
	List	   *oids = RelationGetIndexList(store->heap);
	ListCell   *lc;

	store->indexes = palloc(list_length(oids) * sizeof(StoreIndex));
	foreach(lc, oids)
	{
		open_index(store, lfirst_oid(lc), &store->indexes[store->nindexes]);
		store->nindexes++;
	}
	list_free(oids);
	MemoryContextSwitchTo(old);
}

/* Slot n, filled with the row as a heap tuple. */
static TupleTableSlot *
form_row(IdemStore *store, int n, const IdemNewRow *row)
{
	TupleDesc	desc = RelationGetDescr(store->heap);
	Datum		values[MaxHeapAttributeNumber];
	bool		nulls[MaxHeapAttributeNumber];
	TupleTableSlot *slot;

	if (n == store->nslots)
	{
		MemoryContext old = MemoryContextSwitchTo(store->context);

		store->slots[n] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
		store->nslots++;
		MemoryContextSwitchTo(old);
	}
	slot = store->slots[n];

	memset(nulls, true, desc->natts * sizeof(bool));
	nulls[COL_CLAIMED_AT] = nulls[COL_EVENT_ID] = nulls[COL_CONSUMER] = false;
	nulls[COL_COMPLETED_AT] = !row->completed;
	nulls[COL_RESULT] = !row->has_result;
	values[COL_CLAIMED_AT] = TimestampTzGetDatum(row->claimed_at);
	values[COL_COMPLETED_AT] = TimestampTzGetDatum(row->completed_at);
	values[COL_EVENT_ID] = fill_text(&store->id, row->key.id, row->key.idlen);
	values[COL_CONSUMER] = fill_text(&store->consumer, row->key.consumer,
									 row->key.consumerlen);
	values[COL_RESULT] = row->result;

	return ExecStoreHeapTuple(heap_form_tuple(desc, values, nulls), slot, true);
}

/* Insert the entry of a row, which is in the heap already, into one index. */
static void
insert_index_entry(IdemStore *store, StoreIndex *index, TupleTableSlot *slot)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (!index->info->ii_ReadyForInserts)
		return;
	/* an index with a predicate made the state that evaluates the predicate */
	Assert(store->estate != NULL || index->predicate == NULL);
	if (store->estate != NULL)
		GetPerTupleExprContext(store->estate)->ecxt_scantuple = slot;
	if (index->predicate != NULL &&
		!ExecQual(index->predicate, GetPerTupleExprContext(store->estate)))
		return;

	FormIndexDatum(index->info, slot, store->estate, values, nulls);
	index_insert(index->rel, values, nulls, &slot->tts_tid, store->heap,
				 index->info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
				 false, index->info);
}

/* Insert the rows into the heap, then into each index. */
static void
insert_rows(IdemStore *store, IdemNewRow *rows, int n)
{
	CommandId	cid = GetCurrentCommandId(true);
	TupleTableSlot *slot;

	for (int i = 0; i < n; i++)
		form_row(store, i, &rows[i]);

	if (n == 1)
		table_tuple_insert(store->heap, store->slots[0], cid, 0, NULL);
	else
		table_multi_insert(store->heap, store->slots, n, cid, 0, NULL);

	IDEM_FAULT_POINT("claim-heap-inserted");
	for (int i = 0; i < n; i++)
	{
		slot = store->slots[i];
		for (int k = 0; k < store->nindexes; k++)
			insert_index_entry(store, &store->indexes[k], slot);
		if (store->estate != NULL)
			ResetPerTupleExprContext(store->estate);
		rows[i].ref.tid = slot->tts_tid;
		ExecClearTuple(slot);
	}
}

/* Insert several rows by heap_multi_insert. */
static void
insert_chunk(IdemStore *store, IdemNewRow *rows, int n)
{
	MemoryContext old = CurrentMemoryContext;

	/* heap_multi_insert leaves about a page of memory behind each time */
	if (store->chunk_context == NULL)
		store->chunk_context = AllocSetContextCreate(store->context,
													 "idempotency rows",
													 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(store->chunk_context);
	insert_rows(store, rows, n);
	MemoryContextSwitchTo(old);
	MemoryContextReset(store->chunk_context);
}

void
idem_store_insert(IdemStore *store, IdemNewRow *rows, int n)
{
	ResourceOwner saved = idem_txn_owner_enter();

	Assert(n > 0 && n <= IDEM_STORE_CHUNK);
	if (store->indexes == NULL)
		start_writing(store);
	if (n == 1)
		insert_rows(store, rows, n);
	else
		insert_chunk(store, rows, n);
	idem_txn_owner_leave(saved);
}

void
idem_store_conflict(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent change of \"%s.%s\"",
					IDEM_DATA_SCHEMA_NAME, processed.name),
			 errhint("Retry the transaction.")));
}

void
idem_store_delete(IdemStore *store, const IdemRowRef *ref)
{
	ItemPointerData tid = ref->tid;
	TM_FailureData tmfd;
	TM_Result	res;
	ResourceOwner saved = idem_txn_owner_enter();

	/* a command cannot remove rows that it wrote itself */
	CommandCounterIncrement();
	res = idem_compat_table_tuple_delete(store->heap, &tid,
										 GetCurrentCommandId(true), &tmfd);
	if (res != TM_Ok)
		idem_store_conflict();
	idem_txn_owner_leave(saved);
}

/* The only table of the view (callback of IdemRowSource). */
static Oid
processed_oid(int number)
{
	return idem_relref_oid(&processed);
}

/*
 * Fill in a row as processed_events shows it; false for a row of one of the
 * extension's own consumers.
 */
static bool
show_row(TupleTableSlot *slot, Datum *values, bool *nulls)
{
	static const int shown[] = {
		COL_CONSUMER, COL_EVENT_ID, COL_CLAIMED_AT, COL_COMPLETED_AT, COL_RESULT
	};
	text	   *consumer;

	slot_getsomeattrs(slot, COL_RESULT + 1);
	consumer = DatumGetTextPP(slot->tts_values[COL_CONSUMER]);
	if (VARSIZE_ANY_EXHDR(consumer) > 0 && VARDATA_ANY(consumer)[0] == '@')
		return false;
	for (int i = 0; i < lengthof(shown); i++)
	{
		values[i] = slot->tts_values[shown[i]];
		nulls[i] = slot->tts_isnull[shown[i]];
	}
	return true;
}

Datum
idem_store_next_row(FunctionCallInfo fcinfo)
{
	static const IdemRowSource source = {
		.ntables = 1, .ncolumns = 5, .table_oid = processed_oid, .form_row = show_row
	};

	return idem_rows_next(fcinfo, &source);
}
