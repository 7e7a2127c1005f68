/*-------------------------------------------------------------------------
 *
 * handler_reset.h
 *		The session that a handler finds, and what becomes of what it leaves.
 *
 * Around the handlers of a batch:
 *
 *		idem_handler_may_serve		before the transaction; false: end the process
 *		idem_handler_session_begin	in the transaction, before any handler
 *		idem_handler_rights_take	before code of the owner runs, and
 *		idem_handler_rights_return	after it; an abort returns them as well
 *		idem_handler_event_end		after each handler, in its subtransaction
 *		idem_handler_event_filled_table	in the catch of its error
 *		idem_handler_batch_is_full	after each event: commit now?
 *		idem_handler_batch_end		in the transaction, after the last handler
 *		idem_handler_reset			after the commit, or the abort
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/handler_reset.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_HANDLER_RESET_H
#define IDEM_RELAY_FUNCTION_HANDLER_RESET_H

#include "postgres.h"

/* The worker's own rights, while the owner's are taken. */
typedef struct IdemHandlerRights
{
	Oid			userid;
	int			sec_context;
} IdemHandlerRights;

/*
 * A process runs handlers of one owner in its life: some of what a handler can
 * leave in a process has no reset, and that has to stay within bounds.  False: the
 * handlers of this owner need another process.
 */
extern bool idem_handler_may_serve(Oid owner);

/* From here on session_user is the owner, with his name and rights of now. */
extern void idem_handler_session_begin(Oid owner);

/*
 * Act as the owner, in a security-restricted operation.  An error needs no
 * return: the abort of the (sub)transaction restores what was there before.
 */
extern void idem_handler_rights_take(Oid owner, IdemHandlerRights *saved);
extern void idem_handler_rights_return(const IdemHandlerRights *saved);

/* All constraints are immediate from here on; runs what was deferred. */
extern void idem_handler_constraints_immediate(void);

/*
 * With the owner's rights, in the event's subtransaction: run what the handler
 * deferred, and close its cursors.
 */
extern void idem_handler_event_end(void);

/* Have the batch's handlers used up their part of the shared lock table? */
extern bool idem_handler_batch_is_full(void);

/*
 * For an event that failed for want of memory, before it is rolled back: did it
 * take the locks itself that leave no room for more?
 */
extern bool idem_handler_event_filled_table(void);

/* In the transaction, after its handlers: take back what would outlive the commit. */
extern void idem_handler_batch_end(void);

/* Outside of a transaction: take back what outlives one. */
extern void idem_handler_reset(void);

#endif							/* IDEM_RELAY_FUNCTION_HANDLER_RESET_H */
