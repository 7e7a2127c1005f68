/*-------------------------------------------------------------------------
 *
 * position.h
 *		The log of positions: appended rows in two tables that take turns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_H
#define IDEM_RELAY_POSITION_H

#include "postgres.h"

#include "outbox/reader.h"

/* relay_id of rows that are bare snapshots, to cut a long backlog at. */
#define IDEM_TICK_RELAY 0

/* One of them is written each time so many events were enqueued. */
#define IDEM_TICK_EVENTS 100000

/*
 * k of rows written before the sink confirmed anything: the position was set
 * by an operator (create, adopt, replay) and wins over what a sink may say.
 */
#define IDEM_POSITION_FRESH (-1)

/*
 * k of rows written when a relay to a sink that stores positions has passed
 * events that are not for it.  The sink never hears of such a row.
 */
#define IDEM_POSITION_PASSED (-2)

/*
 * k of rows that note which row such a sink named when its program started, if
 * that was not the last one: what was appended in between was not committed
 * there, and never will be.  Numbers of rows begin at 1.
 */
#define IDEM_POSITION_NAMES(id) (IDEM_POSITION_PASSED - (id))

typedef struct IdemPositionRow
{
	int64		id;
	int			relay_id;
	int64		epoch;
	TimestampTz at;
	IdemPosition pos;
} IdemPositionRow;

/* Replace what dst holds by a copy of src in cxt. */
extern void idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src);

/* All of these need a transaction; rows are palloc'd in the current context. */

/* Append; returns the row's id.  It is as durable as the commit that follows. */
extern int64 idem_position_append(int relay_id, int64 epoch, const IdemPosition *pos);

/* The last row of a relay in this epoch, or NULL. */
extern IdemPositionRow *idem_position_last(int relay_id, int64 epoch);

/* The row of that id, or NULL; to resume from what a sink has stored. */
extern IdemPositionRow *idem_position_by_id(int relay_id, int64 epoch, int64 id);

/* Is a snapshot of the log later than another?  All of them are ordered. */
extern bool idem_position_sees_more(const IdemSnap *snap, const IdemSnap *than);

/* The last tick taken no later than "at", or NULL. */
extern IdemPositionRow *idem_position_tick_before(TimestampTz at);

/*
 * The first tick after a snapshot, i.e. one that sees more than it, with the
 * lowest id; NULL if there is none.
 */
extern IdemPositionRow *idem_position_tick_after(const IdemSnap *snap);

/* Where every relay stands, as the oldest "done" that may be needed again. */
extern List *idem_position_all_last(void);

/*
 * Make the other table current if the current one is long, keeping what is
 * still needed; empty the one that is not current.  Both in steps that may be
 * cut by a crash anywhere.  Must be the last act of its transaction.
 *
 * get_relays returns the ids of all relays there are.  It is called once no row of
 * an uncommitted one can be in what is going to be emptied.
 */
extern void idem_position_maintain(List *(*get_relays) (void));

#endif							/* IDEM_RELAY_POSITION_H */
