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

/* The relay_id of ticks: bare snapshots, at which a long backlog is cut. */
#define IDEM_TICK_RELAY 0

/* A tick is written each time so many events were enqueued. */
#define IDEM_TICK_EVENTS 100000

/* What to do about a relay of whose epoch the log has no row. */
#define IDEM_LOST_POSITION_REMEDY \
	"Somebody has deleted rows of relay_log_0 and relay_log_1, or changed relays.epoch. The relay's owner calls relay_adopt: then the relay sends everything that is in the outbox; or relay_alter with start_at => 'latest', which leaves it out."

/* Why a row was written; the letters stand in the column "kind". */
typedef enum IdemPositionKind
{
	/* An operator set the position (create, alter, replay, adopt). */
	IDEM_POSITION_MOVED = 'm',

	/* A batch carries the row's id to a sink that stores positions. */
	IDEM_POSITION_SENT = 's',

	/* All events before the row's position are settled. */
	IDEM_POSITION_REACHED = 'r',

	/*
	 * The same, for a sink that stores positions: the events passed were not
	 * for this relay, so the sink never hears of the row.  While the sink has
	 * stored exactly acked_row and acked_k, and only then, nothing before
	 * this row needs another look.
	 */
	IDEM_POSITION_PASSED = 'p',

	/*
	 * The sink stored the row acked_row.  The SENT rows between that one and
	 * this row were never committed there, and never will be.
	 */
	IDEM_POSITION_NAMED = 'n',

	/*
	 * The same, and with the row acked_row the sink stored events that had
	 * been parked.  Their copies are gone here.  So a sink that goes back to
	 * an older row would lose these events.
	 */
	IDEM_POSITION_REPEATED = 'q',

	/* A bare snapshot of IDEM_TICK_RELAY. */
	IDEM_POSITION_TICK = 't',

	/*
	 * A row of IDEM_TICK_RELAY: every event that the outbox has emptied is of
	 * a transaction that "base" sees.
	 */
	IDEM_POSITION_EMPTIED = 'e'
} IdemPositionKind;

/*
 * Had a sink confirmed anything of the epoch when the row was written?  If not,
 * this tells which move of an operator began the epoch; and the move tells
 * which positions of the sink the operator has overruled.  The letters stand in
 * the column "fresh".
 */
typedef enum IdemPositionFresh
{
	IDEM_FRESH_CONFIRMED = 'n', /* confirmed */
	IDEM_FRESH_MOVED = 'm',		/* relay_create, _alter, _replay */
	IDEM_FRESH_SERVER = 's',	/* relay_alter to another server, which may
								 * lead to the same target */
	IDEM_FRESH_BOTH = 'b',		/* the same, and another move since */
	IDEM_FRESH_ADOPTED = 'a'	/* relay_adopt */
} IdemPositionFresh;

/*
 * A row of the log.  life: the start of the sink program that a SENT row
 * belongs to, a random number.  A sink returns the life with the row's id.  A
 * copy of this database draws the same ids, but not the same lives.
 */
typedef struct IdemPositionRow
{
	int64		id;
	int			relay_id;
	IdemPositionKind kind;
	IdemPositionFresh fresh;
	int64		epoch;
	int64		life;			/* for SENT; for MOVED: rows with a higher id
								 * than this were sent to the server that
								 * acked_row is of; else 0 */
	int64		acked_row;		/* the row that the sink had stored, as far as
								 * was known; 0: not known */
	int64		acked_k;		/* the k that it had stored with the row */
	TimestampTz at;
	IdemPosition pos;
} IdemPositionRow;

/*
 * Does the row, the newest one of its relay, tell what the sink has?  A PASSED row is written
 * only while nothing is in flight, and whatever is sent after it has a SENT row.  SENT, NAMED and
 * REPEATED rows have the position where their difference began, and more was stored since.
 */
static inline bool
idem_position_tells(const IdemPositionRow *row)
{
	return row->kind == IDEM_POSITION_PASSED || row->kind == IDEM_POSITION_REACHED || row->kind == IDEM_POSITION_MOVED;
}

/*
 * Replace the snapshots and the seq of dst by copies of those of src, in cxt.
 */
extern void idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src);

/*
 * The following functions need a transaction.  Rows are palloc'd in the current
 * context.
 */

/*
 * Append a row; id and time are assigned here.  Returns the id.  The row is as
 * durable as the commit that follows.
 */
extern int64 idem_position_append(const IdemPositionRow *row);

/* Append n rows at once, and fill in their ids and times. */
extern void idem_position_append_all(IdemPositionRow *rows, int n);

/* The last row of a relay in this epoch, or NULL. */
extern IdemPositionRow *idem_position_last(int relay_id, int64 epoch);

/*
 * The row that a sink says it has stored, with its life and k; all zero: the
 * sink has stored none.
 */
typedef struct IdemPositionName
{
	int64		id;
	int64		life;
	int64		k;
} IdemPositionName;

/* The rows of the log that tell about the sink's row; each may be NULL. */
typedef struct IdemSinkRows
{
	IdemPositionRow *last;		/* the newest row of the epoch */
	IdemPositionRow *sent;		/* the SENT row with the sink's id and life,
								 * of any epoch */
	IdemPositionRow *newest_sent;	/* the newest SENT row, of any epoch */
	IdemPositionRow *repeated;	/* the newest REPEATED row of the epoch */
	IdemPositionRow *passed;	/* the newest PASSED or SENT row of the epoch
								 * that names exactly the sink's row and k:
								 * nothing before it needs another look */
	IdemPositionRow *naming;	/* the newest row of the epoch that names a
								 * row */
	IdemPositionRow *emptied;	/* the newest EMPTIED row, of all relays */
} IdemSinkRows;

/*
 * Find all of these rows in one scan, since each start of a program needs them.
 */
extern void idem_position_look_up(int relay_id, int64 epoch, const IdemPositionName *name,
								  IdemSinkRows *sink_rows);

/*
 * Does a snapshot see more than another?  All snapshots of the log are ordered.
 */
extern bool idem_position_sees_more(const IdemSnap *snap, const IdemSnap *than);

/* Has the position passed the event? */
extern bool idem_position_passed(const IdemPosition *pos, FullTransactionId xid, int64 seq);

/*
 * Can a position of this cluster be like that?  It may be younger than any
 * snapshot of the caller's, since the relay may be at work.  A position ahead of the next
 * transaction id cannot: the ids went back (pg_resetwal).  It would count events
 * as delivered that nobody has sent.  Once the ids have passed the position
 * again, it looks possible; hence IDEM_HALT_HISTORY.
 */
extern bool idem_position_is_possible(const IdemPosition *pos);

/* The last tick taken no later than "at", or NULL. */
extern IdemPositionRow *idem_position_tick_before(TimestampTz at);

/*
 * The first tick that sees more than the snapshot: of these the one with the
 * lowest id; NULL if there is none.
 */
extern IdemPositionRow *idem_position_tick_after(const IdemSnap *snap);

/*
 * The newest row of each relay in its newest epoch, by one scan, in a hash of
 * the current context.  ..._of gives a relay's row if it is of that epoch; else
 * NULL.
 */
extern HTAB *idem_position_all_last(void);
extern const IdemPositionRow *idem_position_of(HTAB *rows, int relay_id, int64 epoch);

/*
 * Note, before segments of the outbox are emptied, that "emptied" sees the
 * transactions of all their events.  Returns a snapshot that sees the
 * transactions of all events that were ever emptied, these included.
 */
extern IdemSnap *idem_position_note_emptied(const IdemSnap *emptied);

/*
 * The ids of all relays that have rows in the log, dropped relays among them.
 */
extern List *idem_position_relay_ids(void);

/*
 * Make the other table current if the current one is long, and copy the rows
 * that are still needed; empty the table that is not current.  A crash may cut
 * either off at any step.  Must be the last act of its transaction.
 *
 * get_relays returns the ids of all relays.  It is called at a moment when the
 * table to be emptied cannot hold a row of a relay whose creation is not
 * committed.
 */
extern void idem_position_maintain(List *(*get_relays) (void));

/*
 * Has a crash left a table of the log half emptied, which idem_position_maintain
 * finishes?
 */
extern bool idem_position_has_remains(void);

#endif							/* IDEM_RELAY_POSITION_POSITION_H */
