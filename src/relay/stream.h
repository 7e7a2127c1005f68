/*-------------------------------------------------------------------------
 *
 * stream.h
 *		A relay to a sink program, as its worker runs it.
 *
 * Everything here is private to one process.  One file per side of it:
 *
 *		stream.c		life cycle: start, breaker, gate, descriptors
 *		stream_send.c	log and parked events -> frames
 *		stream_recv.c	frames -> results
 *		stream_settle.c	results -> position and parked events
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_H
#define IDEM_RELAY_STREAM_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "lib/ilist.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/parked.h"
#include "relay/process.h"
#include "relay/shmem.h"
#include "sink/protocol/protocol.h"

typedef enum IdemStreamPhase
{
	IDEM_STREAM_OFF,			/* no program runs */
	IDEM_STREAM_HELLO,			/* HELLO is sent, READY awaited */
	IDEM_STREAM_READY
} IdemStreamPhase;

/* An event in flight. */
typedef struct IdemFlight
{
	FullTransactionId xid;
	int64		seq;
	int64		parked_id;		/* 0: from the log */
	uint8		outcome;		/* IdemProtoOutcome; 0: no answer yet */
	int			failure;		/* index into the batch's failures; -1: none */
} IdemFlight;

typedef struct IdemBatch
{
	dlist_node	node;
	MemoryContext cxt;			/* the batch is in it, too */
	uint64		no;
	bool		repeats;		/* parked events, not the log's */
	bool		settled;		/* the non-acks are on record */
	bool		committed;		/* a transactional sink said so */
	int			n;				/* events */
	int			open;			/* without answer */
	int			nonacks;
	IdemFlight *flights;
	IdemFailure *failures;
	int			nfailures;
	int			failures_allocated;
	IdemPosition after;			/* once all of it is settled */
} IdemBatch;

typedef struct IdemStream
{
	MemoryContext cxt;			/* all of the stream */
	MemoryContext config_cxt;	/* of config */
	MemoryContext run_cxt;		/* of what is in flight; reset when turned off */
	MemoryContext event_cxt;	/* of one event while it is encoded */
	IdemRelayConfig *config;
	IdemRelayEntry *entry;		/* NULL: stat_relay is full */

	IdemStreamPhase phase;
	IdemSinkProcess process;
	TimestampTz deadline;		/* kill unless READY or PONG by then; 0: none */
	TimestampTz next_ping;
	uint64		ping_nonce;
	bool		writable_wanted;	/* the socket did not take everything */
	bool		stuck;			/* an operator or a new configuration is
								 * needed */
	IdemRelayState stuck_state;

	/* what READY said */
	bool		storing;		/* the sink stores positions, and
								 * transactional */
	int64		credit_messages;
	int64		credit_bytes;
	int			max_batch_events;	/* the lesser of ours and the sink's */
	int64		max_batch_bytes;

	/* where it is; settled is what the log of positions says or may say */
	IdemReader *reader;
	IdemPosition sent;
	IdemPosition settled;
	bool		settled_dirty;	/* settled is ahead of the log */
	int64		row_id;			/* of "sent", for sinks that store positions */
	bool		fresh;			/* the sink has confirmed nothing of this
								 * epoch */
	bool		catching_up;	/* cut the backlog at ticks */
	int64		cur_last_seq;	/* last number given out when "cur" was taken */
	int64		done_last_seq;	/* the same for "done" */
	bool		check_due;		/* parked events may be due that were not */
	bool		repeating;		/* a batch of parked events is in flight */
	bool		drained;		/* nothing was left at the last look */
	TimestampTz stamp;			/* of the first commit after that; 0: unknown */
	dlist_head	batches;		/* in flight, oldest first */
	int			nbatches;
	uint64		next_batch;
	XLogRecPtr	gate;			/* nothing is written before it is safe */

	IdemParkedIndex *parked;
	bool		parked_dirty;

	/* breaker and bisection */
	int			failures;		/* in a row */
	TimestampTz not_before;
	bool		progressed;		/* an ack since the program started */
	int			deaths;			/* without progress, in a row */
	int			batch_limit;	/* 0: none; halved by deaths */

	/* buffers */
	uint8	   *out;
	size_t		out_start;
	size_t		out_end;
	size_t		out_allocated;
	uint8	   *in;
	size_t		in_start;
	size_t		in_end;
} IdemStream;

/* Replace what dst holds by a copy of src in cxt. */
extern void idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src);

extern IdemStream *idem_stream_create(MemoryContext parent, IdemRelayConfig *config,
									  MemoryContext config_cxt);

/*
 * Take a new configuration over; restarts the sink only if it must.  If an
 * operator acted, an open breaker closes at once.
 */
extern void idem_stream_configure(IdemStream *stream, IdemRelayConfig *config,
								  MemoryContext config_cxt, bool acted);
extern void idem_stream_destroy(IdemStream *stream);

/*
 * Do everything that can be done now without waiting; called when the latch
 * or the stream's socket has something, and at the time it asked for.
 */
extern void idem_stream_step(IdemStream *stream);

/* When to call it next if nothing happens before; 0: no need. */
extern TimestampTz idem_stream_next_time(IdemStream *stream);

/* Something committed at that time; 0: not known when. */
extern void idem_stream_woken(IdemStream *stream, TimestampTz stamp);

/* A step raised an error: start over from the settled position, later. */
extern void idem_stream_failed(IdemStream *stream, const char *message);

/* Write the position down if it moved without that, e.g. over other types. */
extern void idem_stream_persist(IdemStream *stream);

/* Shared among the stream files. */

/* Stop the program and open the breaker, as an outage or another state. */
extern void idem_stream_break(IdemStream *stream, const char *message);
extern void idem_stream_break_as(IdemStream *stream, IdemRelayState state,
								 const char *message);

/* Stop the program until an operator acts. */
extern void idem_stream_stick(IdemStream *stream, IdemRelayState state, const char *message);

/* The program ended or hung while it had events: find the one it dies of. */
extern void idem_stream_died(IdemStream *stream, const char *message);

extern uint8 *idem_stream_reserve(IdemStream *stream, size_t n);
extern void idem_stream_flush(IdemStream *stream);
extern void idem_stream_begin(void);	/* transaction and snapshot */
extern void idem_stream_commit(bool synchronous);

extern void idem_stream_send_hello(IdemStream *stream);
extern void idem_stream_fill(IdemStream *stream);
extern bool idem_stream_receive(IdemStream *stream);
extern void idem_stream_on_ready(IdemStream *stream, const IdemProtoReady *ready);
extern void idem_stream_settle(IdemStream *stream);
extern void idem_stream_park_suspect(IdemStream *stream, const char *message);
extern void idem_batch_free(IdemStream *stream, IdemBatch *batch);

#endif							/* IDEM_RELAY_STREAM_H */
