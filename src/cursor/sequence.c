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
 * The rules.  Sequences of a gapless producer go from 0 to 2^31 - 1, and then from 0 on
 * again.  What is at most half a circle behind the next one was sent before; if this epoch
 * has sent so many records, the claim is a duplicate, and its records have the numbers that
 * they had the first time.  What cannot be told is a gap, never a duplicate: who sends
 * events that were not accepted must hear of it.  A claim that has records on both sides of
 * the next sequence is a gap under both rules: part of it is new.
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
#include "shared/sound.h"

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

/* Accept a claim: it begins a new epoch here, or goes on. */
static IdemSequenceAnswer
accept_claim(IdemCursor *cursor, const IdemSequenceClaim *claim, int64 last)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_ACCEPTED, true, cursor->accepted, 0};

	if (cursor->epoch != claim->epoch || !cursor->has_position)
		cursor->in_epoch = 0;
	cursor->has_position = cursor->has_epoch = true;
	cursor->position = last;
	cursor->epoch = claim->epoch;
	cursor->accepted += claim->count;
	cursor->in_epoch = Min(cursor->in_epoch + claim->count, IDEM_SOUND_NUMBER);
	return answer;
}

/* Kafka's rule: sequences follow each other without a gap, from 0 on in each epoch. */
static IdemSequenceAnswer
judge_gapless(const IdemSequenceClaim *claim, IdemCursor *cursor)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_GAP, false, 0, 0};
	bool		begins = !cursor->has_position || cursor->epoch != claim->epoch;
	int64		next = begins ? 0 : (cursor->position + 1) % IDEM_SEQUENCE_MODULUS;
	int64		ahead = (claim->sequence - next + IDEM_SEQUENCE_MODULUS) % IDEM_SEQUENCE_MODULUS;
	int64		behind = IDEM_SEQUENCE_MODULUS - ahead;

	answer.expected = next;
	if (ahead == 0)
	{
		answer = accept_claim(cursor, claim, (claim->sequence + claim->count - 1) % IDEM_SEQUENCE_MODULUS);
		answer.expected = (cursor->position + 1) % IDEM_SEQUENCE_MODULUS;
	}
	else if (!begins && behind <= IDEM_SEQUENCE_MODULUS / 2 && behind <= cursor->in_epoch &&
			 claim->count <= behind)
	{
		answer.result = IDEM_SEQUENCE_DUPLICATE;
		answer.has_number = true;
		answer.number = cursor->accepted - behind;
	}
	return answer;
}

/* Pulsar's rule: sequences rise, over all epochs. */
static IdemSequenceAnswer
judge_rising(const IdemSequenceClaim *claim, IdemCursor *cursor)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_GAP, false, 0, 0};
	int64		end = claim->sequence + claim->count - 1;

	if (!cursor->has_position || claim->sequence > cursor->position)
		answer = accept_claim(cursor, claim, end);
	else if (end <= cursor->position)
		answer.result = IDEM_SEQUENCE_DUPLICATE;
	answer.expected = cursor->position + 1;
	return answer;
}

/*
 * Error 54000: a row with such a count is not believed.  Nobody sends so many records, but
 * the row before may be of a dump that was changed.
 */
static void
check_count(const IdemCursorKey *key, const IdemCursor *cursor)
{
	if (cursor->accepted > IDEM_SOUND_NUMBER)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s has no numbers left for records", idem_cursor_title(key)),
				 errhint("Register the producer under another name.")));
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
	answer = producer.gapless ? judge_gapless(claim, cursor) : judge_rising(claim, cursor);
	if (answer.result != IDEM_SEQUENCE_ACCEPTED)
		return answer;
	check_count(key, cursor);
	key->owner = idem_str(producer.name, strlen(producer.name));
	idem_cursor_write(log, key, cursor);
	IDEM_FAULT_POINT("sequence-written");
	idem_producer_use(log, id, &producer);
	return answer;
}

/* Lock both, without waiting; false, and no lock is held, if one is not free. */
static bool
lock_both(const IdemCursorKey *id, const IdemCursorKey *key)
{
	idem_cursor_check_both(id, key);
	if (!idem_cursor_lock_try(id, ShareLock))
		return false;
	if (idem_cursor_lock_try(key, ExclusiveLock))
		return true;
	idem_cursor_lock_release(id, ShareLock);
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
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_OF_LOCKED);
	answer = claim_locked(log, claim, id, key, &cursor);
	idem_keyed_access_close(log);
	if (answer.result == IDEM_SEQUENCE_ACCEPTED)
	{
		idem_cursor_lock_keep(id, ShareLock);
		idem_cursor_lock_keep(key, ExclusiveLock);
	}
	else
	{
		idem_cursor_lock_release(key, ExclusiveLock);
		idem_cursor_lock_release(id, ShareLock);
	}
	if (answer.result == IDEM_SEQUENCE_DUPLICATE)
		idem_cursor_await_durable(&cursor);
	return answer;
}

IdemSequenceAnswer
idem_sequence_claim(IdemCursorKey *key, const IdemSequenceClaim *claim, long wait_ms)
{
	IdemClock	start = idem_clock();
	IdemSequenceAnswer answer;
	IdemCursorKey id;

	idem_cursor_key_producer(&id, key->producer_id);
	idem_cursor_key_make(key);
	do
	{
		answer = try_claim(claim, &id, key);
	} while (answer.result == IDEM_SEQUENCE_BUSY && idem_call_pause(start, wait_ms));
	return answer;
}

bool
idem_sequence_last(IdemCursorKey *key, int64 *last)
{
	IdemCursorKey id;
	IdemCursor	producer,
				cursor;
	IdemKeyedAccess *log;

	idem_cursor_key_producer(&id, key->producer_id);
	idem_cursor_key_make(key);
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	if (!idem_producer_find(log, &id, &producer))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("%s is not registered", idem_cursor_title(&id)),
				 errhint("Register the producer again.")));
	idem_cursor_find(log, key, &cursor);
	idem_keyed_access_close(log);
	idem_cursor_await_durable(&cursor);
	*last = cursor.position;
	return cursor.has_position;
}
