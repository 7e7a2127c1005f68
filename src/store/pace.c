/*-------------------------------------------------------------------------
 *
 * pace.c
 *		What the packer does for others while it writes a run.
 *
 * To merge large runs may take minutes.  Meanwhile the packer
 *
 * - serves interrupts;
 * - closes the current segment when it is full, which needs no transaction;
 * - sleeps if pack_max_rate says so.  What the packer writes to slots is counted:
 *	 the server writes about as much WAL, and the packer reads about as much.
 *	 So the rate bounds disk, log and CPU alike;
 * - gives way: it raises an error if a command waits for the database to be
 *	 empty (DROP DATABASE, CREATE DATABASE with this template, ALTER DATABASE ...
 *	 RENAME or SET TABLESPACE) or for the extension (DROP EXTENSION).  These
 *	 commands lock the database or the extension first and then wait, the former
 *	 for five seconds.  Nobody can signal a process that he does not know, so the
 *	 packer tries these locks for a moment, ten times a second.  It also gives way
 *	 to relays that lack a process, if another database's packer has the turn, and to a
 *	 command that waits to have a table of the run alone (VACUUM FULL), since all claims
 *	 would wait behind that command until the run is written.
 *
 * A crash leaves nothing of this file.
 *
 * LOCKING: RowExclusiveLock on the database, AccessShareLock on the extension, ShareUpdateExclusiveLock or
 * RowShareLock on the tables of the run and their indexes, each only if it is free, given back at once.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/pace.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/guc.h"

#include "shared/catalog.h"
#include "shared/clock.h"
#include "shared/table.h"
#include "shared/uptime.h"
#include "shared/worker.h"
#include "store/rotate.h"
#include "store/pace.h"
#include "store/setting.h"

/* Look around after so many entries or bytes, at most once in LOOK_MS. */
#define LOOK_ENTRIES	256
#define LOOK_BYTES		(64 * 1024)
#define LOOK_MS			100

/* A packer that was slow, or slept too long, may catch up that much. */
#define CREDIT_MS		100

static int64 entries = 0;		/* of the run so far */
static int64 written = 0;		/* bytes since paid_until */
static IdemClock paid_until = 0;	/* what was written before had its time;
									 * goes on from one run to the next */
static IdemClock next_look = 0;

/* The tables of the run and their indexes */
static Oid	watched[2 * (1 + IDEM_TABLE_INDEXES)];
static int	nwatched = 0;

static bool gave_way = false;

/* Is the lock free?  Takes it for a moment. */
static bool
is_free(const LOCKTAG *tag, LOCKMODE mode)
{
	if (LockAcquire(tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	LockRelease(tag, mode, false);
	return true;
}

bool
idem_pace_must_give_way(void)
{
	Oid			extension = idem_extension_oid();
	LOCKTAG		tag;

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (!idem_store_maintenance || !OidIsValid(extension) || idem_singleton_lacks_turn())
		return true;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	if (!is_free(&tag, RowExclusiveLock))
		return true;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension, 0);
	return !is_free(&tag, AccessShareLock);
}

/*
 * Does somebody wait to have the table alone?  From 17 on a lock that is asked for without a wait
 * passes those who wait for a lock that this process has; so the packer has to ask for the waiters, which
 * needs a lock that is not a fast-path lock.  VACUUM may have that one.  Before 17 the one request
 * or the other is refused because of those who wait.
 */
static bool
is_waited_for(Oid table)
{
	LOCKTAG		tag;
	bool		waited;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	if (LockAcquire(&tag, ShareUpdateExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return !is_free(&tag, RowShareLock);
	waited = LockHasWaiters(&tag, ShareUpdateExclusiveLock, false);
	LockRelease(&tag, ShareUpdateExclusiveLock, false);
	return waited;
}

/* Does somebody wait to have a table or an index of the run alone? */
static bool
holds_up_somebody(void)
{
	for (int i = 0; i < nwatched; i++)
	{
		if (is_waited_for(watched[i]))
			return true;
	}
	return false;
}

static void
watch(Relation table)
{
	watched[nwatched++] = RelationGetRelid(table);
	nwatched += idem_table_indexes(table, watched + nwatched);
}

bool
idem_pace_gave_way(void)
{
	bool		result = gave_way;

	gave_way = false;
	return result;
}

void
idem_pace_begin(Relation source, Relation target)
{
	nwatched = 0;
	watch(source);
	watch(target);
	entries = 0;
	next_look = idem_clock_plus_ms(idem_clock(), LOOK_MS);
	gave_way = false;
}

/* When what was written may have been written, by pack_max_rate. */
static IdemClock
due(void)
{
	if (idem_pack_max_rate == 0)
		return paid_until;
	return paid_until + written * INT64CONST(1000000) / ((int64) idem_pack_max_rate * 1024);
}

/* Serve the others. */
static void
serve(IdemClock now)
{
	next_look = idem_clock_plus_ms(now, LOOK_MS);
	if (idem_pace_must_give_way() || holds_up_somebody())
	{
		gave_way = true;
		/* worker.c catches it, and nobody sees it */
		elog(ERROR, "packing gives way");
	}
	(void) idem_close_if_due(false);
	idem_uptime_advance();
}

/* Look around, and sleep while the packer is ahead of its rate. */
static void
look_around(void)
{
	do
	{
		IdemClock	now;

		CHECK_FOR_INTERRUPTS();
		now = idem_clock();
		if (now >= next_look)
			serve(now);
		if (now >= due())
		{
			paid_until = Max(due(), idem_clock_plus_ms(now, -CREDIT_MS));
			written = 0;
			return;
		}
		idem_pause(Min(idem_clock_ms_until(due()), LOOK_MS));
	} while (true);
}

void
idem_pace_entry(void)
{
	CHECK_FOR_INTERRUPTS();
	if (++entries % LOOK_ENTRIES == 0)
		look_around();
}

void
idem_pace_wrote(Size bytes)
{
	written += bytes;
	if (written >= LOOK_BYTES)
		look_around();
}
