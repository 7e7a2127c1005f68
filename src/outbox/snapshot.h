/*-------------------------------------------------------------------------
 *
 * snapshot.h
 *		Snapshots of top-level transactions, as positions in the outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/snapshot.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_SNAPSHOT_H
#define IDEM_OUTBOX_SNAPSHOT_H

#include "postgres.h"

#include "access/transam.h"

/*
 * A snapshot of top-level transactions.  It says of every xid before xmax
 * whether the transaction has ended.  A crash may take back transactions that
 * are not on disk, and the server gives their xids out again.  So a snapshot
 * is valid after a crash only if it is stored in a row that is flushed and
 * whose own xid is at least xmax.  The layout is that of the SQL type
 * pg_snapshot: PointerGetDatum() of a snapshot can be stored in such a column,
 * and a detoasted column can be used as a snapshot.
 */
typedef struct IdemSnap
{
	int32		vl_len_;		/* varlena header, do not touch directly */
	uint32		nxip;			/* number of entries in xip, which ascend */
	FullTransactionId xmin;		/* all xids before it have ended: visible if
								 * committed */
	FullTransactionId xmax;		/* this xid and all after it are not visible */
	FullTransactionId xip[FLEXIBLE_ARRAY_MEMBER];
} IdemSnap;

/* Make a snapshot of the active snapshot; palloc'd in the current context. */
extern IdemSnap *idem_snap_current(void);

/*
 * Make a snapshot that sees nothing: the position of a relay that starts at
 * 'earliest'.
 */
extern IdemSnap *idem_snap_empty(void);

/* A copy in the current context. */
extern IdemSnap *idem_snap_copy(const IdemSnap *snap);

/*
 * Replace *dst by a copy of src in cxt; either may be NULL.  If memory for the copy runs
 * out, *dst stays what it was.
 */
extern void idem_snap_assign(MemoryContext cxt, IdemSnap **dst, const IdemSnap *src);

/*
 * The transactions before xmax that each of the snapshots sees.  None of the
 * snapshots ends before xmax.
 */
extern IdemSnap *idem_snap_common(IdemSnap *const *snaps, int n, FullTransactionId xmax);

/* The transactions that at least one of the two sees. */
extern IdemSnap *idem_snap_union(const IdemSnap *a, const IdemSnap *b);

/*
 * Does "snap" see every transaction that "all" sees?  Asked of an "all" that
 * sees the transaction before its xmax.
 */
extern bool idem_snap_covers(const IdemSnap *snap, const IdemSnap *all);

extern bool idem_snap_sees(const IdemSnap *snap, FullTransactionId xid);
extern bool idem_snap_equal(const IdemSnap *a, const IdemSnap *b);

typedef struct IdemPosition
{
	IdemSnap   *base;			/* everything that base sees is delivered;
								 * never NULL */
	IdemSnap   *target;			/* the relay works through the difference from
								 * base to target; NULL: no difference */
	int64		seq;			/* last event delivered of the difference; 0:
								 * none */
} IdemPosition;

#endif							/* IDEM_OUTBOX_SNAPSHOT_H */
