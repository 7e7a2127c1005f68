/*-------------------------------------------------------------------------
 *
 * state.h
 *		What the files of a stream share: the stream, its batches, a verdict.
 *
 * Private to this folder.  Only stream.c, the life cycle, ends a program, opens the
 * breaker and stops a relay.  The files below it say by a verdict that the program
 * cannot go on, and why.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_STATE_H
#define IDEM_RELAY_STREAM_STATE_H

#include "postgres.h"

#include "lib/ilist.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position/cursor.h"
#include "relay/position/parked.h"
#include "relay/position/position.h"
#include "relay/position/rest.h"
#include "relay/program/starts.h"
#include "relay/shmem.h"
#include "relay/stream/hunt.h"
#include "relay/stream/pipe.h"
#include "shared/clock.h"

/* In flight, or settled with a position that is not written: a crash repeats these. */
#define IDEM_STREAM_MAX_BATCHES 8

/* How a stream goes on. */
typedef enum IdemStreamOutcome
{
	IDEM_STREAM_OK,
	IDEM_STREAM_OUTAGE,			/* try again after the backoff */
	IDEM_STREAM_MISCONFIGURED,	/* the same: it may be put right at the
								 * target, where we do not see it */
	IDEM_STREAM_UNUSABLE,		/* its configuration can never work: an
								 * operator has to act */
	IDEM_STREAM_FENCED,			/* another relay took over: an operator has to
								 * act */
	IDEM_STREAM_DIVERGED,		/* sink and log contradict each other: the
								 * same */
	IDEM_STREAM_DIED,			/* the program ended, hangs, or broke the
								 * protocol: perhaps for an event in flight */
	IDEM_STREAM_ABORTED			/* the sink cannot commit a batch, for one of
								 * its events */
} IdemStreamOutcome;

typedef struct IdemStreamVerdict
{
	IdemStreamOutcome outcome;
	const char *message;		/* static, or palloc'd in the context that the
								 * step began in; NULL with OK */
	uint64		batch;			/* ABORTED: its number */
} IdemStreamVerdict;

#define IDEM_STREAM_GOES_ON ((IdemStreamVerdict) {IDEM_STREAM_OK, NULL, 0})

static inline IdemStreamVerdict
idem_stream_verdict(IdemStreamOutcome outcome, const char *message)
{
	return (IdemStreamVerdict)
	{
		outcome, message, 0
	};
}

typedef enum IdemStreamPhase
{
	IDEM_STREAM_OFF,			/* no program runs */
	IDEM_STREAM_HELLO,			/* HELLO is sent, READY awaited */
	IDEM_STREAM_READY			/* of both the last moment: the socket has
								 * ended, the program's end is awaited */
} IdemStreamPhase;

/* May the relay send? */
typedef enum IdemStreamLeave
{
	IDEM_STREAM_SENDS,
	IDEM_STREAM_YIELDS,			/* others wait for the program's room: what is
								 * in flight is settled, nothing new is sent */
	IDEM_STREAM_BARRED			/* by its configuration, at the last look;
								 * what is in flight is settled before a pause */
} IdemStreamLeave;

/* When is the log to be looked at again? */
typedef enum IdemStreamLook
{
	IDEM_LOOK_AT_ONCE,			/* more may be there; others had their turn */
	IDEM_LOOK_WITH_ROOM,		/* when there is room for a batch */
	IDEM_LOOK_WHEN_WOKEN		/* nothing was left: something has to commit */
} IdemStreamLook;

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
	int64		k;				/* the seq in its END */
	bool		settle_sent;	/* its refused events are on record */
	bool		committed;		/* a transactional sink said so */
	int			n;				/* events */
	int			unanswered;
	int			nonacks;
	IdemFlight *flights;
	IdemFailure *failures;
	int			nfailures;
	int			failures_allocated;
	IdemPosition after;			/* once all of it is settled */
} IdemBatch;

/* The event that a hunt found, to be parked once the sink has said where it stands. */
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
	MemoryContext busy_cxt;		/* what only a program needs; NULL: none was
								 * started since the last rest */
	MemoryContext run_cxt;		/* of what is in flight; reset when turned off */
	MemoryContext event_cxt;	/* of one event while it is encoded */
	IdemRelayConfig *config;
	IdemRelayEntry *entry;		/* NULL: stat_relay is full */

	IdemStreamPhase phase;
	IdemPipe	pipe;
	IdemStreamLeave leave;
	IdemClock	yield_by;		/* one that yields is counted on until then */
	bool		stopped;		/* until an operator acts, or the
								 * configuration changes */
	IdemStreamLook look;

	/* without a program, since there is nothing to send */
	IdemRester	rester;
	IdemStartTicket ticket;
	bool		settled_known;	/* "settled" is where it stands, and perhaps
								 * ahead of the log by events not for it */
	bool		proven;			/* a program has been ready for its server as
								 * that is now */
	bool		slow_start;		/* the last one was not in time, where others
								 * waited */
	IdemClock	busy_at;		/* when it last had something to do */
	IdemClock	started_at;		/* its program was */

	/* what READY said */
	bool		sink_stores;	/* positions, in the transaction of the
								 * effects */
	int64		credit_messages;
	int64		credit_bytes;
	int			max_batch_events;	/* the lesser of ours and the sink's */
	int64		max_batch_bytes;

	/* where it is; settled is what the log of positions says or may say */
	IdemReader *reader;
	IdemCursor	cursor;			/* what was sent */
	IdemPosition settled;
	bool		settled_dirty;	/* settled is ahead of the log */
	int			unwritten;		/* batches by which it is; see progress.c */
	IdemClock	write_by;		/* write it then at the latest; 0: no need */
	int64		row_id;			/* of the cursor, for sinks that store
								 * positions */
	int64		life;			/* of the program; see IdemPositionRow */
	int64		stored_row;		/* what the sink is known to have stored last; */
	int64		stored_k;		/* 0: not known */
	IdemPositionFresh fresh;	/* has a sink confirmed anything of this epoch */

	/* What is being sent was not committed before; 0: unknown */
	TimestampTz stamp;
	TimestampTz looked_at;		/* just before the last snapshot; 0: unknown */
	TimestampTz woken_at;		/* the first commit that woke us since */
	dlist_head	batches;		/* in flight, oldest first */
	int			nbatches;
	uint64		next_batch;

	IdemParkedIndex *parked;
	bool		parked_dirty;
	bool		repeats_in_flight;	/* a batch of parked events */
	bool		log_turn;		/* the log's; a batch of parked events went
								 * last */
	bool		exclusive;		/* nothing may go beside an event that killed
								 * a program: it is in flight, or about to be */
	IdemClock	lock_retry_at;	/* somebody has what is to be changed; 0:
								 * nobody */

	/* breaker */
	int			failures;		/* in a row */
	int			stepwise;		/* so many batches to come, one at a time: an
								 * error of ours, perhaps at one of them */
	IdemClock	not_before;
	pid_t		held_pid;		/* a killed program whose life was complained
								 * of */
	IdemHunt	hunt;
	IdemFound	found;
} IdemStream;

#endif							/* IDEM_RELAY_STREAM_STATE_H */
