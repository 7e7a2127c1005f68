/*-------------------------------------------------------------------------
 *
 * rule.h
 *		The rules of sequences, as arithmetic.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/rule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_RULE_H
#define IDEM_CURSOR_RULE_H

#include "postgres.h"

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

/* What a producer has sent to a partition. */
typedef struct IdemSequenceState
{
	bool		has_last;		/* it has sent something */
	int64		last;			/* the last sequence */
	int64		epoch;			/* in which that was sent */
	int64		accepted;		/* records of all epochs */
	int64		in_epoch;		/* of that epoch */
} IdemSequenceState;

typedef struct IdemSequenceAnswer
{
	IdemSequenceResult result;
	bool		has_number;
	int64		number;			/* of the first record, from 0, over all
								 * epochs */
	int64		expected;		/* the sequence that would be accepted next */
} IdemSequenceAnswer;

/*
 * Judge a claim of count records from a sequence on, by the epoch that the producer
 * is registered with.  An accepted one changes the state.
 *
 * Kafka's rule: sequences follow each other without a gap, from 0 on in each epoch.
 */
extern IdemSequenceAnswer idem_sequence_gapless(IdemSequenceState *state, int64 epoch,
												int64 sequence, int count);

/* Pulsar's rule: sequences rise, over all epochs. */
extern IdemSequenceAnswer idem_sequence_rising(IdemSequenceState *state, int64 epoch,
											   int64 sequence, int count);

#endif							/* IDEM_CURSOR_RULE_H */
