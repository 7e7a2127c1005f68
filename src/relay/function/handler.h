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
	IDEM_HANDLED_DUPLICATE,		/* it was handled before */
	IDEM_HANDLED_BUSY,			/* claimed by another transaction */
	IDEM_HANDLED_FAILED			/* undone; the failure says why */
} IdemHandled;

typedef struct IdemHandler IdemHandler;

/*
 * Create the one handler of the process.  Installs a signal handler for
 * pg_cancel_backend.
 */
extern IdemHandler *idem_handler_create(MemoryContext parent);

/* Look the function up again before the next event. */
extern void idem_handler_forget(IdemHandler *handler);

/*
 * Check that the function exists, can be called as declared, and may be called.
 * To be called in a transaction, before any event is handled, so that no event
 * is refused for such an error.  The error is the relay's:
 * idem_handler_was_checking tells that the error came from this check.
 */
extern void idem_handler_check(IdemHandler *handler, const IdemRelayConfig *config);
extern bool idem_handler_was_checking(IdemHandler *handler);

/*
 * Claim the event, call the function and complete the claim, in a
 * subtransaction.  If the result is BUSY or FAILED, *failure says why; its
 * message lasts until the next call or reset.
 */
extern IdemHandled idem_handler_run(IdemHandler *handler, const IdemRelayConfig *config,
									const IdemEvent *event, IdemFailure *failure);

/*
 * The id of the event whose handler runs; NULL: no handler runs.  Used at the
 * end of the process.
 */
extern const char *idem_handler_event_in_hand(void);

/*
 * Does the error come from circumstances, such as other sessions or a full
 * disk?
 */
extern bool idem_handler_is_circumstance(int sqlerrcode);

/* Free the memory of the last event. */
extern void idem_handler_clear(IdemHandler *handler);

#endif							/* IDEM_RELAY_FUNCTION_HANDLER_H */
