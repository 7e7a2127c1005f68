/*-------------------------------------------------------------------------
 *
 * run.h
 *		Runs: the packed, sorted ids of a closed segment or of merged runs.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/run.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_RUN_H
#define IDEM_STORE_RUN_H

#include "postgres.h"

#include "access/xlogdefs.h"

#include "store/slot.h"

/* What the end mark of a run says. */
typedef struct IdemRun
{
	int			slot;			/* number of the slot; not stored */
	int64		number;			/* random: no other run has it, not even one
								 * that a restore brings */
	int16		class;			/* retention.h */
	int16		level;
	int16		column;			/* of the slot's filters; -1: none */
	int64		pages;			/* of digests */
	BlockNumber first_block;	/* page i is expected at first_block + i */
	int64		digests;		/* on the pages */
	int64		details;		/* rows of details, special ones included */
	int64		specials;		/* entries that have a detail and no digest on
								 * a page */
	TimestampTz oldest;			/* no entry was claimed before */
	TimestampTz newest;			/* no entry was completed after */
	int64		stamp;			/* the time of the store (uptime.h) when the
								 * entries were packed, the latest of them */
	FullTransactionId last_xid; /* no entry's transaction is after it; 0: all
								 * are visible to everybody */
	XLogRecPtr	lsn;			/* of the page of the mark when it was read;
								 * not stored */
	FullTransactionId packer;	/* the transaction that wrote the mark; 0
								 * after a restore, and after transaction ids
								 * went back behind it */
	TransactionId xmin;			/* of the row of the mark; not stored */
	bool		lacks_rows;		/* not stored: a restore brought the mark, and
								 * the table has no room for the rows that it
								 * counts; in a survey, or they are not all
								 * there.  The rows that are there count */
	int			nreplaces;		/* the runs that were merged into this one */
	int64		replaces[IDEM_SLOT_RUNS];
	bool		plain;			/* not stored: the caller of idem_run_begin
								 * knows that no entry has a detail */
	const struct IdemRun *replaced_by;	/* not stored: idem_run_find_replaced */
} IdemRun;

/* Runs of one slot or of several; context: where the array is. */
typedef struct IdemRunSet
{
	MemoryContext context;
	int			n;
	int			room;
	IdemRun    *runs;
} IdemRunSet;

/*
 * When the run may be dropped, because all its entries have been remembered for
 * long enough; in the time of the store.
 */
extern int64 idem_run_end(const IdemRun *run);

/*
 * Write a run.  The caller fills in number, class, level, the times, last_xid,
 * replaces and plain, and has opened the slot with RowExclusiveLock; expected
 * is at least the number of entries.  Entries are added in the order of
 * (digest, turn), each pair once; else an error.  finish writes what is left,
 * then the end mark, and fills in the rest of *run.
 *
 * If the run may have details, its pages wait in a temporary file until the
 * details are written, because they are to stand on consecutive blocks.  A run
 * that is plain has no such file.
 *
 * Memory: a few pages, in the current context, whatever the run's size.
 * Interrupts are served between pages.
 */
typedef struct IdemRunWriter IdemRunWriter;
extern IdemRunWriter *idem_run_begin(IdemSlot *slot, IdemRun *run, int64 expected);
extern void idem_run_add(IdemRunWriter *writer, const IdemEventEntry *entry);
extern void idem_run_finish(IdemRunWriter *writer);

/*
 * The body of an end mark that is restored from a dump, palloc'd: transaction
 * ids mean nothing in another cluster, there is no filter, the pages stand
 * elsewhere, and the time of the store is another one.  The run replaces no others: a
 * snapshot that is older than the restore sees the runs that it was merged from, and not
 * its rows; and some of its rows may be to come.
 */
extern bytea *idem_run_restamp(const char *table, const char *body, int len, int64 now);

/* Read the end marks of a slot, in the order of run numbers, and add the runs to the set. */
extern void idem_run_read_marks(const IdemSlot *slot, IdemRunSet *set);

/*
 * Find out which run each run of a set was merged into.  After a crash there may be
 * several; who sees any of them sees the first, which it is.
 */
extern void idem_run_find_replaced(const IdemRunSet *set);

/*
 * A number for a new run.  It is random, so that neither the remains of a run
 * that was not finished nor the runs of a restored dump have it.
 */
extern int64 idem_run_new_number(void);

/*
 * Search one run for an event; the entry with the highest turn.  The caller has
 * asked the filter, or knows that there is none.  detail: if the entry has a
 * detail, fill in its fields, and set has_detail; else has_detail is false, and
 * event_id, consumer and result are 0.
 */
extern bool idem_run_search(const IdemSlot *slot, const IdemRun *run, const pg_uuid_t *digest,
							bool detail, IdemEventEntry *entry);

/*
 * Stream all entries of a run in the order of (digest, turn).  An entry is
 * valid until the next call.  Error XX001 if rows of the run are missing.
 */
typedef struct IdemRunReader IdemRunReader;
extern IdemRunReader *idem_run_read(const IdemSlot *slot, const IdemRun *run);
extern bool idem_run_next(IdemRunReader *reader, IdemEventEntry *entry);
extern void idem_run_end_read(IdemRunReader *reader);

#endif							/* IDEM_STORE_RUN_H */
