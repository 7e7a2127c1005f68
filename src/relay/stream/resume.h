/*-------------------------------------------------------------------------
 *
 * resume.h
 *		Where a relay goes on when its program is ready.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/resume.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_RESUME_H
#define IDEM_RELAY_STREAM_RESUME_H

#include "postgres.h"

#include "relay/stream/state.h"

/*
 * The program has said READY: compare the position that the sink has stored
 * with our log of positions, and set the stream to where it goes on.  OK, or
 * DIVERGED if the two contradict each other.
 */
extern IdemStreamVerdict idem_resume(IdemStream *stream, const IdemProtoReady *ready);

#endif							/* IDEM_RELAY_STREAM_RESUME_H */
