/*-------------------------------------------------------------------------
 *
 * cell.c
 *		A number that is WAL-logged, changed in place, and sealed.
 *
 * A cell is the page of a sequence that nextval is never called for.  Beside
 * the value stands, in log_cnt, a hash of the value: the seal.  setval, nextval,
 * ALTER SEQUENCE RESTART and the restore of a dump write a log_cnt that does not
 * fit, so that a value which somebody else has set is told from ours when it is
 * read, at no cost.
 *
 * Numbers that are given out one by one are not logged one by one.  WAL has the
 * value rounded up to a multiple of LOG_AHEAD; it is logged when that multiple
 * is passed, and when the page was not logged since the last checkpoint began,
 * for then a crash would bring back what the checkpoint wrote.
 *
 * Invariant: every number that was given out is at most the value that recovery
 * finds.
 *
 * What a crash leaves: the value rounded up, sealed; at most LOG_AHEAD numbers
 * are skipped.  Of a standby the same.
 *
 * LOCKING: the page's content lock.  The caller has the sequence open, and a
 * lock on it or on a segment.
 *
 * MEMORY: none is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/cell.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "outbox/cell.h"

#define LOG_AHEAD	128

static Form_pg_sequence_data
data_of(Page page)
{
	HeapTupleHeader tuple;

	tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

/*
 * The finalizer of splitmix64, made negative: core leaves a log_cnt of 0 to 32,
 * and would log each nextval that finds a negative one.
 */
static int64
seal_of(int64 value)
{
	uint64		z = (uint64) value + UINT64CONST(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94d049bb133111eb);
	return (int64) ((z ^ (z >> 31)) | (UINT64CONST(1) << 63));
}

/* 0 is stored as pg_upgrade can restore it: bounds begin at 1 or 0. */
static int64
value_of(Form_pg_sequence_data data)
{
	return data->is_called ? data->last_value : Max(data->last_value - 1, 0);
}

static bool
is_sealed(Form_pg_sequence_data data)
{
	return data->log_cnt == seal_of(value_of(data));
}

static void
set_value(Form_pg_sequence_data data, int64 value)
{
	data->is_called = value > 0;
	data->last_value = Max(value, 1);
	data->log_cnt = seal_of(value);
}

/*
 * The whole page goes to WAL: it is nearly empty, and a difference to what the
 * buffer has would not fit the page that recovery has, which is ahead.
 */
static void
log_value(Relation rel, Buffer buffer, int64 value)
{
	GenericXLogState *state = GenericXLogStart(rel);

	set_value(data_of(GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE)), value);
	GenericXLogFinish(state);
}

static int64
round_up(int64 value)
{
	return (value + LOG_AHEAD - 1) / LOG_AHEAD * LOG_AHEAD;
}

IdemCell
idem_cell_read(Relation rel)
{
	Buffer		buffer = ReadBuffer(rel, 0);
	Form_pg_sequence_data data;
	IdemCell	cell;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	data = data_of(BufferGetPage(buffer));
	cell.value = value_of(data);
	cell.sealed = is_sealed(data);
	UnlockReleaseBuffer(buffer);
	return cell;
}

void
idem_cell_write(Relation rel, int64 value)
{
	Buffer		buffer = ReadBuffer(rel, 0);

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	log_value(rel, buffer, value);
	UnlockReleaseBuffer(buffer);
}

bool
idem_cell_draw(Relation rel, int n, int64 *value)
{
	Buffer		buffer = ReadBuffer(rel, 0);
	Page		page = BufferGetPage(buffer);
	Form_pg_sequence_data data;
	bool		sealed;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	data = data_of(page);
	*value = value_of(data);
	sealed = is_sealed(data);
	if (sealed)
	{
		if (round_up(*value + n) != round_up(*value) || PageGetLSN(page) <= GetRedoRecPtr())
			log_value(rel, buffer, round_up(*value + n));
		START_CRIT_SECTION();
		set_value(data, *value + n);
		MarkBufferDirty(buffer);
		END_CRIT_SECTION();
	}
	UnlockReleaseBuffer(buffer);
	return sealed;
}
