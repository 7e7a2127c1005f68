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

/*
 * Order the n xids of a snapshot.  A transaction that is being prepared runs in two
 * processes for a moment.  If it were listed twice, its events would be read twice.
 */
static void
snap_order(IdemSnap *snap, uint32 n)
{
	qsort(snap->xip, n, sizeof(FullTransactionId), compare_full_xids);
	snap->nxip = qunique(snap->xip, n, sizeof(FullTransactionId), compare_full_xids);
	SET_VARSIZE(snap, SNAP_SIZE(snap->nxip));
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

	snap_order(snap, n);
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

void
idem_snap_assign(MemoryContext cxt, IdemSnap **dst, const IdemSnap *src)
{
	MemoryContext old = MemoryContextSwitchTo(cxt);
	IdemSnap   *copy = src != NULL ? idem_snap_copy(src) : NULL;

	MemoryContextSwitchTo(old);
	if (*dst != NULL)
		pfree(*dst);
	*dst = copy;
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

/*
 * Set xmin of a snapshot whose other fields are set, and order its xids, each
 * of which may be there several times.
 */
static void
snap_finish(IdemSnap *snap, uint32 n)
{
	snap_order(snap, n);
	snap->xmin = snap->nxip > 0 ? snap->xip[0] : snap->xmax;
}

IdemSnap *
idem_snap_common(IdemSnap *const *snaps, int n, FullTransactionId xmax)
{
	IdemSnap   *common;
	uint32		nxip = 0;
	uint32		used = 0;

	for (int i = 0; i < n; i++)
		nxip += snaps[i]->nxip;
	common = snap_alloc(nxip);
	common->xmax = xmax;
	for (int i = 0; i < n; i++)
	{
		Assert(FullTransactionIdFollowsOrEquals(snaps[i]->xmax, xmax));
		for (uint32 j = 0; j < snaps[i]->nxip; j++)
		{
			if (FullTransactionIdPrecedes(snaps[i]->xip[j], xmax))
				common->xip[used++] = snaps[i]->xip[j];
		}
	}
	snap_finish(common, used);
	return common;
}

/* Add to a union the xids of one snapshot that neither sees. */
static uint32
add_unseen(IdemSnap *both, uint32 used, const IdemSnap *from, const IdemSnap *other)
{
	for (uint32 i = 0; i < from->nxip; i++)
	{
		if (!idem_snap_sees(other, from->xip[i]))
			both->xip[used++] = from->xip[i];
	}
	return used;
}

IdemSnap *
idem_snap_union(const IdemSnap *a, const IdemSnap *b)
{
	IdemSnap   *both = snap_alloc(a->nxip + b->nxip);
	uint32		used;

	both->xmax = FullTransactionIdFollows(a->xmax, b->xmax) ? a->xmax : b->xmax;
	used = add_unseen(both, 0, a, b);
	used = add_unseen(both, used, b, a);
	snap_finish(both, used);
	return both;
}

bool
idem_snap_covers(const IdemSnap *snap, const IdemSnap *all)
{
	if (FullTransactionIdPrecedes(snap->xmax, all->xmax))
		return false;
	for (uint32 i = 0; i < snap->nxip; i++)
	{
		if (idem_snap_sees(all, snap->xip[i]))
			return false;
	}
	return true;
}

bool
idem_snap_equal(const IdemSnap *a, const IdemSnap *b)
{
	return a->nxip == b->nxip && memcmp(a, b, SNAP_SIZE(a->nxip)) == 0;
}
