/*-------------------------------------------------------------------------
 *
 * parked_index.h
 *		What a worker keeps in memory of a relay's parked events.
 *
 * States of a parked event:
 *
 *		retry    refused or unanswered; due again at a time
 *		waiting  not refused itself, but behind a parked event of its key
 *		dead     attempts used up; only an operator moves it
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/parked_index.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_PARKED_INDEX_H
#define IDEM_RELAY_POSITION_PARKED_INDEX_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "utils/hsearch.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "shared/clock.h"

typedef enum IdemParkedState
{
	IDEM_PARKED_RETRY,
	IDEM_PARKED_WAITING,
	IDEM_PARKED_DEAD
} IdemParkedState;

/* What the index knows of a row of relay_parked. */
typedef struct IdemParkedNote
{
	int64		seq;
	int64		parked_id;
	FullTransactionId xid;
	IdemParkedState state;
	TimestampTz due;			/* of RETRY: by the wall clock */
	TimestampTz failed_at;		/* of RETRY: "due" was reckoned from here */
	bool		lone;			/* an attempt took the program or the server
								 * down: it is tried with no other */
} IdemParkedNote;

typedef struct IdemParkedIndex
{
	MemoryContext cxt;
	HTAB	   *entries;		/* all parked events, by seq */
	HTAB	   *keys;			/* those that are to be sent, or block, by key */
	int64		total;
	bool		by_key;			/* ordering is by key */
	bool		dead_blocks;	/* a dead event holds later ones of its key
								 * back */
	dlist_head	ready;			/* keys whose first event can be sent */
	dlist_head	held;			/* keys whose first event the log has not
								 * passed */
	pairingheap *due;			/* keys whose first event is not due yet */
	int			careful;		/* of each key so many events may have been
								 * under way when the server went down; set
								 * before a load */
	int			suspects;		/* of them, still to be tried */
	bool		stale;			/* a row was met that the index lacked: load
								 * it */
	int			more;			/* keys with events in flight and more behind */
	TimestampTz looked_at;		/* by the wall clock */
} IdemParkedIndex;

/* A selection of parked events: what is wanted, and what was found. */
typedef struct IdemParkedTaking
{
	int			limit;			/* events */
	int64		max_bytes;		/* of their payloads and headers; one may
								 * exceed it */
	bool		lone;			/* one that is tried alone may be taken, alone */
	bool		(*may) (const IdemParkedNote *note, void *arg); /* NULL: all may */
	void	   *arg;

	bool		alone;			/* the one taken is to be tried alone */
	bool		lone_left;		/* nothing was taken, for one that is tried
								 * alone */
} IdemParkedTaking;

extern IdemParkedIndex *idem_parked_index_create(MemoryContext parent);

/* Read the table again, in a transaction.  Nothing is taken after it. */
extern void idem_parked_index_load(IdemParkedIndex *index, const IdemRelayConfig *config);

extern bool idem_parked_has_seq(const IdemParkedIndex *index, int64 seq);

/* Does the event have to wait for a parked one of its key? */
extern bool idem_parked_blocks(const IdemParkedIndex *index, const IdemEvent *event);

/*
 * The row of an event was written.  If the event was taken, it was refused, and ends
 * its key's run; the rest of the run is to be given back.
 */
extern void idem_parked_index_put(IdemParkedIndex *index, const IdemEvent *event,
								  const IdemParkedNote *note);
extern void idem_parked_index_failed(IdemParkedIndex *index, const IdemParkedNote *note);

/* The event is not parked any more; nothing happens if the index lacks it. */
extern void idem_parked_index_drop(IdemParkedIndex *index, int64 seq);

/*
 * Take at most so many events that can be sent now, in order of seq, and from the
 * first event of each key on.  Each is to be dropped, failed or given back.
 */
extern IdemParkedNote *idem_parked_index_take(IdemParkedIndex *index, IdemParkedTaking *taking,
											  int *n);

/* It is under way since before the index was loaded. */
extern void idem_parked_index_retake(IdemParkedIndex *index, int64 seq);

/* A taken event was not tried.  waits: for a refused one of its key. */
extern void idem_parked_index_give_back(IdemParkedIndex *index, int64 seq, bool waits);

/* Was an event of this one's key refused since the key's events were taken? */
extern bool idem_parked_index_key_failed(IdemParkedIndex *index, int64 seq);
extern IdemParkedState idem_parked_index_state(IdemParkedIndex *index, int64 seq);

/* Can any event be taken now?  Or will that be so once what is in flight is settled? */
extern bool idem_parked_index_is_due(IdemParkedIndex *index);
extern bool idem_parked_index_wants_turn(IdemParkedIndex *index);

/* When: 1 if now, 0 if only something else than time can make it so. */
extern IdemClock idem_parked_index_next(IdemParkedIndex *index);

/* The log was read on: ask "may" again for those that it had not passed. */
extern void idem_parked_index_log_moved(IdemParkedIndex *index);

#endif							/* IDEM_RELAY_POSITION_PARKED_INDEX_H */
