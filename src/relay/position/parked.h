/*-------------------------------------------------------------------------
 *
 * parked.h
 *		Events a relay took out of the log's order: to be retried, or dead.
 *
 * Their rows.  Which of them can be sent is the index's to know (parked_index.h).
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
#include "relay/config.h"
#include "relay/position/parked_index.h"

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
	IdemEvent	event;
} IdemParkedEvent;

/* Why an event was not accepted. */
typedef struct IdemFailure
{
	bool		counts;			/* an attempt is used up */
	int			retry_after_ms; /* not before; 0: as the backoff says */
	bool		backs_off;		/* uses up no attempt, and waits longer each
								 * time in a row */
	char		sqlstate[6];
	const char *message;
	bool		crashed;		/* the attempt took the server down */
	bool		hopeless;		/* no attempt can end otherwise: dead at once */
} IdemFailure;

/* More parked events than this, and the relay takes no new ones. */
extern int	idem_max_parked;

/* Is the row that is being inserted one that idem_parked_add and its kin write? */
extern bool idem_parked_is_parking(void);

/*
 * A worker sends a parked event without asking how durable the row is: the commit
 * that parks one in a session, or makes it due, is to be flushed before a worker can
 * see it, whatever synchronous_commit says.  For standbys the worker's gate waits.
 */
extern void idem_parked_force_flush(void);

/*
 * Can this transaction park events of the relay, and change those parked ones,
 * without a wait for somebody else's transaction?  Then it holds the locks.
 */
extern bool idem_parked_try_lock(const IdemRelayConfig *config, const int64 *ids, int n);

/*
 * Park an event of the log; one that is parked already stays as it is.  *note, if it is
 * not NULL, is for the index; its parked_id is 0 if the event was parked already.
 */
extern void idem_parked_add(const IdemRelayConfig *config, const IdemEvent *event,
							const IdemFailure *failure, IdemParkedNote *note);
extern void idem_parked_add_waiting(const IdemRelayConfig *config, const IdemEvent *event,
									IdemParkedNote *note);

/* The same for a worker, whose index follows. */
extern void idem_parked_refuse(IdemParkedIndex *index, const IdemRelayConfig *config,
							   const IdemEvent *event, const IdemFailure *failure);
extern void idem_parked_wait(IdemParkedIndex *index, const IdemRelayConfig *config,
							 const IdemEvent *event);

/*
 * Take parked events that can be sent now, in order of seq; see
 * idem_parked_index_take.  palloc'd.
 */
extern List *idem_parked_take(IdemParkedIndex *index, IdemParkedTaking *taking);

/* Accepted: forget them. */
extern void idem_parked_done(const IdemRelayConfig *config, const int64 *parked_ids, int n);

/*
 * Refused again: count, and set when it is due.  False if it is not parked any more;
 * else *note, if it is not NULL, is what the index needs, but for seq and xid.
 */
extern bool idem_parked_failed(const IdemRelayConfig *config, int64 parked_id,
							   const IdemFailure *failure, IdemParkedNote *note);

/* The same for a worker that has taken it. */
extern void idem_parked_refuse_again(IdemParkedIndex *index, const IdemRelayConfig *config,
									 int64 seq, FullTransactionId xid, int64 parked_id,
									 const IdemFailure *failure);

/*
 * The transaction ids of a relay's parked events are of another cluster: as if
 * this transaction had enqueued them.
 */
extern void idem_parked_restamp(int relay_id);

/* Not sent for an earlier one of their key: they wait, and their own times do not count. */
extern void idem_parked_skipped(const IdemRelayConfig *config, const int64 *parked_ids, int n);

/*
 * Before repetitions are sent to a sink that stores positions: the row that their
 * batch carries, and the start of the program they are sent to.
 */
extern void idem_parked_mark(const int64 *parked_ids, int n, int64 batch_row, int64 life);

/*
 * What such a sink has stored tells which repetitions arrived.  A row of
 * another life says nothing: only the latest life before it sent repetitions.
 * True if some did; they are not parked any more.
 */
extern bool idem_parked_resolve(const IdemRelayConfig *config, int64 stored_row, int64 life);

#endif							/* IDEM_RELAY_POSITION_PARKED_H */
