/*-------------------------------------------------------------------------
 *
 * walk.h
 *		How far a relay has got: what it has read, and what is settled.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/walk.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_WALK_H
#define IDEM_RELAY_POSITION_WALK_H

#include "postgres.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position/position.h"

typedef struct IdemWalk
{
	MemoryContext cxt;			/* holds the snapshots of both positions; set
								 * by the owner */
	IdemPosition read;			/* all events before it have been read */
	IdemPosition settled;		/* all events before it are delivered or
								 * parked */
	bool		dirty;			/* "settled" is ahead of the log of positions */
	bool		rested;			/* the relay has rested at "settled" since its
								 * last start; the log of positions may not
								 * know it */
	bool		catching_up;	/* ticks may lie ahead */
	int64		base_last_seq;	/* last seq drawn when "base" was taken */
	int64		target_last_seq;	/* last seq drawn when "target" was taken */

	/* what a row of the log of positions says besides the position */
	bool		sink_stores;	/* the sink stores positions, in the
								 * transaction of the effects */
	IdemPositionFresh fresh;	/* whether a sink has confirmed anything of
								 * this epoch */
	int64		acked_row;		/* row that the sink is known to have stored
								 * last; 0: not known */
	int64		acked_k;		/* k that it stored with the row */
} IdemWalk;

/*
 * Stand at a position that the log of positions or the sink knows.  Only
 * ..._start makes the walk read from there.
 */
extern void idem_walk_stand(IdemWalk *walk, const IdemPosition *pos);

/*
 * The one place where a position advances: all events before it are delivered
 * or parked, and the log of positions does not know that yet.
 */
extern void idem_walk_advance(IdemWalk *walk, const IdemPosition *pos);

/*
 * Read on from the settled position.  While ticks lie ahead, differences end
 * at ticks.
 */
extern void idem_walk_start(IdemWalk *walk);

/*
 * Begin the next difference.  It ends where idem_difference_take says, or in a long
 * backlog at the next tick before that.  Returns false, and changes nothing, if
 * there is nothing new.  *newest is idem_difference_take's.  The walk must be
 * between differences.  In a transaction; the current context gets what is
 * allocated besides the position.
 */
extern bool idem_walk_begin(IdemWalk *walk, bool *newest);

/*
 * The events of the difference up to last_seq have been read; ended: all of
 * them have.
 */
extern void idem_walk_read(IdemWalk *walk, bool ended, int64 last_seq);

/*
 * The row that says that the relay has come to pos, and what its sink has
 * stored.  The row points to pos; its life is 0.
 */
extern IdemPositionRow idem_walk_row(const IdemWalk *walk, const IdemRelayConfig *config,
									 IdemPositionKind kind, const IdemPosition *pos);

/* The kind of a row for a position that the sink is not told of. */
static inline IdemPositionKind
idem_walk_kind(const IdemWalk *walk)
{
	return walk->sink_stores ? IDEM_POSITION_PASSED : IDEM_POSITION_REACHED;
}

#endif							/* IDEM_RELAY_POSITION_WALK_H */
