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

#include "sink/common/program.h"

extern void idem_stream_init(IdemSinkStream *st);

/* Account for a frame of that size; a problem in words, or NULL. */
extern const char *idem_stream_check(IdemSinkStream *st, const IdemProtoFrame *frame,
									 size_t size);

/* Have all bytes of the last event come? */
extern bool idem_stream_complete(const IdemSinkStream *st);

#endif							/* IDEM_SINK_STREAM_H */
