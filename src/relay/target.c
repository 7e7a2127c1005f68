/*-------------------------------------------------------------------------
 *
 * target.c
 *		How far a difference may go: no further than the configuration is known.
 *
 * A relay passes the events of types that it does not want, and for good.  So an
 * event that follows a relay_alter must not be judged by the configuration before
 * it.
 *
 * Invariant: a difference ends at a snapshot T only if the configuration in use was
 * read by a snapshot that sees every change of relays that T sees.
 *
 * Whoever begins a difference takes the active snapshot S, and asks afterwards
 * whether a change is visible in S that is not in what was read.  A transaction X
 * that changed relays and committed by itself shows in one of two places.  Before
 * its commit it enters its xid into the array of changers; after its commit has
 * become visible it raises the counter of the database, and takes its entry out
 * after that.  If S sees X, the entry is there, or the counter has risen, when we
 * look at the entries first.  So nothing rests on the moment at which the counter
 * rises: neither events that X itself enqueued nor those of a session that saw X's
 * change before X's COMMIT returned are passed.
 *
 * A prepared transaction has no session that could do so when it is committed, and
 * may be older than the server's start.  The worker lists those of its database
 * before it reads the relays, and S tells whether one of them has ended since.  The
 * list is taken once, and again after a transaction that changed relays was
 * prepared: that raises a counter before anybody can commit it.
 *
 * If there is such a change, the difference ends at the snapshot R that was taken
 * just before the relays were read, which meets the invariant by itself.  So a
 * session that changes relays, or grants rights, without a pause delays events by the
 * gap between two looks at the relays, and cannot hold them back.  What follows R
 * waits for the next look, which comes since idem_target_config_changed() is true.
 *
 * What a crash leaves: nothing; the first look comes before any difference.
 *
 * LOCKING: none; atomics of shared memory.
 *
 * MEMORY: a context for what was read last, another for what is being read.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/target.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "relay/target.h"
#include "shared/spi.h"
#include "shared/txn.h"

/* A look at the relays. */
typedef struct Look
{
	MemoryContext cxt;			/* of all of it */
	uint32		config;			/* counters, as they were before */
	uint32		prepares;
	IdemSnap   *snap;			/* the relays were read after this was taken */
	int			nprepared;		/* prepared transactions that ran before */
	FullTransactionId *prepared;
} Look;

static IdemWorkerSlot *slot = NULL;
static Look *last = NULL;		/* whose configuration is in use */
static Look *next = NULL;		/* not finished */
static bool overtaken = false;	/* a change was seen that "last" lacks */

void
idem_target_init(IdemWorkerSlot *my_slot)
{
	slot = my_slot;
}

static bool
counters_rose(void)
{
	return pg_atomic_read_u32(&slot->config) != last->config ||
		pg_atomic_read_u32(&idem_relay_shmem->config_prepares) != last->prepares;
}

bool
idem_target_config_changed(void)
{
	return last != NULL && (overtaken || counters_rose());
}

void
idem_target_woken(void)
{
	for (int i = 0; last != NULL && i < last->nprepared; i++)
		overtaken |= !TransactionIdIsInProgress(XidFromFullTransactionId(last->prepared[i]));
}

/* The prepared transactions of this database, whatever they did; the extension may be gone. */
static void
list_prepared(Look *look)
{
	Oid			types[1] = {OIDOID};
	Datum		values[1] = {ObjectIdGetDatum(MyDatabaseId)};
	FullTransactionId now;

	if (max_prepared_xacts == 0)
		return;
	idem_txn_begin();
	SPI_connect();
	if (SPI_execute_with_args("SELECT p.transaction FROM pg_catalog.pg_prepared_xact() p"
							  " WHERE p.dbid OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not list the prepared transactions");
	now = ReadNextFullTransactionId();
	look->prepared = MemoryContextAlloc(look->cxt, sizeof(FullTransactionId) * (SPI_processed + 1));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Datum		xid = idem_spi_value(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);

		look->prepared[look->nprepared++] = idem_snap_widen_xid(DatumGetTransactionId(xid), now);
	}
	SPI_finish();
	idem_txn_commit(false);
}

/* Those of the last look that it does not see. */
static void
keep_prepared(Look *look)
{
	look->prepared = MemoryContextAlloc(look->cxt, sizeof(FullTransactionId) * (last->nprepared + 1));
	for (int i = 0; i < last->nprepared; i++)
	{
		if (!idem_snap_sees(last->snap, last->prepared[i]))
			look->prepared[look->nprepared++] = last->prepared[i];
	}
}

/* The counters come first: what changes later shows in them, or in the next look. */
void
idem_target_load_begin(void)
{
	MemoryContext cxt;

	if (next != NULL)
		MemoryContextDelete(next->cxt);
	next = NULL;
	cxt = AllocSetContextCreate(TopMemoryContext, "look at the relays", ALLOCSET_SMALL_SIZES);
	next = MemoryContextAllocZero(cxt, sizeof(*next));
	next->cxt = cxt;
	next->config = pg_atomic_read_u32(&slot->config);
	next->prepares = pg_atomic_read_u32(&idem_relay_shmem->config_prepares);
	pg_memory_barrier();
	if (last == NULL || next->prepares != last->prepares)
		list_prepared(next);
	else
		keep_prepared(next);
}

void
idem_target_load_snapshot(void)
{
	MemoryContext old = MemoryContextSwitchTo(next->cxt);

	next->snap = idem_snap_current();
	MemoryContextSwitchTo(old);
}

void
idem_target_load_end(void)
{
	if (last != NULL)
		MemoryContextDelete(last->cxt);
	last = next;
	next = NULL;
	overtaken = false;
}

/* Has the transaction ended after the last look, and before the snapshot? */
static bool
is_between(FullTransactionId xid, const IdemSnap *snap)
{
	return idem_snap_sees(snap, xid) && !idem_snap_sees(last->snap, xid);
}

/* Does the snapshot see a change of relays that is not in what was read? */
static bool
overtakes(const IdemSnap *snap)
{
	pg_memory_barrier();
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		xid = pg_atomic_read_u64(&idem_config_changers[i]);

		if (xid != 0 && is_between(FullTransactionIdFromU64(xid), snap))
			return true;
	}
	for (int i = 0; i < last->nprepared; i++)
	{
		if (is_between(last->prepared[i], snap))
			return true;
	}
	pg_memory_barrier();
	return counters_rose();
}

IdemSnap *
idem_target_take(bool *newest)
{
	IdemSnap   *snap = idem_snap_current();

	*newest = !overtakes(snap);
	if (*newest)
		return snap;
	overtaken = true;
	return idem_snap_copy(last->snap);
}
