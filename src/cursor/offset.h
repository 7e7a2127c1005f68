/*-------------------------------------------------------------------------
 *
 * offset.h
 *		Offsets: how far a consumer has come in a partition, committed with the effect.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/offset.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_OFFSET_H
#define IDEM_CURSOR_OFFSET_H

#include "postgres.h"

#include "cursor/key.h"

/* In the order of the enum offset_result */
typedef enum IdemOffsetResult
{
	IDEM_OFFSET_CLAIMED,
	IDEM_OFFSET_DUPLICATE,
	IDEM_OFFSET_GAP,
	IDEM_OFFSET_FENCED,
	IDEM_OFFSET_BUSY
} IdemOffsetResult;

/*
 * What a call wants of a partition.  It claims the offsets from first on, and before next;
 * next: NULL claims the one record with the offset first.  Or it resumes.  generation: of
 * the reader, or NULL; older ones are fenced from the commit on.
 */
typedef struct IdemOffsetOrder
{
	bool		claims;			/* false: it resumes */
	int64		first;
	const int64 *next;
	const int64 *generation;
} IdemOffsetOrder;

typedef struct IdemOffsetAnswer
{
	IdemOffsetResult result;
	bool		has_offset;
	int64		offset;			/* of a resumed one: where to go on; of a
								 * claimed one: from where on it is new */
} IdemOffsetAnswer;

/*
 * Claim, which commits with the transaction, or tell where the reader goes on.  key: has
 * consumer, topic and partition; its lock is made here.  Waits for the transactions of
 * others for wait_ms.  Error 40001 if the transaction's snapshot is too old.
 */
extern IdemOffsetAnswer idem_offset_act(const IdemOffsetOrder *order, IdemCursorKey *key, long wait_ms);

/*
 * Set the next offset; NULL: forget the partition, with its generation.  Waits for the
 * transactions of others.  Returns false if nothing was known of the partition.
 */
extern bool idem_offset_reset(IdemCursorKey *key, const int64 *next);

#endif							/* IDEM_CURSOR_OFFSET_H */
