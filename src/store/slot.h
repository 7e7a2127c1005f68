/*-------------------------------------------------------------------------
 *
 * slot.h
 *		Slots: the tables that packed ids are kept in.
 *
 * A slot holds up to IDEM_SLOT_RUNS runs of one class, one slice and one level.  Its rows
 * are of four kinds; the columns and the index are the same for all slots.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/slot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_SLOT_H
#define IDEM_STORE_SLOT_H

#include "postgres.h"

#include "access/htup.h"
#include "access/transam.h"
#include "access/xlogdefs.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "shared/catalog.h"
#include "shared/table.h"
#include "store/entry.h"

/* As many as the install script makes. */
#define IDEM_STORE_SLOTS	48

/* What to do about a row that cannot be read: its ids are not known from elsewhere. */
#define IDEM_SLOT_ROW_HINT \
	"Restore the table from a backup. Without one, delete the row if the ids that it stands for may be forgotten: their events count then as never seen."

/* The most runs of a slot. */
#define IDEM_SLOT_RUNS		16

/* The kinds of rows (column "kind"). */
typedef enum IdemSlotKind
{
	IDEM_SLOT_MARK,				/* the end mark of a run; digest: zero; body:
								 * run.c */
	IDEM_SLOT_PAGE,				/* digests of a run, sorted; digest: the first
								 * of them; body: the digests */
	IDEM_SLOT_FILTER,			/* a page of filters; run: zero; digest: the
								 * numbers of the matrix and of the page, 8
								 * bytes each, big-endian; body: filter.c */
	IDEM_SLOT_DETAIL			/* what a run has of an event beside its
								 * digest */
} IdemSlotKind;

/* Columns, in the order of the install script, from 0. */
enum
{
	IDEM_SLOT_PACKER,			/* xid8: the transaction that wrote the row;
								 * after a restore idem_slot_restored() */
	IDEM_SLOT_RUN,				/* bigint */
	IDEM_SLOT_DIGEST,			/* uuid */
	IDEM_SLOT_KIND,				/* smallint */
	IDEM_SLOT_TURN,				/* smallint; from here on nullable */
	IDEM_SLOT_STATE,			/* "char" */
	IDEM_SLOT_CLAIMED_AT,		/* timestamptz */
	IDEM_SLOT_COMPLETED_AT,		/* timestamptz */
	IDEM_SLOT_EVENT_ID,			/* text */
	IDEM_SLOT_CONSUMER,			/* text */
	IDEM_SLOT_RESULT,			/* jsonb */
	IDEM_SLOT_BODY,				/* bytea, STORAGE PLAIN */
	IDEM_SLOT_NATTS
};

/*
 * The packer of a row that a restore brought.  Of an end mark it is 0, so that every
 * snapshot sees the run.  Nobody asks who packed another row: such a row says when it
 * came, in the time of the store (uptime.h), by a number that no transaction has.
 */
#define IDEM_SLOT_RESTORED	(UINT64CONST(1) << 63)

static inline FullTransactionId
idem_slot_restored(bool is_mark, int64 now)
{
	return FullTransactionIdFromU64(is_mark ? 0 : IDEM_SLOT_RESTORED | (uint64) now);
}

/*
 * The most bytes of a body, so that the row fills a page: a page row has no
 * other nullable column.
 */
#define IDEM_SLOT_BODY_BYTES	8080
#define IDEM_PAGE_DIGESTS		(IDEM_SLOT_BODY_BYTES / UUID_LEN)

/*
 * An open slot.  Looking at a block needs the heap only, so the index is opened
 * when it is needed first.  Its lock belongs to the resource owner that is
 * current then, which must be the one that closes the slot.
 */
typedef struct IdemSlot
{
	int			number;
	LOCKMODE	mode;
	Relation	heap;
	BlockNumber nblocks;		/* of the heap, when the slot was opened:
								 * while it is open, the heap only grows */
	Relation	index;			/* btree on (kind, run, digest); NULL: not
								 * opened yet */
	void		(*wrote) (Size bytes);	/* is called after so many bytes were
										 * written, and may raise an error;
										 * NULL: nobody counts them */
	BufferAccessStrategy strategy;	/* to read pages by; NULL: as pages that
									 * are wanted again */
	int			nlocked;		/* locks on indexes, to be given back */
	Oid			locked[IDEM_TABLE_INDEXES];
} IdemSlot;

extern IdemRelRef idem_store_slots[IDEM_STORE_SLOTS];
extern Oid	idem_slot_oid(int number);

/*
 * Open a slot with this lock (AccessShareLock to read, RowExclusiveLock to
 * write); closing gives the lock back.  The nowait variant returns false if the
 * lock on the table or on one of its indexes is not free; then nothing that is
 * done with the slot waits for these locks.  Error 55000 if somebody altered
 * the table.
 */
extern void idem_slot_open(IdemSlot *slot, int number, LOCKMODE mode);
extern bool idem_slot_open_nowait(IdemSlot *slot, int number, LOCKMODE mode);
extern void idem_slot_close(IdemSlot *slot, LOCKMODE mode);

/* Open the indexes of a slot that is open to be written to. */
extern void idem_slot_open_indexes(const IdemSlot *slot, IdemTableIndexes *indexes);

/*
 * Appends rows to a slot, frozen, at the end of the file.  A row counts from
 * the moment it is written, whether its transaction commits or not: readers
 * trust what an end mark names only.  The caller holds the packer's lock, and
 * has opened the slot with RowExclusiveLock.  Rows of filters belong to run 0,
 * the other rows to this run.
 *
 * begin assigns the transaction's id, which is that of the rows' packer.  The
 * caller drains writers before (pack.c).
 */
typedef struct IdemSlotWriter IdemSlotWriter;
extern IdemSlotWriter *idem_slot_begin_write(IdemSlot *slot, int64 run);
extern void idem_slot_write_body(IdemSlotWriter *writer, IdemSlotKind kind,
								 const pg_uuid_t *digest, const char *body, int len);
extern void idem_slot_write_detail(IdemSlotWriter *writer, const IdemEventEntry *entry);

/* Write out what is buffered. */
extern void idem_slot_flush(IdemSlotWriter *writer);

/*
 * The block of the first body that was written, if the bodies went to
 * consecutive blocks, one to a block; else InvalidBlockNumber.  Bodies count
 * from the last reset on.  Both functions write out what is buffered.
 */
extern BlockNumber idem_slot_first_block(IdemSlotWriter *writer);
extern void idem_slot_reset_first_block(IdemSlotWriter *writer);
extern void idem_slot_end_write(IdemSlotWriter *writer);

/*
 * The body of a row of a kind and run that is expected at a block, as a pointer
 * into the page, whose buffer is pinned and share-locked; NULL, and no buffer,
 * if something else stands there.  digest: if not NULL, the row's must be this
 * one.
 */
extern const char *idem_slot_body_at(const IdemSlot *slot, BlockNumber block, IdemSlotKind kind,
									 int64 run, const pg_uuid_t *digest, int *len, Buffer *buffer);

/*
 * The same by the index: the last row of (kind, run) whose digest is not after
 * "digest"; NULL if there is none.
 */
extern const char *idem_slot_body_by_index(const IdemSlot *slot, IdemSlotKind kind, int64 run,
										   const pg_uuid_t *digest, int *len, Buffer *buffer);

/* The least number above "after" of a run that has rows of the kind; 0: none has. */
extern int64 idem_slot_next_run(const IdemSlot *slot, IdemSlotKind kind, int64 after);

/*
 * How many rows of a kind and run does the index have?  Those of one digest count once, but
 * for details.  Stops at "enough".
 */
extern int64 idem_slot_count(const IdemSlot *slot, IdemSlotKind kind, int64 run, int64 enough);

/* The LSN of the page of a row: once the WAL is flushed up to it, the row is durable. */
extern XLogRecPtr idem_slot_lsn(const IdemSlot *slot, ItemPointer tid);

/* The value of a column of a row, not detoasted. */
extern Datum idem_slot_value(const IdemSlot *slot, HeapTuple tuple, int column, bool *isnull);
extern const pg_uuid_t *idem_slot_digest(const IdemSlot *slot, HeapTuple tuple);

/*
 * Scan the rows of a kind, in the order of the index, i.e. of (run, digest): of
 * one run, or of all (run < 0); of one digest, or of all (NULL).  Rows of
 * transactions that aborted are among them if they are frozen.  next returns a
 * copy of the row, NULL at the end; next_body copies the row's body to *body,
 * which has room for IDEM_SLOT_BODY_BYTES, false at the end.
 */
typedef struct IdemSlotScan IdemSlotScan;
extern IdemSlotScan *idem_slot_scan_begin(const IdemSlot *slot, IdemSlotKind kind, int64 run,
										  const pg_uuid_t *digest);
extern HeapTuple idem_slot_scan_next(IdemSlotScan *scan);
extern bool idem_slot_scan_next_body(IdemSlotScan *scan, char *body, int *len);
extern void idem_slot_scan_end(IdemSlotScan *scan);

#endif							/* IDEM_STORE_SLOT_H */
