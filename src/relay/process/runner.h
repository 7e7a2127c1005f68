/*-------------------------------------------------------------------------
 *
 * runner.h
 *		One relay of a worker, of whichever kind: its errors end here.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/runner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_RUNNER_H
#define IDEM_RELAY_PROCESS_RUNNER_H

#include "postgres.h"

#include "lib/ilist.h"

#include "relay/config.h"
#include "relay/position/position.h"
#include "relay/program/process.h"
#include "relay/runner_ops.h"
#include "relay/stream/stream.h"
#include "shared/clock.h"

typedef struct IdemRunner
{
	int			relay_id;		/* hash key */
	const IdemRelayConfig *config;	/* as last taken over; the relay owns it */
	const IdemRunnerOps *ops;	/* the kind of relay */
	void	   *relay;
	dlist_node	node;			/* in runners.c: list of relays that have
								 * turns */
	bool		active;			/* the relay is in that list */
	uint32		seen;			/* number of the last look at the
								 * configuration that had this relay */
	bool		outdated;		/* the relay has become another kind, and this
								 * runner must end first */
} IdemRunner;

/*
 * Make a relay, configure it anew, end it.  "ops" is the table of its kind.
 * The configuration is copied into a context of its own.
 */
extern void idem_runner_init(IdemRunner *runner, const IdemRelayConfig *config,
							 const IdemRunnerOps *ops);
extern void idem_runner_configure(IdemRunner *runner, const IdemRelayConfig *config);
extern void idem_runner_clear(IdemRunner *runner);

typedef enum IdemRunnerTurn
{
	IDEM_TURN_DONE,				/* the relay waits for something */
	IDEM_TURN_AGAIN,			/* the relay has more to do at once */
	IDEM_TURN_FAILED			/* an error was raised, and is dealt with */
} IdemRunnerTurn;

/*
 * Give the relay a turn.  An error affects this relay only. error_cxt: a
 * context that outlives the rollback, for the error's message.
 */
extern IdemRunnerTurn idem_runner_turn(IdemRunner *runner, MemoryContext error_cxt);

/*
 * Let the relay rest at its last row of the log of positions.  Let it rise
 * from its rest, with its position at "base".
 */
extern void idem_runner_rest_at(IdemRunner *runner, const IdemPositionRow *row);
extern void idem_runner_rise(IdemRunner *runner, const IdemSnap *base);

/*
 * Can only a new configuration, or rising from its rest, give the relay
 * something to do?
 */
extern bool idem_runner_is_quiet(const IdemRunner *runner);

/* Does another process have the relay? */
extern bool idem_runner_is_elsewhere(const IdemRunner *runner);

/* A transaction committed at that time; 0: the time is not known. */
extern void idem_runner_woken(IdemRunner *runner, TimestampTz stamp);

/* When to give the next turn if nothing happens earlier; 0: no need. */
extern IdemClock idem_runner_next_time(const IdemRunner *runner);

/* Write a row for a position that has moved in memory only. */
extern void idem_runner_persist(IdemRunner *runner);

/* The program whose descriptors the worker waits for; NULL: none. */
extern const IdemSinkProcess *idem_runner_process(const IdemRunner *runner, bool *writable);

/*
 * May this process end and leave the relay to another worker?  *idle: the
 * relay has nothing to do now.
 */
extern bool idem_runner_may_leave(const IdemRunner *runner, bool *idle);

/*
 * The relay as a stream, for runners.c, which shares programs out.  NULL: the
 * relay is no stream.
 */
extern struct IdemStream *idem_runner_stream(const IdemRunner *runner);

#endif							/* IDEM_RELAY_PROCESS_RUNNER_H */
