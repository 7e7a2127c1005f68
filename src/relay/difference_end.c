/*-------------------------------------------------------------------------
 *
 * difference_end.c
 *		How far a difference may go: no further than the configuration is known.
 *
 * A relay passes, for good, the events of types that it does not want.  So an
 * event that was enqueued after a relay_alter must not be judged by the
 * configuration before that relay_alter.
 *
 * Invariant: a difference ends at a snapshot T only if the configuration in use
 * was read by a snapshot that sees every change of relays that T sees.
 *
 * A reader that begins a difference takes the active snapshot S.  Then the
 * reader asks whether S sees a change that the configuration in use lacks.
 *
 * A transaction X that changed relays and committed by COMMIT shows in one of
 * two places.  Before its commit X enters its xid into the array of changers.
 * After its commit has become visible X raises the counter of the database, and
 * then removes its entry.  If S sees X, a look at the entries first and at the
 * counter second finds either X's entry or a raised counter.  So nothing
 * depends on the moment at which the counter rises.  The relay passes neither
 * events that X itself enqueued nor events of a session that saw X's change
 * before X's COMMIT returned.
 *
 * A prepared transaction has no session that could do so at COMMIT PREPARED,
 * and it may be older than the server's start.  So the worker lists the
 * prepared transactions of its database before it reads the relays, and S tells
 * whether one of them has ended since.  The worker lists them at its first
 * look, and again after a transaction that changed relays was prepared.  The
 * PREPARE raises a counter before anybody can commit that transaction.
 *
 * If S sees such a change, the difference ends at the snapshot R that was taken
 * just before the relays were read.  R meets the invariant by itself.  So a
 * session that changes relays, or grants rights, without a pause delays events
 * by the gap between two looks at the relays, and cannot hold them back for
 * longer.  Events after R wait for the next look.  That look comes soon,
 * because idem_difference_config_changed() is true.
 *
 * What a crash leaves: nothing.  A worker reads the relays before it begins any
 * difference.
 *
 * LOCKING: none.  Shared memory is read and written through atomics.
 *
 * MEMORY: one context for the last look at the relays, another for the look in
 * progress; shared memory for one xid per process.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/difference_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay/difference_end.h"
#include "relay/worker_slots.h"
#include "shared/spi.h"
#include "shared/worker.h"
#include "shared/xid.h"

/* One reading of the relays. */
typedef struct Look
{
	MemoryContext cxt;			/* has this struct and its members */
	uint32		config;			/* both counters as they were before the
								 * reading */
	uint32		prepares;
	IdemSnap   *snap;			/* taken just before the relays were read */
	int			nprepared;		/* prepared transactions that had not ended
								 * before */
	FullTransactionId *prepared;
} Look;

typedef struct ChangesShmem
{
	pg_atomic_uint32 prepared;	/* about the number of prepared transactions
								 * that changed relays */
	pg_atomic_uint32 prepares;	/* rises with each such PREPARE */

	/*
	 * By process number: the xid of a transaction that changed relays and is
	 * about to commit.  It stays until the counter of the database has risen;
	 * 0: none.
	 */
	pg_atomic_uint64 changers[FLEXIBLE_ARRAY_MEMBER];
} ChangesShmem;

static ChangesShmem *changes = NULL;	/* NULL: the library is not preloaded */

static Look *last = NULL;		/* the look whose configuration is in use */
static Look *next = NULL;		/* the look in progress */
static bool overtaken = false;	/* a snapshot saw a change that "last" lacks */

Size
idem_difference_shmem_size(void)
{
	return offsetof(ChangesShmem, changers) + mul_size(MaxBackends, sizeof(pg_atomic_uint64));
}

void
idem_difference_shmem_attach(void *segment, bool found)
{
	changes = segment;
	if (found)
		return;
	pg_atomic_init_u32(&changes->prepared, 0);
	pg_atomic_init_u32(&changes->prepares, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&changes->changers[i], 0);
}

/* What sessions announce */

void
idem_config_committing(FullTransactionId xid)
{
	if (changes != NULL && FullTransactionIdIsValid(xid))
		pg_atomic_write_u64(&changes->changers[IDEM_MY_PROCNO], U64FromFullTransactionId(xid));
}

/*
 * Remove the entry after the counter has risen: a reader that finds no entry
 * looks at the counter next.
 */
void
idem_config_committed(void)
{
	if (changes == NULL)
		return;
	pg_memory_barrier();
	pg_atomic_write_u64(&changes->changers[IDEM_MY_PROCNO], 0);
}

void
idem_config_prepared(void)
{
	if (changes == NULL)
		return;
	pg_atomic_fetch_add_u32(&changes->prepares, 1);
	pg_atomic_fetch_add_u32(&changes->prepared, 1);
}

bool
idem_config_was_prepared(void)
{
	uint32		n;

	if (changes == NULL)
		return false;
	n = pg_atomic_read_u32(&changes->prepared);
	while (n > 0)
	{
		if (pg_atomic_compare_exchange_u32(&changes->prepared, &n, n - 1))
			return true;
	}
	return false;
}

/* What a worker looks at */

/* Has one of the counters risen since the last look? */
static bool
counters_rose(void)
{
	return idem_slot_asked().config != last->config ||
		pg_atomic_read_u32(&changes->prepares) != last->prepares;
}

bool
idem_difference_config_changed(void)
{
	return last != NULL && (overtaken || counters_rose());
}

void
idem_difference_woken(void)
{
	for (int i = 0; last != NULL && i < last->nprepared; i++)
		overtaken |= !TransactionIdIsInProgress(XidFromFullTransactionId(last->prepared[i]));
}

/*
 * List all prepared transactions of this database, whether they changed relays
 * or not.  The extension may be gone: the query names no table of it.
 */
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

		look->prepared[look->nprepared++] = idem_xid_widen(DatumGetTransactionId(xid), now);
	}
	SPI_finish();
	idem_txn_commit(false);
}

/*
 * Keep those prepared transactions of the last look that had not ended before
 * its snapshot was taken.
 */
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

/*
 * Read the counters first.  A change after that either raises them again or is
 * in the relays that are read next.
 */
void
idem_difference_load_begin(void)
{
	MemoryContext cxt;

	if (next != NULL)
		MemoryContextDelete(next->cxt);
	next = NULL;
	cxt = AllocSetContextCreate(TopMemoryContext, "look at the relays", ALLOCSET_SMALL_SIZES);
	next = MemoryContextAllocZero(cxt, sizeof(*next));
	next->cxt = cxt;
	next->config = idem_slot_asked().config;
	next->prepares = pg_atomic_read_u32(&changes->prepares);
	pg_memory_barrier();
	if (last == NULL || next->prepares != last->prepares)
		list_prepared(next);
	else
		keep_prepared(next);
}

void
idem_difference_load_snapshot(void)
{
	MemoryContext old = MemoryContextSwitchTo(next->cxt);

	next->snap = idem_snap_current();
	MemoryContextSwitchTo(old);
}

void
idem_difference_load_end(void)
{
	if (last != NULL)
		MemoryContextDelete(last->cxt);
	last = next;
	next = NULL;
	overtaken = false;
}

/*
 * Did the transaction end after the last look's snapshot and before this one?
 */
static bool
is_between(FullTransactionId xid, const IdemSnap *snap)
{
	return idem_snap_sees(snap, xid) && !idem_snap_sees(last->snap, xid);
}

/* Does the snapshot see a change of relays that the last look lacks? */
static bool
overtakes(const IdemSnap *snap)
{
	pg_memory_barrier();
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		xid = pg_atomic_read_u64(&changes->changers[i]);

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
idem_difference_take(bool *newest)
{
	IdemSnap   *snap = idem_snap_current();

	*newest = !overtakes(snap);
	if (*newest)
		return snap;
	overtaken = true;
	return idem_snap_copy(last->snap);
}
