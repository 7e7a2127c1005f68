/*-------------------------------------------------------------------------
 *
 * cursor.h
 *		How far a reader of the outbox has got, difference by difference.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/cursor.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_CURSOR_H
#define IDEM_RELAY_POSITION_CURSOR_H

#include "postgres.h"

#include "outbox/reader.h"

typedef struct IdemCursor
{
	MemoryContext cxt;			/* of the snapshots in pos; set by the owner */
	IdemPosition pos;			/* all events before it have been read */
	bool		catching_up;	/* the target is a tick: more is behind it */
	int64		base_last_seq;	/* last number given out when "base" was taken */
	int64		target_last_seq;	/* the same for "target" */
} IdemCursor;

/* Go on from a stored position, by ticks while there are any. */
extern void idem_cursor_start(IdemCursor *cursor, const IdemPosition *pos);

/*
 * Begin the next difference, which ends where idem_target_take says, or in a long
 * backlog at the next tick before that.  Returns false, and changes nothing, if there
 * is nothing new.  *newest is idem_target_take's.  The cursor is between differences.
 * In a transaction; what it allocates besides the position is in the current context.
 */
extern bool idem_cursor_begin(IdemCursor *cursor, bool *newest);

/*
 * The events up to number last_seq of the difference have been read, or the
 * difference has ended.
 */
extern void idem_cursor_advance(IdemCursor *cursor, bool ended, int64 last_seq);

#endif							/* IDEM_RELAY_POSITION_CURSOR_H */
