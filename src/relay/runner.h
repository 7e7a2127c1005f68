/*-------------------------------------------------------------------------
 *
 * runner.h
 *		One relay of a worker: a stream to a program, or a function.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/runner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_RUNNER_H
#define IDEM_RELAY_RUNNER_H

#include "postgres.h"

#include "relay/config.h"
#include "relay/stream.h"
#include "shared/clock.h"

typedef struct IdemRunner IdemRunner;

/*
 * For a program or a function.  The configuration is copied, here and below,
 * into a context of its own.
 */
extern IdemRunner *idem_runner_create(const IdemRelayConfig *config, bool function);
extern void idem_runner_configure(IdemRunner *runner, const IdemRelayConfig *config);
extern void idem_runner_destroy(IdemRunner *runner);

extern int	idem_runner_relay_id(const IdemRunner *runner);

typedef enum IdemRunnerTurn
{
	IDEM_TURN_DONE,				/* waits for something */
	IDEM_TURN_AGAIN,			/* has more to do at once */
	IDEM_TURN_FAILED			/* by an error, which is dealt with */
} IdemRunnerTurn;

/* Do what can be done now.  An error is this relay's alone. */
extern IdemRunnerTurn idem_runner_turn(IdemRunner *runner, MemoryContext error_cxt);

/* Something committed at that time; 0: not known when. */
extern void idem_runner_woken(IdemRunner *runner, TimestampTz stamp);

/* When to call it next if nothing happens before; 0: no need. */
extern IdemClock idem_runner_next_time(const IdemRunner *runner);

/* Write the position down if it moved without that. */
extern void idem_runner_persist(IdemRunner *runner);

/* Its program, to wait for; NULL: none. */
extern const IdemSinkProcess *idem_runner_process(const IdemRunner *runner, bool *writable);

#endif							/* IDEM_RELAY_RUNNER_H */
