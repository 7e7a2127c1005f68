/*-------------------------------------------------------------------------
 *
 * receive.h
 *		Frames of a sink program -> results of the batches in flight.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/receive.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_RECEIVE_H
#define IDEM_RELAY_STREAM_RECEIVE_H

#include "postgres.h"

#include "relay/program/process.h"
#include "relay/stream/state.h"

/*
 * Read and handle the frames that have arrived.  Even if the verdict is OK the
 * socket may have ended; then the next step calls idem_receive_end.
 */
extern IdemStreamVerdict idem_receive(IdemStream *stream);

/*
 * The socket has ended.  Has the program ended, too, or has its second without
 * a socket run out?  OK: neither yet.
 */
extern IdemStreamVerdict idem_receive_end(IdemStream *stream);

/* Log a LOG frame of a program as a line of the server log. */
extern void idem_receive_log(IdemPrinted *printed, const IdemProtoLog *log);

#endif							/* IDEM_RELAY_STREAM_RECEIVE_H */
