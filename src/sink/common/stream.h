/*-------------------------------------------------------------------------
 *
 * stream.h
 *		The order of frames that a worker has to keep.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_STREAM_H
#define IDEM_SINK_STREAM_H

#include "sink/protocol/protocol.h"

/* Where the stream of frames stands, to check the next one. */
typedef struct IdemSinkStream
{
	bool		said_hello;
	bool		said_bye;
	uint64_t	settled;		/* batches up to this one are settled */
	bool		in_batch;		/* an EVENT came, its END did not */
	uint64_t	batch;			/* number of the last batch begun */
	uint32_t	index;			/* events begun in it */
	uint64_t	data_len;		/* of the last event */
	uint64_t	data_done;		/* bytes of it that came; equal if complete */
	int64_t		credit_messages;	/* the rest of the worker's credit */
	int64_t		credit_bytes;
} IdemSinkStream;

extern void idem_stream_init(IdemSinkStream *st);

/* Account for a frame of that size; a problem in words, or NULL. */
extern const char *idem_stream_check(IdemSinkStream *st, const IdemProtoFrame *frame,
									 size_t size);

/* Have all bytes of the last event come? */
extern bool idem_stream_complete(const IdemSinkStream *st);

#endif							/* IDEM_SINK_STREAM_H */
