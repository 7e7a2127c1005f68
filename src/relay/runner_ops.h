/*-------------------------------------------------------------------------
 *
 * runner_ops.h
 *		The functions by which a worker runs a relay: one table per kind of
 *		relay.
 *
 * There are three kinds: a stream to a sink program (stream/), a relay to a SQL
 * function in a worker of its own (function/function_relay.c), and the delegate
 * that stands in for a function relay in the worker of the database
 * (function/pool.c).  Each kind defines one table. process/runner.c is the only
 * caller.
 *
 * Every function but "failed" may raise an error. runner.c catches the errors
 * of "step", rolls back and calls "failed", which must not raise an error:
 * "failed" runs outside of a transaction.
 *
 * Types of higher folders are named by their tags, since this file must not
 * include headers of those folders.
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

/*
 * "May be NULL" says what runner.c does where a kind leaves the function out.
 */
typedef struct IdemRunnerOps
{
	/*
	 * Make a relay.  From here on the relay owns config_cxt, which contains
	 * the configuration.
	 */
	void	   *(*create) (MemoryContext parent, IdemRelayConfig *config,
						   MemoryContext config_cxt);

	/*
	 * Take a new configuration over. acted: somebody acted on this relay,
	 * which ends a backoff.
	 */
	void		(*configure) (void *relay, IdemRelayConfig *config,
							  MemoryContext config_cxt, bool acted);

	/*
	 * The configuration is unchanged; parked events and rights may have
	 * changed.  May be NULL: runner.c calls "configure" with a copy of the
	 * configuration.
	 */
	void		(*look_again) (void *relay);

	/* End the relay and free its memory. */
	void		(*destroy) (void *relay);

	/*
	 * Called right after "create", with the relay's last row in the log of
	 * positions: let the relay rest at that position, unless it has something
	 * to do.  May be NULL: the kind never rests.
	 */
	void		(*rest_at) (void *relay, const struct IdemPositionRow *row);

	/*
	 * A difference of the outbox that begins at "base" has an event for the
	 * resting relay.  May be NULL: the next step notices that the relay rests
	 * no more.
	 */
	void		(*rise) (void *relay, const struct IdemSnap *base);

	/*
	 * Do what can be done without waiting.  True: call again at once, there
	 * may be more to do.
	 */
	bool		(*step) (void *relay);

	/* The step raised this error and was rolled back. */
	void		(*failed) (void *relay, int sqlerrcode, const char *message);

	/*
	 * True if only a new configuration, or rising from its rest, can give the
	 * relay something to do.  May be NULL: never true.
	 */
	bool		(*is_quiet) (const void *relay);

	/*
	 * Does another process have the relay?  Then a relay of another kind must
	 * not replace it in this worker yet.  May be NULL: no.
	 */
	bool		(*is_elsewhere) (const void *relay);

	/*
	 * A transaction committed at that time; 0: the time is not known.  May be
	 * NULL: the look at the outbox for all resting relays is enough.
	 */
	void		(*woken) (void *relay, TimestampTz stamp);

	/* When to call "step" if nothing happens earlier; 0: no need. */
	IdemClock	(*next_time) (void *relay);

	/*
	 * Write a row for a position that has moved in memory only.  May be NULL:
	 * the kind has no such position.
	 */
	void		(*persist) (void *relay);

	/*
	 * The program whose descriptors the worker waits for, or NULL.  In
	 * *writable: wait for room to write as well, since the program has not
	 * taken all bytes.  May be NULL: the kind has no program.
	 */
	const struct IdemSinkProcess *(*process) (const void *relay, bool *writable);

	/*
	 * May this process end and leave the relay to another worker?  *idle: the
	 * relay has nothing to do now.  May be NULL: yes, and the relay is idle.
	 */
	bool		(*may_leave) (const void *relay, bool *idle);
} IdemRunnerOps;

#endif							/* IDEM_RELAY_RUNNER_OPS_H */
