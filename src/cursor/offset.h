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

/* In the order of the enum offset_result */
typedef enum IdemOffsetResult
{
	IDEM_OFFSET_CLAIMED,
	IDEM_OFFSET_DUPLICATE,
	IDEM_OFFSET_GAP,
	IDEM_OFFSET_FENCED,
	IDEM_OFFSET_BUSY
} IdemOffsetResult;

/* A partition as a consumer reads it.  Strings in the server encoding. */
typedef struct IdemOffsetName
{
	const char *consumer;
	int			consumerlen;
	const char *topic;
	int			topiclen;
	int32		partition;
} IdemOffsetName;

typedef struct IdemOffsetAnswer
{
	IdemOffsetResult result;
	bool		has_offset;
	int64		offset;			/* of a resumed one: where to go on; of a
								 * claimed one: from where on it is new */
} IdemOffsetAnswer;

/*
 * Where does the reader go on?  generation: of the reader, or NULL; older ones are fenced
 * from the commit on.  Waits for the transactions of others for wait_ms.  Error 40001 if
 * the transaction's snapshot is too old.
 */
extern IdemOffsetAnswer idem_offset_resume(const IdemOffsetName *name, const int64 *generation,
										   long wait_ms);

/*
 * Claim the offsets from first on, and before next; next: NULL claims the one record with
 * the offset first.  What is claimed commits with the transaction.  Waits and errors as
 * above.
 */
extern IdemOffsetAnswer idem_offset_claim(const IdemOffsetName *name, int64 first, const int64 *next,
										  const int64 *generation, long wait_ms);

/*
 * Set the next offset; NULL: forget the partition, with its generation.  Waits for the
 * transactions of others.  Returns false if nothing was known of the partition.
 */
extern bool idem_offset_reset(const IdemOffsetName *name, const int64 *next);

#endif							/* IDEM_CURSOR_OFFSET_H */
