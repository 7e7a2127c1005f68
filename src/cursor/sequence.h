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

#include "cursor/rule.h"

/* count records from a sequence on, to a partition of a topic, which may be empty */
typedef struct IdemSequenceClaim
{
	int64		producer_id;
	int32		epoch;
	int64		sequence;
	int32		count;
	const char *topic;
	int			topiclen;
	int32		partition;
} IdemSequenceClaim;

/*
 * Claim; an accepted claim commits with the transaction.  Waits for the transactions of
 * others for wait_ms.  Errors: 22023 if the epoch was never given out, or if the
 * sequence is out of range; 42501 if the producer belongs to another role; 40001 if the
 * transaction's snapshot is too old.
 */
extern IdemSequenceAnswer idem_sequence_claim(const IdemSequenceClaim *claim, long wait_ms);

/*
 * The last sequence that was accepted of a producer in a partition; false: none.  Error
 * 42704 if there is no such producer.
 */
extern bool idem_sequence_last(int64 producer_id, const char *topic, int topiclen,
							   int32 partition, int64 *last);

#endif							/* IDEM_CURSOR_SEQUENCE_H */
