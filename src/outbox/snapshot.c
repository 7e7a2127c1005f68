/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *		Snapshots of top-level transactions, as positions in the outbox.
 *
 * Invariant: a transaction that a snapshot sees had ended when the snapshot
 * was taken.  The server's own snapshots leave out the transaction that takes
 * them.  Here that transaction counts as running, so its events are never
 * taken for committed.
 *
 * MEMORY: results are allocated in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/snapshot.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "lib/qunique.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "outbox/snapshot.h"
#include "shared/xid.h"

#define SNAP_SIZE(nxip) \
	(offsetof(IdemSnap, xip) + sizeof(FullTransactionId) * (nxip))

/* Allocate a snapshot with room for nxip xids. */
static IdemSnap *
snap_alloc(uint32 nxip)
{
	IdemSnap   *snap = palloc(SNAP_SIZE(nxip));

	SET_VARSIZE(snap, SNAP_SIZE(nxip));
	snap->nxip = nxip;
	return snap;
}

/* Order by age, for qsort, qunique and bsearch. */
static int
compare_full_xids(const void *a, const void *b)
{
	uint64		x = U64FromFullTransactionId(*(const FullTransactionId *) a);
	uint64		y = U64FromFullTransactionId(*(const FullTransactionId *) b);

	return x < y ? -1 : x > y;
}

IdemSnap *
idem_snap_current(void)
{
	Snapshot	active = GetActiveSnapshot();
	FullTransactionId next = ReadNextFullTransactionId();
	TransactionId own = GetTopTransactionIdIfAny();
	IdemSnap   *snap = snap_alloc(active->xcnt + active->subxcnt + 1);
	uint32		n = 0;

	snap->xmin = idem_xid_widen(active->xmin, next);
	snap->xmax = idem_xid_widen(active->xmax, next);
	for (uint32 i = 0; i < active->xcnt; i++)
		snap->xip[n++] = idem_xid_widen(active->xip[i], next);

	/* A snapshot that was taken on a standby has all running xids here. */
	if (active->takenDuringRecovery)
	{
		for (int32 i = 0; i < active->subxcnt; i++)
			snap->xip[n++] = idem_xid_widen(active->subxip[i], next);
	}

	if (TransactionIdIsValid(own))
	{
		FullTransactionId full = idem_xid_widen(own, next);

		if (FullTransactionIdPrecedes(full, snap->xmax))
		{
			snap->xip[n++] = full;
			if (FullTransactionIdPrecedes(full, snap->xmin))
				snap->xmin = full;
		}
	}

	/*
	 * A transaction that is being prepared runs in two processes for a
	 * moment. If it were listed twice, its events would be read twice.
	 */
	qsort(snap->xip, n, sizeof(FullTransactionId), compare_full_xids);
	n = qunique(snap->xip, n, sizeof(FullTransactionId), compare_full_xids);
	snap->nxip = n;
	SET_VARSIZE(snap, SNAP_SIZE(n));
	return snap;
}

IdemSnap *
idem_snap_empty(void)
{
	IdemSnap   *snap = snap_alloc(0);

	snap->xmin = snap->xmax = FirstNormalFullTransactionId;
	return snap;
}

IdemSnap *
idem_snap_copy(const IdemSnap *snap)
{
	IdemSnap   *copy = snap_alloc(snap->nxip);

	memcpy(copy, snap, SNAP_SIZE(snap->nxip));
	return copy;
}

bool
idem_snap_sees(const IdemSnap *snap, FullTransactionId xid)
{
	if (FullTransactionIdPrecedes(xid, snap->xmin))
		return true;
	if (FullTransactionIdFollowsOrEquals(xid, snap->xmax))
		return false;
	return bsearch(&xid, snap->xip, snap->nxip, sizeof(FullTransactionId),
				   compare_full_xids) == NULL;
}

bool
idem_snap_equal(const IdemSnap *a, const IdemSnap *b)
{
	return a->nxip == b->nxip && memcmp(a, b, SNAP_SIZE(a->nxip)) == 0;
}
