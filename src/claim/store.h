/*-------------------------------------------------------------------------
 *
 * store.h
 *		The rows that remember which events were completed.
 *
 * How the rows are kept is known to store.c only: callers see the status of an
 * event, and references to rows which they hand back.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/store.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_STORE_H
#define IDEM_CLAIM_STORE_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "storage/itemptr.h"

#include "claim/lock.h"
#include "compat.h"

/*
 * Where a row is.  The reference to a row of this transaction is good until the
 * transaction ends; to another's row, only while the statement lasts whose snapshot
 * holds VACUUM back.
 */
typedef struct IdemRowRef
{
	ItemPointerData tid;
} IdemRowRef;

typedef enum IdemRowStatus
{
	IDEM_ROW_NONE,				/* no row, committed or being written */
	IDEM_ROW_BUSY,				/* another transaction is writing or removing
								 * it */
	IDEM_ROW_PROCESSING,		/* claimed and kept, not completed */
	IDEM_ROW_COMPLETED
} IdemRowStatus;

/* A row that was found; the status alone is set if it is NONE or BUSY. */
typedef struct IdemRow
{
	IdemRowStatus status;
	bool		own;			/* written by the current transaction */
	bool		in_snapshot;	/* own, or the transaction snapshot sees it */
	IdemRowRef	ref;
	TimestampTz claimed_at;
	TimestampTz completed_at;	/* if completed */
	XLogRecPtr	commit_lsn;		/* to be flushed for the row to be durable */
} IdemRow;

/* A row to be written. */
typedef struct IdemNewRow
{
	IdemClaimKey key;
	TimestampTz claimed_at;
	bool		completed;
	TimestampTz completed_at;	/* if completed */
	bool		has_result;
	Datum		result;			/* jsonb, if has_result */
	IdemRowRef	ref;			/* out */
} IdemNewRow;

/* Rows written by one call at most. */
#define IDEM_STORE_CHUNK	64

typedef struct IdemStore IdemStore;

/*
 * Open the store for the current command, and close it in the same command.  Locks
 * stay until the (sub)transaction ends.  An error needs no close.
 */
extern IdemStore *idem_store_open(bool for_write);
extern void idem_store_close(IdemStore *store);

/*
 * Look for an event's row as of now, uncommitted work of others included, whatever
 * the caller's snapshot.  The caller holds the event's lock, or the answer may be
 * overtaken at once.
 */
extern void idem_store_probe(IdemStore *store, const IdemClaimKey *key,
							 IdemRow *row);

/*
 * Look for an event's row as this transaction sees it, in READ COMMITTED as of now;
 * never IDEM_ROW_BUSY.  In SERIALIZABLE the look counts as a read of the row, or of
 * its absence.
 */
extern void idem_store_look_up(IdemStore *store, const IdemClaimKey *key, IdemRow *row);

/* The row's result, copied; false if it has none. */
extern bool idem_store_result(IdemStore *store, const IdemRowRef *ref,
							  Datum *result);

/* Write n <= IDEM_STORE_CHUNK rows of events without a row; sets their ref. */
extern void idem_store_insert(IdemStore *store, IdemNewRow *rows, int n);

/*
 * Remove a row that a probe found or an insert made.  Error 40001 if another
 * transaction changed it meanwhile.
 */
extern void idem_store_delete(IdemStore *store, const IdemRowRef *ref);

/*
 * Body of a set-returning function: the rows that the caller's snapshot sees, but
 * for the extension's own consumers, as consumer, event_id, claimed_at,
 * completed_at, result.  Needs no open store.
 */
extern Datum idem_store_next_row(FunctionCallInfo fcinfo);

/* Error 40001: the row of an event is not what this transaction saw. */
pg_noreturn extern void idem_store_conflict(void);

#endif							/* IDEM_CLAIM_STORE_H */
