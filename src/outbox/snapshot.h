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
 * A snapshot of top-level transactions.  It says of every xid before xmax whether
 * that has ended.  A crash may take back what is not on disk, and the server
 * gives those xids out again; so a snapshot survives a crash only with a row
 * that is flushed, whose own xid is at least xmax.  The layout is that of the SQL type
 * pg_snapshot, so PointerGetDatum() of it can be stored in such a column and
 * a detoasted column be used as one.
 */
typedef struct IdemSnap
{
	int32		vl_len_;		/* varlena header, do not touch directly */
	uint32		nxip;			/* entries in xip, ascending */
	FullTransactionId xmin;		/* all before are visible (if committed) */
	FullTransactionId xmax;		/* this and all after are not */
	FullTransactionId xip[FLEXIBLE_ARRAY_MEMBER];
} IdemSnap;

/* The active snapshot's; palloc'd in the current context. */
extern IdemSnap *idem_snap_current(void);

/* One that sees nothing: the position of a relay that starts at 'earliest'. */
extern IdemSnap *idem_snap_empty(void);

/* A copy in the current context. */
extern IdemSnap *idem_snap_copy(const IdemSnap *snap);

/* An xid that is in use, with its epoch; "next", read later, is after it. */
extern FullTransactionId idem_snap_widen_xid(TransactionId xid, FullTransactionId next);

extern bool idem_snap_sees(const IdemSnap *snap, FullTransactionId xid);
extern bool idem_snap_equal(const IdemSnap *a, const IdemSnap *b);

typedef struct IdemPosition
{
	IdemSnap   *base;			/* never NULL */
	IdemSnap   *target;			/* NULL: no difference is being worked through */
	int64		seq;			/* last one delivered of it; 0: none */
} IdemPosition;

#endif							/* IDEM_OUTBOX_SNAPSHOT_H */
