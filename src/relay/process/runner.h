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
	const IdemRelayConfig *config;	/* as taken over last; the relay's */
	const IdemRunnerOps *ops;	/* the kind of relay */
	void	   *relay;
	dlist_node	node;			/* runners.c: of those that have turns */
	bool		active;			/* it is among them */
	uint32		seen;			/* the look at the configuration that had it */
	bool		outdated;		/* its configuration is of another kind */
} IdemRunner;

/*
 * Make the relay, of the kind that the table is of.  The configuration is copied,
 * here and below, into a context of its own.
 */
extern void idem_runner_init(IdemRunner *runner, const IdemRelayConfig *config,
							 const IdemRunnerOps *ops);
extern void idem_runner_configure(IdemRunner *runner, const IdemRelayConfig *config);
extern void idem_runner_clear(IdemRunner *runner);

typedef enum IdemRunnerTurn
{
	IDEM_TURN_DONE,				/* waits for something */
	IDEM_TURN_AGAIN,			/* has more to do at once */
	IDEM_TURN_FAILED			/* by an error, which is dealt with */
} IdemRunnerTurn;

/* Do what can be done now.  An error is this relay's alone. */
extern IdemRunnerTurn idem_runner_turn(IdemRunner *runner, MemoryContext error_cxt);

/* It rests at the row of the log, or rises from its rest to stand at base. */
extern void idem_runner_rest_at(IdemRunner *runner, const IdemPositionRow *row);
extern void idem_runner_rise(IdemRunner *runner, const IdemSnap *base);

/* Only a new configuration, or rising from its rest, gives it something to do. */
extern bool idem_runner_is_quiet(const IdemRunner *runner);

/* Another process has the relay. */
extern bool idem_runner_is_elsewhere(const IdemRunner *runner);

/* Something committed at that time; 0: not known when. */
extern void idem_runner_woken(IdemRunner *runner, TimestampTz stamp);

/* When to call it next if nothing happens before; 0: no need. */
extern IdemClock idem_runner_next_time(const IdemRunner *runner);

/* Write the position down if it moved without that. */
extern void idem_runner_persist(IdemRunner *runner);

/* Its program, to wait for; NULL: none. */
extern const IdemSinkProcess *idem_runner_process(const IdemRunner *runner, bool *writable);

/* May the worker leave the relay to the next one?  *idle: it has nothing to do. */
extern bool idem_runner_may_leave(const IdemRunner *runner, bool *idle);

/* The relay as a stream, for those who share programs out; NULL: it is none. */
extern IdemStream *idem_runner_stream(const IdemRunner *runner);

#endif							/* IDEM_RELAY_PROCESS_RUNNER_H */
