/*-------------------------------------------------------------------------
 *
 * number.c
 *		Numbers of events, each given out once.
 *
 * A batch of a relay ends at a number, and a parked event is known by its
 * number.  If two events had the same number, a relay would skip one of them.
 * So the sequence outbox_seq may never go back.  The sequence is a sealed cell
 * (shared/cell.h).  If somebody else has set its value, the next draw finds out
 * before it uses the value.
 *
 * The greatest number in the log is no substitute for the sequence.  A number
 * is drawn before its row is written, so a running transaction may have drawn
 * a higher number.  But a writer that drew a number holds a lock on a segment.
 * It holds the lock until its transaction ends or the subtransaction that drew
 * aborts; after an abort no committed row has the number.  To find a safe
 * value, this file locks all segments against writers.  Then it looks for the
 * greatest number in the segments, aborted rows included, and in what other
 * subsystems remember of events (idem_outbox_greatest_hook).
 *
 *	outbox_seq	outbox_generation	what happened			the next writer
 *	sealed		any					all is well				draws
 *	not sealed	not sealed			new, restored, upgraded	finds a safe value
 *									(or both set by hand)
 *	not sealed	sealed				set by hand				gets an error
 *
 * So nobody seals outbox_generation while neither is sealed, but this file.
 *
 * The sequences are not part of a dump, so a restore of data into a database
 * in use does not change them.  pg_upgrade sets both sequences or neither.
 *
 * What a crash leaves: outbox_seq is sealed before outbox_generation.  After a
 * crash between the two, the first line of the table holds.
 *
 * LOCKING: to draw a number, RowExclusiveLock on outbox_seq, taken while the
 * caller holds a lock on a segment, and kept as long as that lock.  To find a
 * safe value, ShareLock on all segments, given back afterwards; while this
 * file waits for one segment, it holds no other.  Before that the caller has
 * given back the lock on a segment that it took in this call, and keeps the
 * locks of earlier events of its transaction.  If both sequences were set by
 * hand, two transactions with earlier events may wait for each other, and the
 * server ends one of them with 40P01.  So it does if REINDEX CONCURRENTLY of a
 * segment waits for the snapshot of the transaction that looks for the first
 * safe value, since every lock that keeps writers out conflicts with that of
 * REINDEX.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/number.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "shared/cell.h"
#include "outbox/number.h"
#include "outbox/outbox.h"
#include "outbox/segment.h"
#include "shared/catalog.h"
#include "shared/txn_owner.h"

/* How far WAL is ahead of the number: a crash skips so many at most. */
#define LOG_AHEAD	128

/* Error 2200H: no number is left that an event can have. */
static void
report_exhausted(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("sequence \"%s.outbox_seq\" has no numbers left for events", IDEM_DATA_SCHEMA_NAME),
			 errdetail("Nobody enqueues so many events: a row with such a seq, of a dump that was changed or of a role that may write all data, or setval led there."),
			 errhint("The area \"tables\" of SELECT * FROM %s.doctor() names the table of %s.relay_parked and %s.outbox_segment_* that has the row, and the statements that lead out. They hold as well where no row is to be seen: a row that was rolled back counts until VACUUM has taken it away.",
					 IDEM_API_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME)));
}

bool
idem_number_draw(int n, int64 *first)
{
	Relation	rel = relation_open(idem_relref_oid(&idem_outbox_seq_cell), RowExclusiveLock);
	int64		value;
	XLogRecPtr	lsn;
	bool		drawn = idem_cell_draw(rel, n, LOG_AHEAD, &value, &lsn);

	relation_close(rel, NoLock);
	if (drawn && value >= IDEM_NUMBERS_END - n)
		report_exhausted();
	*first = value + 1;
	return drawn;
}

/*
 * outbox_seq is sealed before outbox_generation, and read after it: so a first writer that
 * seals both meanwhile is not taken for somebody's hand.
 */
bool
idem_number_is_set_by_hand(int64 *value)
{
	bool		in_use = idem_cell_read_ref(&idem_outbox_generation_cell).sealed;
	IdemCell	seq = idem_cell_read_ref(&idem_outbox_seq_cell);

	*value = seq.value;
	return in_use && !seq.sealed;
}

bool
idem_number_in_use(void)
{
	return idem_cell_read_ref(&idem_outbox_seq_cell).sealed ||
		idem_cell_read_ref(&idem_outbox_generation_cell).sealed;
}

/*
 * While this transaction holds the lock, a writer's lock, nobody finds a safe
 * value.
 */
bool
idem_number_hold_for_restore(void)
{
	idem_txn_lock(idem_segment_oid(0), RowExclusiveLock);
	return !idem_number_in_use();
}

/* Give back ShareLock on the first n segments. */
static void
unlock_segments(int n)
{
	for (int i = 0; i < n; i++)
		UnlockRelationOid(idem_segment_oid(i), ShareLock);
}

/* Lock all segments.  While waiting for one segment, hold no other. */
static void
lock_segments(void)
{
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		Oid			oid = idem_segment_oid(i);

		if (ConditionalLockRelationOid(oid, ShareLock))
			continue;
		unlock_segments(i);
		LockRelationOid(oid, ShareLock);
		UnlockRelationOid(oid, ShareLock);
		CHECK_FOR_INTERRUPTS();
		i = -1;
	}
}

/*
 * The greatest number in a segment, of committed and other rows.  Reads all entries, because
 * the index is in order of transactions.
 */
static int64
greatest_of_segment(int i)
{
	int64		greatest = 0;
	IdemSegment seg;
	IdemEntry	entry;
	IndexScanDesc scan;

	idem_segment_open(&seg, i);
	if (!idem_segment_is_empty(&seg))
	{
		scan = idem_segment_beginscan(&seg, 0);
		index_rescan(scan, NULL, 0, NULL, 0);
		while (idem_segment_next(scan, ForwardScanDirection, &entry))
		{
			CHECK_FOR_INTERRUPTS();
			greatest = Max(greatest, entry.seq);
		}
		index_endscan(scan);
	}
	idem_segment_close(&seg);
	return greatest;
}

/*
 * The greatest number in the log, of committed and other rows, or in what other subsystems
 * remember.
 */
static int64
greatest_number(void)
{
	int64		greatest = 0;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
		greatest = Max(greatest, greatest_of_segment(i));
	if (idem_outbox_greatest_hook != NULL)
		greatest = Max(greatest, (*idem_outbox_greatest_hook) ());
	return greatest;
}

bool
idem_number_is_exhausted(int64 *value)
{
	IdemCell	seq = idem_cell_read_ref(&idem_outbox_seq_cell);

	*value = seq.value;
	return seq.sealed && seq.value >= IDEM_NUMBERS_FEW;
}

char *
idem_number_exhausted_by(void)
{
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		if (greatest_of_segment(i) >= IDEM_NUMBERS_FEW)
			return psprintf("%s.outbox_segment_%d", IDEM_DATA_SCHEMA_NAME, i);
	}
	return idem_outbox_greatest_hook == NULL || (*idem_outbox_greatest_hook) () < IDEM_NUMBERS_FEW ? NULL :
		psprintf("%s.relay_parked", IDEM_DATA_SCHEMA_NAME);
}

/*
 * Find a safe value, and seal both cells.  The caller has locked all segments,
 * so nobody draws, and every number that was drawn has its row.
 */
static int64
find_safe_value(void)
{
	IdemCell	seq = idem_cell_read_ref(&idem_outbox_seq_cell);
	IdemCell	generation = idem_cell_read_ref(&idem_outbox_generation_cell);

	if (!seq.sealed)
	{
		int64		greatest = greatest_number();

		/*
		 * setval, or a row that no constraint kept out, may lead beyond the
		 * end
		 */
		if (seq.value >= IDEM_NUMBERS_END)
			seq.value = 0;
		seq.value = Max(seq.value, Min(greatest, IDEM_NUMBERS_END));
		idem_cell_write_ref(&idem_outbox_seq_cell, seq.value);
	}
	if (!generation.sealed)
		idem_cell_write_ref(&idem_outbox_generation_cell, generation.value);
	return seq.value;
}

/* Error 55000: somebody else has set the sequence. */
static void
report_set_by_hand(int64 value)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("sequence \"%s.outbox_seq\" was set by others than the outbox", IDEM_DATA_SCHEMA_NAME),
			 errdetail("Its last value is %lld; greater numbers may be those of events already, "
					   "and relays would skip one of two events with the same number.",
					   (long long) value),
			 errhint("Run SELECT %s.outbox_mend_seq(), which waits for transactions that have enqueued events and goes on after the greatest number in use.",
					 IDEM_API_SCHEMA_NAME)));
}

int64
idem_number_mend(void)
{
	IdemCell	seq = idem_cell_read_ref(&idem_outbox_seq_cell);
	ResourceOwner saved;
	int64		value;

	/*
	 * Both are sealed: nothing to mend.  Locks would only make writers queue
	 * up.
	 */
	if (seq.sealed && idem_cell_read_ref(&idem_outbox_generation_cell).sealed)
		return seq.value;

	saved = idem_txn_owner_enter();
	lock_segments();
	value = find_safe_value();
	unlock_segments(IDEM_OUTBOX_SEGMENTS);
	idem_txn_owner_leave(saved);
	return value;
}

void
idem_number_make_safe(void)
{
	int64		value;

	if (idem_number_is_set_by_hand(&value))
		report_set_by_hand(value);
	(void) idem_number_mend();
}
