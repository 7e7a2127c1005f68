/*-------------------------------------------------------------------------
 *
 * stream.h
 *		The order in which a worker has to send its frames.
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

/*
 * The state of the stream after its last frame; the next frame is checked by
 * it.
 */
typedef struct IdemSinkStream
{
	bool		said_hello;
	bool		looks;			/* it was a LOOK */
	bool		said_bye;
	uint64_t	settled;		/* the last batch that a SETTLE named; to a
								 * program that stores positions, a whole one */
	bool		in_batch;		/* the last batch has no END yet */
	uint64_t	batch;			/* number of the last batch */
	uint32_t	index;			/* events of the last batch that have begun */
	uint64_t	data_len;		/* bytes of the last event's data */
	uint64_t	data_done;		/* bytes of this data that have come */
	int64_t		credit_messages;	/* the rest of the worker's credit */
	int64_t		credit_bytes;
} IdemSinkStream;

extern void idem_stream_init(IdemSinkStream *st);

/*
 * Check the next frame and account for it.  size is the frame's size in bytes.
 * Returns NULL, or the problem in words.
 */
extern const char *idem_stream_check(IdemSinkStream *st, const IdemProtoFrame *frame,
									 size_t size);

/* Have all bytes of the last event come? */
extern bool idem_stream_complete(const IdemSinkStream *st);

#endif							/* IDEM_SINK_STREAM_H */
