/*-------------------------------------------------------------------------
 *
 * offset.c
 *		Offsets: how far a consumer has come in a partition, committed with the effect.
 *
 * Claim and completion are one: the next offset is written with the claim, and commits
 * with the effect or not at all.
 *
 * Invariant: of two committed transactions that claimed in one partition, the later one
 * has judged by what the earlier one wrote; and none commits under a generation after a
 * higher one was committed.  Who claims or resumes holds the partition's lock
 * exclusively, from before the look to the end of the transaction if anything was
 * written.  A reader that resumes waits for its predecessor's open transaction.
 *
 * Offsets of Kafka have holes.  So a claim of one record takes any offset that is not
 * behind.  A claim of a range takes the reader's positions before and after it has
 * fetched, which have none: what lies between is a gap.
 *
 * A claim needs no memory: its row is rolled back with its subtransaction, and prepared
 * with its transaction.  A crash leaves the committed rows.
 *
 * LOCKING: the partition's lock, not waited for but by a reset; below it, as keyed_log.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/offset.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"


#include "claim/call.h"
#include "cursor/log.h"
#include "cursor/offset.h"
#include "shared/durable.h"
#include "shared/fault.h"

/* Judge a claim by the next offset of the partition, and move that. */
static IdemOffsetAnswer
judge_claim(const IdemOffsetOrder *order, IdemCursor *cursor)
{
	IdemOffsetAnswer answer = {IDEM_OFFSET_DUPLICATE, false, 0};
	int64		first = order->first;
	int64		next = order->next != NULL ? *order->next : first + 1;

	if (cursor->has_position)
	{
		if (next <= cursor->position)
			return answer;
		answer.result = IDEM_OFFSET_GAP;
		if (order->next != NULL && first > cursor->position)
			return answer;
		first = Max(first, cursor->position);
	}
	cursor->has_position = true;
	cursor->position = next;
	answer.result = IDEM_OFFSET_CLAIMED;
	answer.has_offset = true;
	answer.offset = first;
	return answer;
}

/* Judge what a call wants; *changed: the state is to be written. */
static IdemOffsetAnswer
judge(const IdemOffsetOrder *order, IdemCursor *cursor, bool *changed)
{
	IdemOffsetAnswer answer = {IDEM_OFFSET_FENCED, false, 0};
	bool		rises = order->generation != NULL &&
	(!cursor->has_epoch || *order->generation > cursor->epoch);

	*changed = false;
	if (order->generation != NULL && cursor->has_epoch && *order->generation < cursor->epoch)
		return answer;
	if (order->claims)
		answer = judge_claim(order, cursor);
	else
	{
		answer.result = IDEM_OFFSET_CLAIMED;
		answer.has_offset = cursor->has_position;
		answer.offset = cursor->position;
	}
	*changed = answer.result == IDEM_OFFSET_CLAIMED && (order->claims || rises);
	if (rises)
	{
		cursor->has_epoch = true;
		cursor->epoch = *order->generation;
	}
	return answer;
}

/* Look at the partition, whose lock is held, and write what changes. */
static IdemOffsetAnswer
act_locked(const IdemOffsetOrder *order, const IdemCursorKey *key, IdemCursor *cursor, bool *changed)
{
	IdemKeyedAccess *log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_OF_LOCKED);
	IdemOffsetAnswer answer;

	idem_cursor_find(log, key, cursor);
	if (!cursor->in_snapshot)
		idem_cursor_conflict(key);
	answer = judge(order, cursor, changed);
	if (*changed)
	{
		idem_cursor_write(log, key, cursor);
		IDEM_FAULT_POINT("offset-written");
	}
	idem_keyed_access_close(log);
	return answer;
}

/*
 * What was found stands before the caller relies on it: it acknowledges a duplicate, and
 * goes on behind what it resumes from.
 */
static bool
rests_on_found(const IdemOffsetAnswer *answer, const IdemOffsetOrder *order, const IdemCursor *cursor)
{
	return cursor->known && (answer->result == IDEM_OFFSET_DUPLICATE ||
							 (!order->claims && answer->result == IDEM_OFFSET_CLAIMED));
}

/* Act without waiting. */
static IdemOffsetAnswer
try_act(const IdemOffsetOrder *order, const IdemCursorKey *key)
{
	IdemOffsetAnswer answer = {IDEM_OFFSET_BUSY, false, 0};
	IdemCursor	cursor;
	bool		changed;

	if (!idem_cursor_lock_try(key, ExclusiveLock))
		return answer;
	IDEM_FAULT_POINT("offset-locked");
	answer = act_locked(order, key, &cursor, &changed);
	if (changed)
		idem_cursor_lock_keep(key, ExclusiveLock);
	else
		idem_cursor_lock_release(key, ExclusiveLock);
	if (changed && !order->claims)
		idem_durable_force_commit();
	if (rests_on_found(&answer, order, &cursor))
		idem_cursor_await_durable(&cursor);
	return answer;
}

IdemOffsetAnswer
idem_offset_act(const IdemOffsetOrder *order, IdemCursorKey *key, long wait_ms)
{
	IdemClock	start = idem_clock();
	IdemOffsetAnswer answer;

	idem_cursor_key_make(key);
	do
	{
		answer = try_act(order, key);
	} while (answer.result == IDEM_OFFSET_BUSY && idem_call_pause(start, wait_ms));
	return answer;
}

bool
idem_offset_reset(IdemCursorKey *key, const int64 *next)
{
	IdemKeyedAccess *log;
	IdemCursor	cursor;
	bool		known;

	idem_cursor_key_make(key);
	idem_cursor_lock_wait(key);
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	idem_cursor_find(log, key, &cursor);
	if (!cursor.in_snapshot)
		idem_cursor_conflict(key);
	known = cursor.known;
	if (next != NULL)
	{
		cursor.has_position = true;
		cursor.position = *next;
		idem_cursor_write(log, key, &cursor);
	}
	else if (known)
		idem_cursor_write_gone(log, key);
	idem_keyed_access_close(log);
	return known;
}
