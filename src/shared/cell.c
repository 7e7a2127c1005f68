/*-------------------------------------------------------------------------
 *
 * cell.c
 *		A number that is WAL-logged, changed in place, and sealed.
 *
 * A cell is the page of a sequence for which nobody calls nextval.  The field
 * log_cnt beside the value has a hash of the value: the seal.  setval,
 * nextval, ALTER SEQUENCE RESTART and the restore of a dump write a log_cnt
 * that is no seal of their value.  So the reader of a page can tell, at no
 * cost, whether this file or somebody else set the value.
 *
 * The cell gives out numbers one by one, but does not log each of them.  WAL
 * has the value rounded up to a multiple of "ahead", which each caller that draws
 * from the cell gives alike.  The rounded value is logged when the value passes the
 * multiple, and when recovery might not find the last record of it:
 *
 * - the page was not logged since the last checkpoint began: recovery begins
 *   with the page that the checkpoint wrote;
 * - the newest record of the page has the value as it was, not rounded up: a
 *   record of idem_cell_write, of CREATE DATABASE, of a commit under
 *   wal_level = minimal, or of SET LOGGED.
 *
 * The seal also has the LSN of the record with the rounded value.  Every other
 * record gives the page another LSN, so this file notices a newer record.
 *
 * Invariant: every number that was given out is at most the value that recovery
 * finds.
 *
 * A crash or a failover leaves the value rounded up, and sealed.  At most
 * "ahead" numbers are skipped.
 *
 * LOCKING: the page's content lock.  The caller has the sequence open, and
 * holds a lock that keeps the sequence from being dropped.
 *
 * MEMORY: nothing is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/cell.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "shared/cell.h"
#include "shared/guard.h"
#include "shared/catalog.h"

/* The sequence's tuple on its page. */
static Form_pg_sequence_data
data_of(Page page)
{
	HeapTupleHeader tuple;

	tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

/*
 * The mark of a value that is logged as it was.  LSNs are aligned, so their
 * marks can be odd, and no record has this mark.
 */
#define NOT_AHEAD	0

/*
 * The mark of the page's newest record.  A seal has the mark of the record
 * that has the value rounded up.
 */
static uint32
ahead_mark(Page page)
{
	return (uint32) PageGetLSN(page) | 1;
}

/*
 * Compute the seal of a value.  The upper half is the finalizer of splitmix64,
 * made negative: the server itself leaves a log_cnt of 0 to 32, and would log
 * each nextval that finds a negative log_cnt.  The lower half is the mark of
 * the record that has the value rounded up.
 */
static int64
seal_of(int64 value, uint32 mark)
{
	uint64		z = (uint64) value + UINT64CONST(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94d049bb133111eb);
	z = (z ^ (z >> 31)) | (UINT64CONST(1) << 63);
	return (int64) ((z & ~(uint64) PG_UINT32_MAX) | mark);
}

/*
 * The cell's value: last_value, but 0 while is_called is false and last_value
 * is 1.  pg_upgrade has to restore a value within the sequence's bounds, which
 * begin at 1 or 0.
 */
static int64
value_of(Form_pg_sequence_data data)
{
	return data->is_called ? data->last_value : Max(data->last_value - 1, 0);
}

/* Did set_value write the value? */
static bool
is_sealed(Form_pg_sequence_data data)
{
	return data->log_cnt == seal_of(value_of(data), (uint32) data->log_cnt);
}

/* Write value and seal.  The caller logs the page if that is necessary. */
static void
set_value(Form_pg_sequence_data data, int64 value, uint32 mark)
{
	data->is_called = value > 0;
	data->last_value = Max(value, 1);
	data->log_cnt = seal_of(value, mark);
}

/*
 * Write a value and log the whole page.  The page is nearly empty.  A record
 * of the changes to the buffer would not fit the page in recovery, whose value
 * is ahead.
 */
static void
log_value(Relation rel, Buffer buffer, int64 value)
{
	GenericXLogState *state = GenericXLogStart(rel);

	set_value(data_of(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE)), value, NOT_AHEAD);
	GenericXLogFinish(state);
}

/* The value that WAL has while "value" is the last number given out. */
static int64
round_up(int64 value, int ahead)
{
	return (value + ahead - 1) / ahead * ahead;
}

/*
 * Does recovery find the rounded value, if recovery begins at the last
 * checkpoint?
 */
static bool
is_logged_ahead(Page page)
{
	return (uint32) data_of(page)->log_cnt == ahead_mark(page) &&
		PageGetLSN(page) > GetRedoRecPtr();
}

Buffer
idem_cell_pin(Relation rel)
{
	idem_guard_sequence(rel);
	return ReadBuffer(rel, 0);
}

/*
 * The buffer's usage does not count then.  A page that others' pages drive out is read
 * once more, which is seldom: they have to fill the shared buffers.
 */
Buffer
idem_cell_pin_recent(Relation rel, Buffer *recent)
{
	idem_guard_sequence(rel);
	if (!BufferIsValid(*recent) || !ReadRecentBuffer(IDEM_REL_FILE(rel), MAIN_FORKNUM, 0, *recent))
		*recent = ReadBuffer(rel, 0);
	return *recent;
}

int64
idem_cell_glance(Buffer buffer)
{
	return value_of(data_of(BufferGetPage(buffer)));
}

IdemCell
idem_cell_look(Buffer buffer)
{
	Form_pg_sequence_data data;
	IdemCell	cell;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	data = data_of(BufferGetPage(buffer));
	cell.value = value_of(data);
	cell.sealed = is_sealed(data);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return cell;
}

IdemCell
idem_cell_read(Relation rel)
{
	Buffer		buffer = idem_cell_pin(rel);
	IdemCell	cell = idem_cell_look(buffer);

	ReleaseBuffer(buffer);
	return cell;
}

IdemCell
idem_cell_read_ref(IdemRelRef *ref)
{
	Relation	rel = relation_open(idem_relref_oid(ref), AccessShareLock);
	IdemCell	cell = idem_cell_read(rel);

	relation_close(rel, AccessShareLock);
	return cell;
}

void
idem_cell_write(Relation rel, int64 value)
{
	Buffer		buffer = idem_cell_pin(rel);

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	log_value(rel, buffer, value);
	UnlockReleaseBuffer(buffer);
}

void
idem_cell_write_ref(IdemRelRef *ref, int64 value)
{
	Relation	rel = relation_open(idem_relref_oid(ref), RowExclusiveLock);

	idem_cell_write(rel, value);
	relation_close(rel, RowExclusiveLock);
}

/* A log_cnt of 0 is what setval leaves, and is no seal: seals are negative. */
void
idem_cell_unseal(Relation rel)
{
	Buffer		buffer = idem_cell_pin(rel);
	GenericXLogState *state;
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(rel);
	page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
	data_of(page)->log_cnt = 0;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

/*
 * Give n numbers out.  The buffer is marked dirty before the redo pointer is
 * read.  A checkpoint that begins after the marking therefore writes the page,
 * and waits for its lock.  Otherwise a checkpoint might skip a clean page,
 * although the checkpoint makes the last record of the page too old for
 * recovery.
 */
static void
draw(Relation rel, Buffer buffer, int64 value, int n, int ahead)
{
	Page		page = BufferGetPage(buffer);

	MarkBufferDirty(buffer);
	if (round_up(value + n, ahead) != round_up(value, ahead) || !is_logged_ahead(page))
		log_value(rel, buffer, round_up(value + n, ahead));
	START_CRIT_SECTION();
	set_value(data_of(page), value + n, ahead_mark(page));
	END_CRIT_SECTION();
}

bool
idem_cell_draw(Relation rel, int n, int ahead, int64 *value, XLogRecPtr *lsn)
{
	Buffer		buffer = idem_cell_pin(rel);
	Form_pg_sequence_data data;
	bool		sealed;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	data = data_of(BufferGetPage(buffer));
	*value = value_of(data);
	sealed = is_sealed(data);
	if (sealed)
		draw(rel, buffer, *value, n, ahead);
	*lsn = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return sealed;
}
