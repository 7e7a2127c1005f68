/*-------------------------------------------------------------------------
 *
 * courier.h
 *		A relay of a worker: what all kinds share, and what a courier adds.
 *
 * The engine has a relay's configuration, its rest, its breaker and its state
 * in stat_relay, and decides whether the relay may run.  A courier carries the
 * relay's events: by a program (stream/), or by a function in a worker of its
 * own (function/function_relay.c).  The delegate (function/delegate.c) carries
 * nothing: it stands in for a function relay in the worker of the database.  A
 * courier's struct begins with IdemRelay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/courier.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ENGINE_COURIER_H
#define IDEM_RELAY_ENGINE_COURIER_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lib/ilist.h"

#include "relay/config.h"
#include "relay/position/rest.h"
#include "relay/position/walk.h"
#include "relay/report.h"
#include "shared/clock.h"

struct IdemSinkProcess;
struct IdemQueue;

/* A relay's place in a queue; embedded in it, all zero at first. */
typedef struct IdemTicket
{
	dlist_node	node;			/* in the queue; or, of a relay that has a
								 * worker, in the list of those */
	struct IdemQueue *queue;	/* NULL: the relay waits for neither */
	bool		granted;		/* a program's start is granted and not used
								 * yet */
	bool		trying;			/* its present program started as that of a
								 * failing relay */
	bool		is_function;	/* all_node is in the list of function relays */
	dlist_node	all_node;
} IdemTicket;

typedef struct IdemCourier IdemCourier;

typedef struct IdemRelay
{
	const IdemCourier *courier;
	MemoryContext cxt;			/* holds the courier's struct, and config_cxt */
	MemoryContext config_cxt;	/* holds config */
	IdemRelayConfig *config;
	IdemRelayEntry *entry;		/* shown in stat_relay; NULL: shared memory
								 * has no room, or another process has it */

	/* for process/relays.c */
	dlist_node	node;			/* list of relays that have turns */
	bool		active;			/* the relay is in that list */
	uint32		seen;			/* number of the last look at the
								 * configuration that had this relay */
	bool		outdated;		/* the relay is to have another courier, and
								 * this one must end first */

	/* may it run? */
	bool		away;			/* another process has the relay, or is to
								 * start for it */
	bool		barred;			/* the configuration forbade it to run, at the
								 * last look */
	bool		stopped;		/* it waits for an operator, or for another
								 * configuration */

	IdemBreaker breaker;

	IdemWalk	walk;
	IdemTicket	ticket;			/* waits for a program, or for a worker */
	IdemRester	rester;			/* at rest: there is nothing to send */
} IdemRelay;

/* How a new configuration differs from the one before. */
typedef struct IdemRelayChange
{
	bool		acted;			/* somebody acted on this relay */
	bool		same_sink;		/* the sink can go on without a restart */
	bool		moved;			/* the position was moved by an operator, or
								 * the relay was adopted */
} IdemRelayChange;

/*
 * What a courier adds.  Every function but "failed" may raise an error.
 * "May be NULL" says what the engine does where a courier leaves the function
 * out.
 */
struct IdemCourier
{
	size_t		size;			/* of the courier's struct, which is zeroed
								 * before "create" */

	/* Fill in what is the courier's own. */
	void		(*create) (IdemRelay *relay);

	/*
	 * The configuration was read, and may be another.  Parked events and
	 * rights may have changed as well.
	 */
	void		(*configure) (IdemRelay *relay, const IdemRelayChange *change);

	/*
	 * End what the courier has; the engine frees the memory.
	 */
	void		(*destroy) (IdemRelay *relay);

	/*
	 * The relay must not run, and is to be shown in this state: let go of
	 * what it uses.  False if what is in flight is to be settled first: the
	 * relay has its step, and is asked again.  May be NULL: nothing is in
	 * use.
	 */
	bool		(*hold) (IdemRelay *relay, IdemRelayState state);

	/*
	 * Do what can be done without waiting.  The relay may run, and does not
	 * rest.  True: call again at once, there may be more to do.
	 */
	bool		(*step) (IdemRelay *relay);

	/*
	 * The turn raised this error and was rolled back.  Open the breaker.
	 * Outside of a transaction.
	 */
	void		(*failed) (IdemRelay *relay, int sqlerrcode, const char *message);

	/*
	 * The process that had the relay has ended.  May be NULL: the relay is
	 * never away.
	 */
	void		(*take_back) (IdemRelay *relay);

	/*
	 * Does a relay that must not run hold nothing that has to be written or
	 * ended?  May be NULL: yes.
	 */
	bool		(*holds_nothing) (const IdemRelay *relay);

	/*
	 * The relay rests no more; walk.settled is where it stands.  May be NULL:
	 * the next step notices.
	 */
	void		(*rise) (IdemRelay *relay);

	/*
	 * A transaction committed at that time; 0: the time is not known.  May be
	 * NULL: the look at the outbox for all resting relays is enough.
	 */
	void		(*woken) (IdemRelay *relay, TimestampTz stamp);

	/*
	 * When to call "step" if nothing happens earlier; 0: no need.  May be
	 * NULL: at idem_engine_run_time.
	 */
	IdemClock	(*next_time) (IdemRelay *relay);

	/*
	 * Write a row for a position that has moved in memory only.  May be NULL:
	 * the courier has no such position.
	 */
	void		(*persist) (IdemRelay *relay);

	/*
	 * The program whose descriptors the worker waits for, or NULL.  In
	 * *writable: wait for room to write as well, since the program has not
	 * taken all bytes.  May be NULL: the courier has no program.
	 */
	const struct IdemSinkProcess *(*process) (const IdemRelay *relay, bool *writable);

	/*
	 * May this process end and leave the relay to another worker?  *idle: the
	 * relay has nothing to do now.  May be NULL: yes, and the relay is idle.
	 */
	bool		(*may_leave) (const IdemRelay *relay, bool *idle);
};

/* Publish the relay's state, and what it waits for. */
static inline void
idem_engine_show(IdemRelay *relay, IdemRelayState state, IdemRelayWait waiting)
{
	idem_report_state(relay->entry, relay->config->name, state, waiting);
}

#endif							/* IDEM_RELAY_ENGINE_COURIER_H */
