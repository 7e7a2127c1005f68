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
 * Read and handle what is there.  If the verdict is OK the socket may have ended
 * all the same: idem_receive_end is asked then.
 */
extern IdemStreamVerdict idem_receive(IdemStream *stream);

/* The socket has ended: has the program, too, or does it live on without it? */
extern IdemStreamVerdict idem_receive_end(IdemStream *stream);

/* A line of a program for the server log. */
extern void idem_receive_log(IdemPrinted *printed, const IdemProtoLog *log);

#endif							/* IDEM_RELAY_STREAM_RECEIVE_H */
