/*-------------------------------------------------------------------------
 *
 * engine.h
 *		A relay of a worker, of whichever kind: may it run, rest, breaker, errors.
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

#include "relay/engine/courier.h"

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
 * a row.  ..._stop: try again when an operator has acted.  "state" is shown.
 */
extern void idem_engine_open_breaker(IdemRelay *relay, IdemRelayState state, const char *message);
extern void idem_engine_stop(IdemRelay *relay, IdemRelayState state, const char *message);

/*
 * The relay's work went well.  passed: something got through, so that earlier
 * failures count no more.  batch: one of the stepwise batches went well, too.
 */
extern void idem_engine_progressed(IdemRelay *relay, bool passed, bool batch);

#endif							/* IDEM_RELAY_ENGINE_ENGINE_H */
