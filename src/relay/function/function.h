/*-------------------------------------------------------------------------
 *
 * function.h
 *		Relays to SQL functions of their own database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/function.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_FUNCTION_H
#define IDEM_RELAY_FUNCTION_FUNCTION_H

#include "postgres.h"

#include "utils/uuid.h"

#include "relay/engine/engine.h"
#include "relay/position/blocked.h"
#include "relay/position/parked.h"

/* The couriers */

/* In a worker of its own: a relay to a function. */
extern const IdemCourier idem_function_courier;

/*
 * A delegate: stands in for a function relay in the worker of the database, as
 * long as the relay has no process of its own.
 */
extern const IdemCourier idem_delegate_courier;

/* Of attempt.c: which event was being handled when the server went down */

/* What a worker knows of attempts.  Zeroed memory has not been loaded. */
typedef struct IdemAttempts
{
	bool		loaded;

	/*
	 * Events still to be tried one by one, each attempt on record before it
	 * is made:
	 */
	int			log_left;		/* events of the outbox, so many */
	bool		repeats;		/* parked events, until none is due */

	bool		recorded;		/* the record names an event */
	bool		announced;		/* this process has put its own attempt on
								 * record */
	pg_uuid_t	event;			/* event of that attempt */

	bool		killed;			/* the last attempt took the server down */
	pg_uuid_t	killer;			/* event in progress at the crash */
	bool		met;			/* its failure is recorded in this transaction */
	bool		closing;		/* this transaction clears the record */
	bool		passed;			/* this process or one before it has tried all
								 * events that a crash left; see
								 * IdemFunctionKept */
} IdemAttempts;

/*
 * Unless that was done, read the record of the last attempt, and find out
 * whether a crash left events to be tried one by one.  In a transaction.
 */
extern void idem_attempts_load(IdemAttempts *a, const IdemRelayConfig *config);

/* Are events tried one by one now, with each attempt on record? */
extern bool idem_attempts_careful(const IdemAttempts *a);

/*
 * Did the last attempt of the event take the server down?  Then that attempt
 * has failed, and *failure says so.
 */
extern bool idem_attempts_killed(IdemAttempts *a, const IdemRelayConfig *config,
								 const pg_uuid_t *event_id, IdemFailure *failure);

/*
 * Must the attempt be put on record before it is made?  ..._announce puts it on
 * record.  When that transaction has committed, durably, set "recorded" and
 * "announced", and try the event in the next transaction.
 */
extern bool idem_attempts_unannounced(const IdemAttempts *a, const pg_uuid_t *event_id);
extern void idem_attempts_announce(IdemAttempts *a, const IdemRelayConfig *config,
								   const pg_uuid_t *event_id);

/*
 * ..._conclude clears the record, as the last act of the transaction of the
 * outcome.  Then ..._concluded says that this transaction has committed.  After
 * a rollback "met" and "closing" are false.  Nothing happens in a transaction
 * without an attempt on record.
 */
extern void idem_attempts_conclude(IdemAttempts *a, const IdemRelayConfig *config);
extern void idem_attempts_concluded(IdemAttempts *a);

/*
 * Events that, each alone, made a commit fail, until that is on record.  There are several: parked
 * events and the outbox take turns, and with one place two would take it from each other for ever.
 */
#define IDEM_SUSPECTS 16

typedef struct IdemNotedSuspect
{
	IdemSuspect s;
	char		message[IDEM_ERROR_LEN];
} IdemNotedSuspect;

typedef struct IdemSuspects
{
	int			newest;
	IdemNotedSuspect list[IDEM_SUSPECTS];
} IdemSuspects;

/* Did the event, alone in its transaction, make a commit fail?  NULL: not that it is known. */
extern IdemNotedSuspect *idem_suspects_find(IdemSuspects *suspects, const pg_uuid_t *event_id);
extern void idem_suspects_note(IdemSuspects *suspects, const pg_uuid_t *event_id, int sqlerrcode, const char *message);

/* Of handler.c: the function, called for one event */

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

/*
 * The same check in a session that handles no events, with errors of the same kinds:
 * can the owner call the function with events?
 */
extern void idem_handler_verify(const IdemRelayConfig *config);

/* Look the function up again before the next event, and free the memory of the last one. */
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

/*
 * Of handler_reset.c: the session that a handler finds, and what becomes of what it
 * leaves.  Around the handlers of a batch:
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
 */

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

#endif							/* IDEM_RELAY_FUNCTION_FUNCTION_H */
