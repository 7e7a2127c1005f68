/*-------------------------------------------------------------------------
 *
 * uptime.c
 *		The time by which what is remembered expires: how long the server has been up.
 *
 * Entries of the dedup store and rows of the log of leases expire by this time and not
 * by the clock.  Otherwise a server that was down for longer than the retention would
 * forget everything as it starts, and a broker that kept its messages meanwhile would
 * deliver them to a store that does not know them.  The same holds for a clock that jumps, for a standby that
 * is promoted after hours, and for a backup that is restored after weeks.
 *
 * The time is noted now and then.  Between two notes it goes on by what the machine's
 * monotonic clock says (shared/clock.h), but by two minutes at most, and not by what was
 * before the server started.  So the time never goes faster than the seconds that pass,
 * however often the wall clock is set; it is too early rather than too late, and entries
 * are remembered for longer.
 *
 * The wall clock is asked for one thing, how long ago the server started, because a
 * process knows only the wall clock's time of that.  If it is wrong, the time that
 * the server was down counts, as far as two minutes go.
 *
 * The note is one number, the value of a sequence page (shared/cell.c): the time
 * in the upper half, the monotonic clock in the lower half, both in seconds.  After a
 * reboot, and on another machine, that clock is another: if it is behind the note,
 * the time stands until the next note.  Nobody else
 * sets it but pg_upgrade, which brings the old value, so its seal is not asked
 * for.
 *
 * The packer notes the time only while something expires: entries of the store, which it
 * knows, or rows of the logs, whose writers say until when they need the time.  A
 * database in which nothing expires is not written to.
 *
 * A crash leaves the last note whose WAL was flushed.
 *
 * LOCKING: the page's content lock.  Readers hold AccessShareLock on the
 * sequence store_clock; who changes it holds the packer's lock as well.
 *
 * MEMORY: until when the time is needed, as this process knows.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/uptime.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/clock.h"
#include "shared/fault.h"
#include "shared/uptime.h"

/*
 * The most that the time goes on between two notes, in seconds.  After a restart the
 * time is that of the note again.
 */
#define MAX_GAP		IDEM_UPTIME_MAX_BACK

/*
 * A note is written if the last one is so old, in seconds: soon enough for
 * MAX_GAP, and so that a database at rest writes little.
 */
#define NOTE_AFTER	50

static IdemRelRef clock_ref = IDEM_RELREF("store_clock");

/*
 * Until when somebody needs the time.  It is written that much later than it has to be,
 * so that it is written seldom.
 */
static IdemRelRef needed_ref = IDEM_RELREF("store_needed");
static int64 known_needed = 0;
static Oid	known_of = InvalidOid;	/* the cell that known_needed is of */

#define NEEDED_LATER(seconds)	((seconds) / 4 + 3600)

/*
 * Where the clock of a note begins, so that it is no negative number for tests that set
 * it back.
 */
#define CLOCK_BASE	(INT64CONST(1) << 31)

typedef struct Note
{
	int64		time;
	int64		clock;			/* CLOCK_BASE and the seconds of
								 * shared/clock.h */
} Note;

static Note
read_note(Relation rel)
{
	uint64		value = idem_cell_read(rel).value;
	Note		note = {.time = value >> 32, .clock = value & PG_UINT32_MAX};

	return note;
}

static void
write_note(Relation rel, const Note *note)
{
	idem_cell_write(rel, (int64) ((uint64) note->time << 32 | (uint32) note->clock));
}

/*
 * What the note becomes now.  If the wall clock was set back to a time before the
 * server started, the start says nothing.
 */
static Note
advanced(Note note)
{
	int64		now = CLOCK_BASE + idem_clock() / USECS_PER_SEC;
	int64		up = (GetCurrentTimestamp() - PgStartTime) / USECS_PER_SEC;
	int64		from = up >= 0 ? Max(note.clock, now - up) : note.clock;
	Note		result = {.clock = now};

	result.time = note.time + Max(0, Min(now - from, MAX_GAP));
	return result;
}

bool
idem_uptime_try_now(int64 *now)
{
	Oid			oid = idem_relref_oid(&clock_ref);

	if (!ConditionalLockRelationOid(oid, AccessShareLock))
		return false;
	*now = idem_uptime_now();
	UnlockRelationOid(oid, AccessShareLock);
	return true;
}

int64
idem_uptime_now(void)
{
	Relation	rel = relation_open(idem_relref_oid(&clock_ref), AccessShareLock);
	Note		note = advanced(read_note(rel));

	relation_close(rel, AccessShareLock);
	return note.time;
}

void
idem_uptime_advance(void)
{
	Relation	rel = relation_open(idem_relref_oid(&clock_ref), AccessShareLock);
	Note		old = read_note(rel);
	Note		note = advanced(old);

	/* a clock that begins anew is noted as well */
	if (note.clock - old.clock >= NOTE_AFTER || note.clock < old.clock)
	{
		write_note(rel, &note);
		IDEM_FAULT_POINT("store-time-noted");
	}
	relation_close(rel, AccessShareLock);
}

/*
 * Of two processes that write at once one may undo the other's note, which says almost the
 * same: then the time stands still too early, and things are kept for longer.
 */
void
idem_uptime_need(int64 now, int64 seconds)
{
	int64		until = now + seconds + IDEM_UPTIME_MAX_BACK;
	Oid			oid = idem_relref_oid(&needed_ref);

	if (known_of == oid && until <= known_needed)
		return;
	known_of = oid;
	known_needed = idem_cell_read_ref(&needed_ref).value;
	if (until <= known_needed)
		return;
	known_needed = until + NEEDED_LATER(seconds);
	idem_cell_write_ref(&needed_ref, known_needed);
}

bool
idem_uptime_is_needed(void)
{
	return idem_uptime_now() < idem_cell_read_ref(&needed_ref).value;
}

void
idem_uptime_set(int64 ahead, int64 note_back)
{
	Relation	rel = relation_open(idem_relref_oid(&clock_ref), AccessShareLock);
	Note		note = advanced(read_note(rel));

	note.time += ahead;
	note.clock -= note_back;
	write_note(rel, &note);
	relation_close(rel, AccessShareLock);
}
