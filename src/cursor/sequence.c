/*-------------------------------------------------------------------------
 *
 * sequence.c
 *		Claims of sequences: has a producer's record been accepted already?
 *
 * Invariant: of two committed transactions that claimed in one partition, the later one
 * has judged by what the earlier one wrote; and none commits under an epoch after a
 * higher one was committed.  A claim holds the lock of the producer's id in share mode
 * and that of its partition exclusively, from before its look to the end of the
 * transaction.  A claim that is refused gives both back.
 *
 * A claim needs no memory: its row is rolled back with its subtransaction, and prepared
 * with its transaction.  A crash leaves the committed rows.
 *
 * LOCKING: the producer's id in share mode, then the partition, neither waited for; below
 * them, as keyed_log.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/sequence.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "claim/call.h"
#include "cursor/producer.h"
#include "cursor/sequence.h"
#include "shared/fault.h"

/* Error 22023: the sequences of the claim are not those of the producer's rule. */
static void
check_range(const IdemSequenceClaim *claim, bool gapless)
{
	int64		greatest = gapless ? IDEM_SEQUENCE_MODULUS - 1 : PG_INT64_MAX - claim->count;

	if (claim->sequence > greatest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"sequence\" must be at most " INT64_FORMAT, greatest),
				 gapless ? errdetail("After the greatest sequence of a gapless producer follows 0.") : 0));
}

static void
check_epoch(const IdemSequenceClaim *claim, const IdemCursor *producer)
{
	if (claim->epoch > producer->epoch)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("producer \"%s\" is not registered with epoch %d", producer->name, claim->epoch),
				 errdetail("Its epoch is " INT64_FORMAT ".", producer->epoch),
				 errhint("Register the producer again.")));
}

/* Judge a claim by what the producer has sent to the partition. */
static IdemSequenceAnswer
judge(const IdemSequenceClaim *claim, const IdemCursor *producer, IdemCursor *cursor)
{
	IdemSequenceState state = {
		cursor->has_position, cursor->position, cursor->epoch, cursor->accepted, cursor->in_epoch
	};
	IdemSequenceAnswer answer = producer->gapless ?
	idem_sequence_gapless(&state, claim->epoch, claim->sequence, claim->count) :
	idem_sequence_rising(&state, claim->epoch, claim->sequence, claim->count);

	cursor->has_position = state.has_last;
	cursor->position = state.last;
	cursor->has_epoch = true;
	cursor->epoch = state.epoch;
	cursor->accepted = state.accepted;
	cursor->in_epoch = state.in_epoch;
	return answer;
}

/* Judge a claim whose locks are held, and write what is accepted. */
static IdemSequenceAnswer
claim_locked(IdemKeyedAccess *log, const IdemSequenceClaim *claim, const IdemCursorKey *id,
			 IdemCursorKey *key, IdemCursor *cursor)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_FENCED, false, 0, 0};
	IdemCursor	producer;

	if (!idem_producer_find(log, id, &producer) || claim->epoch < producer.epoch)
		return answer;
	check_epoch(claim, &producer);
	check_range(claim, producer.gapless);
	idem_cursor_find(log, key, cursor);
	if (!cursor->in_snapshot)
		idem_cursor_conflict(key);
	answer = judge(claim, &producer, cursor);
	if (answer.result != IDEM_SEQUENCE_ACCEPTED)
		return answer;
	key->owner = producer.name;
	key->ownerlen = producer.namelen;
	idem_cursor_write(log, key, cursor);
	IDEM_FAULT_POINT("sequence-written");
	idem_producer_use(log, id, &producer);
	return answer;
}

/* Keep both locks, or give them back. */
static void
settle_locks(const IdemCursorKey *id, const IdemCursorKey *key, bool keep)
{
	if (keep)
	{
		idem_cursor_lock_share_keep(id);
		idem_cursor_lock_keep(key);
	}
	else
	{
		idem_cursor_lock_release(key);
		idem_cursor_lock_share_release(id);
	}
}

/* Lock both, without waiting; false, and no lock is held, if one is not free. */
static bool
lock_both(const IdemCursorKey *id, const IdemCursorKey *key)
{
	idem_cursor_check_both(id, key);
	if (!idem_cursor_lock_share_try(id))
		return false;
	if (idem_cursor_lock_try(key))
		return true;
	idem_cursor_lock_share_release(id);
	return false;
}

/* Claim without waiting. */
static IdemSequenceAnswer
try_claim(const IdemSequenceClaim *claim, const IdemCursorKey *id, IdemCursorKey *key)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_BUSY, false, 0, 0};
	IdemCursor	cursor = {0};
	IdemKeyedAccess *log;

	if (!lock_both(id, key))
		return answer;
	IDEM_FAULT_POINT("sequence-locked");
	log = idem_keyed_access_open_locked(&idem_cursor_log);
	answer = claim_locked(log, claim, id, key, &cursor);
	idem_keyed_access_close(log);
	settle_locks(id, key, answer.result == IDEM_SEQUENCE_ACCEPTED);
	if (answer.result == IDEM_SEQUENCE_DUPLICATE)
		idem_cursor_await_durable(&cursor);
	return answer;
}

IdemSequenceAnswer
idem_sequence_claim(const IdemSequenceClaim *claim, long wait_ms)
{
	IdemClock	start = idem_clock();
	IdemSequenceAnswer answer;
	IdemCursorKey id,
				key;

	idem_cursor_key_producer(&id, claim->producer_id);
	idem_cursor_key_sequence(&key, claim->producer_id, claim->topic, claim->topiclen, claim->partition);
	do
	{
		answer = try_claim(claim, &id, &key);
	} while (answer.result == IDEM_SEQUENCE_BUSY && idem_call_pause(start, wait_ms));
	return answer;
}

bool
idem_sequence_last(int64 producer_id, const char *topic, int topiclen, int32 partition, int64 *last)
{
	IdemCursorKey id,
				key;
	IdemCursor	producer,
				cursor;
	IdemKeyedAccess *log;

	idem_cursor_key_producer(&id, producer_id);
	idem_cursor_key_sequence(&key, producer_id, topic, topiclen, partition);
	log = idem_keyed_access_open(&idem_cursor_log);
	if (!idem_producer_find(log, &id, &producer))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("%s is not registered", idem_cursor_title(&id)),
				 errhint("Register the producer again.")));
	idem_cursor_find(log, &key, &cursor);
	idem_keyed_access_close(log);
	idem_cursor_await_durable(&cursor);
	*last = cursor.position;
	return cursor.has_position;
}
