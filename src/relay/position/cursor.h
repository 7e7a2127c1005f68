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
	MemoryContext cxt;			/* holds the snapshots in pos; set by the
								 * owner */
	IdemPosition pos;			/* all events before it have been read */
	bool		catching_up;	/* ticks may lie ahead */
	int64		base_last_seq;	/* last seq drawn when "base" was taken */
	int64		target_last_seq;	/* last seq drawn when "target" was taken */
} IdemCursor;

/*
 * Go on from a stored position.  While ticks lie ahead, differences end at
 * ticks.
 */
extern void idem_cursor_start(IdemCursor *cursor, const IdemPosition *pos);

/*
 * Begin the next difference.  It ends where idem_target_take says, or in a long
 * backlog at the next tick before that.  Returns false, and changes nothing, if
 * there is nothing new.  *newest is idem_target_take's.  The cursor must be
 * between differences.  In a transaction; the current context gets what is
 * allocated besides the position.
 */
extern bool idem_cursor_begin(IdemCursor *cursor, bool *newest);

/*
 * The events of the difference up to last_seq have been read; ended: all of
 * them have.
 */
extern void idem_cursor_advance(IdemCursor *cursor, bool ended, int64 last_seq);

#endif							/* IDEM_RELAY_POSITION_CURSOR_H */
