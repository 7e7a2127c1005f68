/*-------------------------------------------------------------------------
 *
 * parked.h
 *		Events a relay took out of the log's order: to be retried, or dead.
 *
 * States of a parked event:
 *
 *		retry    refused or unanswered; due again at next_attempt_at
 *		waiting  not refused itself, but behind a parked event of its key
 *		dead     attempts used up; only an operator moves it
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/parked.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PARKED_H
#define IDEM_RELAY_PARKED_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/hsearch.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "shared/clock.h"

/* What a worker must know of the parked events of a relay, in memory. */
typedef struct IdemParkedIndex
{
	MemoryContext cxt;
	HTAB	   *keys;			/* hashes of the keys later events wait for */
	HTAB	   *seqs;			/* seq of every parked event */
	int64		total;
	IdemClock	next_due;		/* 0: nothing will be due by itself */
} IdemParkedIndex;

/* The greatest number of a parked event, of any relay; 0: none is parked. */
extern int64 idem_parked_greatest_seq(void);

/* An event whose handler took the server down so often is dead. */
#define IDEM_MAX_CRASHES 2

/* A parked event, to be sent again; palloc'd. */
typedef struct IdemParkedEvent
{
	int64		parked_id;
	int			attempts;
	int			crashes;		/* of them, such that took the server down */
	bool		killer;			/* a sink program died of it */
	IdemEvent	event;
} IdemParkedEvent;

/* Why an event was not accepted. */
typedef struct IdemFailure
{
	bool		counts;			/* an attempt is used up */
	int			retry_after_ms; /* not before; 0: as the backoff says */
	char		sqlstate[6];
	const char *message;
	bool		crashed;		/* the attempt took the server down */
	bool		hopeless;		/* no attempt can end otherwise: dead at once */
} IdemFailure;

/* More parked events than this, and the relay takes no new ones. */
extern int	idem_max_parked;

extern IdemParkedIndex *idem_parked_index_create(MemoryContext parent);

/* Read the table again.  In a transaction, like all below. */
extern void idem_parked_index_load(IdemParkedIndex *index, const IdemRelayConfig *config);

/*
 * Note one that was parked since, as far as later events of its key are
 * concerned; when it is due only a load tells.
 */
extern void idem_parked_index_add(IdemParkedIndex *index, const IdemRelayConfig *config,
								  const IdemEvent *event, const IdemFailure *failure);

extern bool idem_parked_has_seq(const IdemParkedIndex *index, int64 seq);
extern bool idem_parked_blocks(const IdemParkedIndex *index, const IdemEvent *event);

/*
 * Keys of events, by hashes of 64 bits: of two that collide one waits for the other.
 * In the context given.
 */
extern HTAB *idem_parked_keys_create(MemoryContext cxt);
extern void idem_parked_keys_add(HTAB *keys, const IdemEvent *event);
extern bool idem_parked_keys_have(HTAB *keys, const IdemEvent *event);

/* Is the row that is being inserted one that idem_parked_add and its kin write? */
extern bool idem_parked_is_parking(void);

/*
 * A worker sends a parked event without asking how durable the row is: the commit
 * that parks one in a session, or makes it due, is to be flushed before a worker can
 * see it, whatever synchronous_commit says.  For standbys the worker's gate waits.
 */
extern void idem_parked_force_flush(void);

/* Park an event of the log; one that is parked already stays as it is. */
extern void idem_parked_add(const IdemRelayConfig *config, const IdemEvent *event,
							const IdemFailure *failure);
extern void idem_parked_add_waiting(const IdemRelayConfig *config, const IdemEvent *event);

/* Those due now, in the order to be sent; at most limit, and a batch's bytes. */
extern List *idem_parked_due(const IdemRelayConfig *config, int limit);

/* Accepted: forget it.  Refused again: count, and set when it is due. */
extern void idem_parked_done(const IdemRelayConfig *config, int64 parked_id);
extern void idem_parked_failed(const IdemRelayConfig *config, int64 parked_id,
							   const IdemFailure *failure);

/*
 * The transaction ids of a relay's parked events are of another cluster: as if
 * this transaction had enqueued them.
 */
extern void idem_parked_restamp(int relay_id);

/* All of a relay that is no more. */
extern void idem_parked_forget(int relay_id);

/* Passed over by the sink, for an earlier event of its key. */
extern void idem_parked_skipped(const IdemRelayConfig *config, int64 parked_id);

/*
 * Before a repetition is sent to a sink that stores positions: the row that its
 * batch carries, and the start of the program it is sent to.
 */
extern void idem_parked_mark(List *parked_events, int64 batch_row, int64 life);

/*
 * What such a sink has stored tells which repetitions arrived.  A row of
 * another life says nothing: only the latest life before it sent repetitions.
 * True if some did; they are not parked any more.
 */
extern bool idem_parked_resolve(const IdemRelayConfig *config, int64 stored_row, int64 life);

#endif							/* IDEM_RELAY_PARKED_H */
