/*-------------------------------------------------------------------------
 *
 * parked_index.h
 *		A worker's index, in memory, of a relay's parked events.
 *
 * States of a parked event:
 *
 *		retry    refused or unanswered; due again at a time
 *		waiting  not refused itself, but behind a parked event of its key, or
 *				passed over while the target refuses all (blame.h)
 *		dead     attempts used up; only an operator moves it
 *		in_flight  sent, and late (stream/late.c): its program has it, or had
 *				it when it ended; then the event is sent again
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

#include "access/htup.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "utils/hsearch.h"

#include "compat.h"
#include "outbox/reader.h"
#include "relay/config.h"
#include "shared/clock.h"

typedef enum IdemParkedState
{
	IDEM_PARKED_RETRY,
	IDEM_PARKED_WAITING,
	IDEM_PARKED_DEAD,
	IDEM_PARKED_IN_FLIGHT
} IdemParkedState;

#define IDEM_PARKED_STATES (IDEM_PARKED_IN_FLIGHT + 1)

/* Their names in the table. */
extern const char *const idem_parked_states[IDEM_PARKED_STATES];

/* A text column of a row, counted from 1, as part of an event, in the current context. */
extern IdemEventText idem_parked_text(HeapTuple tup, TupleDesc desc, int column);

/* A row of relay_parked, as far as the index knows it. */
typedef struct IdemParkedNote
{
	int64		seq;
	int64		parked_id;
	FullTransactionId xid;
	IdemParkedState state;
	TimestampTz due;			/* for RETRY: when to try again, by the wall
								 * clock */
	TimestampTz failed_at;		/* for RETRY: the time from which "due" was
								 * computed */
	bool		refused;		/* the target has said no to it, or not now:
								 * "failed_at" alone may be of an event that
								 * nobody answered */
	bool		lone;			/* an attempt took the program or the server
								 * down, or the time of others: try the event
								 * alone */
	bool		asked;			/* the target asked to wait until "due" */
	bool		deferred;		/* its last refusal did not count */
	int			lane;			/* of its destination (blame.h); 0: none, or
								 * not known since the index was loaded */
	int64		verdict;		/* number of its last refusal (blame.h); 0:
								 * none, or not known since then */
} IdemParkedNote;

/*
 * A key whose later events wait in the outbox: a row of relay_blocked (blocked.h).  Its
 * events are those that "from" has not passed.
 */
typedef struct IdemDifference IdemDifference;

typedef struct IdemBlockedKey
{
	uint64		hash;			/* hash of the key */
	int64		blocked_id;
	IdemDifference *difference; /* the snapshots of "from" */
	int64		seq;			/* the number of "from" */
	bool		is_free;		/* no parked event blocks the key */
	dlist_node	node;			/* in the list of free keys */
	bool		joins;			/* the refill at hand is for the key, too */
	int			window;			/* length of the key's next run */
	int			copied;			/* so many have been parked in it */
} IdemBlockedKey;

typedef struct IdemParkedIndex
{
	MemoryContext cxt;
	HTAB	   *entries;		/* parked events, by seq; without dead ones
								 * that block nothing and are not read again */
	HTAB	   *keys;			/* queues of the events that are to be sent,
								 * or that block, by key */
	HTAB	   *blocked;		/* keys with events that wait in the outbox,
								 * IdemBlockedKey by hash */
	dlist_head	free_keys;		/* those of them that nothing blocks now */
	IdemDifference *newest;		/* see idem_blocked_stand; may be NULL */
	bool		refill_waits;	/* nothing to do for them before the outbox
								 * has been read on */
	IdemReader *reader;			/* reads their events; NULL: not needed yet */
	int64		total;
	int64		counts[IDEM_PARKED_STATES]; /* by state */
	int64		dead_loaded;	/* dead ones when the table was read */
	bool		by_key;			/* ordering = key */
	bool		dead_blocks;	/* a dead event blocks later events of its key */
	dlist_head	ready;			/* keys whose first event can be sent */
	dlist_head	held;			/* keys whose first event the outbox has not
								 * passed */
	pairingheap *due;			/* keys whose first event is not due yet */
	int			careful;		/* how many events of each key may have been
								 * in flight when the server went down; set
								 * before a load */
	int			suspects;		/* such events that are still to be tried */
	bool		stale;			/* the table has a row that the index lacks:
								 * load the index */
	int			more;			/* keys with events in flight and more behind */
	TimestampTz looked_at;		/* when the heap was last looked at, by the
								 * wall clock */
} IdemParkedIndex;

/* A selection of parked events: first what is wanted, then what was found. */
typedef struct IdemParkedTaking
{
	int			limit;			/* most events to take */
	int64		max_bytes;		/* most bytes of payloads and headers; the
								 * last event may exceed them */
	bool		lone;			/* an event that is tried alone may be taken,
								 * and nothing with it */
	bool		(*may) (const IdemParkedNote *note, void *arg); /* NULL: all may */
	void	   *arg;

	bool		alone;			/* the only event taken is to be tried alone */
	bool		lone_left;		/* nothing was taken: an event that is tried
								 * alone came first, and was not wanted */
} IdemParkedTaking;

extern IdemParkedIndex *idem_parked_index_create(MemoryContext parent);

/*
 * Forget all events and keys, and take over the settings of the relay.  ..._add: add a
 * parked event, whose key has that hash.  For parked_load.c.
 */
extern void idem_parked_index_clear(IdemParkedIndex *index, const IdemRelayConfig *config);
extern void idem_parked_index_add(IdemParkedIndex *index, const IdemParkedNote *note, uint64 hash);

/*
 * Of the keys whose first event can be sent those come first whose event was never refused, and then
 * those that were refused longest ago; from_any: from any of the first on, since they may all be bad.
 */
extern void idem_parked_index_order(IdemParkedIndex *index, bool from_any);

/*
 * Read the tables again, in a transaction.  Afterwards no event counts as taken.  passed:
 * no event that this snapshot sees is read from the outbox again; NULL: all may be.
 */
extern void idem_parked_index_load(IdemParkedIndex *index, const IdemRelayConfig *config,
								   const IdemSnap *passed);

/*
 * Keys are compared by a 64-bit hash; if two keys collide, one waits for the
 * other.  Type and id are hashed one by one, so that it counts where the type
 * ends.
 */
static inline uint64
idem_parked_key_hash(IdemEventText type, IdemEventText id)
{
	return hash_combine64(hash_bytes_extended((const unsigned char *) type.data, type.len, 0),
						  hash_bytes_extended((const unsigned char *) id.data, id.len, 1));
}

/* The event's key, as verdicts name it (blame.h). */
static inline uint64
idem_parked_key(const IdemRelayConfig *config, const IdemEvent *event)
{
	return config->ordering == IDEM_ORDERING_KEY ? idem_parked_key_hash(event->aggregate_type, event->aggregate_id) :
		(uint64) event->seq;
}

/* A key whose events wait in the outbox; NULL: it is none. */
static inline IdemBlockedKey *
idem_parked_blocked_key(const IdemParkedIndex *index, uint64 hash)
{
	return index->blocked == NULL || hash_get_num_entries(index->blocked) == 0 ? NULL :
		hash_search(index->blocked, &hash, HASH_FIND, NULL);
}

/*
 * ..._was_refused: has the parked event
 * been refused before, and what was that refusal's number?  ..._keys: add the keys whose events can be sent, now or later, to
 * the n keys that are there; returns their number, at most "most".
 */
extern bool idem_parked_was_refused(const IdemParkedIndex *index, int64 seq, int64 *verdict);
extern int	idem_parked_keys(const IdemParkedIndex *index, uint64 *keys, int n, int most);

extern bool idem_parked_has_seq(const IdemParkedIndex *index, int64 seq);

/*
 * Does the event have to wait behind another event of its key, parked or left in the
 * outbox?  ..._queued: how many parked events of the key are to be sent, or block?
 */
extern bool idem_parked_blocks(const IdemParkedIndex *index, const IdemEvent *event);
extern int	idem_parked_queued(const IdemParkedIndex *index, uint64 hash);

/*
 * The parked events of the key that are after the position, *n of them; palloc'd.  NULL: one
 * of them was tried already.
 */
extern IdemParkedNote *idem_parked_after(const IdemParkedIndex *index, uint64 hash,
										 const IdemPosition *from, int *n);

/*
 * The row of an event was inserted (..._put) or updated (..._failed).  A taken
 * event that failed ends its key's run; what is left of the run has to be given
 * back.
 */
extern void idem_parked_index_put(IdemParkedIndex *index, const IdemEvent *event,
								  const IdemParkedNote *note);
extern void idem_parked_index_failed(IdemParkedIndex *index, const IdemParkedNote *note);

/*
 * The event is not parked any more.  Does nothing if the index lacks the event.
 */
extern void idem_parked_index_drop(IdemParkedIndex *index, int64 seq);

/*
 * Take events that can be sent now, at most taking->limit, in order of seq; of
 * each key, from its first event on.  The caller drops, fails or gives back
 * each of them.
 */
extern IdemParkedNote *idem_parked_index_take(IdemParkedIndex *index, IdemParkedTaking *taking,
											  int *n);

/*
 * Mark as taken an event that has been in flight since before the index was
 * loaded.
 */
extern void idem_parked_index_retake(IdemParkedIndex *index, int64 seq);

/*
 * Give back a taken event that was not tried.  waits: it waits for a refused
 * event of its key.
 */
extern void idem_parked_index_give_back(IdemParkedIndex *index, int64 seq, bool waits);

/* Was an event of the same key refused since the key's events were taken? */
extern bool idem_parked_index_key_failed(IdemParkedIndex *index, int64 seq);
extern IdemParkedState idem_parked_index_state(IdemParkedIndex *index, int64 seq);

/* Are there keys that nothing blocks, and whose events have to be read from the outbox now? */
static inline bool
idem_parked_wants_refill(const IdemParkedIndex *index)
{
	return !index->refill_waits && !dlist_is_empty(&unconstify(IdemParkedIndex *, index)->free_keys);
}

/*
 * ..._is_due: can an event be taken now, or after a refill?  ..._wants_turn: now, or once
 * the events in flight are settled?
 */
extern bool idem_parked_index_is_due(IdemParkedIndex *index);

static inline bool
idem_parked_index_wants_turn(IdemParkedIndex *index)
{
	return index->more > 0 || idem_parked_index_is_due(index);
}

/* When an event can be taken: 1 if now, 0 if time alone does not make it so. */
extern IdemClock idem_parked_index_next(IdemParkedIndex *index);

/*
 * Let an event be due before its time, and be taken next: the first one of a key other than
 * "avoid" (NULL: of any), and of another lane than "avoid_lane" (0: of any), the one that was
 * refused longest ago; of those that never were, any by chance: the first ones may all be bad.
 * False if there is none.
 */
extern bool idem_parked_index_hurry(IdemParkedIndex *index, const uint64 *avoid, int avoid_lane);

/*
 * Let all events be due whose last refusal did not count, but for those that were asked to
 * wait; what was never refused comes first.
 */
extern void idem_parked_index_hurry_all(IdemParkedIndex *index);

/*
 * The outbox has been read on: ask "may" again about the events that it had not
 * passed.
 */
extern void idem_parked_index_log_moved(IdemParkedIndex *index);

/*
 * Error XX001: a row of the table is none that a relay or relay_replay has parked.  The
 * relay waits, so that no event is lost in silence.
 */
pg_noreturn extern void idem_parked_report(int64 parked_id);

/*
 * Of parked_load.c.  If the key is blocked: no parked event keeps it back any more, and what
 * it has in the outbox can come, in runs of "window".  ..._free_if_alone: if that is so.
 * ..._set_kept: it has its first parked event; returns the length of the key's next run.
 */
extern void idem_blocked_set_free(IdemParkedIndex *index, uint64 hash, int window);
extern void idem_blocked_free_if_alone(IdemParkedIndex *index, uint64 hash);
extern int	idem_blocked_set_kept(IdemParkedIndex *index, uint64 hash);

#endif							/* IDEM_RELAY_POSITION_PARKED_INDEX_H */
