/*-------------------------------------------------------------------------
 *
 * position.h
 *		The log of positions: appended rows in two tables that take turns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/position.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_POSITION_H
#define IDEM_RELAY_POSITION_POSITION_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/hsearch.h"

#include "outbox/reader.h"

/* relay_id of rows that are bare snapshots, to cut a long backlog at. */
#define IDEM_TICK_RELAY 0

/* One of them is written each time so many events were enqueued. */
#define IDEM_TICK_EVENTS 100000

/* Why a row was written; the letters stand in the column "kind". */
typedef enum IdemPositionKind
{
	/* An operator set the position (create, alter, replay, adopt). */
	IDEM_POSITION_MOVED = 'm',

	/* A batch carries the row's id to a sink that stores positions. */
	IDEM_POSITION_SENT = 's',

	/* All events before it are settled. */
	IDEM_POSITION_REACHED = 'r',

	/*
	 * The same, to a sink that stores positions: the events passed were not
	 * for this relay, so the sink never hears of the row.  "named" and "seq"
	 * are what the sink had stored then, or 0 if that is not known.  While
	 * the sink stands there, and only then, nothing before the row needs
	 * another look.
	 */
	IDEM_POSITION_PASSED = 'p',

	/*
	 * The sink stored the row "named".  SENT rows between that one and this
	 * were never committed there, and never will be.
	 */
	IDEM_POSITION_NAMED = 'n',

	/*
	 * The same, and with that row the sink stored events that had been
	 * parked. Their copies are gone here, so an older row of the sink would
	 * lose them.
	 */
	IDEM_POSITION_REPEATED = 'q',

	/* A bare snapshot of IDEM_TICK_RELAY. */
	IDEM_POSITION_TICK = 't'
} IdemPositionKind;

/*
 * Was anything of the epoch confirmed by a sink when a row was written?  If not,
 * by which move of an operator the epoch began: that says what of the sink's own
 * word the operator has overruled.  The letters stand in the column "fresh".
 */
typedef enum IdemPositionFresh
{
	IDEM_FRESH_NOT = 'n',		/* confirmed */
	IDEM_FRESH_MOVED = 'm',		/* relay_create, _alter, _replay */
	IDEM_FRESH_SERVER = 's',	/* relay_alter to another server, which may
								 * lead to the same target */
	IDEM_FRESH_ADOPTED = 'a'	/* relay_adopt */
} IdemPositionFresh;

/*
 * life: the start of the sink program that a SENT row belongs to,
 * a random number; a sink returns it with the id.  A copy of this database
 * draws the same ids, but not the same lives.
 */
typedef struct IdemPositionRow
{
	int64		id;
	int			relay_id;
	IdemPositionKind kind;
	IdemPositionFresh fresh;
	int64		epoch;
	int64		life;			/* of SENT; else 0 */
	int64		named;			/* id of a row, of NAMED, REPEATED, PASSED;
								 * else 0 */
	TimestampTz at;
	IdemPosition pos;
} IdemPositionRow;

/* Replace what dst holds by a copy of src in cxt. */
extern void idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src);

/* All of these need a transaction; rows are palloc'd in the current context. */

/*
 * Append a row; its id and time are given here.  Returns the id.  The row is as
 * durable as the commit that follows.
 */
extern int64 idem_position_append(const IdemPositionRow *row);

/* The same for n rows at once, whose ids and times are filled in. */
extern void idem_position_append_all(IdemPositionRow *rows, int n);

/* The last row of a relay in this epoch, or NULL. */
extern IdemPositionRow *idem_position_last(int relay_id, int64 epoch);

/* What a sink says of the row that it has stored; all zero: it has stored none. */
typedef struct IdemPositionName
{
	int64		id;
	int64		life;
	int64		k;
} IdemPositionName;

/* What the log has of that; each may be NULL. */
typedef struct IdemPositionTold
{
	IdemPositionRow *last;		/* the newest row of the epoch */
	IdemPositionRow *sent;		/* the SENT row of that id and life, of any
								 * epoch */
	IdemPositionRow *repeated;	/* the newest REPEATED row of the epoch */
	IdemPositionRow *passed;	/* the newest row of the epoch that says what
								 * was passed while the sink stood there */
} IdemPositionTold;

/* In one scan, since each start of a program needs all of it. */
extern void idem_position_look_up(int relay_id, int64 epoch, const IdemPositionName *name,
								  IdemPositionTold *told);

/* Is a snapshot of the log later than another?  All of them are ordered. */
extern bool idem_position_sees_more(const IdemSnap *snap, const IdemSnap *than);

/* The last tick taken no later than "at", or NULL. */
extern IdemPositionRow *idem_position_tick_before(TimestampTz at);

/*
 * The first tick after a snapshot, i.e. one that sees more than it, with the
 * lowest id; NULL if there is none.
 */
extern IdemPositionRow *idem_position_tick_after(const IdemSnap *snap);

/*
 * Where every relay stands: the newest row of each in its newest epoch, by one
 * scan, in a hash of the current context.  ..._of gives the row of a relay, if it
 * is of that epoch; else NULL.
 */
extern HTAB *idem_position_all_last(void);
extern const IdemPositionRow *idem_position_of(HTAB *rows, int relay_id, int64 epoch);

/* Ids of the relays that the log has rows of, dropped ones among them. */
extern List *idem_position_relay_ids(void);

/*
 * Make the other table current if the current one is long, keeping what is
 * still needed; empty the one that is not current.  Both in steps that may be
 * cut by a crash anywhere.  Must be the last act of its transaction.
 *
 * get_relays returns the ids of all relays there are.  It is called once no row of
 * an uncommitted one can be in what is going to be emptied.
 */
extern void idem_position_maintain(List *(*get_relays) (void));

#endif							/* IDEM_RELAY_POSITION_POSITION_H */
