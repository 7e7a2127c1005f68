/*-------------------------------------------------------------------------
 *
 * runner_ops.h
 *		What a worker asks of a relay, whichever kind of relay it is.
 *
 * There are three kinds: a stream to a sink program (stream/), a relay to a SQL
 * function in a worker of its own (function/function_relay.c), and the delegate
 * that stands in for that relay in the worker of the database (function/pool.c).
 * Each kind defines one table; process/runner.c is the only caller.
 *
 * Every function may raise an error.  runner.c catches the errors of "step" and
 * tells the relay by "failed", which must not raise any: it runs after the
 * rollback, outside of a transaction.
 *
 * Types of the folders above are named by their tags: nothing is included from
 * there.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/runner_ops.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_RUNNER_OPS_H
#define IDEM_RELAY_RUNNER_OPS_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "relay/config.h"
#include "shared/clock.h"

struct IdemPositionRow;
struct IdemSinkProcess;
struct IdemSnap;

/* "May be NULL": a kind for which the default that is named there is right. */
typedef struct IdemRunnerOps
{
	/* The relay owns config_cxt, which has the configuration, from here on. */
	void	   *(*create) (MemoryContext parent, IdemRelayConfig *config,
						   MemoryContext config_cxt);

	/*
	 * Take a new configuration over.  acted: somebody acted on this relay, so
	 * a backoff is over.
	 */
	void		(*configure) (void *relay, IdemRelayConfig *config,
							  MemoryContext config_cxt, bool acted);

	/*
	 * The configuration is what it was; parked events and rights may have
	 * changed.  May be NULL: the kind is configured with a copy.
	 */
	void		(*look_again) (void *relay);

	void		(*destroy) (void *relay);

	/*
	 * A relay that was just created stands at the last row of the log: let it
	 * rest, if nothing asks for more.  May be NULL: it never rests.
	 */
	void		(*rest_at) (void *relay, const struct IdemPositionRow *row);

	/*
	 * A difference of the log, which begins at "base", has an event for the
	 * resting relay.  May be NULL: the next step sees that it rests no more.
	 */
	void		(*rise) (void *relay, const struct IdemSnap *base);

	/* Do what can be done without waiting.  True: there may be more at once. */
	bool		(*step) (void *relay);

	/* The step raised this error, and was rolled back. */
	void		(*failed) (void *relay, int sqlerrcode, const char *message);

	/*
	 * Does nothing but a new configuration, or rising, give the relay
	 * something to do?  May be NULL: never.
	 */
	bool		(*is_quiet) (const void *relay);

	/*
	 * Does another process have the relay?  Then a relay of another kind must
	 * not take its place here yet.  May be NULL: never.
	 */
	bool		(*is_elsewhere) (const void *relay);

	/*
	 * Something committed at that time; 0: not known when.  May be NULL: the
	 * look at the log for all that rest is enough.
	 */
	void		(*woken) (void *relay, TimestampTz stamp);

	/* When to call "step" if nothing happens before; 0: no need. */
	IdemClock	(*next_time) (void *relay);

	/* Write a position that moved in memory.  May be NULL: there is none. */
	void		(*persist) (void *relay);

	/*
	 * The program to wait for, or NULL; *writable: it has not taken all
	 * bytes. May be NULL: the kind has no program.
	 */
	const struct IdemSinkProcess *(*process) (const void *relay, bool *writable);

	/*
	 * May the worker leave the relay to the next one?  *idle: the relay has
	 * nothing to do now.  May be NULL: it may, and is idle.
	 */
	bool		(*may_leave) (const void *relay, bool *idle);
} IdemRunnerOps;

#endif							/* IDEM_RELAY_RUNNER_OPS_H */
