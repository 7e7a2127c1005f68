/*-------------------------------------------------------------------------
 *
 * program.h
 *		The talk with the worker, which every sink program shares.
 *
 * A program is written straight down: it takes frames with idem_sink_next and
 * waits for its target with idem_sink_wait.  Both serve the worker's socket
 * meanwhile, so that PINGs are answered and results flow; blocking anywhere else
 * is a bug.
 *
 * INVARIANT
 *		Frames reach the program in the order of the protocol or not at all:
 *		indexes count up, chunks are in place, credit is respected.  A breach
 *		ends the program with status 2; end of file with status 0.
 *
 * MEMORY
 *		One buffer each way.  The incoming one holds at most the credit granted
 *		plus one event; pointers in a frame live until the next idem_sink_next.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/program.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_PROGRAM_H
#define IDEM_SINK_PROGRAM_H

#include "sink/common/stream.h"
#include "sink/protocol/option.h"
#include "sink/protocol/protocol.h"

#define IDEM_SINK_EXIT_OK		0
#define IDEM_SINK_EXIT_BROKEN	2	/* protocol error, out of memory */

typedef struct IdemSink
{
	const char *name;			/* of the program, for messages */
	uint8_t    *in;				/* bytes read: in_start to in_end */
	size_t		in_start;		/* first byte the program has not taken */
	size_t		in_scanned;		/* frames before this were checked */
	size_t		in_end;
	size_t		in_size;
	uint8_t    *out;			/* bytes to write: out_start to out_end */
	size_t		out_start;
	size_t		out_end;
	size_t		out_size;
	uint64_t	owed_messages;	/* credit to give back, not sent yet */
	uint64_t	owed_bytes;
	uint32_t	credit_messages;	/* as granted in READY */
	uint32_t	credit_bytes;
	uint8_t    *hello;			/* copy of the HELLO frame */
	IdemSinkStream stream;
} IdemSink;

/*
 * Set up signals, environment and descriptors as the protocol asks.  To be
 * called before anything else.
 */
extern void idem_sink_start(IdemSink *s, const char *name);

/*
 * Wait for the HELLO and check its options against the table; FAILED and the
 * end if they are wrong.  The frame lives as long as the program.
 */
extern IdemProtoHello idem_sink_hello(IdemSink *s, const IdemSinkOption *table);

/*
 * The value of an option as a terminated string, or dflt.  The caller owns
 * the result.
 */
extern char *idem_sink_option(const IdemProtoHello *hello, const char *name,
							  const char *dflt);
extern long idem_sink_option_int(const IdemProtoHello *hello, const char *name,
								 long dflt);

/* Send READY; its version is filled in here. */
extern void idem_sink_ready(IdemSink *s, IdemProtoReady *ready);

/* Take the next frame, waiting for it.  PINGs are answered, not returned. */
extern void idem_sink_next(IdemSink *s, IdemProtoFrame *frame);

/*
 * Take the next frame if all its bytes have been read; false if not.  *size, if
 * not NULL, is the frame's share of the byte credit.
 */
extern bool idem_sink_poll(IdemSink *s, IdemProtoFrame *frame, size_t *size);

/*
 * Wait until fd has one of the events (as in poll(2)), or timeout ms have
 * passed (-1: never), or something came from the worker if that is asked for.
 * Returns fd's revents, 0 in the other cases.  fd may be -1.
 */
extern short idem_sink_wait(IdemSink *s, int fd, short events, int timeout,
							bool until_input);

/* Queue a frame; idem_sink_next and idem_sink_wait send it. */
extern void idem_sink_send(IdemSink *s, const IdemProtoFrame *frame);

/* Queue a RESULT; sqlstate and message may be NULL. */
extern void idem_sink_result(IdemSink *s, uint64_t batch, uint32_t first,
							 uint32_t last, IdemProtoOutcome outcome,
							 const char *sqlstate, const char *message);

/* Queue a VERDICT, after all results of the batch; sqlstate and message may be NULL. */
extern void idem_sink_verdict(IdemSink *s, uint64_t batch, IdemProtoVerdictKind kind,
							  const char *sqlstate, const char *message);

/*
 * Give credit back; a CREDIT is sent once enough has come together, or at
 * once with now.
 */
extern void idem_sink_grant(IdemSink *s, uint32_t messages, uint64_t bytes, bool now);

extern void idem_sink_log(IdemSink *s, IdemProtoLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

/* Send FAILED and everything queued before it, then exit. */
extern void idem_sink_failed(IdemSink *s, IdemProtoOutcome outcome,
							 const char *sqlstate, const char *fmt,...)
			__attribute__((format(printf, 4, 5), noreturn));

/* Send the queued frames, then exit with status 0. */
extern void idem_sink_finish(IdemSink *s) __attribute__((noreturn));

/* One line to standard error, which the worker logs, and exit with status 2. */
extern void idem_sink_broken(const IdemSink *s, const char *fmt,...)
			__attribute__((format(printf, 2, 3), noreturn));

/* Memory or the end: these never return NULL. */
extern void *idem_sink_alloc(size_t size);
extern void *idem_sink_realloc(void *p, size_t size);
extern char *idem_sink_strdup(const char *data, size_t len);

/* Milliseconds of a clock that only goes forward. */
extern int64_t idem_sink_clock(void);

/*
 * A named point at which tests break the program, by a name that occurs once;
 * shared/README.md.
 */
#ifdef IDEMPOTENCY_FAULT_POINTS
extern void idem_sink_fault_point(IdemSink *s, const char *name);
#define IDEM_SINK_FAULT_POINT(s, name)	idem_sink_fault_point(s, name)
#else
#define IDEM_SINK_FAULT_POINT(s, name)	((void) 0)
#endif

#endif							/* IDEM_SINK_PROGRAM_H */
