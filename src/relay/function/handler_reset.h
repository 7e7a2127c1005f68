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
 * May this process run handlers of the owner?  A process runs handlers of one
 * owner only, since some of what a handler can leave in a process has no reset.
 * False: the owner's handlers need another process.
 */
extern bool idem_handler_may_serve(Oid owner);

/* Make the owner the session_user, with his present name and rights. */
extern void idem_handler_session_begin(Oid owner);

/*
 * ..._take: act as the owner, in a security-restricted operation, until
 * ..._return.  After an error no return is needed: the abort of the
 * (sub)transaction restores the former rights.
 */
extern void idem_handler_rights_take(Oid owner, IdemHandlerRights *saved);
extern void idem_handler_rights_return(const IdemHandlerRights *saved);

/* Make all constraints immediate from here on, and run what was deferred. */
extern void idem_handler_constraints_immediate(void);

/*
 * Run what the handler deferred, and close its cursors.  With the owner's
 * rights, in the event's subtransaction.
 */
extern void idem_handler_event_end(void);

/* Have the batch's handlers used up their part of the shared lock table? */
extern bool idem_handler_batch_is_full(void);

/*
 * An event failed for want of memory: did the event itself take the locks that
 * fill the lock table?  To be called before the event is rolled back.
 */
extern bool idem_handler_event_filled_table(void);

/* A subtransaction of any process aborts: a handler's may have filled the lock table. */
extern void idem_handler_subtransaction_aborted(void);

/*
 * Reset what would outlive the commit.  In the transaction, after its handlers.
 */
extern void idem_handler_batch_end(void);

/* Reset what outlives a transaction.  Outside of a transaction. */
extern void idem_handler_reset(void);

#endif							/* IDEM_RELAY_FUNCTION_HANDLER_RESET_H */
