/*-------------------------------------------------------------------------
 *
 * engine.h
 *		What all relays of a worker share, and what a courier adds.
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
 *		src/relay/engine/engine.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ENGINE_ENGINE_H
#define IDEM_RELAY_ENGINE_ENGINE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lib/ilist.h"

#include "relay/blame.h"
#include "relay/config.h"
#include "relay/engine/pace.h"
#include "relay/position/rest.h"
#include "relay/position/walk.h"
#include "relay/report.h"
#include "shared/clock.h"

struct IdemSinkProcess;
struct IdemQueue;

/* A relay's place in a queue; embedded in it, all zero at first. */
typedef struct IdemTicket
{
	dlist_node	node;			/* in the queue */
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
	IdemBlame	blame;			/* whose fault refusals are */
	IdemPace	pace;			/* of a target that asked to wait */
	bool		held;			/* the target was held at the last look */
	IdemClock	probe_at;		/* when a held target may be sent its next
								 * event */
	IdemClock	log_paid_until; /* for lines about dead letters; see
								 * idem_report_may_log */
	int64		log_dropped;	/* dead letters that the log was not told of */

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
	 * End what the courier has; the engine frees the memory, and the entry,
	 * unless another process has it.  May be NULL: it has nothing.
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

/*
 * The same for a relay that tries to get on: while nothing has disproved its last failure,
 * the state is that failure's.
 */
static inline void
idem_engine_show_trying(IdemRelay *relay, IdemRelayState state, IdemRelayWait waiting)
{
	idem_engine_show(relay, relay->breaker.fault != IDEM_RELAY_STARTING ? relay->breaker.fault : state,
					 waiting);
}

/* Of engine.c: may it run, rest, breaker, errors */

/*
 * Make a relay, configure it anew, end it.  The configuration is copied.
 */
extern IdemRelay *idem_engine_create(const IdemCourier *courier, const IdemRelayConfig *config);
extern void idem_engine_configure(IdemRelay *relay, const IdemRelayConfig *config);
extern void idem_engine_destroy(IdemRelay *relay);

typedef enum IdemRelayTurn
{
	IDEM_TURN_DONE,				/* the relay waits for something */
	IDEM_TURN_AGAIN,			/* the relay has more to do at once */
	IDEM_TURN_FAILED			/* an error was raised, and is dealt with */
} IdemRelayTurn;

/*
 * Give the relay a turn.  An error affects this relay only. error_cxt: a
 * context that outlives the rollback, for the error's message.
 */
extern IdemRelayTurn idem_engine_turn(IdemRelay *relay, MemoryContext error_cxt);

/*
 * May the relay run?  If not, have the courier let go, and show why.  True as
 * well while what is in flight is settled before a pause.
 */
extern bool idem_engine_may_run(IdemRelay *relay);

/*
 * When a relay that may run can be tried; 0: something that wakes us has to
 * come first.
 */
extern IdemClock idem_engine_run_time(const IdemRelay *relay);

/*
 * Can only a new configuration, or rising from its rest, give the relay
 * something to do?
 */
extern bool idem_engine_is_quiet(const IdemRelay *relay);

/* Does another process have the relay? */
extern bool idem_engine_is_elsewhere(const IdemRelay *relay);

/*
 * Let the relay rest at walk.settled; far: see idem_rest_join.  ..._rest_at:
 * at its last row in the log of positions, right after it was made, unless it
 * has something to do.
 */
extern void idem_engine_rest(IdemRelay *relay, bool far);
extern void idem_engine_rest_at(IdemRelay *relay, const IdemPositionRow *row);

/*
 * End the rest of a relay, if it rests.  ..._rise: a relay that the look at the
 * outbox took out of its group stands at this snapshot.
 */
extern void idem_engine_end_rest(IdemRelay *relay);
extern void idem_engine_rise(IdemRelay *relay, const IdemSnap *base);

/*
 * The relay failed: try again after a backoff, which grows with the failures in
 * a row.  quotes: the message may quote an event.  ..._stop: try again when an
 * operator has acted.  "state" is shown.
 */
extern void idem_engine_open_breaker(IdemRelay *relay, IdemRelayState state, const char *message,
									 bool quotes);
extern void idem_engine_stop(IdemRelay *relay, IdemRelayState state, const char *message);

/* The last failure is over: a new start, an event or an operator has disproved it. */
extern void idem_engine_disprove(IdemRelay *relay);

/*
 * There are verdicts.  If the target is held, the next event is sent after a pause, at least
 * wait_ms long; and if it is down, that is the relay's failure.  True if the target was held
 * before, or a lane was down, and is not any more.
 */
extern bool idem_engine_judged(IdemRelay *relay, int wait_ms);

/* Is one event sent at a time, each when probe_at has come? */
static inline bool
idem_engine_is_held(const IdemRelay *relay)
{
	return idem_blame_holds(&relay->blame);
}

/*
 * The relay's work went well.  passed: something got through, so that earlier
 * failures count no more.  batch: one of the stepwise batches went well, too.
 */
extern void idem_engine_progressed(IdemRelay *relay, bool passed, bool batch);

/* Of schedule.c: which relay gets a program, or a worker of its own, next */

/* The GUCs idempotency.max_sink_programs and ..._max_sink_starts. */
extern int	idem_max_sink_programs;
extern int	idem_max_sink_starts;

/*
 * May the relay start its program?  If not, the relay waits in the queue, and
 * asks again in each of its turns. failing: its last program came to nothing.
 * looking: the relay may have nothing to send, and starts its program to look
 * whether all is well.
 */
extern bool idem_schedule_ask_program(IdemTicket *ticket, bool failing, bool looking);

/*
 * Let a function relay wait for a worker of its own.  first: before all others,
 * since its slot was freed before a process had it.
 */
extern void idem_schedule_ask_worker(IdemRelay *relay, bool first);

/*
 * The relay does not want to start a program or a worker any more, or its
 * program is ready or has ended.
 */
extern void idem_schedule_withdraw(IdemTicket *ticket);

/*
 * A function relay came to this worker.  ..._worker_given: a slot names the
 * relay, so its own worker has it from now on, and it is away.
 * ..._worker_ended: the slot is free again.  ..._remove: a relay ends.
 */
extern void idem_schedule_add_function(IdemRelay *relay);
extern void idem_schedule_worker_given(IdemRelay *relay);
extern void idem_schedule_worker_ended(IdemRelay *relay);
extern void idem_schedule_remove(IdemRelay *relay);

/* Grant the starts of programs that may be granted now.  True if a relay got one. */
extern bool idem_schedule_programs(void);

/*
 * A relay to a program came to this worker (1), or went (-1).  ..._shares_places: do they take turns, since there
 * are more of them than programs that may run at a time, or more databases than slots?
 */
extern void idem_schedule_count_programs(int change);
extern bool idem_schedule_shares_places(void);

/* How many programs of others must end for the relays that wait. */
extern int	idem_schedule_lacking_room(void);

/* Does a relay wait to start its program?  ..._close: no program is started any more. */
extern bool idem_schedule_program_awaited(void);
extern void idem_schedule_close(void);

/*
 * Give workers to the function relays that wait, in their order, and ask other
 * relays to give way.
 */
extern void idem_schedule_workers(void);

/* When to call these again; 0: no need. */
extern IdemClock idem_schedule_next_time(void);

#endif							/* IDEM_RELAY_ENGINE_ENGINE_H */
