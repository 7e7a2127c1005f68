/*-------------------------------------------------------------------------
 *
 * parked.h
 *		Events a relay took out of the outbox's order: to be retried, or dead.
 *
 * This file has the rows of relay_parked.  parked_index.h knows which of the
 * events can be sent.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/parked.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_PARKED_H
#define IDEM_RELAY_POSITION_PARKED_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "outbox/reader.h"
#include "relay/blame.h"
#include "relay/config.h"
#include "relay/position/parked_index.h"

/* The greatest seq of a parked event, of any relay; 0: no event is parked. */
extern int64 idem_parked_greatest_seq(void);

/* An event that took the server down so often, or ended its program alone, is dead. */
#define IDEM_MAX_CRASHES 2
#define IDEM_MAX_FALLS 3

/* A parked event, to be sent again; palloc'd. */
typedef struct IdemParkedEvent
{
	int64		parked_id;
	int			attempts;
	int			crashes;		/* attempts that took the server down */
	IdemEvent	event;
} IdemParkedEvent;

/* Why an event was not accepted. */
typedef struct IdemFailure
{
	IdemBlameKind kind;			/* what was said, where a relay has to judge
								 * whether it counts */
	int			lane;			/* of the event's destination (blame.h) */
	int64		verdict;		/* its number, if it is a refusal; 0: it is
								 * none, or not known */
	bool		counts;			/* the failure counts as an attempt */
	int			retry_after_ms; /* try again no sooner than after this time;
								 * 0: as the backoff says */
	bool		backs_off;		/* does not count as an attempt, and waits
								 * longer each time in a row */
	char		sqlstate[6];
	const char *message;
	bool		crashed;		/* the attempt took the server down */
	bool		fell;			/* the attempt, alone, ended the program */
	bool		slow;			/* the attempt took all the time that its
								 * batch had */
	bool		hopeless;		/* every attempt would fail: the event is dead
								 * at once */
} IdemFailure;

/* An event that this process made a dead letter, in that transaction. */
typedef struct IdemDeadLetter
{
	FullTransactionId xid;
	pg_uuid_t	event_id;
	char		sqlstate[6];
} IdemDeadLetter;

/*
 * Take out the dead letters that this process made and whose transactions have committed.
 * Returns how many are in "letters"; *more: how many others there were.
 */
#define IDEM_DEAD_LETTERS_NAMED 20
extern int	idem_parked_take_dead(IdemDeadLetter letters[IDEM_DEAD_LETTERS_NAMED], int *more);

/*
 * So many copies of events wait at most behind others of their keys; more of them wait in the
 * outbox (blocked.h), if they can: not before an event of their key that was tried already.
 * With so many times as many parked events that are not dead a relay reads no more events:
 * the worker's memory has a bound.
 */
extern int	idem_max_parked;
#define IDEM_MOST_PARKED 100

static inline bool
idem_parked_is_full(const IdemParkedIndex *index)
{
	return index->counts[IDEM_PARKED_RETRY] + index->counts[IDEM_PARKED_WAITING] + index->counts[IDEM_PARKED_IN_FLIGHT] >=
		(int64) IDEM_MOST_PARKED * idem_max_parked;
}

/*
 * How many events may be parked unseen, to get past those that the target refuses
 * (idem_blame_unseen).  In an outage these are copies of events that need none: half of those
 * that may wait.
 */
static inline int
idem_parked_unseen_room(const IdemParkedIndex *index)
{
	return (int) Max(idem_max_parked / 2 - index->counts[IDEM_PARKED_WAITING], 0);
}

/*
 * Is the row being inserted one of idem_parked_refuse or idem_parked_wait, and
 * not of a restore?
 */
extern bool idem_parked_is_parking(void);

/*
 * Let the commit of this transaction be flushed, whatever synchronous_commit
 * says.  A worker sends a parked event without asking how durable the row is.
 * So a session's commit that parks an event, or makes it due, has to be flushed
 * before a worker can see it.  For standbys the worker's gate waits.
 */
extern void idem_parked_force_flush(void);

/* Under on_dead = stop: lock the relay's row, before parked events are changed. */
extern void idem_parked_lock_relay(const IdemRelayConfig *config);

/*
 * Before parked events or blocked keys are changed by a transaction that may wait for their
 * rows: whoever forgets the relay locks its row first (idem_relay_forget).  False if the row
 * is locked so, or gone.
 */
extern bool idem_parked_share_relay(const IdemRelayConfig *config);

/*
 * Try to take the locks that this transaction needs to park events of the
 * relay, and to change the parked events "ids", without waiting for anybody's
 * transaction.  True: it has them.
 */
extern bool idem_parked_try_lock(const IdemRelayConfig *config, const int64 *ids, int n);

/*
 * Park an event of the outbox that was refused, or one that waits: for a parked event of its
 * key, or because the target refuses all.  An event that is parked already keeps its row.  The index follows; NULL: there is
 * none.
 */
extern void idem_parked_refuse(IdemParkedIndex *index, const IdemRelayConfig *config,
							   const IdemEvent *event, const IdemFailure *failure);
extern void idem_parked_wait(IdemParkedIndex *index, const IdemRelayConfig *config,
							 const IdemEvent *event);

/*
 * Park an event of the outbox that has been sent and has no answer; in the index it is taken.
 * Returns its parked_id; 0: it is parked already.
 */
extern int64 idem_parked_in_flight(IdemParkedIndex *index, const IdemRelayConfig *config,
								   const IdemEvent *event);

/*
 * Take parked events that can be sent now, in order of seq, and read their
 * rows; palloc'd.  See idem_parked_index_take.
 */
extern List *idem_parked_take(IdemParkedIndex *index, IdemParkedTaking *taking);

/* Delete the rows of events that were accepted. */
extern void idem_parked_done(const IdemRelayConfig *config, const int64 *parked_ids, int n);

/*
 * Record that a parked event, if it is still parked, was refused again: count the attempt,
 * and set when the event is due.  The index, if there is one, has the event as taken.
 */
extern void idem_parked_refuse_again(IdemParkedIndex *index, const IdemRelayConfig *config,
									 int64 seq, FullTransactionId xid, int64 parked_id,
									 const IdemFailure *failure);

/*
 * Give the relay's parked events the xid of this transaction, as if it had
 * enqueued them.  For relay_adopt, when their xids are of another cluster.
 */
extern void idem_parked_restamp(int relay_id);

/*
 * The events were not sent because of an earlier event of their key: their
 * state becomes "waiting", and their own times do not count.
 */
extern void idem_parked_skipped(const IdemRelayConfig *config, const int64 *parked_ids, int n);

/*
 * Before parked events are sent to a sink that stores positions: note the row
 * that their batch carries, and the life of the program that is sent them.
 */
extern void idem_parked_mark(const int64 *parked_ids, int n, int64 batch_row, int64 life);

/*
 * Delete the parked events that such a sink has stored.  Its stored row and
 * life tell which these are: the events of batches of that life up to that row.
 * The row says nothing of events that were last sent in another life.  It has to
 * be of our own history: the sink may have refused the events in another one.
 * True if some were deleted.
 */
extern bool idem_parked_resolve(const IdemRelayConfig *config, int64 stored_row, int64 life);

#endif							/* IDEM_RELAY_POSITION_PARKED_H */
