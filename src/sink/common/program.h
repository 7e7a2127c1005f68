/*-------------------------------------------------------------------------
 *
 * program.h
 *		The talk with the worker, which every sink program shares.
 *
 * A program needs no event loop: it takes frames with idem_sink_next and waits
 * for its target with idem_sink_wait.  While they wait, both functions answer
 * the worker's PINGs and send the queued frames.  A program that blocks
 * anywhere else has a bug.
 *
 * INVARIANT
 *		Frames reach the program in the order of the protocol or not at all:
 *		indexes count up, chunks are in place, credit is respected.  A worker
 *		that breaks the order ends the program with status 2.  End of file ends
 *		the program with status 0.
 *
 * MEMORY
 *		There is one buffer for each direction.  The incoming buffer holds at
 *		most the granted credit plus one event.  Pointers in a frame live until
 *		the next idem_sink_next, idem_sink_poll or idem_sink_wait: who waits
 *		before he is done with an event copies the event.
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
	size_t		in_start;		/* first byte that the program has not taken */
	size_t		in_scanned;		/* the frames before this byte were checked */
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
	const char *what;			/* that a LOOK looks at now, or NULL */
	const char *remedy;			/* of a fault in it */
} IdemSink;

/*
 * Set up signals, environment and descriptors as the protocol asks.  A program
 * calls this function before anything else.
 */
extern void idem_sink_start(IdemSink *s, const char *name);

/*
 * Wait for the HELLO or LOOK and check its options against the table.  Wrong options
 * end the program with FAILED.  The frame lives as long as the program.
 */
extern IdemProtoHello idem_sink_hello(IdemSink *s, const IdemSinkOption *table);

/*
 * Was it a LOOK?  Then the program looks at the target, takes nothing over, sends
 * nothing, and says of each thing what it has found: idem_sink_look_at names the
 * thing, idem_sink_found says that it is as it has to be, or what is wrong with it.
 * Between the two idem_sink_failed says that it is wrong, and ends the program.
 * At the end the program calls idem_sink_finish.
 */
extern bool idem_sink_looks(const IdemSink *s);
extern void idem_sink_look_at(IdemSink *s, const char *what, const char *remedy);
extern void idem_sink_found(IdemSink *s, bool ok, const char *problem);

/*
 * The value of an option, or dflt if the HELLO has no such option.  A string is
 * terminated and belongs to the caller.
 */
extern char *idem_sink_option(const IdemProtoHello *hello, const char *name,
							  const char *dflt);
extern long idem_sink_option_int(const IdemProtoHello *hello, const char *name,
								 long dflt);

/* Is the option set, and to this value? */
extern bool idem_sink_option_is(const IdemProtoHello *hello, const char *name, const char *value);

/* Is the switch, which is off by default, on? */
extern bool idem_sink_option_on(const IdemProtoHello *hello, const char *name);

/*
 * Open a file that an option names.  The program ends with FAILED, outcome
 * rejected, if it cannot be opened or is no regular file.
 */
extern int	idem_sink_open_file(IdemSink *s, const char *option, const char *path);

/* Queue READY; this function fills in ready->version. */
extern void idem_sink_ready(IdemSink *s, IdemProtoReady *ready);

/* Wait for the next frame and take it.  PINGs are answered, not returned. */
extern void idem_sink_next(IdemSink *s, IdemProtoFrame *frame);

/*
 * Take the next frame if all its bytes have been read; false if not.  If size
 * is not NULL, *size is set to the frame's share of the byte credit.
 */
extern bool idem_sink_poll(IdemSink *s, IdemProtoFrame *frame, size_t *size);

/*
 * Wait until fd has one of the events (as in poll(2)), until timeout ms have
 * passed (-1: no timeout), or, with until_input, until bytes came from the
 * worker.  Returns fd's revents in the first case, else 0.  fd may be -1.
 */
extern short idem_sink_wait(IdemSink *s, int fd, short events, int timeout,
							bool until_input);

/* Queue a frame; idem_sink_next and idem_sink_wait send it. */
extern void idem_sink_send(IdemSink *s, const IdemProtoFrame *frame);

/* Queue a RESULT; sqlstate and message may be NULL. */
extern void idem_sink_result(IdemSink *s, uint64_t batch, uint32_t first,
							 uint32_t last, IdemProtoOutcome outcome,
							 const char *sqlstate, const char *message);

/* The same with the least milliseconds until the next try. */
extern void idem_sink_result_later(IdemSink *s, uint64_t batch, uint32_t first,
								   uint32_t last, IdemProtoOutcome outcome,
								   const char *sqlstate, uint32_t retry_after,
								   const char *message);

/* The same of a destination, of which the target has several; NULL: it has one. */
extern void idem_sink_result_of(IdemSink *s, uint64_t batch, uint32_t first,
								uint32_t last, IdemProtoOutcome outcome,
								const char *sqlstate, uint32_t retry_after,
								const char *message, const char *destination);

/*
 * Queue a VERDICT.  The caller has queued all results of the batch before.
 * sqlstate and message may be NULL.
 */
extern void idem_sink_verdict(IdemSink *s, uint64_t batch, IdemProtoVerdictKind kind,
							  const char *sqlstate, const char *message);

/*
 * Give credit back to the worker.  With now, a CREDIT is queued at once; else
 * as soon as the credit to give back is a quarter of the messages or of the
 * bytes that READY granted.
 */
extern void idem_sink_grant(IdemSink *s, uint32_t messages, uint64_t bytes, bool now);

/* Queue a LOG: a line for the server log. */
extern void idem_sink_log(IdemSink *s, IdemProtoLogLevel level, const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

/* Why a program has to end; FAILED carries these fields. */
typedef struct IdemSinkFailure
{
	IdemProtoOutcome outcome;	/* 0: no failure */
	char		sqlstate[6];
	char		message[IDEM_PROTO_MAX_MESSAGE + 1];
} IdemSinkFailure;

/*
 * Note why the program has to end, unless a reason is noted already: later ones
 * are consequences.  Always false, so that the caller can return the result.
 */
extern bool idem_sink_fail(IdemSinkFailure *failure, IdemProtoOutcome outcome,
						   const char *sqlstate, const char *fmt,...)
			__attribute__((format(printf, 4, 5)));

/* Send the queued frames and FAILED, then exit with status 0. */
extern void idem_sink_failed(IdemSink *s, IdemProtoOutcome outcome,
							 const char *sqlstate, const char *fmt,...)
			__attribute__((format(printf, 4, 5), noreturn));

/* Send the queued frames, then exit with status 0. */
extern void idem_sink_finish(IdemSink *s) __attribute__((noreturn));

/* Print a line to standard error, which the worker logs; exit with status 2. */
extern void idem_sink_broken(const IdemSink *s, const char *fmt,...)
			__attribute__((format(printf, 2, 3), noreturn));

/*
 * Allocate memory.  Without memory the program ends: the result is never NULL.
 */
extern void *idem_sink_alloc(size_t size);
extern void *idem_sink_realloc(void *p, size_t size);
extern char *idem_sink_strdup(const char *data, size_t len);

/* Milliseconds of a clock that only goes forward. */
extern int64_t idem_sink_clock(void);

/*
 * A fault point: a place in the sources where tests break the program.  Each
 * name occurs once in the sources.  See src/shared/README.md.
 */
#ifdef IDEMPOTENCY_FAULT_POINTS
extern void idem_sink_fault_point(IdemSink *s, const char *name);
#define IDEM_SINK_FAULT_POINT(s, name)	idem_sink_fault_point(s, name)
#else
#define IDEM_SINK_FAULT_POINT(s, name)	((void) 0)
#endif

#endif							/* IDEM_SINK_PROGRAM_H */
