/*-------------------------------------------------------------------------
 *
 * sequence.h
 *		Claims of sequences: has a producer's record been accepted already?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/sequence.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_SEQUENCE_H
#define IDEM_CURSOR_SEQUENCE_H

#include "postgres.h"

#include "cursor/key.h"

/* In the order of the enum sequence_result */
typedef enum IdemSequenceResult
{
	IDEM_SEQUENCE_ACCEPTED,
	IDEM_SEQUENCE_DUPLICATE,
	IDEM_SEQUENCE_GAP,
	IDEM_SEQUENCE_FENCED,
	IDEM_SEQUENCE_BUSY
} IdemSequenceResult;

/* After the greatest sequence of a gapless producer follows 0. */
#define IDEM_SEQUENCE_MODULUS	(INT64CONST(1) << 31)

/* The most records of one claim: of half a circle nobody knows whether it is ahead. */
#define IDEM_SEQUENCE_MAX_COUNT	(1 << 30)

typedef struct IdemSequenceAnswer
{
	IdemSequenceResult result;
	bool		has_number;
	int64		number;			/* of the first record, from 0, over all
								 * epochs */
	int64		expected;		/* the sequence that would be accepted next */
} IdemSequenceAnswer;

/* count records from a sequence on */
typedef struct IdemSequenceClaim
{
	int32		epoch;
	int64		sequence;
	int32		count;
} IdemSequenceClaim;

/*
 * Claim.  key: has the producer's id, topic and partition; its lock is made here.  An
 * accepted claim commits with the transaction.  Waits for the transactions of
 * others for wait_ms.  Errors: 22023 if the epoch was never given out, or if the
 * sequence is out of range; 42501 if the producer belongs to another role; 40001 if the
 * transaction's snapshot is too old.
 */
extern IdemSequenceAnswer idem_sequence_claim(IdemCursorKey *key, const IdemSequenceClaim *claim,
											  long wait_ms);

/*
 * The last sequence that was accepted of a producer in a partition; false: none.  Error
 * 42704 if there is no such producer.
 */
extern bool idem_sequence_last(IdemCursorKey *key, int64 *last);

#endif							/* IDEM_CURSOR_SEQUENCE_H */
