/*-------------------------------------------------------------------------
 *
 * stream.h
 *		A relay to a sink program, as its worker runs it.
 *
 * Everything here is private to one process.  One file per side of it:
 *
 *		stream.c		life cycle: start, breaker, gate, descriptors
 *		stream_send.c	log and parked events -> batches
 *		stream_encode.c	relay and event -> frames
 *		stream_recv.c	frames -> results
 *		stream_settle.c	results -> position and parked events
 *		stream_bye.c	programs that are no longer needed
 *		stream_hunt.c	deaths of the program -> the event it dies of
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
#include "relay/position.h"
#include "relay/process.h"
#include "relay/shmem.h"
#include "sink/protocol/protocol.h"
#include "shared/clock.h"

typedef enum IdemStreamPhase
{
	IDEM_STREAM_OFF,			/* no program runs */
	IDEM_STREAM_HELLO,			/* HELLO is sent, READY awaited */
	IDEM_STREAM_READY			/* of both the last moment: process.fd is -1,
								 * the program's end is awaited */
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
	int64		row_id;			/* in its END; 0: the sink stores no position */
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

/* What a hunt found, to be parked once the sink has said where it stands. */
typedef struct IdemFound
{
	bool		is_set;
	int64		parked_id;		/* 0: from the log */
	FullTransactionId xid;
	int64		seq;
	char		message[IDEM_ERROR_LEN];
} IdemFound;

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
	IdemClock	deadline;		/* kill unless READY or PONG by then; 0: none */
	IdemClock	next_ping;
	uint64		ping_nonce;
	bool		writable_wanted;	/* the socket did not take everything */
	bool		barred;			/* by its configuration, at the last look */
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
	int			unwritten;		/* batches by which it is; see stream_settle.c */
	IdemClock	write_by;		/* write it then at the latest; 0: no need */
	int64		row_id;			/* of "sent", for sinks that store positions */
	int64		life;			/* of the program; see IdemPositionRow */
	IdemPositionFresh fresh;	/* has a sink confirmed anything of this epoch */
	bool		catching_up;	/* cut the backlog at ticks */
	int64		cur_last_seq;	/* last number given out when "cur" was taken */
	int64		done_last_seq;	/* the same for "done" */
	bool		repeating;		/* a batch of parked events is in flight */
	bool		log_turn;		/* the log's; a batch of parked events went
								 * last */
	bool		drained;		/* nothing was left at the last look */
	bool		unfinished;		/* more may be there, look again at once */

	/* What is being sent was not committed before; 0: unknown */
	TimestampTz stamp;
	TimestampTz looked_at;		/* just before the last snapshot; 0: unknown */
	TimestampTz woken_at;		/* the first commit that woke us since */
	dlist_head	batches;		/* in flight, oldest first */
	int			nbatches;
	uint64		next_batch;
	XLogRecPtr	gate;			/* nothing is written before it is safe */

	IdemParkedIndex *parked;
	bool		parked_dirty;
	IdemClock	lock_retry_at;	/* somebody has what is to be changed; 0:
								 * nobody */

	/* breaker */
	int			failures;		/* in a row */
	int			stepwise;		/* so many batches to come, one at a time: an
								 * error of ours, perhaps at one of them */
	IdemClock	not_before;
	pid_t		held_pid;		/* a killed program whose life was complained
								 * of */
	bool		progressed;		/* a batch settled since the program started */

	/* hunt for an event that the program dies of, or cannot commit */
	int			deaths;			/* in a row, no batch settled in between */
	int			suspects;		/* events to come, one of them kills; 0: no
								 * hunt */
	int			hunt_range;		/* the same as of the last death */
	int			hunt_step;		/* batches settled in it since the last death */
	int			hunt_prefix;	/* events that were answered at that death */
	bool		alone;			/* a known killer is in flight, or about to */
	IdemFound	found;

	/* buffers */
	uint8	   *out;
	size_t		out_start;
	size_t		out_end;
	size_t		out_allocated;
	uint8	   *in;
	size_t		in_start;
	size_t		in_end;
} IdemStream;

/* In flight, or settled with a position that is not written: what a crash repeats. */
#define IDEM_STREAM_MAX_BATCHES 8

/* The GUC idempotency.sink_timeout: milliseconds a sink has to say anything. */
extern int	idem_sink_timeout_ms;

extern IdemStream *idem_stream_create(MemoryContext parent, IdemRelayConfig *config,
									  MemoryContext config_cxt);

/*
 * Take a new configuration over; restarts the sink only if it must.  If
 * somebody acted on this relay, an open breaker closes at once.
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
extern IdemClock idem_stream_next_time(IdemStream *stream);

/* Something committed at that time; 0: not known when. */
extern void idem_stream_woken(IdemStream *stream, TimestampTz stamp);

/* A step raised an error: start over from the settled position, later. */
extern void idem_stream_failed(IdemStream *stream, const char *message);

/* Write the position down if it moved without that, e.g. over other types. */
extern void idem_stream_persist(IdemStream *stream);

/*
 * Programs that were sent BYE: pass on what they still have to say, forget those
 * that ended, kill those that take too long.  ..._next_time says when to call
 * it again, 0: no need.  ..._wait waits until none is left; interruptible.
 */
extern void idem_stream_serve_byes(void);
extern IdemClock idem_stream_byes_next_time(void);
extern void idem_stream_wait_byes(void);

/* Shared among the stream files. */

/*
 * Send the program BYE and let go of it, if nothing is in flight; else false.
 */
extern bool idem_stream_say_bye(IdemStream *stream);

/* A line of a program for the server log. */
extern void idem_stream_log(IdemPrinted *printed, const IdemProtoLog *log);

/* Stop the program and open the breaker, as an outage or another state. */
extern void idem_stream_break(IdemStream *stream, const char *message);
extern void idem_stream_break_as(IdemStream *stream, IdemRelayState state,
								 const char *message);

/* Stop the program until an operator acts. */
extern void idem_stream_stick(IdemStream *stream, IdemRelayState state, const char *message);

/* Stop the program and let it start again at once. */
extern void idem_stream_restart(IdemStream *stream, const char *message);

/* The program ended or hung: if it had events, find the one it dies of. */
extern void idem_stream_died(IdemStream *stream, const char *message);

/* One of the batch's events keeps its sink from committing it: find which. */
extern void idem_stream_aborted(IdemStream *stream, const IdemBatch *batch, const char *message);

/* A batch of so many events was settled. */
extern void idem_stream_hunt_settled(IdemStream *stream, int n);

/* Park what a hunt found, unless the settled position is past it.  In a transaction. */
extern void idem_stream_park_found(IdemStream *stream);

/* How many events the next batch may have, and may it go beside others? */
extern int	idem_stream_batch_limit(const IdemStream *stream);
extern bool idem_stream_may_pipeline(const IdemStream *stream);

extern uint8 *idem_stream_reserve(IdemStream *stream, size_t n);
extern void idem_stream_flush(IdemStream *stream);

/*
 * Begin a life of the program: its HELLO names the relay's incarnation and the
 * life, which the sink stores with each position.
 */
extern void idem_stream_send_hello(IdemStream *stream);

/* The life in what a sink has stored; false if it is of another incarnation. */
extern bool idem_stream_life_of(const IdemStream *stream, IdemProtoStr incarnation, int64 *life);

/*
 * Append the frames of the batch's next event; in a transaction.  False, and
 * nothing appended, if it cannot be said in UTF-8.
 */
extern bool idem_stream_encode_event(IdemStream *stream, const IdemBatch *batch,
									 const IdemEvent *ev);
extern void idem_stream_fill(IdemStream *stream);
extern bool idem_stream_receive(IdemStream *stream);
extern bool idem_stream_await_end(IdemStream *stream);
extern void idem_stream_on_ready(IdemStream *stream, const IdemProtoReady *ready);

/* When parked events are due that could be sent now; 0: none, or they cannot. */
extern IdemClock idem_stream_repeats_at(IdemStream *stream);

/*
 * May the transaction change the relay's parked events, and those that it names?
 * Else the relay waits by itself, and tries again at lock_retry_at.
 */
extern bool idem_stream_try_lock(IdemStream *stream, const int64 *parked_ids, int n);

/* "settled" has moved, and is to be written soon. */
extern void idem_stream_note_unwritten(IdemStream *stream);

/* The position of the log is the one to go on from, whatever was settled since. */
extern void idem_stream_forget_unwritten(IdemStream *stream);
extern void idem_stream_settle(IdemStream *stream);
extern void idem_batch_free(IdemStream *stream, IdemBatch *batch);

#endif							/* IDEM_RELAY_STREAM_H */
