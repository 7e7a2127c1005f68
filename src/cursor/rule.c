/*-------------------------------------------------------------------------
 *
 * rule.c
 *		The rules of sequences, as arithmetic.
 *
 * Sequences of a gapless producer go from 0 to 2^31 - 1, and then from 0 on again.  What
 * is at most half a circle behind the next one was sent before; if this epoch has sent
 * so many records, the claim is a duplicate, and its records have the numbers that they
 * had the first time.  What cannot be told is a gap, never a duplicate: who sends events
 * that were not accepted must hear of it.
 *
 * A claim that has records on both sides of the next sequence is a gap under both rules:
 * part of it is new.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/rule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "cursor/rule.h"

/* Accept a claim: it begins a new epoch here, or goes on. */
static IdemSequenceAnswer
accept_claim(IdemSequenceState *state, int64 epoch, int64 last, int count)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_ACCEPTED, true, state->accepted, 0};

	if (state->epoch != epoch || !state->has_last)
		state->in_epoch = 0;
	state->has_last = true;
	state->last = last;
	state->epoch = epoch;
	state->accepted += count;
	state->in_epoch += count;
	return answer;
}

IdemSequenceAnswer
idem_sequence_gapless(IdemSequenceState *state, int64 epoch, int64 sequence, int count)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_GAP, false, 0, 0};
	bool		begins = !state->has_last || state->epoch != epoch;
	int64		next = begins ? 0 : (state->last + 1) % IDEM_SEQUENCE_MODULUS;
	int64		ahead = (sequence - next + IDEM_SEQUENCE_MODULUS) % IDEM_SEQUENCE_MODULUS;
	int64		behind = IDEM_SEQUENCE_MODULUS - ahead;

	answer.expected = next;
	if (ahead == 0)
	{
		answer = accept_claim(state, epoch, (sequence + count - 1) % IDEM_SEQUENCE_MODULUS, count);
		answer.expected = (state->last + 1) % IDEM_SEQUENCE_MODULUS;
	}
	else if (!begins && behind <= IDEM_SEQUENCE_MODULUS / 2 && behind <= state->in_epoch &&
			 count <= behind)
	{
		answer.result = IDEM_SEQUENCE_DUPLICATE;
		answer.has_number = true;
		answer.number = state->accepted - behind;
	}
	return answer;
}

IdemSequenceAnswer
idem_sequence_rising(IdemSequenceState *state, int64 epoch, int64 sequence, int count)
{
	IdemSequenceAnswer answer = {IDEM_SEQUENCE_GAP, false, 0, 0};
	int64		end = sequence + count - 1;

	if (!state->has_last || sequence > state->last)
		answer = accept_claim(state, epoch, end, count);
	else if (end <= state->last)
		answer.result = IDEM_SEQUENCE_DUPLICATE;
	answer.expected = state->last + 1;
	return answer;
}
