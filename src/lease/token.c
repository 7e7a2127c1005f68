/*-------------------------------------------------------------------------
 *
 * token.c
 *		Fencing tokens: numbers that rise across crashes, failovers and restores.
 *
 * A holder hands its token to systems outside, which refuse a token that is less
 * than one they have seen.  So a token must never be given out twice, whatever
 * happens to the transaction that drew it.  Three cells (shared/cell.c) see to
 * that:
 *
 *	lease_number	the last number given out
 *	lease_identity	which history of which database has given it out: a hash of
 *					system identifier, timeline and database.  0: none has
 *	lease_start		when the server was started that has last looked at the others
 *
 * A crash: the cell's WAL is ahead of its value, and is flushed before a token is
 * given out.  That is one flush for each LOG_AHEAD numbers, for which all sessions
 * wait that draw meanwhile.
 *
 * The first draw of a process looks at the cells.  If they were not written in this
 * run of the server, the number leaps to 2^32 beyond the microseconds since 1970, unless
 * it is there already.  Less than one number is drawn each microsecond.  So a leap is
 * beyond all that was drawn after an earlier leap, in whichever history of the database:
 * before the data directory was set back to a former image, by a primary that was lost,
 * or by another server that was started from the same backup before.  That rests on
 * leaps that do not add up: the number of a history with many leaps is as high as that
 * of one with a single leap at the same time.
 *
 * Where the number is beyond that already, the clock is behind, or was ahead:
 *
 *	it goes on from there	as far as the time since the number was last found safe, to
 *							pass over what another history drew meanwhile
 *	another identity		2^17 further, whatever the clock says: a standby that was
 *							promoted may lack the last numbers, and so may a base
 *							backup, a clone, and the template of a database
 *	number not sealed		from the greatest number in the logs, if that is greater:
 *							rows were restored, or the sequence was set by hand.  What
 *							was drawn since that row was written is passed over by
 *							the time, too
 *
 * The clock is ignored if it is beyond the year 2200: 2^53, where the exact integers
 * of JavaScript and JSON end, is the year 2255.  A clock that is behind makes no number
 * of one history fall, since a leap never goes back.  What a clock that was wrong for a
 * while costs is limited: a time that has passed counts for 13 days at most.
 *
 * Not kept apart are two histories of which the later one leapt by a clock that was behind
 * the clock of the earlier one's last leap.  Nothing that a restore leaves tells of it.
 *
 * Two live copies of one database give out the same tokens.  No local mark tells
 * them apart.
 *
 * What a crash leaves: the number is written before the cells that say why it
 * leapt.  So after a crash between them the number leaps again.
 *
 * LOCKING: to draw, RowExclusiveLock on lease_number.  To leap, and to distrust the
 * number, ShareUpdateExclusiveLock on lease_start before that; its holder waits for
 * nobody.  All are given back at once.  Below them the page's content lock.
 *
 * MEMORY: a flag.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/token.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "lease/table.h"
#include "lease/token.h"
#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/fault.h"
#include "shared/keyed_log.h"
#include "shared/keyed_worker.h"
#include "shared/lock_wait.h"

/*
 * How far WAL is ahead of the number.  What a crash skips does not count beside the leap
 * that follows it.
 */
#define LOG_AHEAD	4096

/* How far the number is beyond the clock after a leap.  It must not become less. */
#define CLOCK_LEAD		(INT64CONST(1) << 32)

/*
 * How far the number leaps at least when a primary may have drawn numbers that are lost.
 * Only these leaps add up, and histories that follow each other take longer than that
 * many microseconds, 0.13 s: a server has to be started in between.
 */
#define IDENTITY_LEAP	(INT64CONST(1) << 17)

/* The longest time that a leap makes up for, in microseconds: 13 days */
#define LONGEST_TIME	(INT64CONST(1) << 40)

/*
 * 2200-01-01 in microseconds since 1970.  No number is drawn beyond it: the tables' CHECK allows
 * none, so a dump of rows that have it could not be restored.
 */
#define LATEST_CLOCK	INT64CONST(7258118400000000)

/* Microseconds from 1970 to the epoch of the server's timestamps */
#define UNIX_EPOCH_US	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/*
 * On lease_start: one process at a time leaps.  The mode does not conflict with the lock of
 * nextval, which locks a sequence before it asks for privileges: whoever can log in could
 * keep that lock, and nobody would get a token.
 */
#define LEAP_LOCK	ShareUpdateExclusiveLock

static IdemRelRef start_ref = IDEM_RELREF("lease_start");

/*
 * Has this process found the cells written in this run of the server?  The identity
 * of a server that takes writes does not change while it runs.
 */
static bool checked = false;

/* A positive number. */
int64
idem_token_history(void)
{
	uint64		parts[3] = {GetSystemIdentifier(), GetWALInsertionTimeLine(), MyDatabaseId};

	return (int64) (hash_bytes_extended((unsigned char *) parts, sizeof(parts), 0) >> 2) + 1;
}

/* The start of the server, as a positive number. */
static int64
start_now(void)
{
	return Max(PgStartTime, 1);
}

/* The clock in microseconds since 1970; 0 if it is not to be believed. */
static int64
clock_now(void)
{
	int64		now = GetCurrentTimestamp() + UNIX_EPOCH_US;

	return now > 0 && now < LATEST_CLOCK ? now : 0;
}

/* Is the cell sealed, and has the value? */
static bool
cell_is(IdemRelRef *ref, int64 value)
{
	IdemCell	cell = idem_cell_read_ref(ref);

	return cell.sealed && cell.value == value;
}

/*
 * How far the number leaps for the time that has passed since it was last known to be
 * safe.  0: unknown, as after a restore without rows.
 */
static int64
passed_since(TimestampTz safe_at)
{
	int64		passed = safe_at > 0 ? GetCurrentTimestamp() - safe_at : 0;

	return Min(Max(passed, 0), LONGEST_TIME);
}

/* When this history was last in order: the start of the server that saw to it. */
static TimestampTz
safe_since(void)
{
	IdemCell	start = idem_cell_read_ref(&start_ref);

	return start.sealed ? start.value : 0;
}

/* The greatest number in the logs, and when its row was written; 0: there is none. */
static int64
greatest_in_logs(TimestampTz *at)
{
	const IdemKeyedLog *const *logs;
	int			n = idem_keyed_worker_logs(&logs);
	int64		greatest = 0;

	*at = 0;
	for (int i = 0; i < n; i++)
		idem_keyed_log_greatest(logs[i], &greatest, at);
	return greatest;
}

/* A number that is beyond those drawn after the given one, which was safe at that time. */
static int64
leap_from(int64 number, TimestampTz safe_at)
{
	int64		by_clock = clock_now() + CLOCK_LEAD;

	return number > by_clock ? number + passed_since(safe_at) : by_clock;
}

/* May a former history have drawn numbers that the sealed number does not know of? */
static bool
is_branch(IdemCell number, IdemCell identity)
{
	return number.sealed && identity.value != 0 && identity.value != idem_token_history();
}

/* Set the number to a safe value, unless another process has done so. */
static void
leap(void)
{
	IdemCell	number = idem_cell_read_ref(&idem_lease_number);
	int64		value;

	if (number.sealed && cell_is(&idem_lease_identity, idem_token_history()) && cell_is(&start_ref, start_now()))
		return;

	/* setval, or a row written by hand, may lead beyond what rows can have */
	if (number.value >= LATEST_CLOCK)
		number = (IdemCell)
	{
		.value = 0, .sealed = false
	};
	value = leap_from(number.value, safe_since());
	if (!number.sealed)
	{
		TimestampTz at;
		int64		greatest = greatest_in_logs(&at);

		value = Max(value, leap_from(greatest, at));
	}
	if (is_branch(number, idem_cell_read_ref(&idem_lease_identity)))
		value = Max(value, number.value + IDENTITY_LEAP);
	idem_cell_write_ref(&idem_lease_number, value);
	IDEM_FAULT_POINT("lease-number-written");
	idem_cell_write_ref(&idem_lease_identity, idem_token_history());
	IDEM_FAULT_POINT("lease-identity-written");
	idem_cell_write_ref(&start_ref, start_now());
}

/* Look at the cells, one process at a time. */
static void
check_cells(void)
{
	Oid			oid = idem_relref_oid(&start_ref);

	idem_lock_table(oid, LEAP_LOCK);
	leap();
	UnlockRelationOid(oid, LEAP_LOCK);
	checked = true;
}

/*
 * Error 2200H: no number is left that a row can have.  A row with a number near the end, which the
 * clock does not reach, was written by hand.
 */
static void
report_exhausted(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("sequence \"%s.lease_number\" has no numbers left for leases and cursors", IDEM_DATA_SCHEMA_NAME),
			 errdetail("The extension does not draw such numbers: a row that was written by hand, or setval, led there."),
			 errhint("Look for that row in the tables %s.lease_log_* and %s.cursor_log_*: its column number is above " INT64_FORMAT
					 ", and what else is was written after it. Delete these rows, which forgets the leases, offsets and producers in them, and VACUUM the tables, for dead rows count. Then run SELECT pg_catalog.setval('%s.lease_number', 1): the next number goes beyond all that are left.",
					 IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME, LATEST_CLOCK - LONGEST_TIME, IDEM_DATA_SCHEMA_NAME)));
}

/* Draw a number.  Once WAL is flushed up to *lsn, it is never drawn again. */
static int64
draw(XLogRecPtr *lsn)
{
	Relation	rel;
	int64		before;

	if (!checked)
		check_cells();
	rel = relation_open(idem_relref_oid(&idem_lease_number), RowExclusiveLock);
	while (!idem_cell_draw(rel, 1, LOG_AHEAD, &before, lsn))
	{
		CHECK_FOR_INTERRUPTS();
		check_cells();
	}
	relation_close(rel, RowExclusiveLock);
	if (before >= LATEST_CLOCK - 1)
		report_exhausted();
	return before + 1;
}

int64
idem_token_draw(void)
{
	XLogRecPtr	lsn;
	int64		token = draw(&lsn);

	IDEM_FAULT_POINT("lease-token-drawn");
	XLogFlush(lsn);
	IDEM_FAULT_POINT("lease-token-flushed");
	return token;
}

int64
idem_token_draw_unflushed(void)
{
	XLogRecPtr	lsn;

	return draw(&lsn);
}

/* Break a cell's seal. */
static void
unseal_cell(IdemRelRef *ref)
{
	Relation	rel = relation_open(idem_relref_oid(ref), RowExclusiveLock);

	idem_cell_unseal(rel);
	relation_close(rel, RowExclusiveLock);
}

void
idem_token_distrust(void)
{
	Oid			oid = idem_relref_oid(&start_ref);

	idem_lock_table(oid, LEAP_LOCK);
	unseal_cell(&idem_lease_number);
	if (idem_cell_read_ref(&idem_lease_identity).value == 0)
		unseal_cell(&idem_lease_identity);
	UnlockRelationOid(oid, LEAP_LOCK);
}

/*
 * May the log of leases have rows?
 *
 * A claim has to look into the log.  Most databases never lease an event, and to open
 * three empty tables costs as much as to look into the store.  So a claim looks at one
 * page before: as long as the cell lease_identity is 0 and sealed, nobody has drawn a
 * number in this database, and the log is empty.  The log of cursors has the same numbers,
 * so offsets and sequences set the cell as well.
 *
 * Every row gets its number from a draw, which sets the cell before; a restore
 * breaks the seal of a cell that is 0.  A cell that nobody has sealed, as that of a new
 * extension, is settled by the first claim: as 0 if the tables are as new, as
 * ROWS_FROM_ELSEWHERE if they have rows.
 *
 * Once the cell is set, it stays so, and a session remembers it.
 *
 * INVARIANT: while the cell is 0 and sealed, the tables have no row that is committed, nor
 * one of a lease that is being taken.  Rows that a statement of a restore is writing may be
 * there.
 *
 * A crash leaves a cell that was settled, or one that is not.  The WAL of a cell that a
 * draw has set is before that of the row.
 *
 * LOCKING: the event's lock makes a claim see the cell that was set for an earlier lease
 * of the event.  To settle the cell: the lock on lease_start, then AccessShareLock on the
 * tables; each only if it is free, and given back at once.  A restore that has rows in
 * files that were empty just now waits for the lock on lease_start with the end of its
 * statement, and breaks the seal then.
 *
 * MEMORY: an OID; an open cell is a relation and a pin, which an error gives back.
 */

/*
 * The value of the cell when rows are there, and nobody has drawn a number here.  The next
 * draw finds another identity.
 */
#define ROWS_FROM_ELSEWHERE	1

/* The cell that this session has seen set; one of a new extension has another OID. */
static Oid	used_cell = InvalidOid;

bool
idem_lease_use_is_known(void)
{
	return used_cell == idem_relref_oid(&idem_lease_identity);
}

/* Has nobody said yet whether there are rows? */
static bool
is_unsettled(IdemCell cell)
{
	return cell.value == 0 && !cell.sealed;
}

void
idem_lease_use_open(IdemLeaseUse *use)
{
	use->rel = relation_open(idem_relref_oid(&idem_lease_identity), AccessShareLock);
	use->page = idem_cell_pin(use->rel);
}

void
idem_lease_use_close(IdemLeaseUse *use)
{
	ReleaseBuffer(use->page);
	relation_close(use->rel, AccessShareLock);
	use->rel = NULL;
}

/*
 * Settle the cell that nobody has sealed, unless somebody has a table or sets the cell
 * just now.
 */
static void
settle(const IdemLeaseUse *use)
{
	Oid			oid = idem_relref_oid(&start_ref);
	Relation	heaps[IDEM_LEASE_TABLES];
	BlockNumber blocks = 0;
	int			n = 0;

	if (!ConditionalLockRelationOid(oid, LEAP_LOCK))
		return;
	while (n < IDEM_LEASE_TABLES &&
		   (heaps[n] = idem_table_open_nowait(idem_relref_oid(&idem_lease_tables[n]), AccessShareLock)) != NULL)
		blocks += RelationGetNumberOfBlocks(heaps[n++]);
	if (n == IDEM_LEASE_TABLES && is_unsettled(idem_cell_look(use->page)))
		idem_cell_write(use->rel, blocks == 0 ? 0 : ROWS_FROM_ELSEWHERE);
	while (n > 0)
		table_close(heaps[--n], AccessShareLock);
	UnlockRelationOid(oid, LEAP_LOCK);
}

bool
idem_lease_use_look(const IdemLeaseUse *use)
{
	IdemCell	cell = idem_cell_look(use->page);

	if (is_unsettled(cell))
	{
		settle(use);
		cell = idem_cell_look(use->page);
	}
	if (cell.value != 0)
		used_cell = RelationGetRelid(use->rel);
	return cell.value != 0 || !cell.sealed;
}
