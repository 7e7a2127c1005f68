/*-------------------------------------------------------------------------
 *
 * handler.h
 *		The SQL function of a function relay, called for one event.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/handler.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_HANDLER_H
#define IDEM_RELAY_FUNCTION_HANDLER_H

#include "postgres.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position/parked.h"

/* What became of an event. */
typedef enum IdemHandled
{
	IDEM_HANDLED,
	IDEM_HANDLED_DUPLICATE,		/* it had been, before */
	IDEM_HANDLED_BUSY,			/* claimed by another transaction */
	IDEM_HANDLED_FAILED			/* undone; see the failure */
} IdemHandled;

typedef struct IdemHandler IdemHandler;

/* One per process.  Takes the signal of pg_cancel_backend over. */
extern IdemHandler *idem_handler_create(MemoryContext parent);

/* Look the function up again before the next event. */
extern void idem_handler_forget(IdemHandler *handler);

/*
 * In a transaction, before any event is handled, so that none is refused
 * because the function is missing, cannot be called as declared, or may not be
 * called: such an error is the relay's, and idem_handler_was_checking says so.
 */
extern void idem_handler_check(IdemHandler *handler, const IdemRelayConfig *config);
extern bool idem_handler_was_checking(IdemHandler *handler);

/*
 * Claim, call and complete, in a subtransaction.  If the result is BUSY or
 * FAILED, *failure says why; its message lasts until the next call or reset.
 */
extern IdemHandled idem_handler_run(IdemHandler *handler, const IdemRelayConfig *config,
									const IdemEvent *event, IdemFailure *failure);

/* The id of the event whose handler runs; NULL: none.  For the process's end. */
extern const char *idem_handler_event_in_hand(void);

/* Does the error come from what else goes on: other sessions, a full disk? */
extern bool idem_handler_is_circumstance(int sqlerrcode);

/* Free what the last event left. */
extern void idem_handler_clear(IdemHandler *handler);

#endif							/* IDEM_RELAY_FUNCTION_HANDLER_H */
