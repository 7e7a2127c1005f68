/*-------------------------------------------------------------------------
 *
 * store.h
 *		The rows that remember which events were completed.
 *
 * Only store.c knows how the rows are kept.  Callers see the status of an
 * event, and references to rows, which they hand back to the store.
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
 * The place of a row.  The reference to a row that this transaction wrote is
 * valid until the transaction ends.  The reference to another transaction's
 * row is valid only during the statement, whose snapshot holds VACUUM back.
 */
typedef struct IdemRowRef
{
	ItemPointerData tid;
} IdemRowRef;

typedef enum IdemRowStatus
{
	IDEM_ROW_NONE,				/* there is no row, neither committed nor
								 * being written */
	IDEM_ROW_BUSY,				/* another transaction is writing or removing
								 * the row */
	IDEM_ROW_PROCESSING,		/* claimed and kept, not completed */
	IDEM_ROW_COMPLETED
} IdemRowStatus;

/* The result of a look-up.  With status NONE or BUSY no other field is set. */
typedef struct IdemRow
{
	IdemRowStatus status;
	bool		own;			/* written by the current transaction */
	bool		in_snapshot;	/* own, or the transaction snapshot sees it */
	IdemRowRef	ref;
	TimestampTz claimed_at;
	TimestampTz completed_at;	/* if completed */
	XLogRecPtr	commit_lsn;		/* once flushed up to here, the row is durable */
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
	IdemRowRef	ref;			/* set by idem_store_insert */
} IdemNewRow;

/* The most rows that one call writes. */
#define IDEM_STORE_CHUNK	64

typedef struct IdemStore IdemStore;

/*
 * Open the store for the current command; close it in the same command.  Its
 * locks stay until the (sub)transaction ends.  After an error no close is
 * needed.
 */
extern IdemStore *idem_store_open(bool for_write);
extern void idem_store_close(IdemStore *store);

/*
 * Look for an event's row as of now, whatever the caller's snapshot;
 * uncommitted work of others counts.  A caller that does not hold the event's
 * lock gets an answer that may be outdated at once.
 */
extern void idem_store_probe(IdemStore *store, const IdemClaimKey *key,
							 IdemRow *row);

/*
 * Look for an event's row as this transaction sees it; in READ COMMITTED as of
 * now.  Never IDEM_ROW_BUSY.  In SERIALIZABLE the look-up counts as a read of
 * the row, or of its absence.
 */
extern void idem_store_look_up(IdemStore *store, const IdemClaimKey *key, IdemRow *row);

/* Get a copy of the row's result; false if the row has none. */
extern bool idem_store_result(IdemStore *store, const IdemRowRef *ref,
							  Datum *result);

/*
 * Write n <= IDEM_STORE_CHUNK rows, of events that have no row.  Sets their
 * ref.
 */
extern void idem_store_insert(IdemStore *store, IdemNewRow *rows, int n);

/*
 * Remove a row that a probe found or that this transaction inserted.  Error
 * 40001 if another transaction changed the row meanwhile.
 */
extern void idem_store_delete(IdemStore *store, const IdemRowRef *ref);

/*
 * Body of a set-returning function.  Returns the rows that the caller's
 * snapshot sees, except those of the extension's own consumers, as consumer,
 * event_id, claimed_at, completed_at, result.  Needs no open store.
 */
extern Datum idem_store_next_row(FunctionCallInfo fcinfo);

/* Error 40001: the row of an event is not as this transaction saw it. */
pg_noreturn extern void idem_store_conflict(void);

#endif							/* IDEM_CLAIM_STORE_H */
